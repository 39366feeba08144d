//! Benchmarks of burn-dist: each sub-command measures one thing, prints a table, and writes JSON.

mod collectives;
mod error;
mod machine;
mod regime;
mod report;
mod size;
mod stats;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Benchmarks of burn-dist: each sub-command prints a table and writes JSON into results/.
#[derive(Parser)]
#[command(name = "bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Collectives(collectives::CollectivesArgs),
    /// One rank of `collectives`, started by it.
    #[command(hide = true, name = collectives::rank::RANK_COMMAND)]
    CollectivesRank(collectives::rank::RankArgs),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Collectives(args) => collectives::run(&args),
        Command::CollectivesRank(args) => collectives::rank::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

//! Benchmarks of burn-dist: each sub-command measures one thing, prints a table, and writes JSON.

mod checkpoint;
mod collectives;
mod error;
mod gpu;
mod loader;
mod machine;
mod regime;
mod report;
mod sharding;
mod size;
mod stats;
mod table;
mod training;

use std::ffi::OsString;
use std::process::ExitCode;

use burn_dist::thread_pool::PoolSize;
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
    Checkpoint(checkpoint::CheckpointArgs),
    Collectives(collectives::CollectivesArgs),
    /// One rank of `collectives`, started by it.
    #[command(hide = true, name = collectives::rank::RANK_COMMAND)]
    CollectivesRank(collectives::rank::RankArgs),
    Gpu(gpu::GpuArgs),
    #[command(hide = true, name = gpu::part::COMMAND)]
    GpuPart(gpu::part::PartArgs),
    Loader(loader::LoaderArgs),
    Sharding(sharding::ShardingArgs),
    /// The program `trainer` as it is, with its own arguments: one file to carry to another
    /// machine.
    #[command(disable_help_flag = true)]
    Trainer {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    Training(training::TrainingArgs),
    /// The bare loop of `training`, started by it.
    #[command(hide = true, name = training::bare::COMMAND)]
    TrainingBare(training::bare::BareArgs),
    /// The trainer's loop of `training`, started by it.
    #[command(hide = true, name = training::trained::COMMAND)]
    TrainingTrained(training::trained::TrainedArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // As in the trainer, so that the loop without it runs under the same conditions.
    trainer::system::allocator::keep_freed_memory();
    // The trainer does so itself, once it knows the number of ranks.
    if !matches!(cli.command, Command::Trainer { .. }) {
        let joined = PoolSize::of_process().join();
        if let Err(error) = joined {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    let done = match cli.command {
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Collectives(args) => collectives::run(&args),
        Command::CollectivesRank(args) => collectives::rank::run(&args),
        Command::Gpu(args) => gpu::run(&args),
        Command::GpuPart(args) => gpu::part::run(&args),
        Command::Loader(args) => loader::run(&args),
        Command::Sharding(args) => sharding::run(&args),
        Command::Trainer { arguments } => return trainer::cli::main_within("trainer", arguments),
        Command::Training(args) => training::run(&args),
        Command::TrainingBare(args) => training::bare::run(&args),
        Command::TrainingTrained(args) => training::trained::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

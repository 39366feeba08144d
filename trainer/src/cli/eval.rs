//! `trainer eval`: evaluates a trained model on the test images.

use std::path::PathBuf;

use burn_dist::world::{Launch, World};
use clap::Args;

use super::args::TrainedArgs;
use super::failure::Failure;
use super::output::{self, Way};
use super::ranks::{Ranks, check_readable, on_ranks, world_size};
use crate::config::paths;
use crate::error::TrainError;
use crate::system::output::{complain, say};

/// Arguments of `trainer eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    #[command(flatten)]
    trained: TrainedArgs,
    /// Starts N ranks on this machine that share the images.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nproc: Option<u16>,
    /// Also writes the result to this JSON file.
    #[arg(long, value_name = "FILE", value_parser = paths::argument())]
    json: Option<PathBuf>,
}

impl EvalArgs {
    /// Number of ranks to start, if given.
    pub fn nproc(&self) -> Option<u16> {
        self.nproc
    }
}

/// Evaluates and prints the result.
pub fn run(args: &EvalArgs, world: &World) -> Result<i32, Failure> {
    let size = world_size(args.nproc, 1, world)?;
    let check = || match (world.is_main(), &args.json) {
        (true, Some(path)) => output::check("--json", path, Way::InPlace),
        _ => Ok(()),
    };
    if world.launch() == Launch::Single {
        check()?;
    }
    let ranks = Ranks::without_restarts(size);
    check_readable(args.trained.config.as_deref(), ranks, world)?;
    let trained = args.trained.find()?;
    trained.check_has_data()?;
    let unknown = || None;
    on_ranks(ranks, world, unknown, || {
        if world.is_main() {
            let notes = trained.notes.iter().chain(&trained.data_note);
            notes.for_each(|note| say(note));
            say(&trained.title());
        }
        // A rank that ends before the ranks connect would leave the others waiting.
        let ready = || check().map_err(|failure| TrainError::Refused(failure.to_string()));
        let evaluated = trained.evaluate_if(world, ready)?;
        if !world.is_main() {
            return Ok(0);
        }
        trained.taken().iter().for_each(|note| complain(note));
        say(&evaluated.line);
        if let Some(path) = &args.json {
            let mut json = serde_json::json!({
                "checkpoint": trained.path.display().to_string(),
                "step": trained.step,
                "evaluation": evaluated.evaluation,
                "details": evaluated.details,
            });
            if trained.step.is_none() {
                json["details"]["step"] = serde_json::Value::Null;
            }
            output::write(path, format!("{json:#}\n").as_bytes())?;
        }
        Ok(0)
    })
}

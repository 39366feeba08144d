//! `trainer eval`: evaluates a trained model on the test data, or that for validation.

use std::path::PathBuf;

use burn_dist::world::{Launch, World};
use clap::Args;

use super::args::TrainedArgs;
use super::failure::Failure;
use super::json_lines::is_stdout;
use super::output::{self, Way};
use super::ranks::{Ranks, check_readable, on_ranks, world_size};
use crate::config::{DataConfig, EvalSet, paths};
use crate::error::TrainError;
use crate::system::output::{complain, note, say, tell};

/// Arguments of `trainer eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    #[command(flatten)]
    trained: TrainedArgs,
    /// Evaluates on the validation data (val) or the test data. Defaults to test, if there are
    /// both.
    #[arg(long, value_name = "val|test", value_parser = eval_set)]
    on: Option<EvalSet>,
    /// Starts N ranks on this machine that share the data.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nproc: Option<u16>,
    /// Also writes the result to this JSON file. With -, standard output gets it and nothing else.
    #[arg(long, value_name = "FILE", value_parser = paths::argument())]
    json: Option<PathBuf>,
}

impl EvalArgs {
    /// Number of ranks to start, if given.
    pub fn nproc(&self) -> Option<u16> {
        self.nproc
    }
}

/// Parses the value of `--on`.
fn eval_set(text: &str) -> Result<EvalSet, String> {
    let known = [EvalSet::Val, EvalSet::Test];
    let found = known.into_iter().find(|set| set.name() == text);
    found.ok_or_else(|| "use val or test".to_owned())
}

/// The data to evaluate on.
fn data(args: &EvalArgs, config: &DataConfig) -> Result<EvalSet, Failure> {
    match args.on {
        None => Ok(config.evaluated_at_end()),
        Some(on) if config.has(on) => Ok(on),
        Some(on) => Err(Failure::Usage(format!(
            "--on {} is not possible: {}",
            on.name(),
            match on {
                EvalSet::Val => "data.validation is not set, and the data has no folder val",
                EvalSet::Test => "the data has no folder test",
            }
        ))),
    }
}

/// Evaluates and prints the result.
pub fn run(args: &EvalArgs, world: &World) -> Result<i32, Failure> {
    let size = world_size(args.nproc, 1, world)?;
    let check = || match (world.is_main(), &args.json) {
        (true, Some(path)) if !is_stdout(path) => output::check("--json", path, Way::InPlace),
        _ => Ok(()),
    };
    if world.launch() == Launch::Single {
        check()?;
    }
    let to_stdout = args.json.as_deref().is_some_and(is_stdout);
    let ranks = Ranks {
        direct_output: to_stdout,
        ..Ranks::without_restarts(size)
    };
    check_readable(args.trained.config.as_deref(), ranks, world)?;
    let trained = args.trained.find()?;
    trained.check_has_data()?;
    let on = data(args, &trained.loaded.config.data)?;
    let unknown = || None;
    on_ranks(ranks, world, unknown, || {
        if world.is_main() {
            let notes = trained.notes.iter().chain(&trained.data_note);
            notes.for_each(|text| note(text));
            if !to_stdout {
                tell(&trained.title());
            }
        }
        // A rank that ends before the ranks connect would leave the others waiting.
        let ready = || check().map_err(|failure| TrainError::Refused(failure.to_string()));
        let evaluated = trained.evaluate_if(world, on, ready)?;
        if !world.is_main() {
            return Ok(0);
        }
        trained.taken().iter().for_each(|note| complain(note));
        if !to_stdout {
            say(&evaluated.line);
        }
        if let Some(path) = &args.json {
            let mut json = serde_json::json!({
                "checkpoint": trained.path.display().to_string(),
                "step": trained.step,
                "set": evaluated.set,
                "evaluation": evaluated.evaluation,
                "details": evaluated.details,
            });
            if trained.step.is_none() {
                json["details"]["step"] = serde_json::Value::Null;
            }
            match to_stdout {
                true => say(&format!("{json:#}")),
                false => output::write(path, format!("{json:#}\n").as_bytes())?,
            }
        }
        Ok(0)
    })
}

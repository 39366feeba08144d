//! Trains a custom model with the trainer's loop and observes it with a callback.
//!
//! `cargo run --release --example custom_callback -- digits.toml runs/mine train.epochs=1`: the
//! configuration, the run folder, and any number of settings.

use std::error::Error;

use burn_dist::world::World;
use models::CnnConfig;
use trainer::config::Loaded;
use trainer::run::metrics::TrainLine;
use trainer::train::callback::{Action, AfterEvaluation, Begin, Callback, CallbackError};
use trainer::{Summary, Trainer, prepare_process};

/// Ends the run when the smoothed loss is low.
struct UntilLossIs {
    target: f64,
    smoothed: Option<f64>,
    speaks: bool,
}

impl Callback for UntilLossIs {
    fn on_begin(&mut self, begin: &Begin<'_>) -> Result<(), CallbackError> {
        self.speaks = begin.rank == 0;
        Ok(())
    }

    fn on_step(&mut self, step: &TrainLine) -> Result<Action, CallbackError> {
        let before = self.smoothed.unwrap_or(step.loss);
        let smoothed = 0.9 * before + 0.1 * step.loss;
        self.smoothed = Some(smoothed);
        Ok(match smoothed < self.target {
            true => Action::Stop,
            false => Action::Continue,
        })
    }

    fn on_evaluation(&mut self, epoch: &AfterEvaluation<'_>) -> Result<Action, CallbackError> {
        if self.speaks {
            let accuracy = 100.0 * epoch.evaluation.metric("accuracy").unwrap_or(f64::NAN);
            println!("callback: epoch {} reached {accuracy:.1} %", epoch.epoch);
        }
        Ok(Action::Continue)
    }

    fn on_end(&mut self, summary: &Summary) -> Result<(), CallbackError> {
        if self.speaks {
            println!("callback: {:?} after {} steps", summary.end, summary.steps);
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let config = args.next().unwrap_or("digits.toml".into());
    let run_dir = args.next().unwrap_or("runs/custom-callback".into());
    let loaded = Loaded::load(&config, &args.collect::<Vec<_>>())?;
    let world = World::from_env()?;
    prepare_process(&world)?;
    let callback = UntilLossIs {
        target: 1.0,
        smoothed: None,
        speaks: false,
    };
    let summary = Trainer::new(&loaded, &world)
        .run_dir(run_dir)
        .callback(callback)
        .run_model(|device, data| {
            // Any type that implements `ImageClassifier` works here.
            CnnConfig::new()
                .with_classes(data.class_names().len())
                .with_filters([8, 16])
                .with_hidden(32)
                .init(device)
        })?;
    std::process::exit(summary.exit_code())
}

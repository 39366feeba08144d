//! Trains image models on one device or many: the library behind the program `trainer`.
//!
//! [`config`] turns a TOML file into a checked configuration; [`run()`] trains what it says, as one
//! rank of a [`World`](burn_dist::world::World). The rest is what a run consists of, in the order
//! of use: [`data`], [`model`] and [`optimizer`] build what the configuration names, the training
//! loop goes through epochs and steps, [`mod@evaluate`] measures, [`metrics`] and [`console`]
//! tell programs and people.

pub mod allocator;
mod batch;
mod checkpointing;
pub mod cli;
pub mod config;
pub mod console;
pub mod data;
pub mod early_stopping;
mod error;
pub mod evaluate;
mod loss;
pub mod metrics;
pub mod model;
pub mod optimizer;
mod panics;
pub mod preview;
pub mod progress;
mod record;
pub mod resume;
mod run;
pub mod run_dir;
pub mod schedule;
mod seed;
mod signals;
mod train;

pub use error::TrainError;
pub use resume::Resume;
pub use run::{Plan, RunOptions, plan, run};
pub use train::Summary;

/// Exit code of a run that failed.
pub const FAILED: i32 = 1;
/// Exit code for wrong arguments or a wrong configuration, before anything is started.
pub const USAGE: i32 = 2;
/// Exit code of a run that stopped early with a checkpoint and wants to be started again.
/// Reserved: no version stops early by itself yet.
pub const STOPPED_EARLY: i32 = 75;

//! Trains image models on one device or many: the library behind the program `trainer`.
//!
//! [`config`] turns a TOML file into a checked configuration; a [`Trainer`] trains what it says, as
//! one rank of a [`World`](burn_dist::world::World), and calls [`callback`](train::callback)s
//! meanwhile.
//!
//! A module imports only from those that stand below it here:
//!
//! - [`cli`]: the program's commands;
//! - [`tools`]: what is done beside training: evaluate, predict, export, plan, find a learning
//!   rate;
//! - [`train`]: the loop, and what it builds: model, optimizer, schedule, checkpoints;
//! - [`report`]: the HTML report of a run;
//! - [`eval`]: losses, scores, and an evaluation over all ranks;
//! - [`run`]: the folder of a run, its metrics, lock and console;
//! - [`data`]: what the configuration names as data, and batches of it on the device;
//! - [`system`]: output, signals, panics, memory, threads, devices;
//! - [`config`]: the configuration.

pub mod cli;
pub mod config;
pub mod data;
mod error;
pub mod eval;
pub mod report;
pub mod run;
pub mod system;
pub mod tools;
pub mod train;

pub use error::TrainError;
pub use run::resume::Resume;
pub use system::process::prepare_process;
pub use tools::plan::{Plan, plan};
pub use train::trainer::Trainer;
pub use train::{End, Summary};

/// Exit code of a run that failed.
pub const FAILED: i32 = 1;
/// Exit code for wrong arguments or a wrong configuration, before anything is started.
pub const USAGE: i32 = 2;
/// Exit code of a run that stopped early with a checkpoint and wants to be started again.
pub const STOPPED_EARLY: i32 = 75;

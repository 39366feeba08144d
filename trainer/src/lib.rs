//! Trains image models on one device or many: the library behind the program `trainer`.
//!
//! [`config`] turns a TOML file into a checked configuration; a [`Trainer`] trains what it says, as
//! one rank of a [`World`](burn_dist::world::World), and calls [`callback`]s meanwhile. The rest is
//! what a run consists of, in the order of use: [`data`], [`model`] and [`optimizer`] build what
//! the configuration names, the training loop goes through epochs and steps, an
//! [`Evaluation`](evaluate::Evaluation) says how good the model is, [`metrics`] and [`console`] tell programs and people.

mod activations;
pub mod allocator;
mod batch;
pub mod callback;
mod changes;
mod checkpointing;
mod class_names;
pub mod cli;
pub mod compute;
pub mod config;
pub mod console;
mod dashboard;
pub mod data;
mod device;
mod device_data;
pub mod early_stopping;
pub mod environment;
mod error;
pub mod evaluate;
pub mod evaluation_details;
mod few_values;
mod flat_loss;
mod free_memory;
mod group;
mod initial;
mod limits;
mod loss;
pub mod lr_find;
mod memory;
pub mod metrics;
mod misfit;
pub mod model;
mod named_weights;
mod normalization;
pub mod optimizer;
mod panics;
mod paths;
pub mod peak;
mod plan;
pub mod preview;
mod process;
pub mod progress;
mod reading;
mod record;
pub mod report;
pub mod resume;
mod run;
pub mod run_dir;
mod run_lock;
pub mod run_log;
mod same_config;
mod same_data;
pub mod schedule;
mod scores;
mod seed;
mod signals;
mod stack;
pub mod tensorboard;
pub mod threads;
mod train;
pub mod trained;
mod whole_file;

pub use error::TrainError;
pub use plan::{Plan, plan};
pub use process::prepare_process;
pub use resume::Resume;
pub use run::Trainer;
pub use train::{End, Summary};

/// Exit code of a run that failed.
pub const FAILED: i32 = 1;
/// Exit code for wrong arguments or a wrong configuration, before anything is started.
pub const USAGE: i32 = 2;
/// Exit code of a run that stopped early with a checkpoint and wants to be started again.
pub const STOPPED_EARLY: i32 = 75;

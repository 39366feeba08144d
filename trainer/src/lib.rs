//! Trains models on one device or many: the library behind the program `trainer`.
//!
//! [`config`] parses and checks a TOML file. A [`Trainer`] trains what it describes, on each rank
//! of a [`World`](burn_dist::world::World):
//!
//! ```no_run
//! use burn_dist::world::World;
//! use trainer::Trainer;
//! use trainer::config::Loaded;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let loaded = Loaded::load("digits.toml", &["train.epochs=2".to_owned()])?;
//!     let world = World::from_env()?; // Slurm, MPI, torchrun's variables, or a single rank
//!     let summary = Trainer::new(&loaded, &world).run_dir("runs/first").run()?;
//!     if let Some(accuracy) = summary.metric("accuracy") {
//!         println!("accuracy {:.2} %", 100.0 * accuracy);
//!     }
//!     std::process::exit(summary.exit_code());
//! }
//! ```
//!
//! [`Trainer::callback`] adds hooks, [`Trainer::data`] the caller's own images,
//! [`Trainer::run_model`] trains the caller's own image classifier, and [`Trainer::run_task`] the
//! caller's own task.
//!
//! A module imports only from modules below it in this table:
//!
//! | module | contents |
//! |---|---|
//! | [`cli`] | commands of the program |
//! | [`tools`] | evaluate, predict, export, plan, preview, learning rate finder |
//! | [`train`] | training loop: model, optimizer, schedule, checkpoints, callbacks |
//! | [`report`] | HTML report of a run |
//! | [`eval`] | evaluation over all ranks |
//! | [`task`] | tasks: batches, losses and metrics of what is trained |
//! | [`run`] | run folder, its metrics and lock, resume, console |
//! | [`data`] | data sets of the configuration, and batches on the device |
//! | [`system`] | output, signals, panics, memory, threads, devices |
//! | [`config`] | configuration |

pub mod cli;
pub mod config;
pub mod data;
mod error;
pub mod eval;
pub mod report;
pub mod run;
pub mod system;
pub mod task;
pub mod tools;
pub mod train;

pub use error::TrainError;
pub use run::resume::Resume;
pub use system::process::prepare_process;
pub use tools::plan::{Plan, plan};
pub use train::trainer::Trainer;
pub use train::{End, Summary};

/// Exit code of a failed run.
pub const FAILED: i32 = 1;
/// Exit code for wrong arguments or a wrong configuration, before anything has started.
pub const USAGE: i32 = 2;
/// Exit code of a run that paused with a checkpoint and should be started again.
pub const STOPPED_EARLY: i32 = 75;

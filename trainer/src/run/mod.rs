//! A run on disk and on screen: its folder, lock, metrics, resume, console and dashboard.

pub(crate) mod checkpoints;
pub mod console;
pub(crate) mod dashboard;
pub mod dir;
pub mod environment;
pub(crate) mod eta;
pub mod evaluation;
pub mod gallery;
pub(crate) mod group;
pub(crate) mod lock;
pub(crate) mod loggers;
pub mod metrics;
pub mod process;
pub mod resume;
pub(crate) mod same_config;
pub(crate) mod scalars;
pub mod tensorboard;
pub mod throughput;

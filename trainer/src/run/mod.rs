//! A run on disk and on screen: its folder, lock, metrics, resume, console and dashboard.

pub(crate) mod checkpoints;
pub mod console;
pub(crate) mod dashboard;
pub mod dir;
pub mod environment;
pub mod evaluation;
pub(crate) mod group;
pub(crate) mod lock;
pub mod metrics;
pub mod resume;
pub(crate) mod same_config;
pub mod tensorboard;
pub mod throughput;

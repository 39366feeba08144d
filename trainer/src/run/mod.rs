//! A run: its folder, lock and log of numbers, how it is resumed, and what it shows while it goes
//! on.

pub(crate) mod checkpoints;
pub mod console;
pub(crate) mod dashboard;
pub mod dir;
pub mod environment;
pub(crate) mod group;
pub(crate) mod lock;
pub mod metrics;
pub mod resume;
pub(crate) mod same_config;
pub mod tensorboard;

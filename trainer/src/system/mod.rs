//! Process and machine: output, signals, panics, memory, devices.

pub mod allocator;
pub(crate) mod clock;
pub mod compute;
pub(crate) mod device;
pub(crate) mod disk;
pub(crate) mod free_memory;
pub mod host;
pub(crate) mod in_time;
pub(crate) mod limits;
pub mod log;
pub(crate) mod memory;
pub mod output;
pub(crate) mod panics;
pub mod peak;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod signals;
pub(crate) mod stack;
pub(crate) mod whole_file;

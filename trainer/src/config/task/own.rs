//! The program's own task.

use super::AnyTask;
use crate::config::metric::Measure;
use crate::config::section::keys;

keys! {
    /// `own`: a task that a program passes to the library's `Trainer::run_task`.
    OwnTaskConfig {}
}

impl AnyTask for OwnTaskConfig {
    fn measures(&self) -> Option<&'static [Measure]> {
        None
    }

    fn monitor(&self) -> &'static str {
        "loss"
    }
}

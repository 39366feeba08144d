//! Signals that ask a run to save and stop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGTERM, SIGUSR1, SIGXCPU};

use crate::{Error, ProcessGroup, ReduceOp};

/// Exit code of a rank that stopped early with a checkpoint and should be started again.
pub const STOPPED_EARLY: u8 = 75;

/// Notes the signals that batch systems send before the end of a job: SIGTERM, SIGUSR1, SIGXCPU.
///
/// ```no_run
/// # use burn_dist::{ProcessGroup, STOPPED_EARLY, StopSignal};
/// # use std::process::ExitCode;
/// # fn step() {}
/// # fn save() {}
/// fn train(group: &ProcessGroup) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
///     let stop = StopSignal::listen()?;
///     for _ in 0..1000 {
///         step();
///         if stop.on_any_rank(group)? {
///             save();
///             return Ok(STOPPED_EARLY.into());
///         }
///     }
///     Ok(ExitCode::SUCCESS)
/// }
/// ```
///
/// Until the value is dropped, these signals do not end the process.
#[derive(Debug)]
pub struct StopSignal {
    flag: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl StopSignal {
    /// Starts to listen.
    ///
    /// # Errors
    /// Fails if the system refuses a handler.
    pub fn listen() -> io::Result<Self> {
        let mut stop = Self {
            flag: Arc::default(),
            handlers: Vec::new(),
        };
        for signal in [SIGTERM, SIGUSR1, SIGXCPU] {
            let handler = signal_hook::flag::register(signal, Arc::clone(&stop.flag))?;
            stop.handlers.push(handler);
        }
        Ok(stop)
    }

    /// Whether this process got a signal.
    pub fn is_requested(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Whether any rank got a signal. A collective call: all ranks stop after the same step.
    ///
    /// # Errors
    /// Fails if the collective fails.
    pub fn on_any_rank(&self, group: &ProcessGroup) -> Result<bool, Error> {
        let mut any = [u8::from(self.is_requested())];
        group.all_reduce(&mut any, ReduceOp::Max)?;
        Ok(any[0] > 0)
    }
}

impl Drop for StopSignal {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}

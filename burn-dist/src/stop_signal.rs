//! Signals that ask a run to save and stop.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use signal_hook::SigId;
use signal_hook::consts::{SIGTERM, SIGUSR1, SIGXCPU};

use crate::{Error, ProcessGroup, ReduceOp};

/// Exit code of a rank that stopped early with a checkpoint and should be started again.
pub const STOPPED_EARLY: u8 = 75;

const SIGNALS: [i32; 3] = [SIGTERM, SIGUSR1, SIGXCPU];

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
/// Until the last value is dropped, these signals do not end the process; then they do again.
#[derive(Debug)]
pub struct StopSignal {
    flag: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

/// Whether nobody listens: then the signals end the process, as they do by default.
static IDLE: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// Number of listeners.
static LISTENERS: Mutex<usize> = Mutex::new(0);

/// Notes another listener, or one fewer. The system's default actions come back with none.
fn count(change: impl FnOnce(usize) -> usize) -> io::Result<()> {
    let mut listeners = LISTENERS.lock();
    let idle = match IDLE.get() {
        Some(idle) => idle,
        None => {
            let idle = Arc::new(AtomicBool::new(true));
            for signal in SIGNALS {
                signal_hook::flag::register_conditional_default(signal, Arc::clone(&idle))?;
            }
            IDLE.get_or_init(|| idle)
        }
    };
    *listeners = change(*listeners);
    idle.store(*listeners == 0, Ordering::Relaxed);
    Ok(())
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
        count(|listeners| listeners + 1)?;
        for signal in SIGNALS {
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
        // Nothing is registered any more that could fail.
        let _ = count(|listeners| listeners.saturating_sub(1));
    }
}

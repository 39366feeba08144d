//! The signals that a launcher handles, as a queue.

use rustix::process::{Signal, getpgrp};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGXCPU};
use signal_hook::flag::register_conditional_default;
use signal_hook::iterator::{Handle, Signals};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Receives signals for as long as it exists.
pub(in crate::launch) struct Inbox {
    queue: Receiver<i32>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    idle: Arc<AtomicBool>,
}

/// A received signal.
pub(in crate::launch) enum Received {
    /// No signal, but a rank may have ended.
    Nothing,
    /// SIGINT. From a terminal it probably went to the ranks too.
    Interrupt { by_terminal: bool },
    /// SIGTERM.
    Terminate,
    /// A signal to pass on.
    Other(Signal),
}

impl Received {
    /// Whether it requests an end or an early stop.
    pub(in crate::launch) fn asks_to_stop(&self) -> bool {
        !matches!(self, Self::Nothing)
    }
}

impl Inbox {
    pub(in crate::launch) fn open() -> std::io::Result<Self> {
        let idle = default_when_idle()?;
        let mut signals = Signals::new([SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGXCPU])?;
        let handle = signals.handle();
        let (sender, queue) = channel();
        let thread = std::thread::Builder::new().name("signals".into());
        let thread = thread.spawn(move || {
            for signal in signals.forever() {
                if sender.send(signal).is_err() {
                    return;
                }
            }
        })?;
        idle.store(false, Ordering::SeqCst);
        Ok(Self {
            queue,
            handle,
            thread: Some(thread),
            idle,
        })
    }

    /// Waits for a signal, at most `limit`.
    pub(in crate::launch) fn receive(&self, limit: Duration) -> Received {
        match self.queue.recv_timeout(limit) {
            Ok(SIGINT) => Received::Interrupt {
                by_terminal: in_foreground(),
            },
            Ok(SIGTERM) => Received::Terminate,
            Ok(SIGUSR1) => Received::Other(Signal::USR1),
            Ok(SIGXCPU) => Received::Other(Signal::XCPU),
            _ => Received::Nothing,
        }
    }

    /// Whether signals are queued, except those about ranks that ended.
    pub(in crate::launch) fn has_more(&self) -> bool {
        self.queue.try_iter().any(|signal| signal != SIGCHLD)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.idle.store(true, Ordering::SeqCst);
    }
}

/// Restores the default effect of signals while no launcher runs, so that Ctrl-C works afterwards.
/// A handler stays installed for the rest of the process.
fn default_when_idle() -> std::io::Result<Arc<AtomicBool>> {
    static IDLE: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(idle) = IDLE.get() {
        return Ok(Arc::clone(idle));
    }
    let idle = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGUSR1, SIGXCPU] {
        register_conditional_default(signal, Arc::clone(&idle))?;
    }
    Ok(Arc::clone(IDLE.get_or_init(|| idle)))
}

/// Whether a key at the terminal would reach this process and the ranks in its process group.
fn in_foreground() -> bool {
    let Ok(terminal) = std::fs::File::open("/dev/tty") else {
        return false;
    };
    tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp())
}

//! The signals that a launcher acts on, as a queue.

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
pub(super) struct Inbox {
    queue: Receiver<i32>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    idle: Arc<AtomicBool>,
}

/// What came.
pub(super) enum Received {
    /// Time to look around: a rank may have ended.
    Nothing,
    /// SIGINT; probably from the terminal, that is, to the ranks as well.
    Interrupt { by_terminal: bool },
    /// SIGTERM.
    Terminate,
    /// To be passed on.
    Other(Signal),
}

impl Received {
    /// Whether somebody wants an end, or an early stop.
    pub(super) fn asks_to_stop(&self) -> bool {
        !matches!(self, Self::Nothing)
    }
}

impl Inbox {
    pub(super) fn open() -> std::io::Result<Self> {
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

    /// Waits for a signal, `limit` at most.
    pub(super) fn receive(&self, limit: Duration) -> Received {
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

    /// Whether signals have come that nobody has received, beside news of ranks.
    pub(super) fn has_more(&self) -> bool {
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

/// Once caught, a signal stays caught for the rest of the process; this gives it its usual effect
/// again while no launcher runs, so that Ctrl-C still works afterwards.
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

/// Whether a key at the terminal would reach this process and, in the same group, the ranks.
fn in_foreground() -> bool {
    let Ok(terminal) = std::fs::File::open("/dev/tty") else {
        return false;
    };
    tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp())
}

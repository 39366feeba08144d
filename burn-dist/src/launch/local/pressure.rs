//! When and how running ranks are asked to end, and when they are killed.

use super::ranks::Ranks;
use super::signals::Received;
use crate::deadline;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Time from SIGTERM to SIGKILL.
pub(super) const AFTER_TERM: Duration = Duration::from_secs(2);
/// How much later ranks get a Ctrl-C that the terminal seems to have sent to them too.
const AFTER_TERMINAL: Duration = Duration::from_secs(1);
/// A SIGINT this soon after another counts as the same.
const SAME_INTERRUPT: Duration = Duration::from_millis(150);
/// Time for ranks to end after a second Ctrl-C.
const AFTER_SECOND_INTERRUPT: Duration = Duration::from_secs(1);
/// Time for ranks to end after a second SIGTERM.
const AFTER_SECOND_TERM: Duration = Duration::from_secs(2);
/// Pause between looks at the ranks without a signal.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// The signals that ranks get because of signals to the launcher, failures, and orders.
#[derive(Default)]
pub(in crate::launch) struct Pressure {
    /// Set once the ranks must end early.
    ending: Option<Ending>,
    /// Time for ranks to end after a signal to the launcher, if limited.
    stop_grace: Option<Duration>,
    /// The signal that ended the run, if it came before any failure.
    pub(in crate::launch) signal: Option<i32>,
    /// Number of SIGINTs so far.
    interrupts: usize,
    /// When the last one came.
    interrupted_at: Option<Instant>,
    /// Number of SIGTERMs so far.
    terminations: usize,
    /// Whether a signal has requested an end or an early stop.
    pub(in crate::launch) told: bool,
}

/// How to end the remaining ranks.
struct Ending {
    /// When to ask them to end, and with which signal; once.
    ask: Option<(Instant, Signal)>,
    /// When to kill them, if there is a limit.
    kill: Option<Instant>,
}

impl Pressure {
    pub(in crate::launch) fn new(stop_grace: Option<Duration>) -> Self {
        Self {
            stop_grace,
            ..Self::default()
        }
    }

    /// Acts on a signal to the launcher; `failed` says whether a rank has failed before.
    pub(in crate::launch) fn heed(&mut self, received: &Received, ranks: &Ranks, failed: bool) {
        self.told |= received.asks_to_stop();
        match *received {
            Received::Nothing => {}
            Received::Interrupt { by_terminal } => self.interrupt(by_terminal, failed),
            Received::Terminate => self.terminate(failed),
            Received::Other(signal) => ranks.signal(signal),
        }
    }

    /// Whether the ranks are being ended.
    pub(in crate::launch) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether SIGINT or SIGTERM has come.
    pub(in crate::launch) fn asked_to_end(&self) -> bool {
        self.signal.is_some() || self.terminations > 0
    }

    /// Whether the user asked more than once: the ranks may have ended without a checkpoint.
    pub(in crate::launch) fn was_urgent(&self) -> bool {
        self.interrupts + self.terminations > 1
    }

    /// Ends the ranks because one has failed; they have `grace` to report and end by themselves.
    pub(in crate::launch) fn end_after_failure(&mut self, grace: Duration) {
        let ask = deadline::after(grace);
        self.end(Some((ask, Signal::TERM)), Some(ask + AFTER_TERM));
    }

    /// Sends SIGTERM now, and SIGKILL after `limit`.
    pub(in crate::launch) fn end_within(&mut self, limit: Duration) {
        let ask = (Instant::now(), Signal::TERM);
        self.end(Some(ask), Some(deadline::after(limit)));
    }

    /// Handles Ctrl-C, which a terminal also sends to the ranks.
    fn interrupt(&mut self, by_terminal: bool, failed: bool) {
        let now = Instant::now();
        // Programs around this one may pass on what a terminal sends to all.
        let before = self.interrupted_at.replace(now);
        if before.is_some_and(|before| now.duration_since(before) < SAME_INTERRUPT) {
            return;
        }
        self.interrupts += 1;
        self.note_signal(Signal::INT, failed);
        match self.interrupts {
            1 => {
                // If the sender was not a terminal after all, the remaining ranks get the signal a
                // little later.
                let ask = match by_terminal {
                    true => now + AFTER_TERMINAL,
                    false => now,
                };
                let kill = self.stop_grace.map(deadline::after);
                self.end(Some((ask, Signal::INT)), kill);
            }
            2 => {
                let kill = Some(now + AFTER_SECOND_INTERRUPT);
                self.end(Some((now, Signal::TERM)), kill);
            }
            _ => self.end(None, Some(now)),
        }
    }

    fn terminate(&mut self, failed: bool) {
        let now = Instant::now();
        self.terminations += 1;
        let kill = match self.terminations {
            1 => self.stop_grace.map(deadline::after),
            _ => Some(now + AFTER_SECOND_TERM),
        };
        self.note_signal(Signal::TERM, failed);
        self.end(Some((now, Signal::TERM)), kill);
    }

    fn note_signal(&mut self, signal: Signal, failed: bool) {
        if !failed {
            self.signal = self.signal.or(Some(signal.as_raw()));
        }
    }

    /// Ends the run. Earlier decisions can only become stricter.
    fn end(&mut self, ask: Option<(Instant, Signal)>, kill: Option<Instant>) {
        let before = self.ending.as_ref().and_then(|ending| ending.kill);
        let kill = before.into_iter().chain(kill).min();
        let ask = ask.or(self.ending.as_ref().and_then(|ending| ending.ask));
        self.ending = Some(Ending { ask, kill });
    }

    /// Sends the signals that are due to the remaining ranks.
    pub(in crate::launch) fn press(&mut self, ranks: &mut Ranks) {
        let Some(ending) = &mut self.ending else {
            return;
        };
        let now = Instant::now();
        if let Some((_, signal)) = ending.ask.take_if(|(at, _)| *at <= now) {
            ranks.hurry(signal);
        }
        if ending.kill.is_some_and(|kill| kill <= now) {
            ranks.hurry(Signal::KILL);
        }
    }

    /// How long nothing is due.
    pub(in crate::launch) fn next_look(&self) -> Duration {
        let Some(ending) = &self.ending else {
            return HEARTBEAT;
        };
        let ask = ending.ask.map(|(ask, _)| ask);
        let Some(next) = ask.into_iter().chain(ending.kill).min() else {
            return HEARTBEAT;
        };
        let left = next.saturating_duration_since(Instant::now());
        left.clamp(Duration::from_millis(10), HEARTBEAT)
    }
}

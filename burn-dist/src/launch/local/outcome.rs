//! How a run of local ranks ended, in words and as an exit code.

use std::io;
use std::sync::{Arc, OnceLock};

use signal_hook::consts::SIGKILL;
use signal_hook::low_level::signal_name;

use crate::rendezvous::StoreServer;

/// Exit code of a rank that stopped early with a checkpoint and wants to be restarted.
pub(in crate::launch) const STOPPED_EARLY: i32 = 75;

/// How one rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankExit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl std::fmt::Display for RankExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => match signal_name(signal) {
                Some(name) => write!(f, "was killed by signal {signal} ({name})"),
                None => write!(f, "was killed by signal {signal}"),
            },
        }
    }
}

/// The rank that failed first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankFailure {
    pub(in crate::launch) rank: usize,
    pub(in crate::launch) exit: RankExit,
    pub(in crate::launch) held_up: bool,
    pub(in crate::launch) reason: Option<String>,
    pub(in crate::launch) last_words: Vec<String>,
}

impl RankFailure {
    /// The failure of the only rank.
    pub(in crate::launch) fn of(rank: usize, ended: Ended) -> Self {
        Self {
            rank,
            exit: ended.exit,
            held_up: false,
            reason: None,
            last_words: ended.last_words,
        }
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How it ended.
    pub fn exit(&self) -> RankExit {
        self.exit
    }

    /// Whether the others waited for it until the launcher ended it.
    ///
    /// Its exit code then means nothing.
    pub fn held_others_up(&self) -> bool {
        self.held_up
    }

    /// Whether the system may have killed it for lack of memory: no other killer is known.
    pub fn may_lack_memory(&self) -> bool {
        self.exit == RankExit::Signal(SIGKILL) && self.reason.is_none()
    }

    /// The reason that it told the other ranks, if it had the time.
    ///
    /// If it [held the others up](Self::held_others_up), the reason that one of them told.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Exit code for the launcher: the rank's, or 1 if a signal ended it or it held the others up.
    pub(in crate::launch) fn exit_code(&self) -> u8 {
        match self.exit {
            RankExit::Code(code) if !self.held_up => u8::try_from(code).unwrap_or(1),
            _ => 1,
        }
    }

    /// The last lines of its standard error; empty if that went straight to the terminal.
    pub fn last_words(&self) -> &[String] {
        &self.last_words
    }
}

impl std::fmt::Display for RankFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.held_up {
            true => write!(f, "rank {} blocked the other ranks", self.rank)?,
            false => write!(f, "rank {} {}", self.rank, self.exit)?,
        }
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None if self.may_lack_memory() => f.write_str("; it may be out of memory"),
            None => Ok(()),
        }
    }
}

/// An ended rank.
#[derive(Clone, Debug)]
pub(in crate::launch) struct Ended {
    pub exit: RankExit,
    /// Whether it was asked to end before it did.
    pub hurried: bool,
    pub last_words: Vec<String>,
}

/// The rank that caused a failure. `seen` is the one whose failure was seen first; `ended` finds
/// the end of a rank, if known.
pub(in crate::launch) fn blame(
    store: &StoreServer,
    seen: usize,
    ended: impl Fn(usize) -> Option<Ended>,
) -> Option<RankFailure> {
    // The store knows better who failed first: a rank that fails because of another may end sooner
    // than that one.
    let in_store = store.first_fault();
    let blamed = in_store.as_ref().and_then(|fault| fault.rank);
    let is_to_blame = |rank: usize| {
        let found = ended(rank);
        found.is_some_and(|ended| ended.hurried || ended.exit.is_failure())
    };
    let rank = blamed.filter(|rank| is_to_blame(*rank)).unwrap_or(seen);
    let Ended {
        exit,
        hurried,
        last_words,
    } = ended(rank)?;
    let own = store.abort_reason(rank);
    // It did not end by itself, and others have reported why it should.
    let held_up = own.is_none() && Some(rank) == blamed && hurried;
    let of_others = in_store.filter(|_| held_up).map(|fault| fault.reason);
    Some(RankFailure {
        rank,
        exit,
        held_up,
        reason: own.or(of_others),
        last_words,
    })
}

/// How all ranks ended.
#[derive(Clone, Debug)]
pub struct LaunchOutcome {
    pub(super) exits: Vec<RankExit>,
    pub(super) failure: Option<RankFailure>,
    pub(super) signal: Option<i32>,
    pub(super) told: bool,
    /// Whether ranks failed, and enough were left.
    pub(super) are_enough: bool,
    pub(super) unwritten: Arc<OnceLock<io::Error>>,
}

impl LaunchOutcome {
    /// How each rank ended, in rank order.
    pub fn exits(&self) -> &[RankExit] {
        &self.exits
    }

    /// The rank that failed first, if one failed before the run was stopped.
    pub fn failure(&self) -> Option<&RankFailure> {
        self.failure.as_ref()
    }

    /// The signal that stopped the run from outside.
    pub fn signal(&self) -> Option<i32> {
        self.signal
    }

    /// Whether a signal requested an end or an early stop, even after a rank had failed.
    ///
    /// A program that restarts ranks asks this first.
    pub fn told_to_stop(&self) -> bool {
        self.told
    }

    /// The error if not all standard output of the ranks reached that of this process.
    ///
    /// It does not fail a rank.
    pub fn unwritten(&self) -> Option<&io::Error> {
        self.unwritten.get()
    }

    /// Whether all ranks succeeded.
    pub fn is_success(&self) -> bool {
        self.exit_code() == 0
    }

    /// Exit code for the launcher.
    ///
    /// | code | meaning |
    /// |---|---|
    /// | 0 | all ranks are done |
    /// | of the rank | the rank that failed first |
    /// | 1 | a signal killed that rank, or it held the others up |
    /// | 75 | the ranks stopped early with a checkpoint |
    /// | 130, 143 | Ctrl-C, SIGTERM, unless all ranks ended properly |
    pub fn exit_code(&self) -> u8 {
        if let Some(failure) = &self.failure {
            return failure.exit_code();
        }
        if !self.are_enough && self.exits.iter().any(RankExit::is_failure) {
            return match self.signal {
                Some(signal) => u8::try_from(128 + signal).unwrap_or(1),
                None => 1,
            };
        }
        match self.exits.contains(&RankExit::Code(STOPPED_EARLY)) {
            true => STOPPED_EARLY as u8,
            false => 0,
        }
    }
}

impl std::fmt::Display for LaunchOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.failure, self.signal, self.exit_code()) {
            (Some(failure), ..) => write!(f, "{failure}"),
            (None, _, 0) if self.are_enough => {
                let lost = self.exits.iter().filter(|exit| exit.is_failure()).count();
                write!(f, "all ranks finished but {lost} that the others outlived")
            }
            (None, _, 0) => f.write_str("all ranks finished"),
            // The ranks themselves report whether they wrote a checkpoint.
            (None, _, 75) => f.write_str("the ranks stopped early, with a checkpoint"),
            (None, Some(signal), _) => {
                let name = signal_name(signal).unwrap_or("a signal");
                write!(f, "stopped by {name}")
            }
            (None, None, code) => write!(f, "ended with code {code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RankExit::{Code, Signal};

    fn outcome(exits: &[RankExit], first: Option<usize>, signal: Option<i32>) -> LaunchOutcome {
        LaunchOutcome {
            exits: exits.to_vec(),
            failure: first.map(|rank| RankFailure {
                rank,
                exit: exits[rank],
                held_up: false,
                reason: None,
                last_words: Vec::new(),
            }),
            signal,
            told: signal.is_some(),
            are_enough: false,
            unwritten: Arc::default(),
        }
    }

    #[test]
    fn exit_codes() {
        let code = |exits: &[RankExit], first, signal| outcome(exits, first, signal).exit_code();
        assert_eq!(code(&[Code(0), Code(0)], None, None), 0);
        assert_eq!(code(&[Code(0), Code(75)], None, None), 75);
        assert_eq!(code(&[Code(1), Code(2)], Some(1), None), 2);
        assert_eq!(code(&[Code(1), Signal(9)], Some(1), None), 1);
        assert_eq!(code(&[Code(75), Code(1)], Some(1), None), 1);
        assert_eq!(code(&[Signal(2), Signal(9)], None, Some(2)), 130);
        assert_eq!(code(&[Code(0), Signal(15)], None, Some(15)), 143);
        assert_eq!(code(&[Code(75), Code(75)], None, Some(15)), 75);
        assert_eq!(code(&[Code(0), Code(0)], None, Some(2)), 0);
    }

    #[test]
    fn words() {
        let failed = outcome(&[Code(1), Signal(9)], Some(1), None);
        assert_eq!(
            failed.to_string(),
            "rank 1 was killed by signal 9 (SIGKILL); it may be out of memory"
        );
        let mut failed = outcome(&[Code(0), Code(0), Code(1)], Some(2), None);
        assert_eq!(failed.to_string(), "rank 2 exited with code 1");
        failed.failure.as_mut().unwrap().reason = Some("loss is not finite".into());
        assert_eq!(
            failed.to_string(),
            "rank 2 exited with code 1: loss is not finite"
        );
        // However it ended when it was told to.
        let mut failed = outcome(&[Code(75), Code(1)], Some(0), None);
        let failure = failed.failure.as_mut().unwrap();
        (failure.held_up, failure.reason) = (true, Some("rank 1 waited 3 s for rank 0".into()));
        assert_eq!(
            failed.to_string(),
            "rank 0 blocked the other ranks: rank 1 waited 3 s for rank 0"
        );
        assert_eq!(failed.exit_code(), 1);
        assert_eq!(
            outcome(&[Signal(2)], None, Some(2)).to_string(),
            "stopped by SIGINT"
        );
    }
}

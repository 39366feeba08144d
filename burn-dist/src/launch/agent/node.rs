//! The ranks of one generation on this node.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use super::NodeLauncher;
use super::group::time_to_end;
use super::message::{How, RankReport, Report, Start};
use crate::launch::local::{
    GRACE, LaunchError, Place, Pressure, RankExit, Ranks, Received, SAME_SIGNAL, STOPPED_EARLY,
    THREADS, share_processors,
};
use crate::launch::variables::{FIRST_RANKS, GENERATION, GENERATION_REASON, LAUNCH};
use crate::thread_limit::NoThreads;

/// Time for output that ended ranks have written to be passed on.
const LAST_OUTPUT: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(5);

/// The running ranks of a generation.
pub(super) struct Node {
    pub generation: u32,
    /// Number in the world of the first rank.
    first: usize,
    ranks: Ranks,
    pressure: Pressure,
    failed: bool,
    /// Ended ranks that the leader does not know of yet: a signal that ended them may be about to
    /// reach this process.
    untold: Vec<(usize, RankExit, Instant)>,
}

impl Node {
    /// Starts the ranks of the agent at `index` of a generation.
    pub(super) fn start(
        launcher: &NodeLauncher,
        start: &Start,
        (index, store): (usize, SocketAddr),
        secret: &str,
        shared: impl Iterator<Item = (&'static str, String)> + Clone,
    ) -> Result<Self, LaunchError> {
        let before = start.peers.iter().take(index);
        let first = before.map(|peer| usize::from(peer.ranks)).sum();
        let size = start.peers.iter().map(|peer| usize::from(peer.ranks)).sum();
        let program = launcher.program()?;
        let mut ranks = Ranks::new(first, false);
        for local_rank in 0..launcher.nproc {
            let mut command = Command::new(&program);
            command.args(&launcher.local_args).args(&launcher.args);
            if start.generation > 1 {
                command.args(&launcher.resume_args);
            }
            let place = Place {
                rank: first + local_rank,
                size,
                local_rank,
                local_size: launcher.nproc,
            };
            place.describe(&mut command, store, secret);
            command
                .env(LAUNCH, "agent")
                .env("GROUP_RANK", index.to_string())
                .env("GROUP_WORLD_SIZE", start.peers.len().to_string())
                .env(GENERATION, start.generation.to_string())
                .env(FIRST_RANKS, start.first_ranks.to_string())
                .env(GENERATION_REASON, &start.reason);
            command.envs(shared.clone());
            command.envs(launcher.envs.iter().map(|(name, value)| (name, value)));
            let by_user = launcher.envs.iter().any(|(name, _)| name == THREADS);
            share_processors(&mut command, launcher.nproc, by_user);
            ranks
                .spawn(command)
                .map_err(|source| match NoThreads::of(&source) {
                    Some(limit) => LaunchError::Threads(limit),
                    None => LaunchError::Spawn {
                        rank: first + local_rank,
                        program: program.clone(),
                        source,
                    },
                })?;
        }
        Ok(Self {
            generation: start.generation,
            first,
            ranks,
            pressure: Pressure::new(None),
            failed: false,
            untold: Vec::new(),
        })
    }

    /// Passes a signal to this process on.
    pub(super) fn heed(&mut self, received: &Received) {
        self.pressure.heed(received, &self.ranks, self.failed);
    }

    /// Whether a signal to this process has asked the ranks to end.
    pub(super) fn told(&self) -> bool {
        self.pressure.told
    }

    /// Ends the ranks.
    pub(super) fn stop(&mut self, how: How) {
        match how {
            How::Failure => self.pressure.end_after_failure(GRACE),
            How::Lost | How::Grow => self.pressure.end_within(time_to_end(how)),
        }
    }

    /// Sends the signals that are due, and returns the ranks that have ended, by their number in
    /// the world.
    pub(super) fn step(&mut self) -> Vec<(usize, RankExit)> {
        self.pressure.press(&mut self.ranks);
        let now = Instant::now();
        for (rank, exit) in self.ranks.reap() {
            let asked = exit.is_at_request() && !self.pressure.is_ending();
            let at = if asked { now + SAME_SIGNAL } else { now };
            self.untold.push((rank, exit, at));
        }
        let is_ending = self.pressure.is_ending();
        let mut told = Vec::new();
        self.untold.retain(|(rank, exit, at)| {
            let is_due = *at <= now || is_ending;
            if is_due {
                told.push((self.first + rank, *exit));
            }
            !is_due
        });
        self.failed |= told.iter().any(|(_, exit)| exit.is_failure());
        told
    }

    /// Whether all ranks have ended and [`step`](Self::step) has returned them.
    pub(super) fn is_over(&self) -> bool {
        !self.ranks.any_left() && self.untold.is_empty()
    }

    /// The ends of all ranks. Waits for their last output, at most 3 s.
    pub(super) fn report(&self) -> Report {
        let mut output = self.ranks.last_output();
        let deadline = Instant::now() + LAST_OUTPUT;
        while !output.is_through() {
            if Instant::now() >= deadline {
                output.give_up("nobody read it after the ranks ended");
                break;
            }
            std::thread::sleep(LOOK);
        }
        let exits = self.ranks.exits();
        let ends = exits.iter().enumerate().map(|(rank, exit)| {
            RankReport::of(crate::launch::local::Ended {
                exit: *exit,
                hurried: self.ranks.was_hurried(rank),
                last_words: self.ranks.last_words(rank),
            })
        });
        Report {
            ranks: ends.collect(),
            leaves: self.told(),
        }
    }

    /// Why an agent leaves the group.
    pub(super) fn farewell(&self) -> &'static str {
        match self.pressure.was_urgent() {
            true => "this node left the group after a second signal, perhaps without a checkpoint",
            false => "this node left the group",
        }
    }

    /// Exit code of an agent that leaves the group: that of its ranks.
    pub(super) fn exit_code(&self) -> u8 {
        let exits = self.ranks.exits();
        if exits.iter().any(RankExit::is_failure) {
            let signal = self.pressure.signal.map(|signal| 128 + signal);
            return signal.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
        }
        match exits.contains(&RankExit::Code(STOPPED_EARLY)) {
            true => STOPPED_EARLY as u8,
            false => 0,
        }
    }
}

//! Starts the ranks of a run on this machine, watches them, and reports how the run ended.
//!
//! The launcher hosts the store and does nothing else: no rank waits for it, and it outlives all of
//! them. No rank outlives [`LocalLauncher::run`].

mod outcome;
mod output;
mod place;
mod pressure;
mod ranks;
mod signals;

pub(super) use outcome::{Ended, STOPPED_EARLY, blame};
pub use outcome::{LaunchOutcome, RankExit, RankFailure};
pub(super) use place::{Place, THREADS, share_processors};
pub(super) use pressure::Pressure;
pub(super) use ranks::Ranks;
pub(super) use signals::{Inbox, Received};

use super::variables::LAUNCH;
use crate::deadline;
use crate::open_files::{self, TooFewOpenFiles};
use crate::rendezvous::{self, RendezvousError, StoreServer};
use crate::thread_limit::{self, NoThreads};
use crate::wire::net::working_loopback;
use crate::wire::{Secret, SecretError};
use pressure::AFTER_TERM;
use rustix::process::Signal;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Largest number of ranks on one machine. It guards against typing errors.
pub const MAX_LOCAL_RANKS: usize = 1024;

/// Time for ranks to report their own view after another has failed.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// How much later a signal that ended a rank may arrive here. Ctrl-C goes to all processes, and on
/// a busy machine a rank may have ended before this process gets it.
pub(super) const SAME_SIGNAL: Duration = Duration::from_millis(300);

/// Pause between looks at the output when the ranks have ended.
const OUTPUT_LOOK: Duration = Duration::from_millis(5);

/// Open files per rank: the pipes of its two outputs, and the store's.
pub(super) const FILES_PER_RANK: usize = 2 + rendezvous::FILES_PER_RANK;

/// Threads of this process: the store's, the signal thread and the main thread.
pub(super) const OWN_THREADS: usize = 4;
/// Threads and processes per rank: itself, two readers of its outputs, and two of the store.
pub(super) const THREADS_PER_RANK: usize = 5;

/// The reason why ranks could not be started.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A run needs at least one rank.
    #[error("cannot start 0 ranks; use at least 1")]
    NoRanks,
    /// The number of ranks is too large.
    #[error("cannot start {nproc} ranks on one machine; the maximum is {MAX_LOCAL_RANKS}")]
    TooManyRanks {
        /// The requested number.
        nproc: usize,
    },
    /// The path of this program is unknown.
    #[error("cannot find the executable of this program: {0}")]
    Program(std::io::Error),
    /// The program could not be started.
    #[error("cannot start rank {rank} ({program}): {source}", program = program.display())]
    Spawn {
        /// The rank.
        rank: usize,
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// This process is a rank itself.
    #[error(
        "a local launcher started this process, and it would start as many ranks again. Call \
         World::from_env()?.launch() first, and launch ranks only if it is Launch::Single"
    )]
    WithinRank,
    /// The limit of open files is too low for all ranks.
    #[error(transparent)]
    OpenFiles(#[from] TooFewOpenFiles),
    /// The limit of threads and processes is too low.
    #[error(transparent)]
    Threads(#[from] NoThreads),
    /// No secret could be generated.
    #[error("cannot create a secret for the run: {0}")]
    Secret(#[from] SecretError),
    /// The store did not start.
    #[error("cannot host the store: {0}")]
    Store(#[from] RendezvousError),
    /// The loopback interface is down.
    #[error(
        "cannot connect to this machine's loopback address ({0}). Bring the interface up, for \
         example with `ip link set lo up`"
    )]
    Loopback(std::io::Error),
    /// Signal handlers could not be installed.
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
}

crate::debug_is_display!(LaunchError);

/// Starts ranks of one program on this machine.
///
/// Each rank gets the variables that [`World::from_env`](crate::world::World::from_env) reads, and
/// its share of the CPUs in `RAYON_NUM_THREADS` unless the user set that. Rank 0 writes to the
/// terminal itself, if there is one. Output of the other ranks is passed on in whole lines with a
/// prefix such as `[rank 1] `. Standard input is empty for all.
#[derive(Clone, Debug)]
pub struct LocalLauncher {
    nproc: usize,
    program: Option<PathBuf>,
    args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
    grace: Duration,
    stop_grace: Option<Duration>,
    direct: bool,
    /// Number of ranks that go on without the others.
    enough: usize,
}

impl LocalLauncher {
    /// Starts `nproc` ranks of this program, with this program's arguments.
    pub fn new(nproc: usize) -> Self {
        Self {
            nproc,
            program: None,
            args: std::env::args_os().skip(1).collect(),
            envs: Vec::new(),
            grace: GRACE,
            stop_grace: None,
            direct: false,
            enough: nproc,
        }
    }

    /// Starts another program.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Sets the arguments of the ranks.
    pub fn args<I: IntoIterator<Item: Into<OsString>>>(mut self, args: I) -> Self {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Sets a variable for all ranks.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.envs.push((name.into(), value.into()));
        self
    }

    /// Sets the time for the others to report and end after a rank fails (default 1 s).
    ///
    /// After that they get SIGTERM, and 2 s later SIGKILL.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the time for ranks to end after the launcher gets SIGINT or SIGTERM.
    ///
    /// By default they get as long as they need for their step and a checkpoint. A second SIGINT
    /// ends them within 1 s and a third at once, a second SIGTERM within 2 s, SIGKILL at once.
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.stop_grace = Some(grace);
        self
    }

    /// Sets whether rank 0 writes to this process's standard output itself (default: only to a
    /// terminal).
    ///
    /// Its output then arrives byte for byte: long lines are not cut, and a reader that ends or
    /// pauses does so for rank 0. The other ranks should write nothing to it.
    pub fn direct_output(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Lets the others live when a rank fails, as long as `enough` ranks are left (default: all).
    ///
    /// For ranks that go on with [`ProcessGroup::reform`](crate::ProcessGroup::reform). The run
    /// succeeds if that many do.
    pub fn outlive(mut self, enough: usize) -> Self {
        self.enough = enough.max(1);
        self
    }

    /// Starts the ranks and waits for all of them.
    ///
    /// Ranks that run this program get here too, unless it first asks whether it is a rank:
    ///
    /// ```no_run
    /// use burn_dist::launch::LocalLauncher;
    /// use burn_dist::world::{Launch, World};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let world = World::from_env()?;
    /// if world.launch() == Launch::Single {
    ///     std::process::exit(LocalLauncher::new(2).run()?.exit_code().into());
    /// }
    /// // Here this process is one of the two ranks.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// SIGINT, SIGTERM and SIGUSR1 are passed to the ranks. Ranks may see one twice, since a
    /// terminal's Ctrl-C also goes to them directly. After a second SIGINT they get SIGTERM.
    ///
    /// # Errors
    /// Fails if the ranks cannot be started; started ones are killed. Also fails in a rank of a
    /// local launcher, which would start as many again. A rank that fails is an outcome, not an
    /// error.
    pub fn run(self) -> Result<LaunchOutcome, LaunchError> {
        let is_rank = std::env::var_os(LAUNCH).is_some_and(|launch| launch == "local");
        if is_rank && self.program.is_none() {
            return Err(LaunchError::WithinRank);
        }
        if self.nproc == 0 {
            return Err(LaunchError::NoRanks);
        }
        if self.nproc > MAX_LOCAL_RANKS {
            return Err(LaunchError::TooManyRanks { nproc: self.nproc });
        }
        let program = match &self.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().map_err(LaunchError::Program)?,
        };
        open_files::make_room(self.nproc, FILES_PER_RANK)?;
        thread_limit::make_room(OWN_THREADS + THREADS_PER_RANK * self.nproc)?;
        let (text, secret) = Secret::generate()?;
        let loopback = working_loopback().map_err(LaunchError::Loopback)?;
        let server = StoreServer::bind((loopback, 0).into(), self.nproc, secret)?;
        let server = server.for_runs_in_turn();
        let inbox = Inbox::open().map_err(|error| match NoThreads::of(&error) {
            Some(limit) => LaunchError::Threads(limit),
            None => LaunchError::Signals(error),
        })?;
        let mut ranks = Ranks::new(0, self.direct);
        for rank in 0..self.nproc {
            let mut command = Command::new(&program);
            self.describe_world(&mut command, rank, server.address(), &text);
            ranks
                .spawn(command)
                .map_err(|source| match NoThreads::of(&source) {
                    Some(limit) => LaunchError::Threads(limit),
                    None => LaunchError::Spawn {
                        rank,
                        program: program.clone(),
                        source,
                    },
                })?;
        }
        let watch = Watch {
            launcher: &self,
            server,
            ranks,
            first_failed: None,
            lost: 0,
            pressure: Pressure::new(self.stop_grace),
        };
        Ok(watch.run(&inbox))
    }

    fn describe_world(&self, command: &mut Command, rank: usize, store: SocketAddr, secret: &str) {
        command.args(&self.args);
        command.envs(self.envs.iter().map(|(name, value)| (name, value)));
        let place = Place {
            rank,
            size: self.nproc,
            local_rank: rank,
            local_size: self.nproc,
        };
        place.describe(command, store, secret);
        command.env(LAUNCH, "local");
        let by_user = self.envs.iter().any(|(name, _)| name == THREADS);
        share_processors(command, self.nproc, by_user);
    }
}

/// One run, from the start of its ranks to their end.
struct Watch<'a> {
    launcher: &'a LocalLauncher,
    server: StoreServer,
    ranks: Ranks,
    /// The rank whose failure was seen first.
    first_failed: Option<usize>,
    /// Number of ranks that have failed.
    lost: usize,
    pressure: Pressure,
}

impl Watch<'_> {
    fn run(mut self, inbox: &Inbox) -> LaunchOutcome {
        while self.reap(inbox) {
            self.heed(&inbox.receive(self.pressure.next_look()));
            self.pressure.press(&mut self.ranks);
        }
        self.finish_output(inbox);
        self.pressure.told |= inbox.has_more();
        self.outcome()
    }

    fn heed(&mut self, received: &Received) {
        let failed = self.first_failed.is_some();
        self.pressure.heed(received, &self.ranks, failed);
    }

    /// Waits for output that ranks wrote before they ended, until a signal requests an end.
    fn finish_output(&mut self, inbox: &Inbox) {
        let mut output = self.ranks.last_output();
        let told = self.pressure.asked_to_end();
        let limit = told.then(|| deadline::after(AFTER_TERM));
        while !output.is_through() {
            let over = limit.is_some_and(|limit| limit <= Instant::now());
            let received = inbox.receive(OUTPUT_LOOK);
            self.pressure.told |= received.asks_to_stop();
            if over || matches!(received, Received::Interrupt { .. } | Received::Terminate) {
                return output
                    .give_up("the launcher was asked to stop before all of it was written");
            }
        }
    }

    /// Collects ranks that have ended. Returns whether any is left.
    fn reap(&mut self, inbox: &Inbox) -> bool {
        for (rank, exit) in self.ranks.reap() {
            if exit.is_failure() {
                if exit.is_at_request() {
                    self.hear(inbox);
                }
                self.server.report_failure(rank, &format!("it {exit}"));
                self.lost += 1;
                if self.first_failed.is_none() && self.are_enough_left() {
                    continue;
                }
                match (self.first_failed, self.pressure.signal) {
                    (None, None) => {
                        self.first_failed = Some(rank);
                        self.end_after_failure();
                    }
                    // The others may wait for a collective that this rank no longer reaches.
                    (None, Some(_)) => self.end_after_failure(),
                    (Some(_), _) => {}
                }
            } else {
                let reason = format!("it {exit} before it joined the others");
                self.server.report_absence(rank, &reason);
            }
        }
        self.ranks.any_left()
    }

    /// If a signal seems to have ended a rank and nothing explains it, waits for the signal to
    /// arrive here too: then no rank is to blame.
    fn hear(&mut self, inbox: &Inbox) {
        let limit = deadline::after(SAME_SIGNAL);
        while !self.pressure.is_ending() {
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.heed(&inbox.receive(left));
        }
    }

    fn are_enough_left(&self) -> bool {
        self.launcher.nproc.saturating_sub(self.lost) >= self.launcher.enough
    }

    fn end_after_failure(&mut self) {
        self.pressure.end_after_failure(self.launcher.grace);
    }

    fn outcome(self) -> LaunchOutcome {
        let exits = self.ranks.exits();
        let failure = self.first_failed.and_then(|seen| {
            blame(&self.server, seen, |rank| {
                Some(Ended {
                    exit: *exits.get(rank)?,
                    hurried: self.ranks.was_hurried(rank),
                    last_words: self.ranks.last_words(rank),
                })
            })
        });
        LaunchOutcome {
            are_enough: self.lost > 0 && self.are_enough_left(),
            exits,
            failure,
            signal: self.pressure.signal,
            told: self.pressure.told,
            unwritten: self.ranks.unwritten(),
        }
    }
}

impl RankExit {
    /// Whether the rank failed. A rank that stopped early with a checkpoint did not: the others are
    /// about to do the same.
    pub fn is_failure(&self) -> bool {
        !matches!(self, Self::Code(0 | STOPPED_EARLY))
    }

    /// Whether SIGINT or SIGTERM ended it, directly or in a program that catches them.
    pub(super) fn is_at_request(self) -> bool {
        let requests = [Signal::INT, Signal::TERM].map(Signal::as_raw);
        match self {
            Self::Code(code) => requests.contains(&(code - 128)),
            Self::Signal(signal) => requests.contains(&signal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_numbers_of_ranks_are_refused() {
        let none = LocalLauncher::new(0).program("true").run();
        assert!(matches!(none, Err(LaunchError::NoRanks)));
        let many = LocalLauncher::new(1025).program("true").run();
        assert!(matches!(
            many,
            Err(LaunchError::TooManyRanks { nproc: 1025 })
        ));
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = LocalLauncher::new(2)
            .program("/nowhere/trainer")
            .run()
            .unwrap_err();
        assert!(matches!(error, LaunchError::Spawn { rank: 0, .. }));
        assert!(error.to_string().contains("/nowhere/trainer"), "{error}");
    }

    #[test]
    fn ranks_get_their_variables() {
        let launcher = LocalLauncher::new(2)
            .args(["--x"])
            .env("RAYON_NUM_THREADS", "7");
        let mut command = Command::new("true");
        let store = ([127, 0, 0, 1], 5000).into();
        launcher.describe_world(&mut command, 1, store, "text");
        let get = |name: &str| {
            let mut envs = command.get_envs();
            let found = envs.find(|(key, _)| *key == name);
            found
                .and_then(|(_, value)| value?.to_str())
                .unwrap_or("none")
                .to_owned()
        };
        let names = [
            "RANK",
            "LOCAL_RANK",
            "WORLD_SIZE",
            "LOCAL_WORLD_SIZE",
            "MASTER_ADDR",
        ];
        assert_eq!(names.map(get), ["1", "1", "2", "2", "127.0.0.1"]);
        let names = [
            "MASTER_PORT",
            "BURN_DIST_SECRET",
            "BURN_DIST_LAUNCH",
            "RAYON_NUM_THREADS",
        ];
        assert_eq!(names.map(get), ["5000", "text", "local", "7"]);
        assert_eq!(get("GROUP_RANK"), "none");
    }
}

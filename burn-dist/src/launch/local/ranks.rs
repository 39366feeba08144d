//! The processes of the ranks. Dropping them kills them, so none is left behind even if the
//! launcher fails half-way.

use super::outcome::RankExit;
use super::output::{LastOutput, LastWords, Progress, Reader, pass_on};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};

#[derive(Default)]
pub(in crate::launch) struct Ranks {
    /// Whether rank 0 writes to this process's standard output itself.
    direct: bool,
    /// Number in the world of the first of these ranks.
    first: usize,
    list: Vec<Rank>,
    readers: Vec<Reader>,
    /// The error if a line of a rank did not reach standard output.
    unwritten: Arc<OnceLock<io::Error>>,
}

struct Rank {
    child: Child,
    /// Set once it was waited for; until then its process id is its own.
    exit: Option<RankExit>,
    /// Whether it was asked to end before it did.
    hurried: bool,
    last_words: LastWords,
}

impl Ranks {
    /// Makes an empty list, whose first rank has the number `first` in the world.
    pub(in crate::launch) fn new(first: usize, direct: bool) -> Self {
        Self {
            direct,
            first,
            list: Vec::new(),
            readers: Vec::new(),
            unwritten: Arc::default(),
        }
    }

    /// Starts the next rank.
    pub(in crate::launch) fn spawn(&mut self, mut command: Command) -> std::io::Result<()> {
        let rank = self.first + self.list.len();
        // Rank 0 draws progress bars, which need the terminal itself.
        let direct = |direct: bool| match rank == 0 && direct {
            true => Stdio::inherit(),
            false => Stdio::piped(),
        };
        command
            .stdin(Stdio::null())
            .stdout(direct(self.direct || std::io::stdout().is_terminal()))
            .stderr(direct(std::io::stderr().is_terminal()));
        let child = command.spawn()?;
        let last_words = LastWords::default();
        // From here on the child is in the list, so it is killed whatever fails below.
        self.list.push(Rank {
            child,
            exit: None,
            hurried: false,
            last_words: last_words.clone(),
        });
        let child = self.list.last_mut().map(|rank| &mut rank.child);
        let (out, err) = match child {
            Some(child) => (child.stdout.take(), child.stderr.take()),
            None => (None, None),
        };
        if let Some(out) = out {
            self.read(rank, out, std::io::stdout(), None)?;
        }
        if let Some(err) = err {
            self.read(rank, err, std::io::stderr(), Some(last_words))?;
        }
        Ok(())
    }

    fn read(
        &mut self,
        rank: usize,
        from: impl Read + Send + 'static,
        to: impl Write + Send + 'static,
        last_words: Option<LastWords>,
    ) -> std::io::Result<()> {
        let prefix = match rank {
            0 => String::new(),
            _ => format!("[rank {rank}] "),
        };
        let thread = std::thread::Builder::new().name(format!("output-{rank}"));
        let unwritten = self.unwritten.clone();
        let progress = Arc::new(Progress::default());
        let of_thread = progress.clone();
        let thread = thread.spawn(move || {
            let outcome = pass_on(from, to, &prefix, last_words.as_ref(), &of_thread);
            // Errors on standard error cannot be reported anywhere.
            if let (Err(error), None) = (outcome, last_words) {
                let _ = unwritten.set(error);
            }
        })?;
        self.readers.push(Reader { thread, progress });
        Ok(())
    }

    /// Ranks that have ended since the last call.
    pub(in crate::launch) fn reap(&mut self) -> Vec<(usize, RankExit)> {
        let mut ended = Vec::new();
        for (rank, process) in self.list.iter_mut().enumerate() {
            if process.exit.is_none()
                && let Ok(Some(status)) = process.child.try_wait()
            {
                let exit = describe(status);
                process.exit = Some(exit);
                ended.push((rank, exit));
            }
        }
        ended
    }

    pub(in crate::launch) fn any_left(&self) -> bool {
        self.list.iter().any(|rank| rank.exit.is_none())
    }

    /// Sends a signal to all running ranks.
    pub(in crate::launch) fn signal(&self, signal: Signal) {
        for rank in self.list.iter().filter(|rank| rank.exit.is_none()) {
            let _ = kill_process(Pid::from_child(&rank.child), signal);
        }
    }

    /// Sends a signal that should end them to all running ranks.
    pub(in crate::launch) fn hurry(&mut self, signal: Signal) {
        self.signal(signal);
        for rank in &mut self.list {
            rank.hurried |= rank.exit.is_none();
        }
    }

    /// Whether a rank was asked to end before it did.
    pub(in crate::launch) fn was_hurried(&self, rank: usize) -> bool {
        self.list.get(rank).is_some_and(|rank| rank.hurried)
    }

    /// Returns the exits of the ranks that have ended.
    pub(in crate::launch) fn exits(&self) -> Vec<RankExit> {
        self.list.iter().filter_map(|rank| rank.exit).collect()
    }

    /// The last lines of a rank's standard error.
    pub(in crate::launch) fn last_words(&self, rank: usize) -> Vec<String> {
        let rank = self.list.get(rank);
        rank.map(|rank| rank.last_words.get()).unwrap_or_default()
    }

    /// The error if a line of a rank's standard output did not reach that of this process.
    pub(in crate::launch) fn unwritten(&self) -> Arc<OnceLock<io::Error>> {
        self.unwritten.clone()
    }

    /// Output of ended ranks that has not been passed on yet.
    pub(in crate::launch) fn last_output(&self) -> LastOutput<'_> {
        LastOutput::of(&self.readers, &self.unwritten)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for rank in self.list.iter_mut().filter(|rank| rank.exit.is_none()) {
            let _ = rank.child.wait();
        }
    }
}

fn describe(status: ExitStatus) -> RankExit {
    match (status.code(), status.signal()) {
        (Some(code), _) => RankExit::Code(code),
        (None, Some(signal)) => RankExit::Signal(signal),
        // A process ends by itself or by a signal, so one of the two is set.
        (None, None) => RankExit::Code(1),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use rustix::process::test_kill_process;

    fn sleeping() -> Command {
        let mut command = Command::new("sleep");
        command.arg("60");
        command
    }

    #[test]
    fn dropping_kills() {
        let mut ranks = Ranks::default();
        for _ in 0..3 {
            ranks.spawn(sleeping()).unwrap();
        }
        let pids: Vec<_> = ranks
            .list
            .iter()
            .map(|rank| Pid::from_child(&rank.child))
            .collect();
        assert!(pids.iter().all(|pid| test_kill_process(*pid).is_ok()));
        // As when the launcher panics.
        let panicked = std::thread::spawn(move || {
            let _ranks = ranks;
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.join().is_err());
        assert!(pids.iter().all(|pid| test_kill_process(*pid).is_err()));
    }

    #[test]
    fn a_failed_start_kills_those_before() {
        let mut ranks = Ranks::default();
        ranks.spawn(sleeping()).unwrap();
        let pid = Pid::from_child(&ranks.list[0].child);
        assert!(ranks.spawn(Command::new("/nowhere/program")).is_err());
        drop(ranks);
        assert!(test_kill_process(pid).is_err());
    }

    #[test]
    fn ends_are_told_apart_and_told_once() {
        let mut ranks = Ranks::default();
        for script in ["exit 3", "kill -SEGV $$", "echo words >&2"] {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            ranks.spawn(command).unwrap();
        }
        let start = Instant::now();
        let mut ended = Vec::new();
        while ranks.any_left() {
            assert!(start.elapsed() < Duration::from_secs(20));
            ended.extend(ranks.reap());
        }
        ended.sort_by_key(|(rank, _)| *rank);
        let exits = [RankExit::Code(3), RankExit::Signal(11), RankExit::Code(0)];
        assert_eq!(ended, exits.into_iter().enumerate().collect::<Vec<_>>());
        assert_eq!(ranks.exits(), exits);
        let mut output = ranks.last_output();
        while !output.is_through() {
            assert!(start.elapsed() < Duration::from_secs(20));
        }
        assert_eq!(ranks.last_words(2), ["words"]);
    }
}

//! One log per rank in the run folder: messages, library events, and the reason for the end.
//!
//! The log belongs to the process, like its terminal, so code that writes messages need not know
//! the run. Messages from before the run folder exists wait in memory. A log that cannot be written
//! only warns.

mod events;
mod file;
pub(crate) mod shown;

use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use burn_dist::world::World;
use burn_dist::{Busy, ProcessGroup};

use crate::system::output::outlet::{self, Stream};
use crate::system::{clock, program};

pub use events::events;
use file::LogFile;

/// Folder of the logs, in the run folder.
pub const FOLDER: &str = "logs";

/// Maximum bytes that wait for the run folder.
const MOST_EARLY: usize = 64 << 10;

/// Maximum bytes of one message. Some quote input that they cannot parse.
const MOST_TEXT: usize = 16 << 10;

/// Time to wait for another thread's write. A hanging file system must not keep the process from
/// ending.
const PATIENCE: Duration = Duration::from_millis(500);

static LOG: Mutex<Log> = Mutex::new(Log {
    file: None,
    busy: None,
    early: String::new(),
    has_failed: false,
});

#[derive(Default)]
struct Log {
    /// The file, during a run with a folder.
    file: Option<LogFile>,
    /// Tells the other ranks that this rank is late because of a write.
    busy: Option<Busy>,
    /// Messages from before the file.
    early: String,
    /// Whether the file could not be opened.
    has_failed: bool,
}

/// Opens the log of this rank of `world` in its run folder, and appends messages from now on.
///
/// A flight recorder report of `group` goes into the same folder. Only for ranks of a run; a
/// process is one at a time.
pub(crate) fn start(run_dir: &Path, world: &World, group: &ProcessGroup) {
    let folder = run_dir.join(FOLDER);
    let opened = std::fs::create_dir_all(&folder)
        .and_then(|()| LogFile::open(&folder, &format!("rank-{}", world.rank())))
        .map_err(|error| warn(&folder, &error));
    // Set even if the log failed: the recorder tries again, and otherwise reports through the
    // libraries' log.
    group.keep_flight_recorder_in(folder);
    let (Ok(file), Some(mut log)) = (opened, lock()) else {
        return;
    };
    log.busy = Some(group.busy());
    let early = std::mem::take(&mut log.early);
    let file = log.file.insert(file);
    file.append(&line(&introduction(world)));
    file.append(&early);
}

/// Opens the log of this node's agent once the ranks have created the folder of logs: an empty run
/// folder stays empty before a run.
pub(crate) fn start_of_agent(run_dir: &Path) {
    let folder = run_dir.join(FOLDER);
    let Some(mut log) = lock().filter(|log| log.file.is_none()) else {
        return;
    };
    if !folder.is_dir() {
        return;
    }
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().replace('/', "-");
    match LogFile::open(&folder, &format!("agent-{host}")) {
        Ok(file) => {
            let early = std::mem::take(&mut log.early);
            log.file.insert(file).append(&early);
        }
        Err(error) => {
            let is_new = !std::mem::replace(&mut log.has_failed, true);
            drop(log);
            if is_new {
                warn(&folder, &error);
            }
        }
    }
}

/// First line: this rank and its process.
fn introduction(world: &World) -> String {
    let host = rustix::system::uname();
    format!(
        "rank {} of {}, local rank {}, process {} on {}, trainer {}, features {}",
        world.rank(),
        world.size(),
        world.local_rank(),
        std::process::id(),
        host.nodename().to_string_lossy(),
        program::SHORT,
        program::FEATURES,
    )
}

/// Ends the log of a run with a line on the outcome.
pub(crate) fn finish(outcome: &str) {
    write(outcome);
    if let Some(mut log) = lock() {
        *log = Log::default();
    }
}

/// Adds a message to the log, with the time.
pub(crate) fn write(text: &str) {
    let line = line(text);
    let Some(mut log) = lock() else {
        return;
    };
    let Log {
        file, busy, early, ..
    } = &mut *log;
    match file {
        Some(file) => busy
            .clone()
            .unwrap_or_default()
            .during(|| file.append(&line)),
        // The first messages say most.
        None if early.len() + line.len() <= MOST_EARLY => early.push_str(&line),
        None => {}
    }
}

/// A message as log lines. A line with a time begins an entry; other lines continue it.
fn line(text: &str) -> String {
    let time = clock::rfc3339(SystemTime::now());
    let text = text.trim_end();
    let end = text.floor_char_boundary(MOST_TEXT);
    let (shown, rest) = text.split_at_checked(end).unwrap_or((text, ""));
    let left_out = match rest.len() {
        0 => String::new(),
        bytes => format!(" ... ({bytes} bytes omitted)"),
    };
    let shown = shown.replace('\n', "\n  ");
    format!("{time} {shown}{left_out}\n")
}

/// Locks the log, unless another thread hangs in a write.
fn lock() -> Option<MutexGuard<'static, Log>> {
    let begin = Instant::now();
    loop {
        match LOG.try_lock() {
            Ok(log) => return Some(log),
            Err(TryLockError::Poisoned(log)) => return Some(log.into_inner()),
            Err(TryLockError::WouldBlock) if begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => return None,
        }
    }
}

/// Warns that the log cannot be written, without logging it.
fn warn(path: &Path, error: &io::Error) {
    let text = format!(
        "warning: cannot write the log to {}; the run continues: {error}",
        path.display()
    );
    outlet::put(Stream::Err, &text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_begin_with_a_time_and_other_lines_do_not() {
        let text = line("error: wrong\n2026-01-01 is no time here\n");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].ends_with("Z error: wrong"), "{text}");
        assert_eq!(lines[1], "  2026-01-01 is no time here");
    }

    #[test]
    fn a_text_without_end_is_cut_between_two_characters() {
        let text = line(&"ä".repeat(MOST_TEXT));
        assert!(text.len() < MOST_TEXT + 100);
        assert!(text.ends_with(&format!("ä ... ({MOST_TEXT} bytes omitted)\n")));
    }
}

//! One log per rank in the run folder: what this process tells people, what the libraries say and
//! what ended it, for those who look for the reason later and have only the folder.
//!
//! The log belongs to the process, as its terminal does: whoever has something to say need not know
//! of the run. What is said before the run folder is there waits in memory. A log that cannot be
//! written is a warning, never the end of a run.

mod events;
mod file;

use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use burn_dist::world::World;
use burn_dist::{Busy, ProcessGroup};

use crate::system::clock;
use crate::system::output::outlet::{self, Stream};

pub use events::events;
use file::LogFile;

/// Folder of the logs, in the run folder.
pub const FOLDER: &str = "logs";

/// Most bytes that wait for the run folder.
const MOST_EARLY: usize = 64 << 10;

/// Most bytes of one text: some quote what they do not understand.
const MOST_TEXT: usize = 16 << 10;

/// How long to wait for another thread that writes. A file system that hangs must not keep the
/// process from ending.
const PATIENCE: Duration = Duration::from_millis(500);

static LOG: Mutex<Log> = Mutex::new(Log {
    file: None,
    busy: None,
    early: String::new(),
});

struct Log {
    /// While a run goes on that has a folder.
    file: Option<LogFile>,
    /// Tells the other ranks that this one is late because of it.
    busy: Option<Busy>,
    /// What was said before.
    early: String,
}

/// From now on what this rank of `world` says goes to its file in the folder of its run, `run_dir`,
/// behind what stands there already; and what the flight recorder of `group` has, into a file
/// beside it. Not for others than the ranks of a run, of which a process is one at a time.
pub(crate) fn start(run_dir: &Path, world: &World, group: &ProcessGroup) {
    let folder = run_dir.join(FOLDER);
    let opened = std::fs::create_dir_all(&folder)
        .and_then(|()| LogFile::open(&folder, world.rank()))
        .map_err(|error| warn(&folder, &error));
    // Even so: it tries again, and what it cannot write goes where the libraries' words go.
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

/// Who writes the log.
fn introduction(world: &World) -> String {
    let host = rustix::system::uname();
    format!(
        "rank {} of {}, local rank {}, process {} on {}, trainer {}",
        world.rank(),
        world.size(),
        world.local_rank(),
        std::process::id(),
        host.nodename().to_string_lossy(),
        env!("CARGO_PKG_VERSION"),
    )
}

/// Ends the log of a run with a line that says how it ended.
pub(crate) fn finish(outcome: &str) {
    write(outcome);
    if let Some(mut log) = lock() {
        *log = Log {
            file: None,
            busy: None,
            early: String::new(),
        };
    }
}

/// Adds what was said to the log, with the time.
pub(crate) fn write(text: &str) {
    let line = line(text);
    let Some(mut log) = lock() else {
        return;
    };
    let Log { file, busy, early } = &mut *log;
    match file {
        Some(file) => busy
            .clone()
            .unwrap_or_default()
            .during(|| file.append(&line)),
        // What comes first tells most.
        None if early.len() + line.len() <= MOST_EARLY => early.push_str(&line),
        None => {}
    }
}

/// A text as it stands in the log: what begins with a time is an entry, and other lines belong to
/// the one above.
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

/// The log, unless somebody else writes and does not come to an end.
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

/// Says that there is no log; not in the log.
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

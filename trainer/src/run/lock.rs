//! One run at a time in a run folder. Whoever writes there holds a lock on the folder, and one on a
//! file in it, which network file systems share among hosts; the system gives both back when the
//! process ends, however it ends. The file holds a token as well: a run reads it again before it
//! writes, and ends where it is gone or another's. So a run whose folder or file was removed or
//! replaced is noticed, also where locks do not work.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use burn_dist::files::open_file;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::TrainError;
use crate::run::checkpoints;
use crate::system::output::complain;

/// The file, in the run folder.
const FILE: &str = ".lock";

/// How long to wait for the lock: a process that was killed has it until the system has taken away
/// all that it had.
const PATIENCE: Duration = Duration::from_secs(3);

/// The same where the folder was not there when this run began: whoever has it began at the same
/// time.
const NEW_PATIENCE: Duration = Duration::from_millis(300);

/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// How long to wait for the word of a holder that is about to write it.
const WORD: Duration = Duration::from_secs(1);

/// Most that is read of what it says.
const MAX_BYTES: u64 = 1 << 10;

/// Held as long as the run writes into its folder.
#[derive(Debug)]
pub struct RunLock {
    folder: PathBuf,
    /// What the file says as long as the folder is this run's; nothing if the disk was too full for
    /// it.
    token: Option<String>,
    _locked: [File; 2],
}

impl RunLock {
    /// Takes the lock of a folder that exists.
    ///
    /// # Errors
    /// [`TrainError::RunDirInUse`] if another process has it; if the file cannot be made.
    pub fn take(folder: &Path) -> Result<Self, TrainError> {
        Self::take_within(folder, PATIENCE)
    }

    /// The same of a folder that was made after this run had begun.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_new(folder: &Path) -> Result<Self, TrainError> {
        Self::take_within(folder, NEW_PATIENCE)
    }

    fn take_within(folder: &Path, patience: Duration) -> Result<Self, TrainError> {
        let deadline = Instant::now() + patience;
        let lock = |file: &File| patiently(file, EXCLUSIVE, deadline);
        let (taken, unlocked) = Self::take_by(folder, &lock)?;
        if let Some(error) = unlocked {
            complain(&format!(
                "warning: cannot lock {} ({error}). Start no other run there: of two runs, one \
                 ends when it notices the other",
                folder.display()
            ));
        }
        Ok(taken)
    }

    /// Takes the locks by `lock`; gives why the file has none, if the file system has none to give.
    fn take_by(
        folder: &Path,
        lock: &dyn Fn(&File) -> Result<(), Errno>,
    ) -> Result<(Self, Option<Errno>), TrainError> {
        let path = folder.join(FILE);
        let failed = TrainError::run_dir(&path);
        let lock = |file: &File| match lock(file) {
            Err(Errno::WOULDBLOCK) => Err(in_use(folder)),
            outcome => Ok(outcome.err()),
        };
        // First the folder, which nobody can replace in secret as they can the file. Its lock may
        // be known to this host alone.
        let own = File::open(folder).map_err(&failed)?;
        lock(&own)?;
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(failed)?;
        let unlocked = lock(&file)?;
        // A full disk does not end the run.
        let token = introduce(&mut file).ok();
        let taken = Self {
            folder: folder.to_owned(),
            token,
            _locked: [own, file],
        };
        Ok((taken, unlocked))
    }

    /// Refuses a folder that another process has locked; leaves no trace.
    ///
    /// # Errors
    /// [`TrainError::RunDirInUse`].
    pub fn check(folder: &Path) -> Result<(), TrainError> {
        let deadline = Instant::now() + PATIENCE;
        for opened in [File::open(folder), open_file(&folder.join(FILE))] {
            let shared = FlockOperation::NonBlockingLockShared;
            let locked = opened.map(|file| patiently(&file, shared, deadline));
            if matches!(locked, Ok(Err(Errno::WOULDBLOCK))) {
                return Err(in_use(folder));
            }
        }
        Ok(())
    }

    /// Whether the folder is still this run's; to be asked before anything is written there.
    ///
    /// # Errors
    /// [`TrainError::RunDirLost`] if the token is gone or another's.
    pub fn check_held(&self) -> Result<(), TrainError> {
        let Some(token) = &self.token else {
            return Ok(());
        };
        let lost = |by| {
            Err(TrainError::RunDirLost {
                folder: self.folder.clone(),
                by,
                // What cannot be looked at may hold one.
                saved: checkpoints::has_checkpoint(&self.folder).unwrap_or(true),
            })
        };
        match word(&self.folder.join(FILE)) {
            Ok(found) if found == *token => Ok(()),
            // Another run is writing its token right now, and a part of the old one may still be
            // there.
            Ok(found) if found.is_empty() || holder(&found) == holder(token) => {
                std::thread::sleep(PAUSE);
                lost(last_holder(&self.folder))
            }
            Ok(found) => lost(holder(&found)),
            Err(error) if is_gone(&error) => lost(None),
            // A file system that is out of order for a moment has not given the folder away.
            Err(_) => Ok(()),
        }
    }
}

const EXCLUSIVE: FlockOperation = FlockOperation::NonBlockingLockExclusive;

/// Tries until the lock is there or patience is over.
fn patiently(file: &File, operation: FlockOperation, deadline: Instant) -> Result<(), Errno> {
    loop {
        match flock(file, operation) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// Writes who holds the lock into its file, and a number that nobody else writes; gives both.
fn introduce(file: &mut File) -> io::Result<String> {
    let (process, host) = (std::process::id(), on_this_host());
    // Without the system's randomness the process and its host have to do.
    let random = getrandom::u64().unwrap_or_default();
    let token = format!("process {process}{host}\ntoken {random:016x}\n");
    file.set_len(0)?;
    file.write_all(token.as_bytes())?;
    Ok(token)
}

fn on_this_host() -> String {
    let host = rustix::system::uname();
    format!(" on {}", host.nodename().to_string_lossy())
}

/// Says who holds the lock, and what to do about a holder that may have ended without this host's
/// knowing.
fn in_use(folder: &Path) -> TrainError {
    let path = folder.join(FILE);
    // Who has just locked the folder is about to write its word.
    std::thread::sleep(PAUSE);
    let deadline = Instant::now() + WORD;
    let by = loop {
        let by = word(&path).ok().and_then(|word| holder(&word));
        if by.is_some() || Instant::now() >= deadline {
            break by.unwrap_or_else(|| "another process".to_owned());
        }
        std::thread::sleep(PAUSE);
    };
    let is_here = by.ends_with(&on_this_host());
    TrainError::RunDirInUse {
        folder: folder.to_owned(),
        by,
        lost_lock: (!is_here).then_some(path),
    }
}

/// Who wrote last into the lock of a folder: the process that has it, or had it.
pub fn last_holder(folder: &Path) -> Option<String> {
    holder(&word(&folder.join(FILE)).ok()?)
}

fn word(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    open_file(path)?.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What the file says of who holds the lock.
fn holder(word: &str) -> Option<String> {
    let line = word.lines().next().unwrap_or_default();
    let plain: String = line.chars().filter(|c| !c.is_control()).collect();
    (!plain.is_empty()).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_until_the_lock_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        RunLock::check(folder.path()).unwrap();
        let lock = RunLock::take(folder.path()).unwrap();
        for refused in [
            RunLock::take_new(folder.path()).map(drop),
            RunLock::check(folder.path()),
        ] {
            let told = refused.unwrap_err().to_string();
            let process = format!("is in use by process {} on ", std::process::id());
            assert!(told.contains(&process), "{told}");
            assert!(!told.contains("remove"), "{told}");
        }
        lock.check_held().unwrap();
        // A host that was cut off may not have given it back.
        std::fs::write(folder.path().join(FILE), "process 7 on elsewhere").unwrap();
        let told = RunLock::take_new(folder.path()).unwrap_err().to_string();
        let words = format!(
            "keep its lock: remove {}",
            folder.path().join(FILE).display()
        );
        assert!(
            told.contains("by process 7 on elsewhere") && told.ends_with(&words),
            "{told}"
        );
        drop(lock);
        RunLock::check(folder.path()).unwrap();
        RunLock::take(folder.path()).unwrap();
    }

    #[test]
    fn where_locks_do_not_work_the_run_goes_on_and_the_token_guards_it() {
        let folder = tempfile::tempdir().unwrap();
        for error in [
            Errno::NOSYS,
            Errno::OPNOTSUPP,
            Errno::NOLCK,
            Errno::INVAL,
            Errno::IO,
            Errno::STALE,
            Errno::INTR,
        ] {
            let take = || RunLock::take_by(folder.path(), &|_| Err(error)).unwrap();
            let (first, why) = take();
            assert_eq!(why, Some(error));
            first.check_held().unwrap();
            let (second, _) = take();
            let lost = first.check_held().unwrap_err().to_string();
            let by = format!("taken over by process {}", std::process::id());
            assert!(lost.contains(&by), "{lost}");
            second.check_held().unwrap();
        }
    }

    #[test]
    fn a_lock_that_is_removed_keeps_others_out_and_is_noticed() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("run");
        std::fs::create_dir(&folder).unwrap();
        let lock = RunLock::take(&folder).unwrap();
        let lost = || lock.check_held().unwrap_err().to_string();
        std::fs::remove_file(folder.join(FILE)).unwrap();
        assert!(lost().contains("is gone"), "{}", lost());
        RunLock::take_new(&folder).unwrap_err();
        // Another run, as where locks do not work.
        std::fs::write(folder.join(FILE), "process 7 on elsewhere\ntoken 1\n").unwrap();
        assert!(lost().contains("process 7 on elsewhere"), "{}", lost());
        // Another folder in its place.
        std::fs::rename(&folder, home.path().join("moved")).unwrap();
        assert!(lost().contains("is gone"), "{}", lost());
        std::fs::create_dir(&folder).unwrap();
        let other = RunLock::take(&folder).unwrap();
        lock.check_held().unwrap_err();
        other.check_held().unwrap();
    }
}

//! The lock of a run folder: one run at a time.
//!
//! A run locks the folder, and a file in it, whose lock network file systems share among hosts. The
//! system releases both when the process ends. The file also holds a token. A run reads the token
//! before each write, and ends if it is gone or changed. This detects a folder or file that was
//! removed or replaced, even if locks do not work.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use burn_dist::files::open_file;
use burn_dist::launch::Generation;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::TrainError;
use crate::run::checkpoints;
use crate::system::output::complain;

/// Lock file in the run folder.
const FILE: &str = ".lock";

/// Time to wait for the lock. A killed process holds it until the system has freed all its
/// resources.
const PATIENCE: Duration = Duration::from_secs(3);

/// Time to wait for ranks of the generation before, under `trainer launch`. A server of NFS keeps
/// the lock of a dead node for up to 90 s.
const FORMER_PATIENCE: Duration = Duration::from_secs(150);

/// Time to wait if the folder did not exist when this run began: its holder began at the same time.
const NEW_PATIENCE: Duration = Duration::from_millis(300);

/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Time to wait for a new holder to write its name.
const WORD: Duration = Duration::from_secs(1);

/// Maximum bytes to read from the lock file.
const MAX_BYTES: u64 = 1 << 10;

/// A lock held as long as the run writes into its folder.
#[derive(Debug)]
pub struct RunLock {
    folder: PathBuf,
    /// Content of the file while the folder is this run's. `None` if the disk was too full to write
    /// it.
    token: Option<String>,
    _locked: [File; 2],
}

impl RunLock {
    /// Locks a folder that existed before the run.
    ///
    /// # Errors
    /// [`TrainError::RunDirInUse`] if another process has it. Also fails if the file cannot be
    /// made.
    pub fn take(folder: &Path) -> Result<Self, TrainError> {
        // Ranks of the generation before, on a node that is cut off, may still be ending.
        let is_later = Generation::of_this_process().is_some_and(|now| now.number > 1);
        let patience = if is_later { FORMER_PATIENCE } else { PATIENCE };
        Self::take_within(folder, patience)
    }

    /// Locks a folder that was made after the run had begun.
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

    /// Takes both locks with `lock`. Also returns the reason if the file system gives the file no
    /// lock.
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
        // The folder comes first: unlike the file, it cannot be replaced unnoticed. Its lock may be
        // visible on this host only.
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

    /// Rejects a folder that another process has locked. Leaves no trace.
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

    /// The content of the lock file, if it could be written.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Checks that the folder is still this run's. Call it before every write.
    ///
    /// # Errors
    /// [`TrainError::RunDirLost`] if the token is gone or changed.
    pub fn check_held(&self) -> Result<(), TrainError> {
        let Some(token) = &self.token else {
            return Ok(());
        };
        let lost = |by| {
            Err(TrainError::RunDirLost {
                folder: self.folder.clone(),
                by,
                // An unreadable folder may hold a checkpoint.
                saved: checkpoints::has_checkpoint(&self.folder).unwrap_or(true),
            })
        };
        match word(&self.folder.join(FILE)) {
            Ok(found) if found == *token => Ok(()),
            // Another run is writing its token right now, and part of the old token may still be
            // there.
            Ok(found) if found.is_empty() || holder(&found) == holder(token) => {
                std::thread::sleep(PAUSE);
                lost(last_holder(&self.folder))
            }
            Ok(found) => lost(holder(&found)),
            Err(error) if is_gone(&error) => lost(None),
            // A file system that fails for a moment has not given the folder away.
            Err(_) => Ok(()),
        }
    }
}

/// Time for a file system to show a new folder on other nodes: NFS remembers for up to 60 s that
/// there was none.
const SEEN_WITHIN: Duration = Duration::from_secs(90);

/// Whether this node sees `folder` with this token in its lock file, if need be a little later.
pub(crate) fn is_seen(folder: &Path, token: &str) -> bool {
    is_seen_within(folder, token, SEEN_WITHIN)
}

fn is_seen_within(folder: &Path, token: &str, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        if word(&folder.join(FILE)).is_ok_and(|found| found == token) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

const EXCLUSIVE: FlockOperation = FlockOperation::NonBlockingLockExclusive;

/// Tries to take the lock until `deadline`.
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

/// Writes the holder and a unique token into the lock file, and returns both.
fn introduce(file: &mut File) -> io::Result<String> {
    let (process, host) = (std::process::id(), on_this_host());
    // If the system has no randomness, process and host must be enough.
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

/// The error that names the holder, with advice if it may have ended unnoticed by this host.
fn in_use(folder: &Path) -> TrainError {
    let path = folder.join(FILE);
    // A process that has just locked the folder is about to write its name.
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

/// The last process in the lock file of a folder: the current or the last holder.
pub fn last_holder(folder: &Path) -> Option<String> {
    holder(&word(&folder.join(FILE)).ok()?)
}

fn word(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    open_file(path)?.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The holder in the content of a lock file.
fn holder(word: &str) -> Option<String> {
    let line = word.lines().next().unwrap_or_default();
    let plain: String = line.chars().filter(|c| !c.is_control()).collect();
    (!plain.is_empty()).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_folder_is_not_taken_for_the_locked_one() {
        let [own, other] = [(), ()].map(|()| tempfile::tempdir().unwrap());
        let lock = RunLock::take(own.path()).unwrap();
        let token = lock.token().unwrap();
        assert!(is_seen(own.path(), token));
        let soon = Duration::from_millis(60);
        assert!(!is_seen_within(other.path(), token, soon));
        let _of_other = RunLock::take(other.path()).unwrap();
        assert!(!is_seen_within(other.path(), token, soon));
    }

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
        // A host that was cut off may not have released the lock.
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
        assert!(lost().contains("is missing"), "{}", lost());
        RunLock::take_new(&folder).unwrap_err();
        // Another run takes over, as if locks did not work.
        std::fs::write(folder.join(FILE), "process 7 on elsewhere\ntoken 1\n").unwrap();
        assert!(lost().contains("process 7 on elsewhere"), "{}", lost());
        // Another folder takes its place.
        std::fs::rename(&folder, home.path().join("moved")).unwrap();
        assert!(lost().contains("is missing"), "{}", lost());
        std::fs::create_dir(&folder).unwrap();
        let other = RunLock::take(&folder).unwrap();
        lock.check_held().unwrap_err();
        other.check_held().unwrap();
    }
}

//! One run at a time in a run folder: whoever writes there holds a lock on a file in it. The system
//! gives it back when the process ends, however it ends.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::console::complain;
use crate::error::TrainError;

/// The file, in the run folder.
const FILE: &str = ".lock";

/// How long to wait for the lock: a process that was killed has it until the system has taken away
/// all that it had.
const PATIENCE: Duration = Duration::from_secs(3);

/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Most that is read of what it says.
const MAX_BYTES: u64 = 1 << 10;

/// Held as long as the run writes into its folder.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

impl RunLock {
    /// Takes the lock of a folder that exists.
    ///
    /// # Errors
    /// [`TrainError::RunDirInUse`] if another process has it; if the file cannot be made.
    pub fn take(folder: &Path) -> Result<Self, TrainError> {
        let path = folder.join(FILE);
        let failed = |error| TrainError::RunDir {
            path: path.clone(),
            error,
        };
        let options = || {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            options
        };
        let mut file = options().open(&path).map_err(failed)?;
        match patiently(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(in_use(folder, &mut file));
            }
            // Some network file systems have none.
            Err(error @ (Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS)) => complain(&format!(
                "warning: {} cannot be locked ({error}); see to it that no other run writes there",
                folder.display()
            )),
            Err(error) => return Err(failed(error.into())),
        }
        // Only for people: a full disk does not end the run.
        let _ = introduce(&mut file);
        Ok(Self { _file: file })
    }

    /// Refuses a folder that another process has locked; leaves no trace.
    ///
    /// # Errors
    /// [`TrainError::RunDirInUse`].
    pub fn check(folder: &Path) -> Result<(), TrainError> {
        match File::open(folder.join(FILE)) {
            Ok(mut file) => match patiently(&file, FlockOperation::NonBlockingLockShared) {
                Err(Errno::WOULDBLOCK) => Err(in_use(folder, &mut file)),
                _ => Ok(()),
            },
            Err(_) => Ok(()),
        }
    }
}

/// Tries until the lock is there or patience is over.
fn patiently(file: &File, operation: FlockOperation) -> Result<(), Errno> {
    let begin = Instant::now();
    loop {
        match flock(file, operation) {
            Err(Errno::WOULDBLOCK) if begin.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

/// Writes who holds the lock into its file.
fn introduce(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    write!(file, "process {}{}", std::process::id(), on_this_host())
}

fn on_this_host() -> String {
    let host = rustix::system::uname();
    format!(" on {}", host.nodename().to_string_lossy())
}

/// Says who holds the lock, and what to do about a holder that may have ended without this host's knowing.
fn in_use(folder: &Path, file: &mut File) -> TrainError {
    let by = holder(file);
    let is_here = by.ends_with(&on_this_host());
    TrainError::RunDirInUse {
        folder: folder.to_owned(),
        by,
        lost_lock: (!is_here).then(|| folder.join(FILE)),
    }
}

/// What the file says of who holds the lock.
fn holder(file: &mut File) -> String {
    let mut text = Vec::new();
    let read = file.take(MAX_BYTES).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().next().unwrap_or_default();
    let plain: String = line.chars().filter(|c| !c.is_control()).collect();
    match read.is_ok() && !plain.is_empty() {
        true => plain,
        false => "another process".to_owned(),
    }
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
            RunLock::take(folder.path()).map(drop),
            RunLock::check(folder.path()),
        ] {
            let told = refused.unwrap_err().to_string();
            let process = format!("is in use by process {} on ", std::process::id());
            assert!(told.contains(&process), "{told}");
            assert!(!told.contains("remove"), "{told}");
        }
        // A host that was cut off may not have given it back.
        std::fs::write(folder.path().join(FILE), "process 7 on elsewhere").unwrap();
        let told = RunLock::take(folder.path()).unwrap_err().to_string();
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
}

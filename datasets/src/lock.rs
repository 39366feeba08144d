//! A lock file, so that of several processes one does a piece of work and the others wait for it.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use crate::DatasetError;

/// Held until dropped, or until the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    /// Closing it releases the lock.
    file: File,
    is_held: bool,
}

impl Lock {
    /// Makes the file and waits until no other process holds it; `work` is what that one does,
    /// for the log. Where the file system has no locks, nobody is waited for: the work must be
    /// right also when two do it.
    pub(crate) fn wait(path: &Path, work: &'static str) -> Result<Self, DatasetError> {
        loop {
            let lock = Self::wait_once(path, work)?;
            if !lock.is_held || is_at(&lock.file, path) {
                return Ok(lock);
            }
            // Who held it has removed it, and whoever comes now locks another file of that name.
        }
    }

    fn wait_once(path: &Path, work: &'static str) -> Result<Self, DatasetError> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .map_err(DatasetError::io("create", path))?;
        let locked = match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                tracing::info!(lock = %path.display(),
                    "waiting for another process, which is {work}");
                file.lock()
            }
            Err(TryLockError::Error(error)) => Err(error),
            Ok(()) => Ok(()),
        };
        if let Err(error) = &locked {
            // Some network file systems have no locks.
            tracing::debug!(lock = %path.display(), %error, "{work} without a lock");
        }
        Ok(Lock {
            path: path.to_owned(),
            file,
            is_held: locked.is_ok(),
        })
    }

    /// Whether no other process of this host does the work meanwhile. One of another host may:
    /// there are network file systems whose locks only their own host knows of.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Releases the lock and removes its file, when the work is done.
    pub(crate) fn remove(self) {
        // A leftover would do no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether a file is the one that has this name now, as far as the system can tell.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        match (file.metadata(), fs::metadata(path)) {
            (Ok(own), Ok(named)) => identity(own) == identity(named),
            _ => false,
        }
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_waited_for_a_lock_that_was_removed_keeps_others_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = Lock::wait(&path, "working").unwrap();
        thread::scope(|scope| {
            let second = scope.spawn(|| Lock::wait(&path, "working").unwrap());
            thread::sleep(Duration::from_millis(200));
            first.remove();
            let second = second.join().unwrap();
            assert!(second.is_held());
            let other = File::open(&path).unwrap();
            assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        });
    }
}

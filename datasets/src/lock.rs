//! A lock file, with which one of several processes does a piece of work and the others wait.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use crate::DatasetError;

/// A lock that is held until it is dropped, or until the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    /// Closing it releases the lock.
    file: File,
    is_held: bool,
}

impl Lock {
    /// Creates the file and waits until no other process holds the lock; `work` describes that
    /// process's work for the log. Without locks in the file system it does not wait, so the work
    /// must be correct even if two processes do it.
    pub(crate) fn wait(path: &Path, work: &'static str) -> Result<Self, DatasetError> {
        loop {
            let lock = Self::wait_once(path, work)?;
            if !lock.is_held || is_at(&lock.file, path) {
                return Ok(lock);
            }
            // The holder has removed it, and new processes lock another file of that name.
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
                let lock = path.display();
                tracing::info!(%lock, "waiting for another process, which is {work}");
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

    /// Whether no other process of this host does the work meanwhile. One on another host may: some
    /// network file systems have locks that only their own host knows.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Releases the lock and removes its file, after the work is done.
    pub(crate) fn remove(self) {
        // A leftover does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether a file is the one that currently has this name, according to the system.
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

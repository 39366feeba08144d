//! A lock file, so that of several processes one does a piece of work and the others wait for it.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use crate::DatasetError;

/// Held until dropped, or until the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    /// Closing it releases the lock.
    _file: File,
    is_held: bool,
}

impl Lock {
    /// Makes the file and waits until no other process holds it; `work` is what that one does,
    /// for the log. Where the file system has no locks, nobody is waited for: the work must be
    /// right also when two do it.
    pub(crate) fn wait(path: &Path, work: &'static str) -> Result<Self, DatasetError> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .map_err(DatasetError::io("create", path))?;
        let locked = match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                tracing::info!(lock = %path.display(), "another process is {work}, waiting for it");
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
            _file: file,
            is_held: locked.is_ok(),
        })
    }

    /// Whether no other process of this host does the work meanwhile. One of another host may: there are network file
    /// systems whose locks only their own host knows of.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Releases the lock and removes its file, when the work is done so that whoever waits, and
    /// whoever now locks another file of that name, finds it done.
    pub(crate) fn remove(self) {
        // A leftover would do no harm.
        let _ = fs::remove_file(&self.path);
    }
}

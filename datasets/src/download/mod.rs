//! Fetches the files of a data set, so that what lies under a final name is complete and right.
//!
//! A file grows under a temporary name in the same folder, is continued there after an
//! interruption, and gets its final name only when its SHA-256 is the published one: that of the
//! uncompressed content where the wrapper may differ between mirrors, that of the stored bytes
//! where only those are published ([`Form`]). A lock file keeps processes that share the folder,
//! also over several nodes, from writing the same file; the second one finds the work done.

mod transfer;
mod verify;

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::DatasetError;
use crate::lock::Lock;
use crate::unique;

/// A transfer that brought this much before it broke does not count as a failed attempt.
const MIN_PROGRESS: u64 = 1 << 20;
const LOCK_NAME: &str = ".download.lock";

/// A file that its publisher will not change any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its name, on the mirrors and on disk.
    pub name: &'static str,
    /// What `sha256` and `len` speak of.
    pub form: Form,
    /// SHA-256, as lower-case hexadecimal digits.
    pub sha256: &'static str,
    /// Length in bytes.
    pub len: u64,
}

/// Which bytes of a file a checksum is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Those that remain after gzip: mirrors may have compressed them differently, or not at all.
    Uncompressed,
    /// Those that are stored and sent.
    Stored,
}

impl RemoteFile {
    /// The most bytes that can arrive.
    fn max_stored_len(&self) -> u64 {
        match self.form {
            Form::Stored => self.len,
            // More than any sensible encoding needs, were the content not compressible at all.
            Form::Uncompressed => self.len.saturating_add(self.len / 100).saturating_add(4096),
        }
    }
}

/// How files are fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Downloader {
    /// Folders (URLs) that have the files, in the order in which they are tried.
    pub mirrors: Vec<String>,
    /// Longest wait for a name to be resolved, and for a connection.
    pub connect_timeout: Duration,
    /// Longest silence of a server.
    pub read_timeout: Duration,
    /// Attempts per mirror and file; those that brought a megabyte or more do not count.
    pub attempts: u32,
    /// Pause before another attempt.
    pub pause: Duration,
    /// Shows a progress bar where standard error is a terminal.
    pub progress: bool,
}

impl Downloader {
    /// A downloader from `mirrors` with time-outs of 10 s (connection) and 30 s (silence), three
    /// attempts and a progress bar.
    pub fn new(mirrors: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Downloader {
            mirrors: mirrors.into_iter().map(Into::into).collect(),
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
            attempts: 3,
            pause: Duration::from_secs(1),
            progress: true,
        }
    }

    /// Fetches those of `files` that `dir` (made if it is not there) lacks.
    ///
    /// # Errors
    /// [`DatasetError::Download`] when no mirror gives a file, which ends the work;
    /// [`DatasetError::Io`] when the folder cannot be written.
    pub fn fetch(&self, files: &[RemoteFile], dir: &Path) -> Result<(), DatasetError> {
        let lacks = |file: &&RemoteFile| !dir.join(file.name).exists();
        if !files.iter().any(|file| lacks(&file)) {
            return Ok(());
        }
        fs::create_dir_all(dir).map_err(DatasetError::io("create", dir))?;
        let lock_path = dir.join(LOCK_NAME);
        let lock = Lock::wait(&lock_path, "downloading")?;
        let agent = transfer::agent(self);
        for file in files.iter().filter(lacks) {
            let part = dir.join(part_name(file.name, lock.is_held()));
            let fetched = self.fetch_one(&agent, file, dir, &part);
            if !lock.is_held() {
                // Nobody else knows it. It is not there any more if all went well.
                let _ = fs::remove_file(&part);
            }
            if let Err(reasons) = fetched? {
                return Err(DatasetError::Download {
                    dir: dir.to_owned(),
                    files: files
                        .iter()
                        .filter(lacks)
                        .map(|f| f.name.to_owned())
                        .collect(),
                    reasons,
                });
            }
        }
        // Whoever waits for the lock finds all files.
        lock.remove();
        Ok(())
    }

    /// Fetches one file, or says what each mirror answered.
    fn fetch_one(
        &self,
        agent: &ureq::Agent,
        file: &RemoteFile,
        dir: &Path,
        part: &Path,
    ) -> Result<Result<(), Vec<String>>, DatasetError> {
        let mut reasons = Vec::new();
        for mirror in &self.mirrors {
            let url = format!("{}/{}", mirror.trim_end_matches('/'), file.name);
            match self.fetch_from(agent, &url, file, part)? {
                Ok(()) => {
                    publish(part, &dir.join(file.name))?;
                    return Ok(Ok(()));
                }
                Err(reason) => reasons.push(format!("{url}: {reason}")),
            }
        }
        if reasons.is_empty() {
            reasons.push("no mirror is given".into());
        }
        Ok(Err(reasons))
    }

    /// Makes `part` the whole file from one mirror, or says why that cannot be.
    fn fetch_from(
        &self,
        agent: &ureq::Agent,
        url: &str,
        file: &RemoteFile,
        part: &Path,
    ) -> Result<Result<(), String>, DatasetError> {
        let mut failed = 0;
        loop {
            let Err(failure) = transfer::attempt(agent, url, file, part, self.progress)? else {
                return Ok(Ok(()));
            };
            if failure.gained < MIN_PROGRESS {
                failed += 1;
            }
            if !failure.retry || failed >= self.attempts {
                return Ok(Err(failure.reason));
            }
            tracing::warn!(
                url,
                reason = failure.reason,
                "download interrupted, retrying"
            );
            thread::sleep(self.pause);
        }
    }
}

/// The name of what is there of a file, in which a later attempt of this host goes on if only one
/// process of the host writes to it at a time.
fn part_name(name: &str, alone: bool) -> String {
    match alone {
        true => format!(".{name}.{}.part", unique::host()),
        false => format!(".{name}.{}.part", unique::name()),
    }
}

/// Gives a verified file its final name.
fn publish(part: &Path, target: &Path) -> Result<(), DatasetError> {
    File::open(part)
        .and_then(|file| file.sync_all())
        .map_err(DatasetError::io("write", part))?;
    fs::rename(part, target).map_err(DatasetError::io("rename to its final name", part))
}

#[cfg(test)]
mod tests {
    use super::part_name;

    #[test]
    fn only_who_is_alone_goes_on_where_another_left_off() {
        assert_eq!(part_name("a.gz", true), part_name("a.gz", true));
        let without_lock = part_name("a.gz", false);
        assert_ne!(without_lock, part_name("a.gz", false));
        assert_ne!(without_lock, part_name("a.gz", true));
        assert!(without_lock.starts_with(".a.gz.") && without_lock.ends_with(".part"));
    }
}

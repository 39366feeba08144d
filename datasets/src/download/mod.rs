//! Downloads the files of a data set. A file with its final name is complete and verified.
//!
//! A file grows under a temporary name in the same folder, and is resumed there after an
//! interruption. It gets its final name only if its SHA-256 is the published one: that of the
//! uncompressed content if the wrapper may differ between mirrors, that of the stored bytes if only
//! those are published ([`Form`]). A lock file keeps processes that share the folder, also on
//! several nodes, from writing the same file; the second one finds the work done.

mod transfer;
mod verify;

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::DatasetError;
use crate::lock::Lock;
use crate::unique;

/// A transfer of this size that breaks does not count as a failed attempt.
const MIN_PROGRESS: u64 = 1 << 20;
const LOCK_NAME: &str = ".download.lock";

/// A file that its publisher will not change any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteFile {
    /// Name on the mirrors and on disk.
    pub name: &'static str,
    /// The form that `sha256` and `len` describe.
    pub form: Form,
    /// SHA-256 in lower-case hexadecimal digits.
    pub sha256: &'static str,
    /// Length in bytes.
    pub len: u64,
}

/// The form of a file that its checksum describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Uncompressed: mirrors may compress it differently or not at all.
    Uncompressed,
    /// As stored and sent.
    Stored,
}

impl RemoteFile {
    /// Largest number of bytes that can arrive.
    fn max_stored_len(&self) -> u64 {
        match self.form {
            Form::Stored => self.len,
            // More than any sensible encoding needs, even for incompressible content.
            Form::Uncompressed => self.len.saturating_add(self.len / 100).saturating_add(4096),
        }
    }
}

/// Options of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Downloader {
    /// URLs of folders with the files, in the order in which they are tried.
    pub mirrors: Vec<String>,
    /// Timeout for resolving a name, and for a connection.
    pub connect_timeout: Duration,
    /// Timeout for a silent server.
    pub read_timeout: Duration,
    /// Attempts per mirror and file.
    ///
    /// An attempt that brings a megabyte or more does not count.
    pub attempts: u32,
    /// Pause before another attempt.
    pub pause: Duration,
    /// Whether to show a progress bar if standard error is a terminal.
    pub progress: bool,
}

impl Downloader {
    /// A downloader from `mirrors` with three attempts and a progress bar.
    ///
    /// Timeouts are 10 s for a connection and 30 s of silence.
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

    /// Downloads the `files` that `dir` lacks. Creates `dir` if necessary.
    ///
    /// # Errors
    /// [`DatasetError::Download`] if no mirror returns a file, which ends the download;
    /// [`DatasetError::Io`] if the folder cannot be written.
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
                // No other process knows this file. After a success it is gone.
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
        // Processes that wait for the lock find all files.
        lock.remove();
        Ok(())
    }

    /// Downloads one file, or returns the answer of each mirror.
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

    /// Completes `part` from one mirror, or returns the reason why that fails.
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

/// Name of a partial file. A later attempt of this host resumes it if only one process of the host
/// writes to it at a time.
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

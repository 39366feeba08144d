//! A log file with rotation: it appends lines, and drops the oldest when the file is full.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::warn;

/// Bytes in a file before it becomes the old one. Only one old file is kept.
const MOST: u64 = 4 << 20;

/// A log file that takes up to twice [`MOST`] with its predecessor.
pub(super) struct LogFile {
    path: PathBuf,
    old: PathBuf,
    file: File,
    length: u64,
    most: u64,
    /// Whether the last write failed. Warned once, until a write succeeds.
    failing: bool,
}

impl LogFile {
    /// Opens a log in an existing folder. `of` is the rank or agent that writes it.
    pub fn open(folder: &Path, of: &str) -> io::Result<Self> {
        let path = folder.join(format!("{of}.log"));
        let file = append_to(&path)?;
        let length = file.metadata()?.len();
        let mut log = Self {
            old: path.with_extension("old.log"),
            path,
            file,
            length,
            most: MOST,
            failing: false,
        };
        if length > 0 {
            // A killed process may have left half a line.
            log.append("\n");
        }
        Ok(log)
    }

    /// Appends whole lines. A disk error only warns.
    pub fn append(&mut self, lines: &str) {
        match self.try_append(lines) {
            Ok(()) => self.failing = false,
            Err(error) => {
                if !self.failing {
                    warn(&self.path, &error);
                }
                self.failing = true;
            }
        }
    }

    fn try_append(&mut self, lines: &str) -> io::Result<()> {
        if self.length > 0 && self.length.saturating_add(lines.len() as u64) > self.most {
            std::fs::rename(&self.path, &self.old)?;
            self.file = append_to(&self.path)?;
            self.length = 0;
        }
        if self.failing {
            self.file.write_all(b"\n")?;
        }
        self.file.write_all(lines.as_bytes())?;
        self.length = self.file.metadata()?.len();
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kept_across_processes_and_the_oldest_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-3.log");
        LogFile::open(folder.path(), "rank-3")
            .unwrap()
            .append("one\n");
        let mut log = LogFile::open(folder.path(), "rank-3").unwrap();
        log.append("two\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\n\ntwo\n");
        log.most = 30;
        for number in 0..1000 {
            log.append(&format!("line {number}\n"));
        }
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let all = read("rank-3.old.log") + &read("rank-3.log");
        assert!(
            all.len() <= 60 && all.ends_with("line 998\nline 999\n"),
            "{all}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_disk_that_is_full_for_a_while_costs_lines_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = LogFile::open(folder.path(), "rank-0").unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let own = std::mem::replace(&mut log.file, full);
        log.append("lost\n");
        assert!(log.failing);
        log.file = own;
        log.append("there\n");
        assert!(!log.failing);
        let text = std::fs::read_to_string(folder.path().join("rank-0.log")).unwrap();
        assert_eq!(text, "\nthere\n");
    }
}

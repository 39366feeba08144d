//! JSON lines in batches: to standard output, to a pipe, or to a file that a killed command
//! continues.
//!
//! Until the file is complete, `FILE.partial` holds the batches so far, each with a stamp of its
//! input. The next run of the same command keeps them up to the first whose input has changed.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use burn_dist::files::Replacement;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::TrainError;

/// The path that stands for standard output.
const STDOUT: &str = "-";
/// Ending of the unfinished file.
const PARTIAL: &str = "partial";
/// First character of a line that is no result.
const MARK: &str = "#";
/// Time to wait for a killed process, which holds its lock until the system has freed all its
/// resources.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether `path` stands for standard output.
pub fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == STDOUT
}

/// Output of JSON lines in batches.
pub struct JsonLines {
    /// Path for messages.
    path: PathBuf,
    to: To,
}

enum To {
    /// Standard output, a pipe, or a file that cannot be continued.
    Stream(Box<dyn Write>),
    Partial(Partial),
}

/// Identity of a command and its batches, for continuing one.
pub trait BatchedWork {
    /// Digest of everything that decides the lines of all batches.
    fn identity(&self) -> String;

    /// Number of batches.
    fn batches(&self) -> usize;

    /// Number of lines and stamp of a batch. The stamp changes with the batch's input.
    fn batch(&self, batch: usize) -> (usize, String);
}

impl JsonLines {
    /// Opens `path` for `work`. Returns the lines of batches that are done, in order, to `done`,
    /// and their number.
    ///
    /// # Errors
    /// Fails if the system refuses, or another process writes the same file.
    pub fn open(
        path: &Path,
        work: &dyn BatchedWork,
        done: &mut dyn FnMut(&str),
    ) -> Result<(Self, usize), TrainError> {
        if is_stdout(path) {
            let stdout = Self {
                path: "standard output".into(),
                to: To::Stream(Box::new(io::stdout())),
            };
            return Ok((stdout, 0));
        }
        let (to, batches) = open(path, work, done).map_err(at(path))?;
        let path = path.to_owned();
        Ok((Self { path, to }, batches))
    }

    /// Writes the lines of the next batch.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn write(&mut self, stamp: &str, lines: &str) -> Result<(), TrainError> {
        let written = match &mut self.to {
            To::Stream(stream) => stream
                .write_all(lines.as_bytes())
                .and_then(|()| stream.flush()),
            // In one write, so that a killed process rarely leaves half a batch.
            To::Partial(partial) => partial
                .file
                .write_all(format!("{MARK} {stamp}\n{lines}").as_bytes()),
        };
        written.map_err(at(&self.path))
    }

    /// Puts a complete file in its place.
    ///
    /// # Errors
    /// Fails if the system refuses. `FILE.partial` then stays.
    pub fn finish(self) -> Result<(), TrainError> {
        match self.to {
            To::Stream(_) => Ok(()),
            To::Partial(partial) => partial.publish().map_err(at(&self.path)),
        }
    }
}

fn at(path: &Path) -> impl Fn(io::Error) -> TrainError {
    move |error| TrainError::Output {
        path: path.to_owned(),
        error,
    }
}

fn open(
    path: &Path,
    work: &dyn BatchedWork,
    done: &mut dyn FnMut(&str),
) -> io::Result<(To, usize)> {
    // Keeps a symbolic link and replaces its target.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mode = match fs::metadata(&target) {
        Ok(found) if !found.is_file() => {
            let stream = File::options().write(true).open(&target)?;
            return Ok((To::Stream(Box::new(stream)), 0));
        }
        Ok(found) => Some(found.permissions().mode()),
        Err(_) => None,
    };
    let mut name = target.clone().into_os_string();
    name.push(".");
    name.push(PARTIAL);
    let part = PathBuf::from(name);
    let file = match locked(&part) {
        Ok(file) => file,
        // The file is writable, but its folder is not.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && mode.is_some() => {
            let stream = File::create(&target)?;
            return Ok((To::Stream(Box::new(stream)), 0));
        }
        Err(error) => return Err(error),
    };
    let mut partial = Partial {
        target,
        mode,
        part,
        file,
    };
    let batches = partial.read(work, done)?;
    Ok((To::Partial(partial), batches))
}

/// Opens or makes the file, which no other process has locked.
fn locked(path: &Path) -> io::Result<File> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::other(format!(
                    "another process writes {}. Wait for it to end, or choose another file",
                    path.display()
                )));
            }
            // A file system without locks.
            Ok(()) | Err(_) => {}
        }
        // The process that had it locked may have finished and removed it.
        let (own, there) = (file.metadata()?, fs::metadata(path));
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())) {
            return Ok(file);
        }
    }
}

/// The unfinished file. Its lock ends with the process.
struct Partial {
    target: PathBuf,
    /// Permissions of the file that is replaced.
    mode: Option<u32>,
    part: PathBuf,
    file: File,
}

impl Partial {
    /// Passes the lines of valid batches to `done`, removes everything after them, and returns
    /// their number. Starts a new file for other work.
    fn read(&mut self, work: &dyn BatchedWork, done: &mut dyn FnMut(&str)) -> io::Result<usize> {
        let header = format!("{MARK} {}\n", work.identity());
        let mut lines = WholeLines::new(&self.file);
        let mut batches = 0;
        let mut end = 0;
        if lines.next()?.is_some_and(|line| *line == header) {
            end = lines.position;
            while batches < work.batches() {
                let Some(found) = lines.batch(work.batch(batches))? else {
                    break;
                };
                found.iter().for_each(|line| done(line.trim_end()));
                batches += 1;
                end = lines.position;
            }
        }
        self.file.set_len(end)?;
        self.file.seek(io::SeekFrom::Start(end))?;
        if end == 0 {
            self.file.write_all(header.as_bytes())?;
        }
        Ok(batches)
    }

    fn publish(mut self) -> io::Result<()> {
        self.file.rewind()?;
        let whole = Replacement::create(&self.target, self.mode)?;
        let mut whole = BufWriter::with_capacity(1 << 20, whole);
        let mut lines = WholeLines::new(&self.file);
        while let Some(line) = lines.next()? {
            if !line.starts_with(MARK) {
                whole.write_all(line.as_bytes())?;
            }
        }
        let whole = whole.into_inner().map_err(io::IntoInnerError::into_error)?;
        whole.publish_cached()?;
        fs::remove_file(&self.part)
    }
}

/// Complete lines of a file, and the position after the last one.
struct WholeLines<'a> {
    from: BufReader<&'a File>,
    position: u64,
    line: String,
}

impl<'a> WholeLines<'a> {
    fn new(file: &'a File) -> Self {
        Self {
            from: BufReader::new(file),
            position: 0,
            line: String::new(),
        }
    }

    /// The next line with its end. `None` at the end of the file, before half a line, and before
    /// bytes that are no text, as a crash of the machine may leave them.
    fn next(&mut self) -> io::Result<Option<&String>> {
        self.line.clear();
        match self.from.read_line(&mut self.line) {
            Ok(count) if self.line.ends_with('\n') => {
                self.position += count as u64;
                Ok(Some(&self.line))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::InvalidData => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The lines of a batch, if it is whole and has this stamp.
    fn batch(&mut self, (count, stamp): (usize, String)) -> io::Result<Option<Vec<String>>> {
        let stamp = format!("{MARK} {stamp}\n");
        if self.next()?.is_none_or(|line| *line != stamp) {
            return Ok(None);
        }
        let mut lines = Vec::new();
        for _ in 0..count {
            match self.next()? {
                Some(line) if serde_json::from_str::<serde_json::Value>(line).is_ok() => {
                    lines.push(line.clone());
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(lines))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of two lines, the last one of one.
    struct Numbers {
        name: &'static str,
        stamps: [&'static str; 3],
    }

    impl BatchedWork for Numbers {
        fn identity(&self) -> String {
            self.name.to_owned()
        }

        fn batches(&self) -> usize {
            self.stamps.len()
        }

        fn batch(&self, batch: usize) -> (usize, String) {
            (
                if batch == 2 { 1 } else { 2 },
                self.stamps[batch].to_owned(),
            )
        }
    }

    const NUMBERS: Numbers = Numbers {
        name: "numbers",
        stamps: ["a", "b", "c"],
    };
    const ALL: &str = "0\n1\n10\n11\n20\n";

    /// Opens the file, and returns the lines that are done and the number of their batches.
    fn opened(path: &Path, work: &Numbers) -> (JsonLines, usize, Vec<String>) {
        let mut found = Vec::new();
        let (lines, batches) =
            JsonLines::open(path, work, &mut |line| found.push(line.to_owned())).unwrap();
        (lines, batches, found)
    }

    /// Writes the batches from this one on.
    fn write(lines: &mut JsonLines, work: &Numbers, from: usize, to: usize) {
        for batch in from..to {
            let (count, stamp) = work.batch(batch);
            let text: String = (0..count)
                .map(|line| format!("{}\n", 10 * batch + line))
                .collect();
            lines.write(&stamp, &text).unwrap();
        }
    }

    #[test]
    fn a_file_goes_on_after_the_last_whole_batch() {
        let folder = tempfile::tempdir().unwrap();
        let (path, part) = (folder.path().join("x"), folder.path().join("x.partial"));
        let (mut lines, done, _) = opened(&path, &NUMBERS);
        assert_eq!(done, 0);
        write(&mut lines, &NUMBERS, 0, 2);
        drop(lines);
        let two = fs::read_to_string(&part).unwrap();
        for (rest, expected) in [
            ("", 2),
            ("# c\n", 2),
            ("# c\n20", 2),
            ("# c\n\0\0\n", 2),
            ("# c\n20\n", 3),
            ("# c\n20\n30\n", 3),
        ] {
            fs::write(&part, format!("{two}{rest}")).unwrap();
            let (mut lines, done, found) = opened(&path, &NUMBERS);
            assert_eq!(done, expected, "{rest:?}");
            assert_eq!(found[..4], ["0", "1", "10", "11"]);
            assert!(!path.exists());
            write(&mut lines, &NUMBERS, done, 3);
            lines.finish().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), ALL);
            assert!(!part.exists());
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn batches_of_other_work_or_input_are_done_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        for (name, stamps, expected) in [
            ("numbers", ["a", "b", "c"], 3),
            ("numbers", ["a", "B", "c"], 1),
            ("others", ["a", "b", "c"], 0),
        ] {
            let (mut lines, from, _) = opened(&path, &NUMBERS);
            write(&mut lines, &NUMBERS, from, 3);
            drop(lines);
            let (lines, done, found) = opened(&path, &Numbers { name, stamps });
            assert_eq!((done, found.len()), (expected, [0, 2, 4, 5][expected]));
            drop(lines);
        }
        let (mut lines, from, _) = opened(&path, &NUMBERS);
        assert_eq!(from, 0);
        write(&mut lines, &NUMBERS, 0, 3);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        lines.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), ALL);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o640
        );
    }

    #[test]
    fn two_processes_do_not_write_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let (mut first, ..) = opened(&path, &NUMBERS);
        let waiting = std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                JsonLines::open(&path, &NUMBERS, &mut |_| {})
                    .map(|(_, done)| done)
                    .map_err(|error| error.to_string())
            });
            std::thread::sleep(4 * PAUSE);
            write(&mut first, &NUMBERS, 0, 3);
            first.finish().unwrap();
            second.join().unwrap()
        });
        // It waited for the first one, which finished, and begins anew.
        assert_eq!(waiting.unwrap(), 0);
        assert_eq!(fs::read_to_string(&path).unwrap(), ALL);
    }

    #[test]
    fn what_is_no_file_gets_the_lines_as_they_come() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        let (mut lines, done, _) = opened(&path, &NUMBERS);
        assert_eq!(done, 0);
        write(&mut lines, &NUMBERS, 0, 3);
        lines.finish().unwrap();
        assert!(path.is_symlink());
        let full = JsonLines::open(Path::new("/dev/full"), &NUMBERS, &mut |_| {});
        let error = full.unwrap().0.write("a", "0\n").unwrap_err().to_string();
        assert!(
            error.starts_with("cannot write /dev/full: No space"),
            "{error}"
        );
    }
}

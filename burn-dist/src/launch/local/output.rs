//! Passes on the output of ranks, line by line and with the rank before each line.
//!
//! Lines are whole even without a prefix: programs write lines in pieces, and those of two ranks
//! would mix. Memory is bounded whatever a rank writes: a line without end is passed on in pieces.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long output may pause before it counts as ended: a process that a rank started may still
/// hold its pipe open.
const LAST_OUTPUT: Duration = Duration::from_millis(500);
/// How long the end of a run waits for a reader that takes nothing, such as a paused terminal.
const UNREAD: Duration = Duration::from_secs(5);
/// Largest amount in flight when a rank ends: the contents of its pipe and the bytes read from it.
const ON_ITS_WAY: u64 = (64 << 10) + CHUNK as u64;
/// Longest line that is passed on in one piece.
const MAX_LINE: usize = 16 << 10;
/// Largest single read.
const CHUNK: usize = 8 << 10;
/// Number of lines to remember.
const LAST_LINES: usize = 20;
/// Number of bytes to remember of a line.
const MAX_REMEMBERED: usize = 1 << 10;

/// The last lines of a rank's standard error.
#[derive(Clone, Debug, Default)]
pub(in crate::launch) struct LastWords {
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl LastWords {
    pub(in crate::launch) fn get(&self) -> Vec<String> {
        let lines = self.lines.lock();
        lines.iter().cloned().collect()
    }

    fn add(&self, line: &[u8]) {
        let line = line.get(..MAX_REMEMBERED).unwrap_or(line);
        let mut lines = self.lines.lock();
        if lines.len() >= LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(line).into_owned());
    }
}

/// Progress of a stream, for a thread that waits for its end.
#[derive(Debug, Default)]
pub(in crate::launch) struct Progress {
    bytes: AtomicU64,
    delivering: AtomicBool,
}

impl Progress {
    /// Bytes that were read and passed on, without the start of an unfinished line.
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    /// Whether output is being written, which may wait for its reader.
    fn is_delivering(&self) -> bool {
        self.delivering.load(Ordering::SeqCst)
    }

    fn deliver(&self, bytes: &[u8], deliver: impl FnOnce(&[u8])) {
        self.delivering.store(true, Ordering::SeqCst);
        deliver(bytes);
        self.bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        self.delivering.store(false, Ordering::SeqCst);
    }
}

/// A thread that passes a stream on.
pub(in crate::launch) struct Reader {
    pub(in crate::launch) thread: JoinHandle<()>,
    pub(in crate::launch) progress: Arc<Progress>,
}

/// Output in flight after its ranks have ended.
pub(in crate::launch) struct LastOutput<'a> {
    readers: &'a [Reader],
    unwritten: &'a OnceLock<io::Error>,
    /// Progress of each reader when the ranks ended.
    begin: Vec<u64>,
    /// Time of the last progress, and total progress then.
    moved: (Instant, u64),
}

impl<'a> LastOutput<'a> {
    /// Output that `readers` have not passed on, of ranks that have all ended.
    pub(in crate::launch) fn of(readers: &'a [Reader], unwritten: &'a OnceLock<io::Error>) -> Self {
        let bytes = |reader: &Reader| reader.progress.bytes();
        Self {
            readers,
            unwritten,
            begin: readers.iter().map(bytes).collect(),
            moved: (Instant::now(), 0),
        }
    }

    /// Whether all of it was passed on, or nobody has read any of it for [`UNREAD`]. Output that
    /// other processes write, or could write, into the pipes of ranks is not waited for.
    pub(in crate::launch) fn is_through(&mut self) -> bool {
        let (mut none, mut sum, mut delivering) = (true, 0, false);
        for (progress, passed) in self.pending() {
            none = false;
            sum += passed;
            delivering |= progress.is_delivering();
        }
        let now = Instant::now();
        if sum != self.moved.1 {
            self.moved = (now, sum);
        }
        let patience = if delivering { UNREAD } else { LAST_OUTPUT };
        let is_over = now.duration_since(self.moved.0) >= patience;
        if is_over && delivering {
            self.give_up(&format!(
                "nobody read it for {} s after the ranks ended",
                UNREAD.as_secs()
            ));
        }
        none || is_over
    }

    /// Readers that may have output left, with their progress since the ranks ended.
    fn pending(&self) -> impl Iterator<Item = (&Progress, u64)> {
        let all = self.readers.iter().zip(&self.begin);
        let left = all.filter(|(reader, _)| !reader.thread.is_finished());
        let left = left.map(|(reader, begin)| (&*reader.progress, reader.progress.bytes() - begin));
        left.filter(|(_, passed)| *passed < ON_ITS_WAY)
    }

    /// Drops the rest, for this `reason`.
    pub(in crate::launch) fn give_up(&self, reason: &str) {
        if self.pending().any(|(progress, _)| progress.is_delivering()) {
            let _ = self.unwritten.set(io::Error::other(reason));
        }
    }
}

/// Copies the lines of `from` to `to` with `prefix` before each, until `from` ends. Returns the
/// first write error. Lines that cannot be written are dropped, so that they do not block the rank.
pub(in crate::launch) fn pass_on(
    mut from: impl Read,
    mut to: impl Write,
    prefix: &str,
    last_words: Option<&LastWords>,
    progress: &Progress,
) -> io::Result<()> {
    let mut outcome = Ok(());
    let mut deliver = |line: &[u8]| {
        // In one write, so that lines of different ranks do not mix.
        let whole = [prefix.as_bytes(), line, b"\n"].concat();
        let written = to.write_all(&whole).and_then(|()| to.flush());
        if outcome.is_ok() {
            outcome = written;
        }
        if let Some(words) = last_words {
            words.add(line);
        }
    };
    let mut lines = Lines::default();
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => progress.deliver(chunk.get(..count).unwrap_or_default(), |bytes| {
                lines.push(bytes, &mut deliver);
            }),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    lines.finish(&mut deliver);
    outcome
}

/// Splits a stream of bytes into lines.
#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            for piece in piece.chunks(MAX_LINE) {
                if self.partial.len() + piece.len() > MAX_LINE {
                    line(&self.partial);
                    self.partial.clear();
                }
                self.partial.extend_from_slice(piece);
            }
            if let Some(whole) = self.partial.strip_suffix(b"\n") {
                line(whole);
                self.partial.clear();
            }
        }
    }

    fn finish(&mut self, mut line: impl FnMut(&[u8])) {
        if !self.partial.is_empty() {
            line(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn passed(input: &[u8], prefix: &str) -> (String, Vec<String>) {
        let mut output = Vec::new();
        let words = LastWords::default();
        let progress = Progress::default();
        pass_on(input, &mut output, prefix, Some(&words), &progress).unwrap();
        assert_eq!(progress.bytes(), input.len() as u64);
        (String::from_utf8(output).unwrap(), words.get())
    }

    #[test]
    fn lines_get_the_prefix() {
        let (output, words) = passed(b"one\n\nthree", "[rank 1] ");
        assert_eq!(output, "[rank 1] one\n[rank 1] \n[rank 1] three\n");
        assert_eq!(words, ["one", "", "three"]);
        assert_eq!(passed(b"one\ntwo\n", "").0, "one\ntwo\n");
    }

    #[test]
    fn a_rank_is_heard_to_the_end_though_nothing_can_be_written() {
        let mut full = [0; 2];
        let words = LastWords::default();
        let outcome = pass_on(
            &b"one\ntwo\n"[..],
            &mut full[..],
            "",
            Some(&words),
            &Progress::default(),
        );
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::WriteZero);
        assert_eq!(words.get(), ["one", "two"]);
    }

    #[test]
    fn endless_lines_are_cut_and_few_are_remembered() {
        let (output, words) = passed(&vec![b'x'; 5 * MAX_LINE], "> ");
        assert_eq!(output.lines().count(), 5);
        assert!(words.iter().all(|line| line.len() == MAX_REMEMBERED));
        let many: String = (0..100).map(|line| format!("{line}\n")).collect();
        let (_, words) = passed(many.as_bytes(), "> ");
        assert_eq!((words.len(), words[0].as_str()), (LAST_LINES, "80"));
    }

    proptest! {
        #[test]
        fn nothing_is_lost(chunks in proptest::collection::vec("[a-c\n]{0,9}", 0..20)) {
            let mut lines = Lines::default();
            let mut joined = String::new();
            for chunk in &chunks {
                lines.push(chunk.as_bytes(), |line| {
                    joined += std::str::from_utf8(line).unwrap();
                    joined.push('\n');
                });
            }
            lines.finish(|line| joined += std::str::from_utf8(line).unwrap());
            prop_assert_eq!(joined, chunks.concat());
        }
    }
}

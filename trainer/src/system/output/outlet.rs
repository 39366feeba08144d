//! Writes standard output and standard error of a run on threads of their own.
//!
//! No rank waits for a reader. Lines that do not fit into the queues are dropped and counted.
//! Before a run, and in commands that answer a question, lines are written at once.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::{Condvar, Mutex};
use rustix::termios::tcgetwinsize;

use super::counted;

/// Maximum waiting lines, and their maximum bytes.
const MOST_LINES: usize = 4000;
const MOST_BYTES: usize = 1 << 20;

/// Output stream of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// State of a progress bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    /// Distinguishes a bar from the one before.
    pub number: u64,
    pub prefix: String,
    pub steps: u64,
    pub done: u64,
    pub message: String,
}

enum Item {
    Line(Stream, String),
    /// Other work on the terminal.
    Work(Box<dyn FnOnce() + Send>),
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    bytes: usize,
    /// Lines dropped since the last one that fit.
    dropped: u64,
    /// Pending change of the bar: show one, or none. `None` without a change.
    bar: Option<Option<Bar>>,
    /// Whether the thread is writing.
    writing: bool,
    /// Number of writes so far.
    written: u64,
    started: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.items.is_empty() && self.bar.is_none() && self.dropped == 0 && !self.writing
    }

    /// Queues a line, or counts it as dropped.
    fn add(&mut self, stream: Stream, text: &str) {
        let is_full =
            self.items.len() >= MOST_LINES || self.bytes.saturating_add(text.len()) > MOST_BYTES;
        if is_full && !self.items.is_empty() {
            self.dropped += 1;
            return;
        }
        self.tell_dropped(stream);
        self.bytes += text.len();
        self.items.push_back(Item::Line(stream, text.to_owned()));
    }

    /// Queues a notice of the dropped lines.
    fn tell_dropped(&mut self, stream: Stream) {
        let lines = match std::mem::take(&mut self.dropped) {
            0 => return,
            lines => counted(lines, "line"),
        };
        let text = format!("warning: dropped {lines} of output: nobody read it in time");
        self.bytes += text.len();
        self.items.push_back(Item::Line(stream, text));
    }

    /// Takes the next work, if any.
    fn take(&mut self, stream: Stream) -> Option<(Option<Option<Bar>>, Option<Item>)> {
        if self.items.is_empty() {
            self.tell_dropped(stream);
        }
        let (bar, item) = (self.bar.take(), self.items.pop_front());
        if let Some(Item::Line(_, text)) = &item {
            self.bytes = self.bytes.saturating_sub(text.len());
        }
        (bar.is_some() || item.is_some()).then_some((bar, item))
    }
}

/// A queue and its writer thread.
struct Lane {
    state: Mutex<State>,
    changed: Condvar,
    /// Destination of reports about dropped lines.
    stream: Stream,
}

static OUT: Lane = Lane::new(Stream::Out);
static ERR: Lane = Lane::new(Stream::Err);

/// Whether lines go into queues.
static QUEUES: AtomicBool = AtomicBool::new(false);

/// Whether both streams are terminals. One thread then writes to both, in the order of the lines
/// and beside the bar.
static TOGETHER: AtomicBool = AtomicBool::new(false);

impl Lane {
    const fn new(stream: Stream) -> Self {
        Self {
            state: Mutex::new(State {
                items: VecDeque::new(),
                bytes: 0,
                dropped: 0,
                bar: None,
                writing: false,
                written: 0,
                started: false,
            }),
            changed: Condvar::new(),
            stream,
        }
    }

    fn of(stream: Stream) -> &'static Self {
        match stream {
            Stream::Out if !TOGETHER.load(Ordering::Relaxed) => &OUT,
            _ => &ERR,
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    fn start(&'static self, name: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        if !state.started {
            thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || self.write())?;
            state.started = true;
        }
        Ok(())
    }

    fn write(&self) {
        let mut shown: Option<(u64, ProgressBar)> = None;
        let mut state = self.state.lock();
        loop {
            let Some((bar, item)) = state.take(self.stream) else {
                self.changed.wait(&mut state);
                continue;
            };
            state.writing = true;
            drop(state);
            if let Some(bar) = bar {
                show(&mut shown, bar);
            }
            let write = || match item {
                Some(Item::Line(stream, text)) => write_line(stream, &text),
                Some(Item::Work(work)) => work(),
                None => {}
            };
            match &shown {
                Some((_, bar)) => bar.suspend(write),
                None => write(),
            }
            state = self.state.lock();
            state.writing = false;
            state.written += 1;
            self.changed.notify_all();
        }
    }

    /// Waits until everything is written, or nothing has been for `patience`.
    fn flush(&self, patience: Duration) {
        let mut state = self.state.lock();
        let (mut written, mut since) = (state.written, Instant::now());
        while state.started && !state.is_idle() {
            if state.written != written {
                (written, since) = (state.written, Instant::now());
            }
            let left = patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                return;
            }
            self.changed.wait_for(&mut state, left);
        }
    }
}

/// Shows this bar on the terminal.
fn show(shown: &mut Option<(u64, ProgressBar)>, bar: Option<Bar>) {
    let number = bar.as_ref().map(|bar| bar.number);
    if let Some((_, old)) = shown.take_if(|(old, _)| Some(*old) != number) {
        old.finish_and_clear();
    }
    let Some(wanted) = bar else {
        return;
    };
    let (_, bar) = shown.get_or_insert_with(|| {
        let target = ProgressDrawTarget::stderr_with_hz(10);
        let bar = ProgressBar::with_draw_target(Some(wanted.steps), target);
        // A narrow terminal keeps its room for the numbers.
        let width = match tcgetwinsize(io::stderr()) {
            Ok(size) if size.ws_col < 120 => 8,
            _ => 24,
        };
        let template = format!("{{prefix}} [{{bar:{width}}}] step {{pos}}/{{len}}{{msg}}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(wanted.prefix);
        (wanted.number, bar)
    });
    bar.set_message(wanted.message);
    bar.set_position(wanted.done);
}

/// Writes a line now. A closed pipe is no error.
pub(super) fn write_line(stream: Stream, text: &str) {
    match stream {
        Stream::Out => {
            if let Err(error) = writeln!(io::stdout(), "{text}") {
                super::not_said(&error);
            }
        }
        Stream::Err => {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }
}

/// From now on, messages never wait for their reader.
///
/// # Errors
/// Fails if no thread can start. Lines are then still written at once.
pub(crate) fn start() -> io::Result<()> {
    ERR.start("stderr")?;
    OUT.start("stdout")?;
    let together = io::stdout().is_terminal() && io::stderr().is_terminal();
    TOGETHER.store(together, Ordering::Relaxed);
    QUEUES.store(true, Ordering::Release);
    Ok(())
}

/// Writes or queues a line.
pub(crate) fn put(stream: Stream, text: &str) {
    match QUEUES.load(Ordering::Acquire) {
        true => Lane::of(stream).change(|state| state.add(stream, text)),
        false => write_line(stream, text),
    }
}

/// Shows or removes the progress bar.
pub(crate) fn put_bar(bar: Option<Bar>) {
    if QUEUES.load(Ordering::Acquire) && !super::is_silent() {
        ERR.change(|state| state.bar = Some(bar));
    }
}

/// Queues work on the terminal, in order with the lines.
pub(crate) fn put_work(work: impl FnOnce() + Send + 'static) {
    match QUEUES.load(Ordering::Acquire) {
        true => ERR.change(|state| state.items.push_back(Item::Work(Box::new(work)))),
        false => work(),
    }
}

/// Whether the terminal has accepted everything so far.
pub(crate) fn is_idle() -> bool {
    ERR.state.lock().is_idle()
}

/// Waits until all lines are written, or none has been for `patience`.
pub(crate) fn flush(patience: Duration) {
    ERR.flush(patience);
    OUT.flush(patience);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(item: Option<Item>) -> String {
        match item {
            Some(Item::Line(_, text)) => text,
            _ => "nothing".to_owned(),
        }
    }

    fn next(state: &mut State) -> String {
        state
            .take(Stream::Out)
            .map_or_else(|| text(None), |(_, item)| text(item))
    }

    #[test]
    fn lines_that_do_not_fit_are_counted_where_they_are_missing() {
        let mut state = State::default();
        for line in 0..MOST_LINES + 7 {
            state.add(Stream::Out, &line.to_string());
        }
        assert_eq!((state.items.len(), state.dropped), (MOST_LINES, 7));
        assert_eq!(next(&mut state), "0");
        state.add(Stream::Out, "later");
        for line in 1..MOST_LINES {
            assert_eq!(next(&mut state), line.to_string());
        }
        let told = next(&mut state);
        assert!(told.contains("dropped 7 lines"), "{told}");
        assert_eq!(next(&mut state), "later");
        assert!(state.take(Stream::Out).is_none() && state.bytes == 0);
    }

    #[test]
    fn that_lines_are_missing_is_said_when_nothing_comes_after_them() {
        let mut state = State::default();
        let long = "x".repeat(MOST_BYTES + 1);
        // A line longer than the total limit is still accepted.
        state.add(Stream::Err, &long);
        state.add(Stream::Err, "short");
        assert_eq!(next(&mut state), long);
        assert!(!state.is_idle());
        let told = next(&mut state);
        assert!(told.contains("dropped 1 line "), "{told}");
        assert!(state.take(Stream::Err).is_none() && state.is_idle());
    }

    #[test]
    fn only_the_last_picture_of_a_bar_counts() {
        let mut state = State::default();
        let bar = |done| Bar {
            number: 1,
            prefix: String::new(),
            steps: 9,
            done,
            message: String::new(),
        };
        for done in 0..5 {
            state.bar = Some(Some(bar(done)));
        }
        let (bar, item) = state.take(Stream::Err).unwrap();
        assert!(bar.flatten().is_some_and(|bar| bar.done == 4) && item.is_none());
        assert!(state.is_idle());
    }
}

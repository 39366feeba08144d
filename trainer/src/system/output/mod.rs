//! Messages on standard output and standard error, which never block a run.

pub(crate) mod outlet;
pub(crate) mod screen;
pub(crate) mod style;
pub mod verbosity;

use std::io::{self, ErrorKind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outlet::Stream;
use verbosity::Verbosity;

use crate::system::log;

/// Maximum delay of the end by a terminal or pipe that accepts no more.
const PATIENCE: Duration = Duration::from_secs(1);

/// Error of the first line that was lost on standard output.
static UNSAID: OnceLock<String> = OnceLock::new();

/// Whether results are not printed either.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Writes a line with a result to standard output.
///
/// A closed pipe is no error; [`unsaid`] tells callers that need to know.
pub fn say(text: &str) {
    if !is_silent() {
        outlet::put(Stream::Out, text);
    }
}

/// Writes a line about the progress to standard output, unless the process is quiet.
pub fn tell(text: &str) {
    if Verbosity::get() > Verbosity::Quiet {
        say(text);
    }
}

/// Writes a note, which may be a warning.
pub fn note(text: &str) {
    match text.starts_with("warning: ") {
        true => complain(text),
        false => tell(text),
    }
}

/// From now on, prints only warnings and errors, as a quiet training does.
pub(crate) fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Notes that a write to standard output failed.
pub(crate) fn not_said(error: &io::Error) {
    // A reader that closes the pipe has read enough.
    if error.kind() != ErrorKind::BrokenPipe {
        let _ = UNSAID.set(error.to_string());
    }
}

/// The reason if output was lost although its reader wants it.
pub fn unsaid() -> Option<&'static str> {
    UNSAID.get().map(String::as_str)
}

/// Writes a line to standard error and the log of the run.
///
/// Like [`say`], it ignores a closed pipe. On the dashboard, the line appears there.
pub fn complain(text: &str) {
    log::write(text);
    complain_unlogged(text);
}

/// Writes like [`complain`], without the log.
pub(crate) fn complain_unlogged(text: &str) {
    if !screen::takes(text) {
        outlet::put(Stream::Err, &style::painted(text));
    }
}

/// From now on, messages never wait for their reader.
pub(crate) fn never_wait() {
    if let Err(error) = outlet::start() {
        complain(&format!(
            "warning: slow output may delay training, because the output thread did not start: \
             {error}"
        ));
    }
}

/// Waits until all messages are written. For the end of the process; a stuck reader delays it only
/// briefly.
pub(crate) fn flush() {
    outlet::flush(PATIENCE);
}

/// A number of things, such as "1 step" and "2 steps".
pub fn counted(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {one}s"),
    }
}

/// A duration for people: `0.8 s`, `12.3 s`, `3 min 05 s`, `2 h 03 min`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 99.95 {
        return format!("{seconds:.1} s");
    }
    let seconds = seconds.round() as u64;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    if hours == 0 {
        format!("{minutes} min {:02} s", seconds % 60)
    } else {
        format!("{hours} h {minutes:02} min")
    }
}

/// A number for people, with at most three significant digits: `0.001`, `0.0125`, `1.25e-5`.
pub fn short(value: f64) -> String {
    let text = format!("{value:.2e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    };
    let rounded = format!("{digits}e{power}");
    match power.parse::<i32>() {
        Ok(-4..=5) => rounded.parse().unwrap_or(value).to_string(),
        _ => rounded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 0.001, 0.012_499, 1.25e-5, 1e-7, 0.1, 12.0, 123_456.0];
        let expected = [
            "0", "0.001", "0.0125", "1.25e-5", "1e-7", "0.1", "12", "123000",
        ];
        assert_eq!(numbers.map(short), expected);
        assert_eq!(short(f64::NAN), "NaN");
    }

    #[test]
    fn durations_are_readable() {
        let text = |seconds| duration(Duration::from_secs_f64(seconds));
        assert_eq!(text(0.84), "0.8 s");
        assert_eq!(text(99.96), "1 min 40 s");
        assert_eq!(text(185.2), "3 min 05 s");
        assert_eq!(text(7380.0), "2 h 03 min");
    }
}

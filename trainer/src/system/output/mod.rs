//! What the process says to people: lines on standard output and standard error, which never hold
//! it up.

pub(crate) mod outlet;
pub(crate) mod screen;

use std::io::{self, ErrorKind};
use std::sync::OnceLock;
use std::time::Duration;

use outlet::Stream;

use crate::system::log;

/// How long the end may be delayed by a terminal or a pipe that takes nothing more.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why the first line that did not get to standard output did not.
static UNSAID: OnceLock<String> = OnceLock::new();

/// Writes a line to standard output. Nobody reading it any more is no reason to stop; for whom it
/// matters that it was written, [`unsaid`] tells.
pub fn say(text: &str) {
    outlet::put(Stream::Out, text);
}

/// Takes note that something could not be written to standard output.
pub(crate) fn not_said(error: &io::Error) {
    // Who closes a pipe has read enough.
    if error.kind() != ErrorKind::BrokenPipe {
        let _ = UNSAID.set(error.to_string());
    }
}

/// Why not all that was said got to standard output, if it did not, though somebody wants it.
pub fn unsaid() -> Option<&'static str> {
    UNSAID.get().map(String::as_str)
}

/// Writes a line to standard error, with no more concern for readers than [`say`], and to the log
/// of the run. Where the terminal shows a full screen, that gets it.
pub fn complain(text: &str) {
    log::write(text);
    complain_unlogged(text);
}

/// The same without the log.
pub(crate) fn complain_unlogged(text: &str) {
    if !screen::takes(text) {
        outlet::put(Stream::Err, text);
    }
}

/// From now on, as long as this process lives, whoever says something does not wait for who reads
/// it.
pub(crate) fn never_wait() {
    if let Err(error) = outlet::start() {
        complain(&format!(
            "warning: slow output may delay training, because the output thread did not start: \
             {error}"
        ));
    }
}

/// Waits until what was said is written: for the end, which is not delayed for long by who does not
/// read.
pub(crate) fn flush() {
    outlet::flush(PATIENCE);
}

/// A duration as people read it: `0.8 s`, `12.3 s`, `3 min 05 s`, `2 h 03 min`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_readable() {
        let text = |seconds| duration(Duration::from_secs_f64(seconds));
        assert_eq!(text(0.84), "0.8 s");
        assert_eq!(text(99.96), "1 min 40 s");
        assert_eq!(text(185.2), "3 min 05 s");
        assert_eq!(text(7380.0), "2 h 03 min");
    }
}

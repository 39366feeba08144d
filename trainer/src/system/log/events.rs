//! Copies the libraries' log events into the run's log.

use std::io::{self, Write};

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

/// A layer that writes events of level info and above to this rank's log, whatever `RUST_LOG` says.
///
/// For the subscriber of a program.
pub fn events<S: Subscriber + for<'s> LookupSpan<'s>>() -> impl Layer<S> {
    tracing_subscriber::fmt::layer()
        .with_writer(|| Entry)
        .with_ansi(false)
        .without_time()
        .with_filter(LevelFilter::INFO)
}

/// Writer of one event, which goes into the log at once.
struct Entry;

impl Write for Entry {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        super::write(String::from_utf8_lossy(bytes).trim());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! What the libraries say, for the log: it wants more of it than a terminal.

use std::io::{self, Write};

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

/// Brings events of level info and above into the log of the run that this process is a rank of,
/// whatever `RUST_LOG` says. For the subscriber of a program.
pub fn events<S: Subscriber + for<'s> LookupSpan<'s>>() -> impl Layer<S> {
    tracing_subscriber::fmt::layer()
        .with_writer(|| Entry)
        .with_ansi(false)
        .without_time()
        .with_filter(LevelFilter::INFO)
}

/// Takes an event, which is written at once.
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

//! Prints log events in the style of the program's own messages.

use std::fmt;
use std::io::{self, Write};

use burn_dist::world::World;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use super::events;
use crate::system::output::complain_unlogged;
use crate::system::output::verbosity::Verbosity;

/// Prints the events of libraries from now on, as `-v` or `RUST_LOG` selects them.
///
/// The log of the run has all of level info.
pub(crate) fn show(world: &World) {
    let by_user = std::env::var(EnvFilter::DEFAULT_ENV).ok();
    let by_user = by_user.filter(|directives| !directives.trim().is_empty());
    let mut directives = Verbosity::get().events();
    // One rank of each node is enough for messages about files.
    if world.local_rank() != 0 {
        directives.push_str(",datasets=error");
    }
    let filter = EnvFilter::builder().parse_lossy(by_user.unwrap_or(directives));
    // The own launcher names the rank in front of each line.
    let named = !world.is_main() && !world.is_of_own_launcher();
    let style = Style {
        rank: named.then(|| world.rank()),
    };
    let shown = tracing_subscriber::fmt::layer()
        .with_writer(|| Shown)
        .with_ansi(false)
        .event_format(style)
        .with_filter(filter);
    // Fails only if a subscriber exists already, which is fine.
    let _ = tracing_subscriber::registry()
        .with(shown)
        .with(events())
        .try_init();
}

/// The style of an event: `warning: ` and the message.
struct Style {
    /// The rank, if lines need it.
    rank: Option<usize>,
}

impl<S, N> FormatEvent<S, N> for Style
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        let label = match level {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        writer.write_str(label)?;
        if let Some(rank) = self.rank {
            write!(writer, " on rank {rank}")?;
        }
        writer.write_str(": ")?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Writer that prints one event.
struct Shown;

impl Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        complain_unlogged(String::from_utf8_lossy(bytes).trim_end());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

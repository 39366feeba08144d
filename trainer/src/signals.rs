//! Ctrl-C and polite kills end a rank at once, whatever it computes or waits for.

use std::io;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// From now on SIGINT and SIGTERM end this process with 128 + the signal's number. It says so if
/// it `speaks`.
///
/// # Errors
/// If the system refuses the handlers or their thread.
pub fn end_on_signals(speaks: bool) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let Some(signal) = signals.forever().next() else {
                return;
            };
            crate::dashboard::restore();
            if speaks {
                let name = if signal == SIGINT {
                    "SIGINT"
                } else {
                    "SIGTERM"
                };
                crate::console::complain(&format!("stopped by {name}"));
            }
            std::process::exit(128 + signal);
        })?;
    Ok(())
}

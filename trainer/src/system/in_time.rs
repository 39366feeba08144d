//! Work that may hang, with a time limit.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// Runs `work` on another thread, or on this one if there is no other. Returns false if it took too
/// long to wait for.
pub(crate) fn in_time(
    name: &str,
    patience: Duration,
    work: impl FnOnce() + Send + 'static,
) -> bool {
    let (sender, done) = channel();
    let work = Arc::new(Mutex::new(Some(work)));
    let of_thread = work.clone();
    let thread = thread::Builder::new().name(name.into()).spawn(move || {
        let work = of_thread.lock().take();
        if let Some(work) = work {
            work();
        }
        // The receiver is gone if it took too long.
        let _ = sender.send(());
    });
    if thread.is_ok() {
        return done.recv_timeout(patience).is_ok();
    }
    let work = work.lock().take();
    if let Some(work) = work {
        work();
    }
    true
}

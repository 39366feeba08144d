//! A panic on one rank must not leave the others waiting: it is reported with the rank, told to
//! the group, and ends the process.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use burn_dist::ProcessGroup;

/// How long the group may take to tell the other ranks.
const ABORT_TIME: Duration = Duration::from_secs(2);

static GROUP: Mutex<Option<ProcessGroup>> = Mutex::new(None);

/// Names the group that a panic aborts.
pub fn watch(group: &ProcessGroup) {
    *GROUP.lock().unwrap_or_else(PoisonError::into_inner) = Some(group.clone());
}

/// From now on a panic on any thread ends this process, which is rank `rank`, with exit code 1.
pub fn end_on_panic(rank: usize) {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        default(info);
        let reason = format!("rank {rank} panicked: {info}");
        eprintln!("error: {reason}; this is a bug");
        abort(reason);
        std::process::exit(crate::FAILED);
    }));
}

/// Tells the other ranks, on a thread of its own: whoever panicked may hold the group's locks.
fn abort(reason: String) {
    let Some(group) = GROUP.lock().ok().and_then(|mut group| group.take()) else {
        return;
    };
    let (sender, told) = std::sync::mpsc::channel();
    let started = std::thread::Builder::new()
        .name("abort".into())
        .spawn(move || {
            group.abort(&reason);
            // Nobody listens any more when it took too long.
            let _ = sender.send(());
        });
    if started.is_ok() {
        let _ = told.recv_timeout(ABORT_TIME);
    }
}

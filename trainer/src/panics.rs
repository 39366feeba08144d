//! A panic on one rank must not leave the others waiting: it is reported with the rank, told to
//! the group, and ends the process.

use std::panic::PanicHookInfo;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use burn_dist::ProcessGroup;
use burn_dist::launch::abort_all;
use burn_dist::thread_limit::NoThreads;

/// How long the group may take to tell the other ranks.
const ABORT_TIME: Duration = Duration::from_secs(2);

static GROUP: Mutex<Option<ProcessGroup>> = Mutex::new(None);

/// A panic aborts `group` as long as what is returned lives.
pub fn watch(group: &ProcessGroup) -> Watched {
    *GROUP.lock().unwrap_or_else(PoisonError::into_inner) = Some(group.clone());
    Watched(())
}

/// See [`watch`].
#[must_use]
#[derive(Debug)]
pub struct Watched(());

impl Drop for Watched {
    fn drop(&mut self) {
        GROUP.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// From now on a panic on any thread ends this process, which is rank `rank`, with exit code 1, unless it becomes an
/// error.
pub fn end_on_panic(rank: usize) {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if contained::is_running() {
            tracing::debug!("a panic that becomes an error: {info}");
            return;
        }
        crate::dashboard::restore();
        default(info);
        let limit = payload(info).and_then(NoThreads::of_panic);
        let (reason, told) = match limit {
            Some(limit) => (limit.to_string(), format!("error on rank {rank}: {limit}")),
            None => {
                let reason = format!("rank {rank} panicked: {info}");
                let told = format!("error: {reason}; this is a bug");
                (reason, told)
            }
        };
        // First: what is said may have to wait for what the panicking thread holds.
        abort(reason);
        crate::console::complain(&told);
        abort_all(crate::FAILED);
        std::process::exit(crate::FAILED);
    }));
}

/// What was said.
fn payload<'a>(info: &'a PanicHookInfo<'_>) -> Option<&'a str> {
    let payload = info.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
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

#[cfg(test)]
mod tests {
    use super::*;
    use burn_dist::launch::{LocalLauncher, RankExit};
    use burn_dist::world::World;

    /// Set for the processes that are ranks.
    const RANK: &str = "TRAINER_TEST_PANICS";

    /// Does something in a process of the test below only: the first rank panics, the other waits
    /// for it and ends properly if it is told why it need not.
    #[test]
    fn rank() {
        if std::env::var_os(RANK).is_none() {
            return;
        }
        let world = World::from_env().unwrap();
        let group = ProcessGroup::connect(&world).unwrap();
        if world.is_main() {
            let _watched = watch(&group);
            end_on_panic(world.rank());
            let contained = contained::run(|| panic!("contained"));
            assert_eq!(contained, Err("contained".to_owned()));
            panic!("on purpose");
        }
        let told = group.barrier().unwrap_err().to_string();
        assert!(
            told.contains("rank 0 panicked") && told.contains("on purpose"),
            "{told}"
        );
    }

    #[test]
    fn a_panic_is_told_to_the_others_and_ends_the_process() {
        let outcome = LocalLauncher::new(2)
            .args(["--exact", "panics::tests::rank", "--nocapture"])
            .env(RANK, "1")
            .run()
            .unwrap();
        assert_eq!(
            outcome.exits(),
            [RankExit::Code(crate::FAILED), RankExit::Code(0)]
        );
        let reason = outcome.failure().and_then(|failure| failure.reason());
        assert!(
            reason.is_some_and(|reason| reason.contains("on purpose")),
            "{outcome}"
        );
    }
}

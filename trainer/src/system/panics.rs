//! Panics of a rank: reports them with the rank, tells the group, and ends the process.
//!
//! The other ranks must not wait for a rank that panicked.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;
use std::time::Duration;

use burn_dist::ProcessGroup;
use burn_dist::group::Connecting;
use burn_dist::launch::abort_all;
use burn_dist::thread_limit::NoThreads;
use parking_lot::Mutex;

use crate::system::in_time::in_time;
use crate::system::output::{complain, complain_unlogged};

/// Time limit for telling the other ranks, and for telling people.
const PATIENCE: Duration = Duration::from_secs(2);

static GROUP: Mutex<Option<ProcessGroup>> = Mutex::new(None);
static CONNECTING: Mutex<Option<Connecting>> = Mutex::new(None);

/// From now on, a panic is reported to the ranks of a group that is being connected.
pub fn connecting(group: Connecting) {
    *CONNECTING.lock() = Some(group);
}

/// A panic aborts `group` as long as the result lives.
pub fn watch(group: &ProcessGroup) -> Watched {
    CONNECTING.lock().take();
    *GROUP.lock() = Some(group.clone());
    Watched(())
}

/// Guard of [`watch`].
#[must_use]
#[derive(Debug)]
pub struct Watched(());

impl Drop for Watched {
    fn drop(&mut self) {
        GROUP.lock().take();
    }
}

/// Makes a panic on any thread end this process, rank `rank`, with exit code 1.
///
/// Panics that become errors are excepted.
pub fn end_on_panic(rank: usize) {
    std::panic::set_hook(Box::new(move |info| {
        if contained::is_running() {
            tracing::debug!("caught a panic, reported as an error: {info}");
            return;
        }
        let report = report(info);
        let limit = payload(info).and_then(NoThreads::of_panic);
        let (reason, told) = match limit {
            Some(limit) => (limit.to_string(), format!("error on rank {rank}: {limit}")),
            None => {
                let reason = format!("rank {rank} panicked: {info}");
                let told = format!("error: {reason}");
                (reason, told)
            }
        };
        // First tell the ranks: output may block on its reader, or on a lock of the panicking
        // thread.
        abort(reason);
        in_time("panic", PATIENCE, move || {
            crate::system::output::screen::restore();
            complain_unlogged(&report);
            complain(&told);
            crate::system::output::flush();
        });
        abort_all(crate::FAILED);
        // Skips the usual exit handlers, which may wait for the thread that panicked.
        signal_hook::low_level::exit(crate::FAILED);
    }));
}

/// The panic's message.
fn payload<'a>(info: &'a PanicHookInfo<'_>) -> Option<&'a str> {
    let payload = info.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
}

/// Tells the other ranks why this one ends. Runs on its own thread, because the caller may hold the
/// group's locks.
pub(crate) fn abort(reason: String) {
    // Neither lock is held while the ranks are told.
    let (group, connecting) = (GROUP.lock().take(), CONNECTING.lock().take());
    if let Some(group) = group {
        in_time("panic", PATIENCE, move || group.abort(&reason));
    } else if let Some(group) = connecting {
        in_time("panic", PATIENCE, move || group.abort(&reason));
    }
}

/// Formats a panic.
fn report(info: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => {
            format!("thread '{name}' {info}\nstack backtrace:\n{backtrace}")
        }
        _ => format!(
            "thread '{name}' {info}\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::net::TcpListener;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;
    use burn_dist::launch::{LocalLauncher, RankExit};
    use burn_dist::world::World;

    /// Set in the rank processes.
    const RANK: &str = "TRAINER_TEST_PANICS";

    /// Runs only in a child process of the test below. The first rank panics; the other waits for
    /// it, and ends cleanly once it is told.
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

    /// A pipe that accepts no more.
    fn full_pipe() -> (io::PipeReader, io::PipeWriter) {
        let (reader, mut writer) = io::pipe().unwrap();
        fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
        for piece in [&[b'x'; 4096][..], b"x"] {
            while writer.write_all(piece).is_ok() {}
        }
        fcntl_setfl(&writer, OFlags::empty()).unwrap();
        (reader, writer)
    }

    #[test]
    fn a_panic_is_told_to_the_others_whatever_happens_to_what_is_printed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        drop(listener);
        let (_reader, full) = full_pipe();
        let start = |rank: &str, output: Stdio| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "system::panics::tests::rank", "--nocapture"]);
            for (name, value) in [
                (RANK, "1"),
                ("RANK", rank),
                ("LOCAL_RANK", rank),
                ("WORLD_SIZE", "2"),
                ("LOCAL_WORLD_SIZE", "2"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", &port),
                ("BURN_DIST_SECRET", "a secret of this test only"),
            ] {
                command.env(name, value);
            }
            command.stderr(output).spawn().unwrap()
        };
        let mut ranks = [start("0", full.into()), start("1", Stdio::inherit())];
        let begin = Instant::now();
        let mut codes = [None, None];
        while codes.contains(&None) && begin.elapsed() < Duration::from_secs(30) {
            for (rank, code) in ranks.iter_mut().zip(&mut codes) {
                let ended = rank.try_wait().unwrap();
                *code = code.or(ended.map(|status| status.code()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        for rank in &mut ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
        assert_eq!(codes, [Some(Some(crate::FAILED)), Some(Some(0))]);
    }

    #[test]
    fn a_panic_is_told_to_the_others_and_ends_the_process() {
        let outcome = LocalLauncher::new(2)
            .args(["--exact", "system::panics::tests::rank", "--nocapture"])
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

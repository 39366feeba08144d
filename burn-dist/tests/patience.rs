//! Timeouts: longer before the first gradients than after, extended by a rank that requests it, and
//! of any length; and the time that a rank continues after its run has failed.

mod world_support;

use std::process::exit;
use std::thread;
use std::time::{Duration, Instant};

use burn_dist::world::World;
use burn_dist::{Abort, Error, GroupOptions, ProcessGroup, ReduceOp, TransportKind};
use rustix::process::{Signal, getpid, kill_process};
use world_support::{LIMIT, Process, SECRET, free_port, limited, part, play};

const SHORT: Duration = Duration::from_millis(300);
/// Delay of the last rank.
const LATE: Duration = Duration::from_millis(1200);

/// Runs `work` as two ranks, the second of which should be late.
fn pair(
    first: Duration,
    later: Duration,
    work: impl Fn(&ProcessGroup) -> Result<(), Error> + Sync,
) -> Vec<Result<(), Error>> {
    let options = GroupOptions {
        transport: TransportKind::Tcp,
        first_timeout: first,
        timeout: later,
        ..GroupOptions::default()
    };
    let groups = ProcessGroup::in_process(2, &options).unwrap();
    thread::scope(|scope| {
        let work = &work;
        let spawn = |group: ProcessGroup| scope.spawn(move || work(&group));
        let threads: Vec<_> = groups.into_iter().map(spawn).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}

fn be_late(group: &ProcessGroup) {
    if group.rank() == 1 {
        thread::sleep(LATE);
    }
}

#[test]
fn ranks_are_patient_until_the_first_numbers_have_gone_round() {
    let begin = Instant::now();
    let results = pair(Duration::from_secs(60), SHORT, |group| {
        // Counts and names are exchanged before the first gradients.
        group.gather_bytes(b"name")?;
        group.all_reduce(&mut [1i64], ReduceOp::Sum)?;
        be_late(group);
        group.barrier()?;
        be_late(group);
        group.all_reduce(&mut [1.0f32], ReduceOp::Mean)?;
        be_late(group);
        group.barrier()
    });
    let error = results[0].as_ref().unwrap_err().to_string();
    assert!(
        error.contains("#5 barrier") && error.contains("rank 1"),
        "{error}"
    );
    assert!(begin.elapsed() > 2 * LATE);
}

#[test]
fn one_barrier_may_take_longer_than_other_collectives() {
    let results = pair(SHORT, SHORT, |group| {
        group.all_reduce(&mut [1.0f32], ReduceOp::Mean)?;
        be_late(group);
        group.barrier_within(Duration::from_secs(60))?;
        be_late(group);
        group.barrier()
    });
    let error = results[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("#3 barrier"), "{error}");
}

#[test]
fn ranks_wait_longer_for_one_that_is_busy_with_files() {
    for (most, expected) in [
        (Duration::from_secs(60), "#3 barrier"),
        (2 * SHORT, "#2 barrier"),
    ] {
        let begin = Instant::now();
        let results = pair(most, SHORT, |group| {
            group.all_reduce(&mut [1.0f32], ReduceOp::Mean)?;
            group.busy().during(|| be_late(group));
            group.barrier()?;
            be_late(group);
            group.barrier()
        });
        let error = results[0].as_ref().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let is_busy = error.contains("rank 1 has only reached #1, still reading or writing");
        assert_eq!(is_busy, expected == "#2 barrier", "{error}");
        assert!(begin.elapsed() < LIMIT / 2);
    }
}

/// The launcher names the rank that the others blame.
#[test]
fn a_rank_that_comes_too_late_is_the_one_that_failed() {
    let options = GroupOptions {
        transport: TransportKind::Tcp,
        first_timeout: SHORT,
        timeout: SHORT,
        ..GroupOptions::default()
    };
    let groups = ProcessGroup::in_process(3, &options).unwrap();
    let faults: Vec<Option<String>> = thread::scope(|scope| {
        let wait = |group: ProcessGroup| {
            be_late(&group);
            group.barrier().unwrap_err();
            group.fault()
        };
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| scope.spawn(move || wait(group)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    // The late rank reports it itself, because others have told it.
    let of_late = faults[1].as_deref().unwrap_or_default();
    assert!(of_late.contains("rank 1 failed: rank "), "{faults:?}");
    assert!(of_late.contains("rank 1 has only reached #0"), "{faults:?}");
}

/// Time for which a rank continues after its run has failed, and the sleep of one that does.
const LEASH: Duration = Duration::from_secs(1);
const SLEEP: Duration = Duration::from_secs(3);

/// Not a test. The test below starts this executable to run it as a rank.
#[test]
fn parts() {
    let Some(part) = part() else {
        return;
    };
    let tell: fn(&str) = |reason| {
        eprintln!("told: {reason}");
        thread::sleep(10 * SLEEP);
    };
    let options = GroupOptions {
        abort: match part.as_str() {
            "is on a leash" => Some(Abort::after(LEASH)),
            "hangs in its last words" => Some(Abort { after: LEASH, tell }),
            _ => None,
        },
        timeout: match part.as_str() {
            "waits for hours" => SHORT,
            _ => GroupOptions::default().timeout,
        },
        ..GroupOptions::default()
    };
    let group = ProcessGroup::connect_with(&World::from_env().unwrap(), options).unwrap();
    // Some may still be in it when the run fails.
    let _ = group.barrier();
    if part == "fails" {
        group.abort("the disk is full");
        exit(1);
    }
    if part == "waits for hours" {
        let error = group
            .barrier_within(Duration::from_secs(10_000))
            .unwrap_err();
        println!("{error}");
        exit(3);
    }
    if part == "is stopped" {
        kill_process(getpid(), Signal::STOP).unwrap();
    }
    println!("{part} and sleeps");
    thread::sleep(SLEEP);
    println!("{part} and woke up");
    exit(0);
}

/// Starts ranks that play these parts.
fn start(parts: &[&str]) -> Vec<Process> {
    let port = free_port().to_string();
    (0..parts.len())
        .map(|rank| {
            let mut command = play(parts[rank]);
            command
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("WORLD_SIZE", parts.len().to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", &port)
                .env("BURN_DIST_SECRET", SECRET);
            Process::start(command)
        })
        .collect()
}

#[test]
fn a_rank_that_is_stopped_is_not_waited_for_as_long_as_one_that_works() {
    limited(|| {
        let mut ranks = start(&["waits for hours", "is stopped"]).into_iter();
        let (status, output) = ranks.next().unwrap().end();
        assert_eq!(status.code(), Some(3), "{output}");
        assert!(output.contains("rank 1 does not answer"), "{output}");
    });
}

#[test]
fn a_rank_that_is_busy_elsewhere_ends_some_time_after_its_run_has_failed_if_it_is_asked_to() {
    limited(|| {
        let parts = [
            "is on a leash",
            "hangs in its last words",
            "is not",
            "fails",
        ];
        let ends: Vec<_> = start(&parts)
            .into_iter()
            .map(|rank| {
                let (status, output) = rank.end();
                (status.code(), output)
            })
            .collect();
        let reason = "still busy 1 s after the run failed and is terminated: rank 3 failed: the disk is full";
        for (part, (code, output)) in parts.iter().zip(&ends) {
            let leash = *part != "is not";
            let expected = if leash { Some(1) } else { Some(0) };
            assert_eq!(*code, expected, "{part}: {output}");
            assert_eq!(output.contains("woke up"), !leash, "{part}: {output}");
            assert_eq!(
                output.contains(reason),
                leash && *part != "fails",
                "{part}: {output}"
            );
        }
        assert!(ends[1].1.contains("told: this rank"), "{}", ends[1].1);
    });
}

#[test]
fn there_may_be_no_limit() {
    for result in pair(Duration::MAX, Duration::MAX, |group| {
        group.barrier()?;
        group.all_reduce(&mut [1.0f32], ReduceOp::Mean)?;
        group.barrier_within(Duration::MAX)
    }) {
        result.unwrap();
    }
}

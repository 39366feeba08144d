//! How long ranks wait for each other: longer before the first gradients have gone round than after, as
//! long as one of them says, and as long as they like.

use std::thread;
use std::time::{Duration, Instant};

use burn_dist::{Error, GroupOptions, ProcessGroup, ReduceOp, TransportKind};

const SHORT: Duration = Duration::from_millis(300);
/// How late the last rank comes.
const LATE: Duration = Duration::from_millis(1200);

/// Runs `work` as two ranks, the second of which is to be late.
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
        // Counts and names go round before there are gradients.
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
fn there_may_be_no_limit() {
    for result in pair(Duration::MAX, Duration::MAX, |group| {
        group.barrier()?;
        group.all_reduce(&mut [1.0f32], ReduceOp::Mean)?;
        group.barrier_within(Duration::MAX)
    }) {
        result.unwrap();
    }
}

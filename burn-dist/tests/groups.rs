//! Groups of some of the ranks: their members and order, and the effect of an error on other
//! groups.

mod world_support;

use std::num::NonZeroUsize;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use burn_dist::collective::MOST_GATHERED;
use burn_dist::group::Algorithm;
use burn_dist::{Buffer, CollectiveError, GroupOptions, ProcessGroup, ReduceOp, TransportKind};
use proptest::prelude::*;

fn options(transport: TransportKind, timeout: Duration) -> GroupOptions {
    GroupOptions {
        transport,
        connect_timeout: Duration::from_secs(30),
        first_timeout: timeout,
        timeout,
        ..GroupOptions::default()
    }
}

const PATIENT: Duration = Duration::from_secs(60);

/// Runs `work` as every rank.
fn on_ranks<R: Send>(
    size: usize,
    options: &GroupOptions,
    work: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let groups = ProcessGroup::in_process(size, options).unwrap();
    thread::scope(|scope| {
        let work = &work;
        let spawn = |group| scope.spawn(move || work(group));
        let threads: Vec<_> = groups.into_iter().map(spawn).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, R>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn colours_and_keys_decide_who_is_where(
        requests in prop::collection::vec((0u64..3, 0u64..3), 1..7),
    ) {
        let found = on_ranks(requests.len(), &options(TransportKind::Shm, PATIENT), |world| {
            let (colour, key) = requests[world.rank()];
            let part = world.split(colour, key).unwrap();
            let mut sum = [world.rank() as i64 + 1];
            part.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            // The world still works, and has its own order of collectives.
            world.barrier().unwrap();
            (part.rank(), part.world_ranks().to_vec(), sum[0])
        });
        for (rank, (own, members, sum)) in found.into_iter().enumerate() {
            let colour = requests[rank].0;
            let mut expected: Vec<_> =
                (0..requests.len()).filter(|other| requests[*other].0 == colour).collect();
            expected.sort_by_key(|other| requests[*other].1);
            prop_assert_eq!(expected[own], rank);
            prop_assert_eq!(sum, expected.iter().map(|rank| *rank as i64 + 1).sum::<i64>());
            prop_assert_eq!(members, expected);
        }
    }
}

#[test]
fn groups_in_two_directions_work_at_the_same_time() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let sums = on_ranks(6, &options(transport, PATIENT), |world| {
            let rank = world.rank();
            let row = world.split(rank as u64 / 3, 0).unwrap();
            let column = world.split(rank as u64 % 3, 0).unwrap();
            assert_eq!((row.size(), column.size()), (3, 2));
            assert_eq!(row.transport(), world.transport());
            let start = |group: &ProcessGroup| {
                let buffer = Buffer::from_slice(&vec![rank as f32; 50_000]);
                group.start_all_reduce(buffer, ReduceOp::Sum)
            };
            let handles: Vec<_> = (0..10)
                .flat_map(|_| [start(&row), start(&column), start(&world)])
                .collect();
            let sum = |handle: burn_dist::Handle| {
                let buffer = handle.wait().unwrap();
                buffer.as_slice::<f32>().unwrap()[49_999]
            };
            handles.into_iter().map(sum).collect::<Vec<f32>>()
        });
        for (rank, sums) in sums.iter().enumerate() {
            let row = [3.0, 12.0][rank / 3];
            let column = (rank % 3 + rank % 3 + 3) as f32;
            for round in sums.chunks(3) {
                assert_eq!(round, [row, column, 15.0]);
            }
        }
    }
}

#[test]
fn a_part_can_be_divided_again_and_outlives_the_whole() {
    on_ranks(5, &options(TransportKind::Tcp, PATIENT), |world| {
        let rank = world.rank();
        let part = world.split(u64::from(rank == 0), 0).unwrap();
        drop(world);
        let half = part.split(part.rank() as u64 % 2, 9 - rank as u64).unwrap();
        drop(part);
        let expected: &[usize] = match rank {
            0 => &[0],
            1 | 3 => &[3, 1],
            _ => &[4, 2],
        };
        assert_eq!(half.world_ranks(), expected);
        half.barrier().unwrap();
        assert_eq!((half.node(), half.nodes()), (0, 1));
    });
}

/// Ranks 0 and 1 wait for each other in different groups, so neither would ever continue.
fn errors_of_all(transport: TransportKind, culprit: fn(&ProcessGroup)) -> Vec<String> {
    let meeting = Barrier::new(4);
    let begin = Instant::now();
    let errors = on_ranks(4, &options(transport, PATIENT), |world| {
        let part = world.split(world.rank() as u64 / 2, 0).unwrap();
        part.barrier().unwrap();
        meeting.wait();
        let error = match world.rank() {
            0 => part.barrier().unwrap_err(),
            1 => world.barrier().unwrap_err(),
            2 => part.all_reduce(&mut [0f32; 8], ReduceOp::Sum).unwrap_err(),
            _ => {
                culprit(&part);
                world.barrier().unwrap_err()
            }
        };
        // All groups of all ranks are broken.
        assert!(part.barrier().is_err() && world.barrier().is_err());
        assert!(part.fault().is_some() && world.fault().is_some());
        error.to_string()
    });
    assert!(begin.elapsed() < Duration::from_secs(20), "{errors:?}");
    errors
}

#[test]
fn an_error_in_one_group_reaches_those_who_wait_in_another() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let errors = errors_of_all(transport, |part| {
            let odd = part.all_reduce(&mut [0f32; 9], ReduceOp::Sum);
            assert!(odd.is_err());
        });
        let culprit = |error: &String| error.contains("rank 2") || error.contains("rank 3");
        assert!(errors.iter().all(culprit), "{errors:?}");

        let errors = errors_of_all(transport, |part| part.abort("the disk is full"));
        let named = |error: &String| error.contains("rank 3") && error.contains("the disk is full");
        assert!(errors[..3].iter().all(named), "{errors:?}");
    }
}

/// Also on this rank itself, whatever the others do.
#[test]
fn an_abort_ends_what_this_rank_waits_for_in_other_groups() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let done = Barrier::new(2);
        on_ranks(2, &options(transport, PATIENT), |world| {
            let part = world.split(0, 0).unwrap();
            world.barrier().unwrap();
            if world.rank() == 0 {
                let begin = Instant::now();
                let waiting = world.start_barrier();
                part.abort("the disk is full");
                let error = waiting.wait().unwrap_err().to_string();
                assert!(error.contains("the disk is full"), "{error}");
                assert!(begin.elapsed() < Duration::from_secs(20));
            }
            // Rank 1 computes meanwhile, and notices nothing.
            done.wait();
        });
    }
}

/// The error names the last collective of a rank that hangs, also to ranks that wait for it
/// elsewhere.
#[test]
fn an_absent_rank_is_named_in_the_words_of_the_world() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let errors = on_ranks(4, &options(transport, Duration::from_secs(1)), |world| {
            let part = world.split(world.rank() as u64 / 2, 0).unwrap();
            part.barrier().unwrap();
            match world.rank() {
                3 => {
                    thread::sleep(Duration::from_secs(3));
                    String::new()
                }
                2 => part.barrier().unwrap_err().to_string(),
                _ => world.barrier().unwrap_err().to_string(),
            }
        });
        assert!(errors[2].contains("rank 3"), "{errors:?}");
        assert!(
            errors[..3]
                .iter()
                .any(|error| error.contains("rank 3 has only reached #1")
                    || error.contains("rank 3 last reached #1 of another group")),
            "{errors:?}"
        );
    }
}

#[test]
fn a_group_of_one_divides_into_itself() {
    let single = ProcessGroup::single();
    let part = single.split(7, 3).unwrap();
    assert_eq!(
        (part.rank(), part.size(), part.world_ranks()),
        (0, 1, &[0][..])
    );
    part.barrier().unwrap();
    part.abort("enough");
    assert!(single.barrier().is_err());
}

/// The folder is set after the groups were created, because a run only has one after its checks.
#[test]
fn a_collective_that_fails_leaves_the_flight_recorder_of_its_group() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let folder = tempfile::tempdir().unwrap();
        on_ranks(2, &options(transport, PATIENT), |world| {
            let part = world.split(0, 0).unwrap();
            world.barrier().unwrap();
            world.keep_flight_recorder_in(folder.path());
            if world.rank() == 1 {
                return world.abort("the disk is full");
            }
            assert!(part.all_reduce(&mut [0f32; 9], ReduceOp::Sum).is_err());
        });
        let files = std::fs::read_dir(folder.path()).unwrap();
        let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        assert_eq!(names, ["flight-recorder-rank-0-group-1.txt"]);
        let text = std::fs::read_to_string(folder.path().join(&names[0])).unwrap();
        let last = text.lines().last().unwrap_or_default();
        assert!(text.contains("rank 0 in the group of ranks 0, 1"), "{text}");
        assert!(
            last.contains("unfinished") && last.contains("all-reduce"),
            "{text}"
        );
    }
}

#[test]
fn bytes_that_are_too_many_to_gather_leave_the_group_as_it_was() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        on_ranks(2, &options(transport, PATIENT), |group| {
            let half = vec![0; MOST_GATHERED as usize / 2 + 1];
            let error = group.gather_bytes(&half).unwrap_err();
            assert!(matches!(
                error.collective(),
                Some(CollectiveError::TooLarge { .. })
            ));
            group.barrier().unwrap();
            assert_eq!(group.gather_bytes(b"few").unwrap(), [b"few"; 2]);
        });
    }
}

/// They would misread each other's bytes.
#[test]
fn ranks_that_were_given_other_algorithms_are_told_apart() {
    let server = world_support::server(4);
    let errors = thread::scope(|scope| {
        let connect = |rank: usize| {
            let world = world_support::world(rank, 4, server.address());
            scope.spawn(move || {
                let options = GroupOptions {
                    algorithm: match rank {
                        0 => Algorithm::Auto,
                        _ => Algorithm::NodeFirst,
                    },
                    ranks_per_node: NonZeroUsize::new(2),
                    ..options(TransportKind::Auto, PATIENT)
                };
                let error = ProcessGroup::connect_with(&world, options).unwrap_err();
                error.to_string()
            })
        };
        let threads: Vec<_> = (0..4).map(connect).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap();
        threads.into_iter().map(join).collect::<Vec<String>>()
    });
    for error in &errors {
        assert!(error.contains("another algorithm"), "{errors:?}");
    }
}

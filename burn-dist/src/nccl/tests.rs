//! The communicator with an NCCL of threads and host memory.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::communicator::{Communicator, DeviceCall, Started};
use super::fake::{Failure, Fake, FakeMemory, Wire};
use super::lane::Lane;
use crate::collective::Kind;
use crate::error::{CollectiveError, Error};
use crate::group::{GroupOptions, TransportKind};
use crate::{Cuts, DType, ProcessGroup, ReduceOp, shard};

const PATIENCE: Duration = Duration::from_millis(600);

fn options() -> GroupOptions {
    GroupOptions {
        transport: TransportKind::Tcp,
        first_timeout: Duration::from_secs(20),
        timeout: PATIENCE,
        ..GroupOptions::default()
    }
}

/// Runs `work` as every rank, each with its failure; returns the ranks' results and the wire.
fn ranks<R: Send>(
    failures: &[Failure],
    work: impl Fn(&ProcessGroup, Communicator<Fake>) -> Result<R, Error> + Sync,
) -> (Vec<Result<R, Error>>, Arc<Wire>) {
    let wire = Wire::new(failures.len());
    let groups = match failures.len() {
        1 => vec![ProcessGroup::single()],
        size => ProcessGroup::in_process(size, &options()).unwrap(),
    };
    let results = std::thread::scope(|scope| {
        let (work, wire) = (&work, &wire);
        let threads: Vec<_> = groups
            .into_iter()
            .zip(failures)
            .map(|(group, failure)| {
                scope.spawn(move || {
                    let fake = Fake {
                        wire: wire.clone(),
                        failure: *failure,
                    };
                    work(&group, Communicator::connect(&Lane::start(fake)?, &group)?)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    (results, wire)
}

fn run(
    communicator: &Communicator<Fake>,
    kind: Kind,
    op: Option<ReduceOp>,
    root: usize,
    values: Vec<f32>,
) -> Result<Vec<f32>, Error> {
    cut(communicator, (kind, op), root, Cuts::Even, values)
}

fn cut(
    communicator: &Communicator<Fake>,
    (kind, op): (Kind, Option<ReduceOp>),
    root: usize,
    cuts: Cuts,
    values: Vec<f32>,
) -> Result<Vec<f32>, Error> {
    let call = DeviceCall {
        cuts,
        root,
        ..elements((kind, op), DType::F32, values.len())
    };
    Ok(communicator
        .start(call, FakeMemory::of(values))
        .wait()?
        .take())
}

fn elements((kind, op): (Kind, Option<ReduceOp>), dtype: DType, len: usize) -> DeviceCall {
    DeviceCall {
        kind,
        op,
        dtype,
        len,
        root: 0,
        bucket: 0,
        cuts: Cuts::Even,
    }
}

fn sum(communicator: &Communicator<Fake>, values: Vec<f32>) -> Result<Vec<f32>, Error> {
    run(
        communicator,
        Kind::AllReduce,
        Some(ReduceOp::Sum),
        0,
        values,
    )
}

#[test]
fn shards_may_be_of_any_length_if_all_ranks_agree() {
    let ends = |ends: &[usize]| Cuts::Ends(ends.into());
    let sum = (Kind::ReduceScatter, Some(ReduceOp::Sum));
    let (results, _) = ranks(&[Failure::None; 3], |group, nccl| {
        let (rank, cuts) = (group.rank(), ends(&[2, 2, 9]));
        let mine = cuts.shard(9, 3, rank);
        let sums: Vec<f32> = (0..9).map(|i| (0..3).map(|r| own(r, 9)[i]).sum()).collect();
        let scattered = cut(&nccl, sum, 0, cuts.clone(), own(rank, 9))?;
        assert_eq!(scattered[mine.clone()], sums[mine]);
        let gathered = cut(&nccl, (Kind::AllGather, None), 0, cuts, own(rank, 9))?;
        assert_eq!(
            (&gathered[..2], &gathered[2..]),
            (&own(0, 9)[..2], &own(2, 9)[2..])
        );
        let refused = cut(&nccl, sum, 0, ends(&[2, 9]), own(rank, 9)).unwrap_err();
        assert!(refused.to_string().contains("into shards for 3 ranks"));
        let theirs = [ends(&[2, 2, 9]), Cuts::Even][usize::from(rank == 1)].clone();
        cut(&nccl, sum, 0, theirs, own(rank, 9))
    });
    for result in results {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("disagree"), "{error}");
    }
}

/// The elements of rank `rank` before a collective.
fn own(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| (10 * rank + i % 7) as f32).collect()
}

#[test]
fn every_collective_of_every_length_gives_the_right_elements() {
    for size in [1, 2, 3] {
        let (results, wire) = ranks(&vec![Failure::None; size], |group, nccl| {
            let rank = group.rank();
            for len in [0, 1, 5, 64] {
                let all: Vec<Vec<f32>> = (0..size).map(|rank| own(rank, len)).collect();
                let sums: Vec<f32> = (0..len).map(|i| all.iter().map(|v| v[i]).sum()).collect();
                let mine = shard(len, size, rank);
                assert_eq!(sum(&nccl, own(rank, len))?, sums);
                let mean = Some(ReduceOp::Mean);
                let means: Vec<f32> = sums.iter().map(|s| s / size as f32).collect();
                assert_eq!(run(&nccl, Kind::AllReduce, mean, 0, own(rank, len))?, means);
                let max = run(
                    &nccl,
                    Kind::AllReduce,
                    Some(ReduceOp::Max),
                    0,
                    own(rank, len),
                )?;
                assert_eq!(max, own(size - 1, len));
                let scattered = run(
                    &nccl,
                    Kind::ReduceScatter,
                    Some(ReduceOp::Sum),
                    0,
                    own(rank, len),
                )?;
                assert_eq!(scattered[mine.clone()], sums[mine]);
                let gathered = run(&nccl, Kind::AllGather, None, 0, own(rank, len))?;
                for (peer, values) in all.iter().enumerate() {
                    let theirs = shard(len, size, peer);
                    assert_eq!(gathered[theirs.clone()], values[theirs]);
                }
                let root = size - 1;
                let sent = run(&nccl, Kind::Broadcast, None, root, own(rank, len))?;
                assert_eq!(sent, own(root, len));
                run(&nccl, Kind::Barrier, None, 0, Vec::new())?;
            }
            Ok(())
        });
        for result in results {
            result.unwrap();
        }
        assert_eq!(wire.closed.load(Ordering::SeqCst), size);
        assert_eq!(wire.aborted.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn collectives_run_while_the_caller_goes_on_and_mix_with_the_groups_own() {
    let (results, _) = ranks(&[Failure::None; 2], |group, nccl| {
        let started: Vec<_> = (0..20)
            .map(|i| {
                let call = (Kind::AllReduce, Some(ReduceOp::Sum));
                let call = elements(call, DType::F32, 3);
                let started = nccl.start(call, FakeMemory::of(vec![i as f32; 3]));
                let mut word = [1u8];
                group.all_reduce(&mut word, ReduceOp::Sum)?;
                assert_eq!(word, [2]);
                Ok::<_, Error>(started)
            })
            .collect::<Result<_, _>>()?;
        for (i, started) in started.into_iter().enumerate() {
            assert_eq!(started.wait()?.take(), vec![2.0 * i as f32; 3]);
        }
        Ok(())
    });
    results.into_iter().for_each(|result| result.unwrap());
}

#[test]
fn ranks_that_disagree_are_told_what_the_other_called() {
    type Call = fn(&Communicator<Fake>, usize) -> Result<Vec<f32>, Error>;
    let calls: [Call; 4] = [
        |nccl, rank| sum(nccl, vec![0.0; 5 + rank]),
        |nccl, rank| {
            let call = super::communicator::DeviceCall {
                bucket: 1 + rank as u32,
                ..elements((Kind::AllReduce, Some(ReduceOp::Sum)), DType::F32, 5)
            };
            let started = nccl.start(call, FakeMemory::of(vec![0.0; 5]));
            Ok(started.wait()?.take())
        },
        |nccl, rank| match rank {
            0 => sum(nccl, vec![0.0; 5]),
            _ => run(nccl, Kind::Broadcast, None, 0, vec![0.0; 5]),
        },
        |nccl, rank| {
            let op = [ReduceOp::Sum, ReduceOp::Max][rank];
            run(nccl, Kind::AllReduce, Some(op), 0, vec![0.0; 5])
        },
    ];
    for call in calls {
        let (results, wire) = ranks(&[Failure::None; 2], |group, nccl| call(&nccl, group.rank()));
        let message = results[0].as_ref().unwrap_err().to_string();
        assert!(message.contains("rank 0 called #1 all-reduce"), "{message}");
        assert!(message.contains("rank 1 called"), "{message}");
        assert!(results[1].is_err());
        assert_eq!(wire.aborted.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn a_collective_that_hangs_ends_at_the_time_out_on_all_ranks() {
    let begin = Instant::now();
    let failures = [Failure::None, Failure::Hang(2)];
    let (results, wire) = ranks(&failures, |_, nccl| {
        sum(&nccl, vec![1.0])?;
        let second = sum(&nccl, vec![1.0]);
        let third = sum(&nccl, vec![1.0]).unwrap_err();
        let unusable = matches!(
            third,
            Error::Collective(
                CollectiveError::Unusable { .. } | CollectiveError::PeerFailed { .. }
            )
        );
        assert!(unusable, "{third}");
        second
    });
    assert!(begin.elapsed() < Duration::from_secs(10));
    for result in results {
        let message = result.unwrap_err().to_string();
        let known = message.contains("all ranks entered") || message.contains("aborted");
        assert!(known, "{message}");
    }
    assert_eq!(wire.aborted.load(Ordering::SeqCst), 2);
    assert_eq!(wire.too_late.load(Ordering::SeqCst), 0);
}

/// This "NCCL" would confuse the collectives of the two.
#[test]
fn collectives_of_two_communicators_run_in_the_order_in_which_they_were_started() {
    let wire = Wire::new(2);
    let groups = ProcessGroup::in_process(2, &options()).unwrap();
    std::thread::scope(|scope| {
        for group in groups {
            let wire = wire.clone();
            scope.spawn(move || {
                let failure = Failure::None;
                let lane = Lane::start(Fake { wire, failure }).unwrap();
                let other = group.split(0, group.rank() as u64).unwrap();
                let first = Communicator::connect(&lane, &group).unwrap();
                let second = Communicator::connect(&lane, &other).unwrap();
                for i in 0..100 {
                    let start = |nccl: &Communicator<Fake>, value: f32| {
                        let call = (Kind::AllReduce, Some(ReduceOp::Sum));
                        nccl.start(elements(call, DType::F32, 1), FakeMemory::of(vec![value]))
                    };
                    let (a, b) = (start(&first, i as f32), start(&second, -1.0));
                    // The ranks wait in different orders.
                    let wait = |started: Started<FakeMemory>| started.wait().unwrap().take();
                    let (a, b) = match group.rank() {
                        0 => (wait(a), wait(b)),
                        _ => {
                            let b = wait(b);
                            (wait(a), b)
                        }
                    };
                    assert_eq!((a, b), (vec![2.0 * i as f32], vec![-2.0]));
                }
            });
        }
    });
    assert_eq!(wire.closed.load(Ordering::SeqCst), 4);
}

#[test]
fn what_nccl_notices_later_ends_the_collective_at_once() {
    let begin = Instant::now();
    let (results, wire) = ranks(&[Failure::Asynchronous(1), Failure::None], |_, nccl| {
        sum(&nccl, vec![1.0])
    });
    assert!(begin.elapsed() < Duration::from_secs(10));
    let message = results[0].as_ref().unwrap_err().to_string();
    assert!(message.contains("remote process exited"), "{message}");
    let message = results[1].as_ref().unwrap_err().to_string();
    assert!(message.contains("remote process exited"), "{message}");
    assert_eq!(wire.aborted.load(Ordering::SeqCst), 2);
}

#[test]
fn a_refused_call_and_a_rank_that_does_not_come_are_errors_on_all_ranks() {
    let (results, _) = ranks(&[Failure::None, Failure::Refuse(1)], |_, nccl| {
        sum(&nccl, vec![1.0])
    });
    let message = results[1].as_ref().unwrap_err().to_string();
    assert!(
        message.contains("ncclAllReduce failed with code 3"),
        "{message}"
    );
    assert!(results[0].is_err());

    let (results, _) = ranks(&[Failure::None; 2], |group, nccl| {
        sum(&nccl, vec![1.0])?;
        match group.rank() {
            0 => sum(&nccl, vec![1.0]),
            _ => {
                std::thread::sleep(3 * PAUSE_OF_A_RANK);
                Err(CollectiveError::NoProgress.into())
            }
        }
    });
    let message = results[0].as_ref().unwrap_err().to_string();
    assert!(message.contains("rank 1"), "{message}");
}

const PAUSE_OF_A_RANK: Duration = PATIENCE;

/// The results of [`ranks`] and the time of the slowest rank, with threads that may still be inside
/// "NCCL".
fn ranks_with_a_stuck_one(
    failures: &[Failure],
    work: impl Fn(&ProcessGroup, Communicator<Fake>) -> Result<(), Error> + Sync,
) -> (Vec<String>, Duration) {
    let begin = Instant::now();
    let (results, wire) = ranks(failures, work);
    let took = begin.elapsed();
    wire.is_cut.store(true, Ordering::SeqCst);
    let messages = results.into_iter().map(|r| r.unwrap_err().to_string());
    (messages.collect(), took)
}

#[test]
fn a_rank_that_fails_while_nccl_waits_for_it_ends_the_wait() {
    let failures = [Failure::Connects(1), Failure::Refuse(1)];
    let (messages, took) = ranks_with_a_stuck_one(&failures, |_, nccl| {
        sum(&nccl, vec![1.0])?;
        Ok(())
    });
    let [waiting, failing] = &messages[..] else {
        panic!("{messages:?}");
    };
    assert!(waiting.contains("NCCL collective aborted"), "{waiting}");
    assert!(
        waiting.contains("rank 1") && waiting.contains("code 3"),
        "{waiting}"
    );
    assert!(failing.contains("code 3"), "{failing}");
    assert!(took < Duration::from_secs(10), "{took:?}");

    let failures = [Failure::MeetsNobody, Failure::Connect];
    let (messages, took) = ranks_with_a_stuck_one(&failures, |_, _| Ok(()));
    assert!(
        messages[0].contains("NCCL collective aborted"),
        "{messages:?}"
    );
    assert!(messages[0].contains("ncclCommInitRank"), "{messages:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_wait_inside_of_nccl_ends_at_the_time_out() {
    let failures = [Failure::Connects(2), Failure::Hang(2)];
    let (messages, took) = ranks_with_a_stuck_one(&failures, |_, nccl| {
        sum(&nccl, vec![1.0])?;
        // No thread waits for it, so the end of the communicator must not wait, either.
        let call = (Kind::AllReduce, Some(ReduceOp::Sum));
        let second = nccl.start(elements(call, DType::F32, 1), FakeMemory::of(vec![1.0]));
        drop(nccl);
        second.wait()?;
        Ok(())
    });
    let known = |m: &String| m.contains("connect the ranks within") || m.contains("within 0 s");
    assert!(messages.iter().any(known), "{messages:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// NCCL waits for the ranks of a host when a communicator ends, and one may never come.
#[test]
fn a_rank_that_does_not_come_to_the_end_is_not_waited_for() {
    let (left, has_left) = std::sync::mpsc::channel();
    let (left, has_left) = (Mutex::new(left), Mutex::new(has_left));
    let (results, wire) = ranks(&[Failure::None; 2], |group, nccl| {
        sum(&nccl, vec![1.0])?;
        if group.rank() == 1 {
            group.abort("stuck");
            let wait = Duration::from_secs(20);
            let left = has_left.lock().unwrap().recv_timeout(wait);
            assert!(left.is_ok(), "rank 0 waits at its end");
            return Ok(());
        }
        let error = sum(&nccl, vec![1.0]).unwrap_err().to_string();
        assert!(error.contains("stuck"), "{error}");
        drop(nccl);
        left.lock().unwrap().send(()).unwrap();
        Ok(())
    });
    wire.is_cut.store(true, Ordering::SeqCst);
    results.into_iter().for_each(|result| result.unwrap());
}

#[test]
fn what_fails_while_connecting_is_known_to_all() {
    for failure in [Failure::Id, Failure::Connect] {
        let (results, _) = ranks(&[failure, Failure::None], |_, nccl| sum(&nccl, vec![1.0]));
        assert!(results.iter().all(Result::is_err), "{failure:?}");
    }
}

#[test]
fn what_is_wrong_without_the_others_is_refused_alone() {
    let (results, _) = ranks(&[Failure::None; 2], |_, nccl| {
        let call = (Kind::AllReduce, Some(ReduceOp::Mean));
        let call = elements(call, DType::I64, 1);
        let mean = nccl.start(call, FakeMemory::of(vec![1.0]));
        let error = mean.wait().err().map(|error| error.to_string());
        assert!(error.unwrap_or_default().contains("mean of"));
        let root = run(&nccl, Kind::Broadcast, None, 7, vec![1.0]);
        assert!(
            root.unwrap_err()
                .to_string()
                .contains("rank 7 does not exist")
        );
        sum(&nccl, vec![1.0])
    });
    for result in results {
        assert_eq!(result.unwrap(), [2.0]);
    }
}

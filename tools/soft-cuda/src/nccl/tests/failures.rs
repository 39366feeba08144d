//! Ranks that are missing, that abort, and that pass invalid arguments.

use std::ffi::CStr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::super::collective::{Collective, Job};
use super::super::error::Code;
use super::super::reduce::Type;
use super::super::shared::Shared;
use super::*;

const NOT_READY: c_int = 600;
const SYSTEM: c_int = 2;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;
const REMOTE: c_int = 6;

/// Waits for an effect of other threads.
fn until(what: impl Fn() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "it never happens"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_stream_is_not_ready_while_a_rank_is_missing() {
    let seen = Barrier::new(2);
    world(11, 2, |rank| {
        let memory = upload(&[2f32; 5]);
        if rank.rank == 1 {
            seen.wait();
        }
        assert_eq!(rank.sum(memory, memory, 5), 0);
        if rank.rank == 0 {
            thread::sleep(Duration::from_millis(20));
            assert_eq!(rank.query(), NOT_READY);
            // Another stream has no work. SAFETY: there are no pointers.
            assert_eq!(unsafe { cuStreamSynchronize(0) }, 0);
            seen.wait();
        }
        // SAFETY: pointers are of this function.
        unsafe {
            let event = get(|out| cuEventCreate(out, 0)).unwrap();
            assert_eq!(cuEventRecord(event, rank.stream), 0);
            assert_eq!((cuCtxSynchronize(), rank.query()), (0, 0));
            assert_eq!(cuEventQuery(event), 0);
        }
        assert_eq!(download::<f32>(memory, 5, rank.stream), [4.0; 5]);
        assert_eq!(rank.destroy(), 0);
    });
}

#[test]
fn destroying_waits_for_what_is_enqueued() {
    world(12, 3, |rank| {
        let memory = upload(&[1f32; 100]);
        for _ in 0..10 {
            assert_eq!(rank.sum(memory, memory, 100), 0);
        }
        assert_eq!((rank.destroy(), rank.query()), (0, 0));
        assert_eq!(download::<f32>(memory, 100, rank.stream), [59049.0; 100]);
    });
}

#[test]
fn an_abort_is_an_error_of_the_others() {
    world(13, 3, |rank| {
        let memory = upload(&[1f32; 4]);
        if rank.rank == 1 {
            assert_eq!(rank.abort(), 0);
            assert_eq!((rank.abort(), rank.error()), (4, Err(4)));
            return;
        }
        // The other rank may be faster.
        let enqueued = rank.sum(memory, memory, 4);
        assert!([0, REMOTE].contains(&enqueued));
        until(|| rank.error() == Ok(REMOTE));
        if enqueued == 0 {
            // Must not wait for ever.
            assert_eq!((rank.synchronize(), rank.query()), (0, NOT_READY));
        }
        assert_eq!(rank.sum(memory, memory, 4), REMOTE);
        assert_eq!((rank.abort(), rank.query()), (0, 0));
    });
}

#[test]
fn an_abort_ends_its_own_waiting() {
    world(14, 2, |rank| {
        if rank.rank == 1 {
            until(|| rank.error() == Ok(REMOTE));
            assert_eq!(rank.abort(), 0);
            return;
        }
        let memory = upload(&[1f32; 4]);
        assert_eq!(rank.sum(memory, memory, 4), 0);
        assert_eq!(rank.sum(memory, memory, 4), 0);
        assert_eq!(rank.query(), NOT_READY);
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(rank.synchronize(), 0));
            thread::sleep(Duration::from_millis(20));
            assert_eq!(rank.abort(), 0);
        });
        assert_eq!(rank.query(), 0);
    });
}

#[test]
fn who_leaves_is_missed() {
    world(14, 2, |rank| {
        if rank.rank == 1 {
            assert_eq!(rank.destroy(), 0);
            return;
        }
        let memory = upload(&[1f32; 4]);
        assert_eq!((rank.sum(0, 0, 0), rank.synchronize()), (0, 0));
        assert_eq!((rank.error(), rank.sum(memory, memory, 4)), (Ok(0), 0));
        until(|| rank.error() == Ok(REMOTE));
        assert_eq!((rank.destroy(), rank.query()), (0, 0));
    });
}

#[test]
fn memory_that_is_freed_too_early_is_noticed() {
    let shared = Shared::meet(&unique_id(), 1, 0, Duration::from_secs(1)).unwrap();
    let job = Job {
        collective: Collective::AllGather,
        from: 8,
        to: 8,
        count: 1,
        kind: Type::F32,
    };
    assert_eq!(job.run(&shared).unwrap_err().code, Code::UnhandledCuda);
}

#[test]
fn a_rank_that_never_comes() {
    start(15);
    let id = unique_id();
    assert_eq!(init(id, 2, 0), Err(SYSTEM));
    assert!(!id.path().unwrap().exists());
}

#[test]
fn ranks_that_do_not_fit() {
    start(15);
    let id = unique_id();
    assert_eq!(init(id, 2, 2), Err(INVALID_ARGUMENT));
    assert_eq!(init(id, 0, 0), Err(INVALID_ARGUMENT));
    assert_eq!(init(id, usize::MAX, 0), Err(INVALID_ARGUMENT));
    assert_eq!(init(id, 65, 0), Err(INVALID_ARGUMENT));
    assert!(!id.path().unwrap().exists());
    // SAFETY: any bytes are an id.
    let strange: Id = unsafe { std::mem::zeroed() };
    assert_eq!(init(strange, 1, 0), Err(INVALID_ARGUMENT));
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            start(15);
            init(id, 2, 0)
        });
        until(|| id.path().unwrap().exists());
        thread::sleep(Duration::from_millis(50));
        assert_eq!(init(id, 2, 0), Err(INVALID_ARGUMENT));
        assert_eq!(init(id, 3, 1), Err(INVALID_ARGUMENT));
        let second = init(id, 2, 1).unwrap();
        // SAFETY: there are no pointers.
        unsafe {
            assert_eq!(ncclCommDestroy(second), 0);
            assert_eq!(ncclCommDestroy(first.join().unwrap().unwrap()), 0);
        }
    });
}

#[test]
fn arguments_are_checked() {
    world(15, 1, |rank| {
        let (good, stream, comm) = (upload(&[1f32; 4]), rank.stream, rank.comm);
        let bad = INVALID_ARGUMENT;
        // SAFETY: pointers are null or of this function.
        unsafe {
            let reduce = |from, to, count, kind, operation, comm| {
                ncclAllReduce(from, to, count, kind, operation, comm, stream)
            };
            assert_eq!(reduce(good, good, 4, 7, 0, 0), bad);
            assert_eq!(reduce(good, good, 4, 10, 0, comm), bad);
            assert_eq!(reduce(good, good, 4, -1, 0, comm), bad);
            assert_eq!(reduce(good, good, 4, 7, 5, comm), bad);
            assert_eq!(reduce(good, good, 5, 7, 0, comm), bad);
            assert_eq!(reduce(good, good + 4, 4, 7, 0, comm), bad);
            assert_eq!(reduce(0, good, 4, 7, 0, comm), bad);
            assert_eq!(reduce(good, good, usize::MAX, 7, 0, comm), bad);
            assert_eq!(ncclAllReduce(good, good, 4, 7, 0, comm, 0x77), bad);
            assert_eq!(ncclBroadcast(good, good, 4, 7, 1, comm, stream), bad);
            assert_eq!(ncclReduce(good, good, 4, 7, 0, -1, comm, stream), bad);
            assert_eq!(ncclCommGetAsyncError(comm, None), bad);
            assert_eq!((ncclGetVersion(None), ncclGetUniqueId(None)), (bad, bad));
            assert_eq!(ncclCommInitRank(None, 1, unique_id(), 0), bad);
            assert_eq!(reduce(good, good, 4, 7, 0, comm), 0);
            assert_eq!((ncclCommDestroy(comm), ncclCommDestroy(comm)), (0, bad));
            assert_eq!((ncclCommAbort(0), ncclCommDestroy(0)), (bad, bad));
            assert_eq!(reduce(good, good, 4, 7, 0, comm), bad);
        }
    });
}

#[test]
fn groups_nest() {
    // SAFETY: pointers are of this function.
    unsafe {
        assert_eq!(ncclGroupEnd(), INVALID_USAGE);
        assert_eq!((ncclGroupStart(), ncclGroupStart()), (0, 0));
        assert_eq!((ncclGroupEnd(), ncclGroupEnd()), (0, 0));
        assert_eq!(ncclGroupEnd(), INVALID_USAGE);
        assert_eq!(get(|out| ncclGetVersion(out)), Ok(22_703));
        let text = CStr::from_ptr(ncclGetErrorString(4)).to_str().unwrap();
        assert!(text.starts_with("invalid argument"));
        let text = CStr::from_ptr(ncclGetErrorString(99));
        assert_eq!(text, c"unknown result code");
    }
}

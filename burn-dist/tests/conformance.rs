//! One suite for every transport and every kind of memory: what a collective computes must be what
//! a plain loop over all ranks' elements computes, and what goes wrong must be named.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use burn_dist::{
    Buffer, DType, Element, GroupOptions, ProcessGroup, ReduceOp, TransportKind, shard,
};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

const SIZES: std::ops::RangeInclusive<usize> = 1..=5;
const CASES: u32 = 40;
const LIMIT: Duration = Duration::from_secs(240);

/// Ends the whole test program when a case hangs: a hang is what these tests are there to find.
fn within_limit(test: impl FnOnce() + Send + 'static) {
    let (done, waiting) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if waiting.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
        eprintln!("a collective hung for {LIMIT:?}");
        std::process::abort();
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn options(kind: TransportKind, timeout: Duration) -> GroupOptions {
    GroupOptions {
        transport: kind,
        connect_timeout: Duration::from_secs(30),
        first_timeout: timeout,
        timeout,
        flight_recorder: None,
        ..GroupOptions::default()
    }
}

fn groups(kind: TransportKind, size: usize) -> Vec<ProcessGroup> {
    ProcessGroup::in_process(size, &options(kind, Duration::from_secs(30))).unwrap()
}

/// Runs `work` as every rank at once and gives the results in rank order.
fn on_all<R: Send>(groups: &[ProcessGroup], work: impl Fn(&ProcessGroup) -> R + Sync) -> Vec<R> {
    let work = &work;
    thread::scope(|scope| {
        let spawn = |group| scope.spawn(move || work(group));
        let threads: Vec<_> = groups.iter().map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Element types whose sums and means a test can foretell exactly.
trait Tested: Element {
    fn small(value: u8) -> Self;
    fn reduce(values: &[Self], op: ReduceOp) -> Self;
}

macro_rules! tested {
    ($($type:ty, $sum:ty, $from:expr, $add:expr, $to:expr, $back:expr);* $(;)?) => {$(
        impl Tested for $type {
            fn small(value: u8) -> Self {
                $from(value)
            }
            fn reduce(values: &[Self], op: ReduceOp) -> Self {
                let ranks = values.len() as u8 as $sum;
                let values = values.iter().map(|value| -> $sum { $to(*value) });
                let result = match op {
                    ReduceOp::Sum => values.reduce($add),
                    ReduceOp::Mean => values.reduce($add).map(|sum| sum / ranks),
                    ReduceOp::Min => values.reduce(|a, b| if b < a { b } else { a }),
                    ReduceOp::Max => values.reduce(|a, b| if b > a { b } else { a }),
                };
                $back(result.unwrap())
            }
        }
    )*};
}
tested! {
    f32, f32, f32::from, |a, b| a + b, |x| x, |x| x;
    f64, f64, f64::from, |a, b| a + b, |x| x, |x| x;
    f16, f32, |x| f16::from_f32(f32::from(x)), |a, b| a + b, f16::to_f32, f16::from_f32;
    bf16, f32, |x| bf16::from_f32(f32::from(x)), |a, b| a + b, bf16::to_f32, bf16::from_f32;
    i32, i32, i32::from, i32::wrapping_add, |x| x, |x| x;
    i64, i64, i64::from, i64::wrapping_add, |x| x, |x| x;
    u8, u8, |x: u8| x.wrapping_mul(37), u8::wrapping_add, |x| x, |x| x;
}

/// What rank `rank` brings: small whole numbers, so that sums are exact in every order.
fn input<T: Tested>(rank: usize, len: usize, salt: u64) -> Vec<T> {
    let mut state = salt ^ (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        T::small((state >> 40) as u8 % 11)
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[derive(Clone, Copy, Debug)]
enum Collective {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    Slice,
    Plain,
    Bucket,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    collective: Collective,
    dtype: DType,
    op: ReduceOp,
    len: usize,
    root: usize,
    memory: Memory,
    salt: u64,
}

fn case() -> impl Strategy<Value = Case> {
    use {Collective as C, DType as D, ReduceOp as R};
    let collective = vec![
        C::AllReduce,
        C::AllReduce,
        C::ReduceScatter,
        C::AllGather,
        C::Broadcast,
    ];
    let dtype = vec![D::F32, D::F16, D::BF16, D::F64, D::I32, D::I64, D::U8];
    let op = vec![R::Sum, R::Mean, R::Min, R::Max];
    let memory = vec![Memory::Slice, Memory::Plain, Memory::Bucket];
    let len = prop_oneof![4 => 0..40usize, 4 => 0..4000usize, 1 => 100_000..400_000usize];
    let what = (select(collective), select(dtype), select(op));
    (what, len, 0..5usize, select(memory), 1..u64::MAX).prop_map(
        |((collective, dtype, op), len, root, memory, salt)| {
            let op = if op == R::Mean && !dtype.is_float() {
                R::Sum
            } else {
                op
            };
            Case {
                collective,
                dtype,
                op,
                len,
                root,
                memory,
                salt,
            }
        },
    )
}

/// The elements after the collective, as this rank sees them.
fn perform<T: Tested>(group: &ProcessGroup, case: &Case) -> Vec<T> {
    let Case {
        collective,
        op,
        len,
        memory,
        salt,
        ..
    } = *case;
    let root = case.root % group.size();
    let mut data = input::<T>(group.rank(), len, salt);
    if memory == Memory::Slice {
        match collective {
            Collective::AllReduce => group.all_reduce(&mut data, op).unwrap(),
            Collective::ReduceScatter => {
                let mine = group.reduce_scatter(&mut data, op).unwrap();
                assert_eq!(mine, shard(len, group.size(), group.rank()));
            }
            Collective::AllGather => group.all_gather(&mut data).unwrap(),
            Collective::Broadcast => group.broadcast(&mut data, root).unwrap(),
        }
        return data;
    }
    let mut buffer = match memory {
        Memory::Bucket => group.bucket(T::DTYPE, len).unwrap(),
        _ => Buffer::zeroed(T::DTYPE, len),
    };
    buffer.as_mut_slice::<T>().unwrap().copy_from_slice(&data);
    let handle = match collective {
        Collective::AllReduce => group.start_all_reduce(buffer, op),
        Collective::ReduceScatter => group.start_reduce_scatter(buffer, op),
        Collective::AllGather => group.start_all_gather(buffer),
        Collective::Broadcast => group.start_broadcast(buffer, root),
    };
    handle.wait().unwrap().as_slice::<T>().unwrap().to_vec()
}

fn check<T: Tested>(groups: &[ProcessGroup], case: &Case) {
    let size = groups.len();
    let inputs: Vec<Vec<T>> = (0..size)
        .map(|rank| input(rank, case.len, case.salt))
        .collect();
    let at = |i: usize| inputs.iter().map(|input| input[i]).collect::<Vec<_>>();
    let reduced: Vec<T> = (0..case.len).map(|i| T::reduce(&at(i), case.op)).collect();
    let results = on_all(groups, |group| perform::<T>(group, case));
    for (rank, result) in results.iter().enumerate() {
        let mine = shard(case.len, size, rank);
        let right = match case.collective {
            Collective::AllReduce => *result == reduced,
            Collective::ReduceScatter => result[mine.clone()] == reduced[mine],
            Collective::AllGather => inputs.iter().enumerate().all(|(from, input)| {
                let owned = shard(case.len, size, from);
                result[owned.clone()] == input[owned]
            }),
            Collective::Broadcast => *result == inputs[case.root % size],
        };
        assert!(right, "rank {rank} of {size} has a wrong result: {case:?}");
    }
}

fn agrees_with_the_sequential_reference(kind: TransportKind) {
    for size in SIZES {
        let groups = groups(kind, size);
        let config = Config {
            cases: CASES,
            failure_persistence: None,
            ..Config::default()
        };
        let result = TestRunner::new(config).run(&case(), |case| {
            match case.dtype {
                DType::F32 => check::<f32>(&groups, &case),
                DType::F64 => check::<f64>(&groups, &case),
                DType::F16 => check::<f16>(&groups, &case),
                DType::BF16 => check::<bf16>(&groups, &case),
                DType::I32 => check::<i32>(&groups, &case),
                DType::I64 => check::<i64>(&groups, &case),
                DType::U8 => check::<u8>(&groups, &case),
            }
            Ok(())
        });
        if let Err(failure) = result {
            panic!("{kind:?} with {size} ranks: {failure}");
        }
    }
}

/// Sums of arbitrary floats depend on the order: every rank must see the same bits, and twice the
/// same.
fn all_ranks_see_the_same_bits(kind: TransportKind) {
    for size in [2, 3, 4] {
        let groups = groups(kind, size);
        for (len, registered) in [(1000, false), (50_001, false), (50_001, true)] {
            let work = |group: &ProcessGroup| {
                let mut buffer = match registered {
                    true => group.bucket(DType::F32, len).unwrap(),
                    false => Buffer::zeroed(DType::F32, len),
                };
                for (i, x) in buffer.as_mut_slice::<f32>().unwrap().iter_mut().enumerate() {
                    *x = ((i * 7919 + group.rank() * 104_729) as f32).sin();
                }
                let buffer = group
                    .start_all_reduce(buffer, ReduceOp::Mean)
                    .wait()
                    .unwrap();
                let bits = buffer
                    .as_slice::<f32>()
                    .unwrap()
                    .iter()
                    .map(|x| x.to_bits());
                bits.collect::<Vec<_>>()
            };
            let (first, second) = (on_all(&groups, work), on_all(&groups, work));
            assert!(first.iter().chain(&second).all(|bits| *bits == first[0]));
        }
    }
}

/// Collectives complete in the order of their start, whatever is waited for first, and blocking
/// calls take their turn behind them.
fn asynchronous_collectives_keep_their_order(kind: TransportKind) {
    on_all(&groups(kind, 3), |group| {
        let start = |value: f32| {
            group.start_all_reduce(Buffer::from_slice(&vec![value; 10_000]), ReduceOp::Sum)
        };
        let handles: Vec<_> = (0..20).map(|i| start(i as f32)).collect();
        let mut last = [1i64; 3];
        group.all_reduce(&mut last, ReduceOp::Sum).unwrap();
        assert_eq!(last, [3; 3]);
        for (i, handle) in handles.into_iter().enumerate().rev() {
            let buffer = handle.wait().unwrap();
            assert!(
                buffer
                    .as_slice::<f32>()
                    .unwrap()
                    .iter()
                    .all(|x| *x == 3.0 * i as f32)
            );
        }
        group.start_barrier().wait().unwrap();
        group.barrier().unwrap();
    });
}

fn bytes_of_different_lengths_are_gathered(kind: TransportKind) {
    for size in SIZES {
        let payload = |rank: usize| vec![rank as u8; rank * 1000];
        let expected: Vec<_> = (0..size).map(payload).collect();
        let gather = |group: &ProcessGroup| group.gather_bytes(&payload(group.rank())).unwrap();
        assert!(
            on_all(&groups(kind, size), gather)
                .iter()
                .all(|result| *result == expected)
        );
    }
}

/// Ranks that call different things get an error that names both, and the group is unusable then.
fn disagreement_is_an_error_on_all_ranks(kind: TransportKind) {
    type Odd = fn(&ProcessGroup) -> Result<(), burn_dist::Error>;
    let odd: [(&str, Odd); 5] = [
        ("other length", |group| {
            group.all_reduce(&mut [0f32; 11], ReduceOp::Sum)
        }),
        ("much longer", |group| {
            group.all_reduce(&mut [0f32; 5000], ReduceOp::Sum)
        }),
        ("other type", |group| {
            group.all_reduce(&mut [0i32; 10], ReduceOp::Sum)
        }),
        ("other reduction", |group| {
            group.all_reduce(&mut [0f32; 10], ReduceOp::Max)
        }),
        ("other collective", |group| {
            group.broadcast(&mut [0f32; 10], 0)
        }),
    ];
    for (name, odd) in odd {
        let errors = on_all(&groups(kind, 3), |group| {
            group.barrier().unwrap();
            let result = match group.rank() {
                1 => odd(group),
                _ => group.all_reduce(&mut [0f32; 10], ReduceOp::Sum),
            };
            let again = group.barrier().unwrap_err().to_string();
            assert!(again.contains("unusable"), "{name}: {again}");
            result.unwrap_err().to_string()
        });
        let named = |error: &&String| error.contains("disagree") && error.contains("rank 1");
        assert!(
            errors.iter().any(|error| named(&error)),
            "{name}: {errors:?}"
        );
    }
}

fn an_absent_rank_is_named_after_the_time_out(kind: TransportKind) {
    let options = options(kind, Duration::from_secs(1));
    let groups = ProcessGroup::in_process(3, &options).unwrap();
    let errors = on_all(&groups, |group| {
        group.barrier().unwrap();
        if group.rank() == 1 {
            thread::sleep(Duration::from_secs(4));
            return String::new();
        }
        group
            .all_reduce(&mut [0f32; 100], ReduceOp::Sum)
            .unwrap_err()
            .to_string()
    });
    let named = |error: &String| error.contains("rank 1 has only come to #1");
    assert!(errors.iter().any(named), "{errors:?}");
}

fn an_abort_reaches_the_others_with_its_reason(kind: TransportKind) {
    let errors = on_all(&groups(kind, 3), |group| {
        group.barrier().unwrap();
        if group.rank() == 2 {
            group.abort("the disk is full");
            return String::new();
        }
        group
            .all_reduce(&mut [0f32; 100], ReduceOp::Sum)
            .unwrap_err()
            .to_string()
    });
    for error in &errors[..2] {
        assert!(
            error.contains("rank 2") && error.contains("the disk is full"),
            "{error}"
        );
    }
}

fn wrong_arguments_leave_the_group_usable(kind: TransportKind) {
    on_all(&groups(kind, 2), |group| {
        assert!(group.all_reduce(&mut [1i32], ReduceOp::Mean).is_err());
        assert!(group.broadcast(&mut [1i32], 2).is_err());
        group.barrier().unwrap();
    });
}

macro_rules! conformance {
    ($($test:ident),* $(,)?) => {
        mod shm {
            $(#[test] fn $test() {
                super::within_limit(|| super::$test(super::TransportKind::Shm));
            })*
        }
        mod tcp {
            $(#[test] fn $test() {
                super::within_limit(|| super::$test(super::TransportKind::Tcp));
            })*
        }
    };
}
conformance!(
    agrees_with_the_sequential_reference,
    all_ranks_see_the_same_bits,
    asynchronous_collectives_keep_their_order,
    bytes_of_different_lengths_are_gathered,
    disagreement_is_an_error_on_all_ranks,
    an_absent_rank_is_named_after_the_time_out,
    an_abort_reaches_the_others_with_its_reason,
    wrong_arguments_leave_the_group_usable,
);

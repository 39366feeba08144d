//! Every collective, compared with plain arithmetic.

use super::*;

const OPERATIONS: std::ops::Range<c_int> = 0..5;

/// Returns numbers small enough that products of four are exact in every type.
fn element(rank: usize, i: usize) -> i64 {
    ((rank * 5 + i * 3) % 7) as i64 - 3
}

/// Returns the reduction over all ranks at a place. The mean of integers truncates.
fn joined<T: Mean>(operation: c_int, size: usize, i: usize) -> T {
    let all = (0..size).map(|rank| element(rank, i));
    match operation {
        0 => T::of(all.sum()),
        1 => T::of(all.product()),
        2 => T::of(all.max().unwrap()),
        3 => T::of(all.min().unwrap()),
        _ => T::mean(all.sum(), size as i64),
    }
}

trait Mean: Element {
    fn mean(sum: i64, size: i64) -> Self;
}

impl Mean for f32 {
    fn mean(sum: i64, size: i64) -> Self {
        sum as f32 / size as f32
    }
}

impl Mean for f16 {
    fn mean(sum: i64, size: i64) -> Self {
        Self::from_f32(f32::mean(sum, size))
    }
}

impl Mean for bf16 {
    fn mean(sum: i64, size: i64) -> Self {
        Self::from_f32(f32::mean(sum, size))
    }
}

impl Mean for i64 {
    fn mean(sum: i64, size: i64) -> Self {
        sum / size
    }
}

/// Returns the `count` elements of a rank.
fn own<T: Element>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|i| T::of(element(rank, i))).collect()
}

/// Tests reductions with a result on each rank, or on one.
fn reductions<T: Mean>(rank: &Rank, count: usize, operation: c_int) {
    let (comm, stream, kind) = (rank.comm, rank.stream, T::NUMBER);
    let expected: Vec<T> = (0..count * rank.size)
        .map(|i| joined(operation, rank.size, i))
        .collect();
    let mine = own::<T>(rank.rank, count * rank.size);
    let (one, two, three) = (upload(&mine), upload(&mine), upload(&mine));
    let (out, root) = (upload(&mine), rank.size - 1);
    let part = rank.rank * count;
    let place = two + (part * size_of::<T>()) as u64;
    // All are enqueued before the first is waited for. Only the first is not in place. SAFETY: no
    // pointers are dereferenced unchecked.
    unsafe {
        let all = mine.len();
        assert_eq!(
            ncclAllReduce(one, out, all, kind, operation, comm, stream),
            0
        );
        assert_eq!(
            ncclReduceScatter(two, place, count, kind, operation, comm, stream),
            0
        );
        assert_eq!(
            ncclReduce(
                three,
                three,
                all,
                kind,
                operation,
                root as c_int,
                comm,
                stream
            ),
            0
        );
    }
    assert_eq!(download::<T>(out, mine.len(), stream), expected);
    assert_eq!(download::<T>(one, mine.len(), stream), mine);
    let scattered = download::<T>(two, mine.len(), stream);
    assert_eq!(scattered[part..][..count], expected[part..][..count]);
    let reduced = download::<T>(three, mine.len(), stream);
    assert_eq!(reduced, if rank.rank == root { expected } else { mine });
}

/// Tests collectives that only copy.
fn copies<T: Element>(rank: &Rank, count: usize) {
    let (comm, stream, kind) = (rank.comm, rank.stream, T::NUMBER);
    let mine = own::<T>(rank.rank, count);
    let everyone: Vec<T> = (0..rank.size).flat_map(|rank| own(rank, count)).collect();
    let nothing = vec![T::of(99); everyone.len()];
    let (from, sent) = (upload(&mine), upload(&mine));
    let (gathered, in_place) = (upload(&nothing), upload(&nothing));
    let place = in_place + (rank.rank * count * size_of::<T>()) as u64;
    let root = (rank.size / 2) as c_int;
    // SAFETY: no pointers are dereferenced unchecked.
    unsafe {
        assert_eq!(cuMemcpyDtoD_v2(place, from, count * size_of::<T>()), 0);
        assert_eq!(ncclAllGather(from, gathered, count, kind, comm, stream), 0);
        assert_eq!(ncclAllGather(place, in_place, count, kind, comm, stream), 0);
        assert_eq!(
            ncclBroadcast(sent, sent, count, kind, root, comm, stream),
            0
        );
    }
    assert_eq!(download::<T>(gathered, everyone.len(), stream), everyone);
    assert_eq!(download::<T>(in_place, everyone.len(), stream), everyone);
    assert_eq!(
        download::<T>(sent, count, stream),
        own(root as usize, count)
    );
    assert_eq!(download::<T>(from, count, stream), mine);
}

fn all<T: Mean>(device: c_int) {
    for size in 1..=4 {
        world(device, size, |rank| {
            for count in [0, 1, 1021] {
                OPERATIONS.for_each(|operation| reductions::<T>(rank, count, operation));
                copies::<T>(rank, count);
            }
            assert_eq!(rank.synchronize(), 0);
            assert_eq!((rank.query(), rank.error()), (0, Ok(0)));
            assert_eq!(rank.destroy(), 0);
        });
    }
}

#[test]
fn all_of_them_in_single_precision() {
    all::<f32>(8);
}

#[test]
fn all_of_them_in_half_precision() {
    all::<f16>(9);
}

#[test]
fn all_of_them_in_bfloat16() {
    all::<bf16>(9);
}

#[test]
fn all_of_them_in_integers() {
    all::<i64>(8);
}

#[test]
fn more_than_a_slot_holds() {
    let count = super::super::shared::SLOT / size_of::<f32>() + 77;
    world(10, 3, |rank| {
        reductions::<f32>(rank, count, 0);
        copies::<f32>(rank, count);
        assert_eq!(rank.destroy(), 0);
    });
}

#[test]
fn integers_wrap() {
    world(10, 2, |rank| {
        let memory = upload(&[i64::MAX, i64::MIN]);
        // SAFETY: no pointers are dereferenced unchecked.
        let code = unsafe { ncclAllReduce(memory, memory, 2, 4, 0, rank.comm, rank.stream) };
        assert_eq!(code, 0);
        assert_eq!(download::<i64>(memory, 2, rank.stream), [-2, 0]);
        assert_eq!(rank.destroy(), 0);
    });
}

#[test]
fn a_stream_keeps_the_order_of_two_communicators() {
    let second = unique_id();
    world(10, 2, |rank| {
        let other = Rank {
            comm: init(second, rank.size, rank.rank).unwrap(),
            ..*rank
        };
        let memory = upload(&[1f32; 3000]);
        for _ in 0..5 {
            assert_eq!(rank.sum(memory, memory, 3000), 0);
            assert_eq!(other.sum(memory, memory, 3000), 0);
        }
        assert_eq!(download::<f32>(memory, 3000, rank.stream), [1024.0; 3000]);
        assert_eq!((rank.destroy(), other.destroy()), (0, 0));
    });
}

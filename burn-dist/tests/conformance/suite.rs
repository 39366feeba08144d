//! One suite for every transport and every kind of memory. A collective must compute the same as a
//! plain loop over all ranks' elements, and errors must be named.
//!
//! The suite does not know where the ranks are: a [`Cluster`] runs a piece of work as every rank.

use std::thread;
use std::time::Duration;

use burn_dist::{
    Buffer, Compression, Cuts, DType, Element, ProcessGroup, ReduceOp, VirtualRanks, shard,
};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Returns the colour of a rank in a world that is divided unevenly: of `size + size.div_ceil(2)`
/// ranks, `size` have colour 0.
pub fn colour(rank: usize) -> u64 {
    u64::from(rank % 3 == 1)
}

const SIZES: [usize; 6] = [1, 2, 3, 4, 5, 6];
const PATIENT: Duration = Duration::from_secs(30);
const CASES: u32 = 40;
/// Lengths for the exhaustive cases: no element, fewer than ranks, no multiple of ranks, several
/// pages.
const LENGTHS: [usize; 5] = [0, 1, 37, 3_001, 70_000];

/// Results of all ranks, which may have to pass between processes.
#[allow(
    dead_code,
    reason = "threads hand their results over without turning them into bytes"
)]
pub trait Outcome: Send + Sized {
    fn to_bytes(&self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Self;
}

impl Outcome for () {
    fn to_bytes(&self) -> Vec<u8> {
        Vec::new()
    }
    fn from_bytes(_: &[u8]) -> Self {}
}

impl Outcome for String {
    fn to_bytes(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
    fn from_bytes(bytes: &[u8]) -> Self {
        String::from_utf8_lossy(bytes).into_owned()
    }
}

impl Outcome for Vec<u32> {
    fn to_bytes(&self) -> Vec<u8> {
        bytemuck::cast_slice(self).to_vec()
    }
    fn from_bytes(bytes: &[u8]) -> Self {
        bytemuck::pod_collect_to_vec(bytes)
    }
}

/// Ranks that the suite runs on.
pub trait Cluster {
    /// Returns the possible world sizes.
    fn sizes(&self) -> Vec<usize>;

    /// Returns one of the sizes, more than two, for cases that need not be tried with all.
    fn several(&self) -> usize {
        3
    }

    /// Returns the order of sums; `None` if it is unspecified.
    fn order(&self) -> Option<Order> {
        Some(Order::RING)
    }

    /// Connects `size` ranks whose collectives time out after `timeout`.
    fn connect(&self, size: usize, timeout: Duration) -> impl Ranks;
}

/// Order of our sums.
#[derive(Clone, Copy)]
pub struct Order {
    /// Number of ranks that sum before the sum with others; if it is the number of all ranks, or
    /// does not divide it, there is no such stage.
    pub on_each_node: usize,
    /// True if consecutive ranks are on different nodes.
    pub in_turns: bool,
}

/// Connected ranks.
pub trait Ranks {
    /// Returns the rank's number in the world, which messages use.
    fn in_world(&self, rank: usize) -> usize {
        rank
    }

    /// Runs `work` as every rank at once and returns the results in rank order.
    fn on_all<R: Outcome>(&self, work: impl Fn(&ProcessGroup) -> R + Sync) -> Vec<R>;
}

/// Returns the possible ones of the `wanted` sizes.
fn sizes<const N: usize>(cluster: &impl Cluster, wanted: [usize; N]) -> Vec<usize> {
    let mut sizes = cluster.sizes();
    sizes.retain(|size| wanted.contains(size));
    sizes
}

/// Element types whose sums and means a test can predict exactly.
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

/// Returns the input of rank `rank`: small integers, so that sums are exact in every order.
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
    /// True if shards have different sizes.
    uneven: bool,
    salt: u64,
}

impl Case {
    /// Returns the cuts of a buffer at arbitrary places, so that some shards are empty and some
    /// large.
    fn cuts(&self, size: usize) -> Cuts {
        if !self.uneven || self.memory == Memory::Slice {
            return Cuts::Even;
        }
        uneven(self.len, size, self.salt)
    }
}

/// Returns cuts of `len` elements at places that `salt` chooses.
fn uneven(len: usize, size: usize, salt: u64) -> Cuts {
    let mut state = salt;
    let end = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % (len + 1)
    };
    let mut ends: Vec<usize> = std::iter::repeat_with(end).take(size - 1).collect();
    ends.sort_unstable();
    ends.push(len);
    Cuts::Ends(ends.into())
}

const COLLECTIVES: [Collective; 4] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
];
const DTYPES: [DType; 7] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I32,
    DType::I64,
    DType::U8,
];
const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max];
const MEMORIES: [Memory; 3] = [Memory::Slice, Memory::Plain, Memory::Bucket];

/// Returns every collective once with every element type, operation and kind of memory.
fn every_combination() -> Vec<Case> {
    let mut all = Vec::new();
    for collective in COLLECTIVES {
        let reduces = matches!(
            collective,
            Collective::AllReduce | Collective::ReduceScatter
        );
        let ops = if reduces { &OPS[..] } else { &OPS[..1] };
        for (dtype, op) in DTYPES
            .into_iter()
            .flat_map(|dtype| ops.iter().map(move |op| (dtype, *op)))
        {
            if op == ReduceOp::Mean && !dtype.is_float() {
                continue;
            }
            for memory in MEMORIES {
                let number = all.len();
                all.push(Case {
                    collective,
                    dtype,
                    op,
                    len: LENGTHS[number % LENGTHS.len()],
                    root: number,
                    memory,
                    uneven: number % 2 == 1,
                    salt: number as u64 + 1,
                });
            }
        }
    }
    all
}

fn case() -> impl Strategy<Value = Case> {
    use {Collective as C, ReduceOp as R};
    // The most frequent operations of training.
    let collective = [&COLLECTIVES[..], &[C::AllReduce]].concat();
    let (dtype, op, memory) = (DTYPES.to_vec(), OPS.to_vec(), MEMORIES.to_vec());
    // Around the limit between small and large messages of a collective.
    let len = prop_oneof![
        3 => 0..40usize,
        3 => 0..4000usize,
        2 => 4_000..70_000usize,
        1 => 100_000..400_000usize
    ];
    let what = (select(collective), select(dtype), select(op));
    let memory = (select(memory), any::<bool>());
    (what, len, 0..5usize, memory, 1..u64::MAX).prop_map(
        |((collective, dtype, op), len, root, (memory, uneven), salt)| {
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
                uneven,
                salt,
            }
        },
    )
}

/// Performs a case and returns the elements that this rank sees afterwards.
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
    let buffer = buffer.cut(case.cuts(group.size()));
    let handle = match collective {
        Collective::AllReduce => group.start_all_reduce(buffer, op),
        Collective::ReduceScatter => group.start_reduce_scatter(buffer, op),
        Collective::AllGather => group.start_all_gather(buffer),
        Collective::Broadcast => group.start_broadcast(buffer, root),
    };
    let buffer = handle.wait().unwrap();
    assert_eq!(
        *buffer.cuts(),
        case.cuts(group.size()),
        "cut anew: {case:?}"
    );
    buffer.as_slice::<T>().unwrap().to_vec()
}

/// Performs a case as one rank and compares the result with a plain loop.
fn verify<T: Tested>(group: &ProcessGroup, case: &Case) {
    let (rank, size) = (group.rank(), group.size());
    let inputs: Vec<Vec<T>> = (0..size)
        .map(|rank| input(rank, case.len, case.salt))
        .collect();
    let at = |i: usize| inputs.iter().map(|input| input[i]).collect::<Vec<_>>();
    let reduced: Vec<T> = (0..case.len).map(|i| T::reduce(&at(i), case.op)).collect();
    let result = perform::<T>(group, case);
    let cuts = case.cuts(size);
    let mine = cuts.shard(case.len, size, rank);
    let right = match case.collective {
        Collective::AllReduce => result == reduced,
        Collective::ReduceScatter => result[mine.clone()] == reduced[mine],
        Collective::AllGather => inputs.iter().enumerate().all(|(from, input)| {
            let owned = cuts.shard(case.len, size, from);
            result[owned.clone()] == input[owned]
        }),
        Collective::Broadcast => result == inputs[case.root % size],
    };
    assert!(right, "rank {rank} of {size} has a wrong result: {case:?}");
}

/// Reads a number from an environment variable that proptest knows, too.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

pub fn agrees_with_the_sequential_reference(cluster: &impl Cluster) {
    for size in sizes(cluster, SIZES) {
        let ranks = cluster.connect(size, PATIENT);
        let verify = |case: &Case| {
            ranks.on_all(|group| match case.dtype {
                DType::F32 => verify::<f32>(group, case),
                DType::F64 => verify::<f64>(group, case),
                DType::F16 => verify::<f16>(group, case),
                DType::BF16 => verify::<bf16>(group, case),
                DType::I32 => verify::<i32>(group, case),
                DType::I64 => verify::<i64>(group, case),
                DType::U8 => verify::<u8>(group, case),
            });
        };
        every_combination().iter().for_each(verify);
        // Every process must draw the same cases, and none may shrink them alone.
        let config = Config {
            cases: number("PROPTEST_CASES").map_or(CASES, |cases| cases as u32),
            failure_persistence: None,
            max_shrink_iters: 0,
            ..Config::default()
        };
        let mut seed = [size as u8; 32];
        let wanted = number("PROPTEST_RNG_SEED").unwrap_or_default();
        seed[..8].copy_from_slice(&wanted.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let result = runner.run(&case(), |case| {
            verify(&case);
            Ok(())
        });
        if let Err(failure) = result {
            panic!("{size} ranks: {failure}");
        }
    }
}

/// Sums of arbitrary floats depend on the order. Every rank must see the same bits, twice the same;
/// our own algorithms must give the bits of their order, in any memory and with any reduction.
pub fn all_ranks_see_the_same_bits(cluster: &impl Cluster) {
    for size in sizes(cluster, [2, 3, 4, 5, 6]) {
        let (ranks, order) = (cluster.connect(size, PATIENT), cluster.order());
        for len in [0, 3, 250, 1000, 50_001, 300_007] {
            for memory in [Memory::Slice, Memory::Plain, Memory::Bucket] {
                let work =
                    |group: &ProcessGroup| arbitrary_mean(group, len, memory, order.is_some());
                let (first, second) = (ranks.on_all(work), ranks.on_all(work));
                assert!(first.iter().chain(&second).all(|bits| *bits == first[0]));
                if let Some(order) = order {
                    assert!(
                        first[0] == order.mean(len, size),
                        "another order of sums: {len} elements, {size} ranks, {memory:?}"
                    );
                }
            }
        }
    }
}

fn arbitrary(rank: usize, index: usize) -> f32 {
    ((index * 7919 + rank * 104_729) as f32).sin()
}

/// Returns the bits of a mean of arbitrary floats. Also reduce-scatters this rank's shard, with the
/// same result if the order of sums is `known`.
fn arbitrary_mean(group: &ProcessGroup, len: usize, memory: Memory, known: bool) -> Vec<u32> {
    let input: Vec<f32> = (0..len).map(|i| arbitrary(group.rank(), i)).collect();
    let run = |scatter: bool| {
        if memory == Memory::Slice {
            let mut data = input.clone();
            match scatter {
                true => drop(group.reduce_scatter(&mut data, ReduceOp::Mean).unwrap()),
                false => group.all_reduce(&mut data, ReduceOp::Mean).unwrap(),
            }
            return data;
        }
        let mut buffer = match memory {
            Memory::Bucket => group.bucket(DType::F32, len).unwrap(),
            _ => Buffer::zeroed(DType::F32, len),
        };
        buffer.as_mut_slice().unwrap().copy_from_slice(&input);
        let handle = match scatter {
            true => group.start_reduce_scatter(buffer, ReduceOp::Mean),
            false => group.start_all_reduce(buffer, ReduceOp::Mean),
        };
        handle.wait().unwrap().as_slice::<f32>().unwrap().to_vec()
    };
    let (whole, scattered) = (run(false), run(true));
    let mine = shard(len, group.size(), group.rank());
    assert!(!known || whole[mine.clone()] == scattered[mine]);
    whole.iter().map(|x| x.to_bits()).collect()
}

impl Order {
    /// A shard's sum begins at the rank after its owner.
    pub const RING: Self = Self {
        on_each_node: 1,
        in_turns: false,
    };

    /// Returns the means. With nodes, the sum begins at the node after its owner's, and that of a
    /// node at the rank after the one in the owner's place.
    fn means(self, len: usize, size: usize, value: impl Fn(usize, usize) -> f32) -> Vec<f32> {
        let each = self.on_each_node;
        let nodes = match size.is_multiple_of(each) && size > each {
            true => size / each,
            false => size,
        };
        let each = size / nodes;
        let rank = |node: usize, place: usize| match self.in_turns {
            true => place * nodes + node,
            false => node * each + place,
        };
        let sum = |parts: &mut dyn Iterator<Item = f32>| parts.reduce(|sum, x| sum + x).unwrap();
        let mean = |owner: usize, index: usize| {
            let (node, place) = match self.in_turns {
                true => (owner % nodes, owner / nodes),
                false => (owner / each, owner % each),
            };
            let of_node = |node: usize| {
                let places = (1..=each).map(|hop| (place + hop) % each);
                sum(&mut places.map(|place| value(rank(node, place), index)))
            };
            let nodes = (1..=nodes).map(|hop| (node + hop) % nodes);
            sum(&mut nodes.map(of_node)) / size as f32
        };
        let shard = |owner| shard(len, size, owner).map(move |index| (owner, index));
        let elements = (0..size).flat_map(shard);
        elements.map(|(owner, index)| mean(owner, index)).collect()
    }

    /// Returns the bits of a mean of arbitrary floats.
    fn mean(self, len: usize, size: usize) -> Vec<u32> {
        let means = self.means(len, size, arbitrary);
        means.into_iter().map(f32::to_bits).collect()
    }
}

/// Returns the bits of a mean in the order of the ring.
fn mean_of_the_ring(len: usize, size: usize) -> Vec<u32> {
    Order::RING.mean(len, size)
}

/// Sums of halves are taken in `f32` and rounded once, for any place of the elements.
pub fn sums_of_halves_are_rounded_once(cluster: &impl Cluster) {
    let half = |rank, index| bf16::from_f32(arbitrary(rank, index));
    for size in sizes(cluster, [2, 3, 4, 5, 6]) {
        let (ranks, order) = (cluster.connect(size, PATIENT), cluster.order());
        for (len, memory) in [3, 1000, 70_001].into_iter().flat_map(|len| {
            [Memory::Slice, Memory::Plain, Memory::Bucket].map(|memory| (len, memory))
        }) {
            let found = ranks.on_all(|group| {
                let mut data: Vec<bf16> = (0..len).map(|i| half(group.rank(), i)).collect();
                if memory == Memory::Slice {
                    group.all_reduce(&mut data, ReduceOp::Mean).unwrap();
                } else {
                    let mut buffer = match memory {
                        Memory::Bucket => group.bucket(DType::BF16, len).unwrap(),
                        _ => Buffer::zeroed(DType::BF16, len),
                    };
                    buffer.as_mut_slice().unwrap().copy_from_slice(&data);
                    let handle = group.start_all_reduce(buffer, ReduceOp::Mean);
                    data.copy_from_slice(handle.wait().unwrap().as_slice().unwrap());
                }
                data.iter()
                    .map(|x| u32::from(x.to_bits()))
                    .collect::<Vec<u32>>()
            });
            assert!(found.iter().all(|bits| *bits == found[0]));
            if let Some(order) = order {
                let exact = order.means(len, size, |rank, index| half(rank, index).to_f32());
                let exact = exact
                    .into_iter()
                    .map(|x| u32::from(bf16::from_f32(x).to_bits()));
                assert!(exact.eq(found[0].iter().copied()), "{len} {memory:?}");
            }
        }
    }
}

/// Compressed data is rounded when it is sent, but all ranks have the same bits, and so has a
/// reduce-scatter. Data in memory that all ranks have mapped is not sent.
pub fn compressed_means_are_near_and_the_same_everywhere(cluster: &impl Cluster) {
    for size in sizes(cluster, [2, 3, 4, 5, 6]) {
        let ranks = cluster.connect(size, PATIENT);
        for (compression, error) in [
            (Compression::Bf16, 2f32.powi(-8)),
            (Compression::F16, 2f32.powi(-11)),
        ] {
            for len in [0, 3, 1000, 300_007] {
                let work = |bucket: bool| {
                    ranks.on_all(|group| compressed_mean(group, len, compression, bucket))
                };
                let (found, in_bucket) = (work(false), work(true));
                let all = found.iter().chain(&in_bucket);
                assert!(all.into_iter().all(|bits| *bits == found[0]));
                let exact = mean_of_the_ring(len, size);
                // Partial sums are at most 1, and each rank rounds once.
                let most = error * size as f32;
                for (found, exact) in found[0].iter().zip(exact) {
                    let (found, exact) = (f32::from_bits(*found), f32::from_bits(exact));
                    assert!(
                        (found - exact).abs() <= most,
                        "{found} {exact}, {size} ranks"
                    );
                }
            }
        }
    }
}

/// Returns the bits of a mean of arbitrary floats that are compressed for sending.
fn compressed_mean(
    group: &ProcessGroup,
    len: usize,
    compression: Compression,
    bucket: bool,
) -> Vec<u32> {
    let (rank, size) = (group.rank(), group.size());
    let input: Vec<f32> = (0..len).map(|i| arbitrary(rank, i)).collect();
    let buffer = || {
        let mut buffer = match bucket {
            true => group.bucket(DType::F32, len).unwrap(),
            false => Buffer::zeroed(DType::F32, len),
        };
        buffer.as_mut_slice().unwrap().copy_from_slice(&input);
        buffer.compress(compression)
    };
    let whole = group
        .start_all_reduce(buffer(), ReduceOp::Mean)
        .wait()
        .unwrap();
    assert_eq!(whole.compression(), compression);
    let whole = whole.as_slice::<f32>().unwrap();
    let short = |x: &f32| match compression {
        Compression::F16 => f16::from_f32(*x).to_f32() == *x,
        _ => bf16::from_f32(*x).to_f32() == *x,
    };
    match group.transport() {
        // In memory.
        "shm" => {
            let bits: Vec<u32> = whole.iter().map(|x| x.to_bits()).collect();
            assert_eq!(bits, mean_of_the_ring(len, size));
        }
        _ => assert!(whole.iter().all(short), "not compressed"),
    }
    let ends: Vec<usize> = (1..=size)
        .map(|part| len * part * part / (size * size))
        .collect();
    let cuts = Cuts::Ends(ends.into());
    for cuts in [Cuts::Even, cuts] {
        let scattered = group.start_reduce_scatter(buffer().cut(cuts.clone()), ReduceOp::Mean);
        let scattered = scattered.wait().unwrap();
        let mine = cuts.shard(len, size, rank);
        let found = &scattered.as_slice::<f32>().unwrap()[mine.clone()];
        if cuts == Cuts::Even {
            assert_eq!(found, &whole[mine]);
        } else {
            assert!(group.transport() == "shm" || found.iter().all(short));
        }
    }
    // Other reductions are exact, whatever compression is requested.
    let most = group
        .start_all_reduce(buffer(), ReduceOp::Max)
        .wait()
        .unwrap();
    let expected = |i| {
        (0..size)
            .map(|rank| arbitrary(rank, i))
            .fold(f32::MIN, f32::max)
    };
    assert!(
        most.as_slice::<f32>()
            .unwrap()
            .iter()
            .enumerate()
            .all(|(i, x)| *x == expected(i))
    );
    whole.iter().map(|x| x.to_bits()).collect()
}

/// Ranks that compress differently would misread each other's bytes.
pub fn other_compression_is_an_error_on_all_ranks(cluster: &impl Cluster) {
    for size in sizes(cluster, [cluster.several()]) {
        let errors = cluster.connect(size, PATIENT).on_all(|group| {
            let met = group.barrier();
            let compression = match group.rank() {
                1 => Compression::F16,
                _ => Compression::Bf16,
            };
            let buffer = Buffer::zeroed(DType::F32, 10).compress(compression);
            let start = || group.start_all_reduce(buffer, ReduceOp::Sum).wait();
            met.and_then(|()| start())
                .map(drop)
                .unwrap_err()
                .to_string()
        });
        let named = |error: &&String| error.contains("disagree") && error.contains("as f16");
        assert!(errors.iter().any(|error| named(&error)), "{errors:?}");
    }
}

/// Collectives complete in the order of their start, whichever is awaited first, and blocking calls
/// queue behind them.
pub fn asynchronous_collectives_keep_their_order(cluster: &impl Cluster) {
    for size in sizes(cluster, [cluster.several()]) {
        cluster.connect(size, PATIENT).on_all(|group| {
            let start = |value: f32| {
                group.start_all_reduce(Buffer::from_slice(&vec![value; 10_000]), ReduceOp::Sum)
            };
            let handles: Vec<_> = (0..20).map(|i| start(i as f32)).collect();
            let mut last = [1i64; 3];
            group.all_reduce(&mut last, ReduceOp::Sum).unwrap();
            assert_eq!(last, [size as i64; 3]);
            for (i, handle) in handles.into_iter().enumerate().rev() {
                let buffer = handle.wait().unwrap();
                assert!(
                    buffer
                        .as_slice::<f32>()
                        .unwrap()
                        .iter()
                        .all(|x| *x == size as f32 * i as f32)
                );
            }
            group.start_barrier().wait().unwrap();
            group.barrier().unwrap();
        });
    }
}

pub fn bytes_of_different_lengths_are_gathered(cluster: &impl Cluster) {
    for size in sizes(cluster, SIZES) {
        let ranks = cluster.connect(size, PATIENT);
        for each in [1000, 50_000] {
            let payload = |rank: usize| vec![rank as u8; rank * each];
            let expected: Vec<_> = (0..size).map(payload).collect();
            ranks.on_all(|group| {
                let gathered = group.gather_bytes(&payload(group.rank())).unwrap();
                assert!(gathered == expected, "{size} ranks, {each} bytes");
            });
        }
    }
}

/// Ranks that call different collectives get an error that names both, and the group is then
/// unusable.
pub fn disagreement_is_an_error_on_all_ranks(cluster: &impl Cluster) {
    type Odd = fn(&ProcessGroup) -> Result<(), burn_dist::Error>;
    let odd: [(&str, Odd); 5] = [
        ("other length", |group| {
            group.all_reduce(&mut [0f32; 11], ReduceOp::Sum)
        }),
        ("much longer", |group| {
            group.all_reduce(&mut [0f32; 50_000], ReduceOp::Sum)
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
    let all = sizes(cluster, [cluster.several()])
        .into_iter()
        .flat_map(|size| odd.map(|odd| (size, odd)));
    for (size, (name, odd)) in all {
        let ranks = cluster.connect(size, PATIENT);
        let odd_one = format!("rank {}", ranks.in_world(1));
        let errors = ranks.on_all(|group| {
            // A rank may still be in the barrier when the abort arrives.
            let met = group.barrier();
            let result = match group.rank() {
                1 => odd(group),
                _ => met.and_then(|()| group.all_reduce(&mut [0f32; 10], ReduceOp::Sum)),
            };
            let again = group.barrier().unwrap_err().to_string();
            assert!(again.contains("unusable"), "{name}: {again}");
            result.unwrap_err().to_string()
        });
        let named = |error: &&String| error.contains("disagree") && error.contains(&odd_one);
        assert!(
            errors.iter().any(|error| named(&error)),
            "{name}: {errors:?}"
        );
    }
}

/// The same for two halves of the ranks: the error names numbers of both.
pub fn halves_that_disagree_are_named(cluster: &impl Cluster) {
    for size in sizes(cluster, [cluster.several()]) {
        let ranks = cluster.connect(size, PATIENT);
        let half = size / 2;
        let errors = ranks.on_all(|group| {
            let met = group.barrier();
            let mut data = vec![0f32; if group.rank() < half { 10 } else { 11 }];
            let result = met.and_then(|()| group.all_reduce(&mut data, ReduceOp::Sum));
            result.unwrap_err().to_string()
        });
        let of = |ranks_of: std::ops::Range<usize>| {
            let names = ranks_of.map(|rank| ranks.in_world(rank));
            names.collect::<Vec<_>>()
        };
        let (first, second) = (of(0..half), of(half..size));
        let pair = |error: &String| {
            let mut ranks = error.split("rank ").skip(1).filter_map(|rest| {
                let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
                digits.parse::<usize>().ok()
            });
            Some((ranks.next()?, ranks.next()?))
        };
        let apart = |(a, b): (usize, usize)| {
            first.contains(&a) && second.contains(&b) || second.contains(&a) && first.contains(&b)
        };
        let told: Vec<&String> = errors
            .iter()
            .filter(|error| error.starts_with("the ranks disagree"))
            .collect();
        assert!(!told.is_empty(), "{errors:?}");
        for error in told {
            assert!(pair(error).is_some_and(apart), "{error}");
        }
    }
}

/// The same for ranks that cut a buffer in different places.
pub fn other_cuts_are_an_error_on_all_ranks(cluster: &impl Cluster) {
    for size in sizes(cluster, [cluster.several()]) {
        let errors = cluster.connect(size, PATIENT).on_all(|group| {
            let met = group.barrier();
            let mut ends = vec![10; size];
            (ends[0], ends[1]) = (2, if group.rank() == 1 { 4 } else { 5 });
            let buffer = Buffer::zeroed(DType::F32, 10).cut(Cuts::Ends(ends.into()));
            let start = || group.start_reduce_scatter(buffer, ReduceOp::Sum).wait();
            met.and_then(|()| start())
                .map(drop)
                .unwrap_err()
                .to_string()
        });
        let named = |error: &&String| error.contains("disagree") && error.contains("uneven shards");
        assert!(errors.iter().any(|error| named(&error)), "{errors:?}");
    }
}

pub fn an_absent_rank_is_named_after_the_time_out(cluster: &impl Cluster) {
    for size in sizes(cluster, [cluster.several()]) {
        let ranks = cluster.connect(size, Duration::from_secs(1));
        let errors = ranks.on_all(|group| {
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
        let absent = format!("rank {} has only reached #1", ranks.in_world(1));
        let named = |error: &String| error.contains(&absent);
        assert!(errors.iter().any(named), "{errors:?}");
    }
}

pub fn an_abort_reaches_the_others_with_its_reason(cluster: &impl Cluster) {
    for size in sizes(cluster, [cluster.several()]) {
        let ranks = cluster.connect(size, PATIENT);
        let guilty = format!("rank {}", ranks.in_world(2));
        let errors = ranks.on_all(|group| {
            // A rank may still be in the barrier when the abort arrives.
            let met = group.barrier();
            if group.rank() == 2 {
                group.abort("the disk is full");
                return String::new();
            }
            met.and_then(|()| group.all_reduce(&mut [0f32; 100], ReduceOp::Sum))
                .unwrap_err()
                .to_string()
        });
        let others = errors.iter().enumerate().filter(|(rank, _)| *rank != 2);
        for (_, error) in others {
            assert!(
                error.contains(&guilty) && error.contains("the disk is full"),
                "{error}"
            );
        }
    }
}

/// The sum over the virtual ranks of a node of the tree, by its definition.
fn tree_sum(node: std::ops::Range<usize>, index: usize) -> f32 {
    if node.len() == 1 {
        return arbitrary(node.start, index);
    }
    let middle = node.start + node.len().next_power_of_two() / 2;
    tree_sum(node.start..middle, index) + tree_sum(middle..node.end, index)
}

/// Adds the sums of this rank's virtual ranks as far as the tree allows.
fn fold(group: &ProcessGroup, of: VirtualRanks, sums: &mut Buffer) {
    let own = of.of_rank(group.rank());
    let additions = of.additions(own.clone().map(|one| one..one + 1));
    let mut held = 0;
    for (share, additions) in own.zip(additions) {
        let place = sums.sum_place(held);
        let place = &mut sums.as_mut_slice::<f32>().unwrap()[place];
        for (index, value) in place.iter_mut().enumerate() {
            *value = arbitrary(share, index);
        }
        held += 1;
        for _ in 0..additions {
            held -= 1;
            sums.add_sums(held - 1);
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

pub fn sums_of_virtual_ranks_do_not_depend_on_the_ranks(cluster: &impl Cluster) {
    for size in cluster.sizes() {
        let ranks = cluster.connect(size, PATIENT);
        let found = ranks.on_all(|group| {
            let (group, other) = (group.meshed().unwrap(), group.meshed().unwrap());
            let mut found = Vec::new();
            for (count, len) in [size, size + 1, 12, 16]
                .into_iter()
                .flat_map(|count| [1, 37, 3_001, 70_000].map(|len| (count, len)))
            {
                let of = VirtualRanks::new(count, size).unwrap();
                // Memory of another group is private memory to this one.
                for owner in [&group, &other] {
                    let mut sums = owner.sums(DType::F32, len, of).unwrap();
                    fold(&group, of, &mut sums);
                    group.all_reduce_buffer(&mut sums, ReduceOp::Sum).unwrap();
                    let place = sums.sum_place(0);
                    found.extend(bits(&sums.as_slice().unwrap()[place]));
                }
                for cuts in [Cuts::Even, uneven(len, size, 17)] {
                    let mut sums = group.sums(DType::F32, len, of).unwrap().cut(cuts.clone());
                    fold(&group, of, &mut sums);
                    let sums = group.start_reduce_scatter(sums, ReduceOp::Mean);
                    let sums = sums.wait().unwrap();
                    let own = cuts.shard(len, size, group.rank());
                    let expected = own.clone().map(|i| tree_sum(0..count, i) / count as f32);
                    let expected: Vec<f32> = expected.collect();
                    let place = sums.sum_place(0);
                    assert_eq!(
                        bits(&sums.as_slice().unwrap()[place][own]),
                        bits(&expected),
                        "{count} of {size}, {len}"
                    );
                }
            }
            found
        });
        let mut expected = Vec::new();
        for (count, len) in [size, size + 1, 12, 16]
            .into_iter()
            .flat_map(|count| [1, 37, 3_001, 70_000].map(|len| (count, len)))
        {
            let sums: Vec<f32> = (0..len).map(|index| tree_sum(0..count, index)).collect();
            expected.extend([bits(&sums), bits(&sums)].concat());
        }
        assert!(found.iter().all(|bits| *bits == expected), "{size} ranks");
    }
}

pub fn other_virtual_ranks_are_an_error_on_all_ranks(cluster: &impl Cluster) {
    for size in sizes(cluster, [2, cluster.several()]) {
        let found = cluster.connect(size, PATIENT).on_all(|group| {
            // A slow rank is still here when the others have failed.
            let group = match group.meshed() {
                Ok(group) => group,
                Err(error) => return error.to_string(),
            };
            let count = if group.rank() == 0 { 16 } else { 12 };
            let of = VirtualRanks::new(count, size).unwrap();
            // Rooms for sums differ too.
            match group.sums(DType::F32, 8, of) {
                Ok(sums) => {
                    let reduced = group.start_all_reduce(sums, ReduceOp::Sum).wait();
                    reduced.map(drop).unwrap_err().to_string()
                }
                Err(error) => error.to_string(),
            }
        });
        for error in found {
            assert!(
                error.contains("disagree") || error.contains("failed"),
                "{error}"
            );
        }
    }
}

pub fn wrong_arguments_leave_the_group_usable(cluster: &impl Cluster) {
    for size in sizes(cluster, [2, cluster.several()]) {
        cluster.connect(size, PATIENT).on_all(|group| {
            assert!(group.all_reduce(&mut [1i32], ReduceOp::Mean).is_err());
            assert!(group.broadcast(&mut [1i32], size).is_err());
            let nine = Buffer::zeroed(DType::F32, 10).cut(Cuts::Ends([3, 9].into()));
            assert!(group.start_all_gather(nine).wait().is_err());
            let of = VirtualRanks::new(size + 1, size + 1).unwrap();
            let mut sums = group.sums(DType::F32, 10, of).unwrap();
            assert!(group.all_reduce_buffer(&mut sums, ReduceOp::Sum).is_err());
            group.barrier().unwrap();
        });
    }
}

/// Passes the names of all tests of the suite to the macro `$then`.
#[macro_export]
macro_rules! for_each_test {
    ($then:ident) => {
        $then!(
            agrees_with_the_sequential_reference,
            all_ranks_see_the_same_bits,
            sums_of_halves_are_rounded_once,
            compressed_means_are_near_and_the_same_everywhere,
            other_compression_is_an_error_on_all_ranks,
            asynchronous_collectives_keep_their_order,
            bytes_of_different_lengths_are_gathered,
            disagreement_is_an_error_on_all_ranks,
            halves_that_disagree_are_named,
            other_cuts_are_an_error_on_all_ranks,
            an_absent_rank_is_named_after_the_time_out,
            an_abort_reaches_the_others_with_its_reason,
            sums_of_virtual_ranks_do_not_depend_on_the_ranks,
            other_virtual_ranks_are_an_error_on_all_ranks,
            wrong_arguments_leave_the_group_usable,
        );
    };
}

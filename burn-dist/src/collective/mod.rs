//! Collectives, one algorithm per file. This module chooses the algorithm by transport and size.
//!
//! | memory | one host (`shm`) | streams (`tcp`, `mpi`) |
//! |---|---|---|
//! | registered bucket | direct, two synchronisations, no copy | – |
//! | up to 1 KiB, all-reduce | small slots, one hop | bruck, log₂ n hops |
//! | private, all-reduce | pipeline through slots | bruck up to 32 KiB, then ring |
//! | private, everything else | ring over shared-memory streams | bruck up to 32 or 64 KiB, then ring |
//!
//! All of them sum in the ring's order: the sum of a shard begins at the rank after its owner. So
//! they agree to the last bit. The ring over streams can compress elements on the way.
//!
//! Over several nodes with the same number of ranks on each, `hierarchical` uses memory within a
//! node and streams between nodes. It sums in the same order or, on request, by nodes.
//!
//! Sums of virtual ranks are added in the order of their tree (`tree`), over shared memory or
//! streams between all ranks.

mod bruck;
mod compressed;
mod descriptor;
mod hierarchical;
mod ring;
mod send_receive;
mod tree;

use std::ops::Range;

use bruck::Wanted;
pub(crate) use descriptor::number_of;
pub use descriptor::{Descriptor, Kind};
pub(crate) use hierarchical::{Layout, Nodes, Order};
use ring::Reduction;
use send_receive::{announce, send_receive};
pub(crate) use tree::{finish_alone, run_tree};

use crate::element::{DType, ReduceOp};
use crate::reduce;
use crate::shard::Cuts;
use crate::transport::shm::{Region, SMALL, SharedMemory, Stop};
use crate::transport::{Interrupt, Transport, TransportError, Watch};

/// Largest total that ranks may bring to a gather of bytes: 256 MiB.
pub const MOST_GATHERED: u64 = 256 << 20;

/// A rank and its place on the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbours {
    pub rank: usize,
    pub size: usize,
}

impl Neighbours {
    fn next(self) -> usize {
        self.ahead(1)
    }

    fn previous(self) -> usize {
        self.back(1)
    }

    /// How many places back on the ring a rank is.
    fn distance_back(self, rank: usize) -> usize {
        (self.rank + self.size - rank) % self.size
    }

    /// The rank `hops` places ahead on the ring; at most once around.
    fn ahead(self, hops: usize) -> usize {
        (self.rank + hops) % self.size
    }

    /// The rank `hops` places back on the ring; at most once around.
    fn back(self, hops: usize) -> usize {
        (self.rank + self.size - hops) % self.size
    }
}

/// The ranks that a collective is of, as a ring, and how it is patient with them.
struct Ring<'a> {
    transport: &'a mut dyn Transport,
    at: Neighbours,
    watch: &'a Watch,
}

/// The connection of a group's ranks.
pub(crate) enum Wiring {
    /// One transport for all ranks.
    Flat(Box<dyn Transport>),
    /// Shared memory within nodes, streams between nodes.
    Nodes(Box<Nodes>),
}

impl Wiring {
    /// Name of the transports.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Flat(transport) => transport.name(),
            Self::Nodes(nodes) => nodes.name(),
        }
    }

    /// Whether every rank has a stream to every other.
    pub(crate) fn is_meshed(&self) -> bool {
        match self {
            Self::Flat(transport) => transport.is_meshed(),
            Self::Nodes(_) => false,
        }
    }

    /// Tells whether every rank of this host has a CPU of its own.
    pub(crate) fn set_has_processor(&mut self, has_processor: bool) {
        match self {
            Self::Flat(transport) => transport.set_has_processor(has_processor),
            Self::Nodes(nodes) => nodes.set_has_processor(has_processor),
        }
    }

    /// The memory in which this rank's buckets are registered, shared with all ranks or with its
    /// node.
    pub(crate) fn shared(&mut self) -> Option<&mut SharedMemory> {
        match self {
            Self::Flat(transport) => transport.shared(),
            Self::Nodes(nodes) => Some(nodes.memory()),
        }
    }
}

/// The memory that a collective works on.
pub(crate) enum Operand<'a> {
    /// Memory of this rank alone.
    Private(&'a mut [u8]),
    /// A registered bucket, and the number of bytes used.
    Bucket(&'a mut Region, usize),
}

/// Failure of a collective; the group adds which one it was.
#[derive(Debug)]
pub(crate) enum Failure {
    Waiting {
        rank: usize,
        interrupt: Interrupt,
    },
    Mismatch {
        rank: usize,
        theirs: Option<Descriptor>,
    },
    TooLarge {
        bytes: u64,
    },
    Transport(TransportError),
}

impl Failure {
    /// The failure with its ranks renumbered by `name`.
    fn renamed(self, name: impl Fn(usize) -> usize) -> Self {
        match self {
            Self::Waiting { rank, interrupt } => Self::Waiting {
                rank: name(rank),
                interrupt,
            },
            Self::Mismatch { rank, theirs } => Self::Mismatch {
                rank: name(rank),
                theirs,
            },
            Self::Transport(error) => Self::Transport(error.renamed(name)),
            other @ Self::TooLarge { .. } => other,
        }
    }
}

impl From<TransportError> for Failure {
    fn from(error: TransportError) -> Self {
        Self::Transport(error)
    }
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Waiting { rank, interrupt } => Self::Waiting { rank, interrupt },
            Stop::Mismatch { rank, theirs } => Self::Mismatch {
                rank,
                theirs: Descriptor::decode(theirs),
            },
            Stop::Setup(error) => Self::Transport(error),
        }
    }
}

/// Runs the collective `what` in a group of at least two ranks.
pub(crate) fn run(
    wiring: &mut Wiring,
    at: Neighbours,
    (what, cuts): (&Descriptor, &Cuts),
    memory: Operand<'_>,
    watch: &Watch,
) -> Result<(), Failure> {
    let transport = match wiring {
        Wiring::Flat(transport) => transport.as_mut(),
        Wiring::Nodes(nodes) => return nodes.run((what, cuts), memory, watch),
    };
    let ring = |transport| Ring {
        transport,
        at,
        watch,
    };
    let Some(shared) = transport.shared() else {
        let (ring, data) = (&mut ring(transport), memory.bytes());
        if bruck::suits(what, at.size) {
            return small(ring, (what, cuts), data);
        }
        announce(ring, what)?;
        return match what.wire {
            Some(wire) => compressed(ring, (what, wire, cuts), data),
            None => streamed(ring, (what, cuts), data),
        };
    };
    let words = what.encode();
    match (what.kind, memory) {
        (Kind::AllReduce, memory) if memory.len() <= SMALL => {
            shared.all_reduce_small(words, memory.bytes(), reduction(what), watch)?;
        }
        (Kind::AllReduce | Kind::ReduceScatter, Operand::Bucket(region, len)) => {
            let mine = shard_bytes((what, cuts), len, at.size, at.rank);
            shared.reduce_shard(words, region, mine, reduction(what), watch)?;
        }
        (Kind::AllReduce, Operand::Private(data)) => {
            shared.all_reduce_private(words, data, reduction(what), watch)?;
        }
        (Kind::AllGather, Operand::Bucket(region, len)) => {
            let owned = |rank| shard_bytes((what, cuts), len, at.size, rank);
            shared.gather_slices(words, region, owned, watch)?;
        }
        (_, memory) => {
            shared.enter(words, watch)?;
            return streamed(&mut ring(transport), (what, cuts), memory.bytes());
        }
    }
    Ok(())
}

/// Allocates a bucket that all ranks, or all ranks of this node, have mapped. `None` without shared
/// memory.
pub(crate) fn register(
    wiring: &mut Wiring,
    at: Neighbours,
    what: &Descriptor,
    bytes: usize,
    watch: &Watch,
) -> Result<Option<Region>, Failure> {
    let owned = |rank| shard_bytes((what, &Cuts::Even), bytes, at.size, rank);
    match wiring {
        Wiring::Flat(transport) => {
            let Some(shared) = transport.shared() else {
                return Ok(None);
            };
            let mine = [owned(at.rank)];
            Ok(Some(shared.register(
                what.encode(),
                (bytes, &mine),
                watch,
            )?))
        }
        Wiring::Nodes(nodes) => nodes.register(what, (bytes, owned), watch).map(Some),
    }
}

/// The bytes of all ranks, of any length, in rank order.
pub(crate) fn gather_bytes(
    wiring: &mut Wiring,
    at: Neighbours,
    what: &Descriptor,
    payload: &[u8],
    watch: &Watch,
) -> Result<Vec<Vec<u8>>, Failure> {
    let transport = match wiring {
        Wiring::Flat(transport) => transport.as_mut(),
        Wiring::Nodes(nodes) => return nodes.gather_bytes(what, payload, watch),
    };
    let ring = &mut Ring {
        transport,
        at,
        watch,
    };
    if ring.transport.shared().is_some() || !bruck::suits(what, at.size) {
        enter(ring, what)?;
    }
    let mut lengths = vec![0u64; at.size];
    lengths[at.rank] = payload.len() as u64;
    let word = |rank| rank * 8..rank * 8 + 8;
    gather(ring, what, bytemuck::cast_slice_mut(&mut lengths), word)?;
    let ranges = one_after_the_other(&lengths)?;
    let mut data = vec![0; ranges.last().map_or(0, |range| range.end)];
    data[ranges[at.rank].clone()].copy_from_slice(payload);
    gather(ring, what, &mut data, |rank| ranges[rank].clone())?;
    Ok(ranges
        .into_iter()
        .map(|range| data[range].to_vec())
        .collect())
}

/// Sends the bytes `owned(i)` of each member `i` to all members; together they are `data`.
fn gather(
    ring: &mut Ring<'_>,
    what: &Descriptor,
    mut data: &mut [u8],
    owned: impl Fn(usize) -> Range<usize>,
) -> Result<(), Failure> {
    let is_small = bruck::suits_gather(data.len() as u64);
    match is_small && ring.transport.shared().is_none() {
        true => bruck::all_gather(ring, what, &mut data, owned),
        false => ring::all_gather(ring, data, owned),
    }
}

/// Ranges of consecutive payloads with these lengths.
fn one_after_the_other(lengths: &[u64]) -> Result<Vec<Range<usize>>, Failure> {
    let sum = |sum: u64, length: &u64| sum.saturating_add(*length);
    let bytes = lengths.iter().fold(0, sum);
    if bytes > MOST_GATHERED {
        return Err(Failure::TooLarge { bytes });
    }
    let mut end = 0;
    let range = |length: &u64| {
        let start = end;
        end += *length as usize;
        start..end
    };
    Ok(lengths.iter().map(range).collect())
}

impl<'a> Operand<'a> {
    fn len(&self) -> usize {
        match self {
            Self::Private(data) => data.len(),
            Self::Bucket(_, len) => *len,
        }
    }

    fn bytes(self) -> &'a mut [u8] {
        match self {
            Self::Private(data) => data,
            Self::Bucket(region, len) => &mut region.bytes_mut()[..len],
        }
    }
}

fn reduction(what: &Descriptor) -> (DType, ReduceOp) {
    (what.dtype, what.op.unwrap_or(ReduceOp::Sum))
}

fn shard_bytes(
    (what, cuts): (&Descriptor, &Cuts),
    bytes: usize,
    size: usize,
    rank: usize,
) -> Range<usize> {
    let element = what.dtype.size();
    let range = cuts.shard(bytes / element, size, rank);
    range.start * element..range.end * element
}

fn compressed(
    ring: &mut Ring<'_>,
    (what, wire, cuts): (&Descriptor, DType, &Cuts),
    data: &mut [u8],
) -> Result<(), Failure> {
    let data = bytemuck::cast_slice_mut(data);
    let (_, op) = reduction(what);
    match what.kind {
        Kind::ReduceScatter => compressed::reduce_scatter(ring, data, (wire, op), cuts),
        _ => compressed::all_reduce(ring, data, (wire, op)),
    }
}

/// Runs a small collective in few rounds over streams.
fn small(
    ring: &mut Ring<'_>,
    (what, cuts): (&Descriptor, &Cuts),
    mut data: &mut [u8],
) -> Result<(), Failure> {
    let at = ring.at;
    let len = data.len();
    let wanted = match what.kind {
        Kind::AllReduce => Wanted::All,
        Kind::ReduceScatter => Wanted::Own,
        kind => {
            let root = usize::from(what.root);
            let owned = |rank| match kind {
                Kind::AllGather => shard_bytes((what, cuts), len, at.size, rank),
                Kind::Broadcast if rank == root => 0..len,
                _ => 0..0,
            };
            return bruck::all_gather(ring, what, &mut data, owned);
        }
    };
    let (dtype, op) = (what.dtype.of_sums(), what.op.unwrap_or(ReduceOp::Sum));
    let mut wide = reduce::widen(what.dtype, data);
    let mut sums = match &mut wide {
        Some(wide) => bytemuck::cast_slice_mut(wide),
        None => &mut *data,
    };
    let len = sums.len();
    let owned = |rank| ring::chunk(len, dtype, cuts, at.size, rank);
    let reduction = Reduction::over(at, dtype, op);
    let own = (&mut sums, reduction, wanted);
    bruck::reduce(ring, what, own, owned)?;
    if let Some(wide) = wide {
        reduce::narrow(what.dtype, &wide, data);
    }
    Ok(())
}

fn streamed(
    ring: &mut Ring<'_>,
    (what, cuts): (&Descriptor, &Cuts),
    data: &mut [u8],
) -> Result<(), Failure> {
    let at = ring.at;
    match what.kind {
        Kind::AllReduce => ring::all_reduce(ring, data, reduction(what)),
        Kind::ReduceScatter => ring::reduce_scatter(ring, data, reduction(what), cuts),
        Kind::AllGather => {
            let owned = |rank| shard_bytes((what, cuts), data.len(), at.size, rank);
            // The closure needs the length, not the data.
            let ranges: Vec<_> = (0..at.size).map(owned).collect();
            ring::all_gather(ring, data, |rank| ranges[rank].clone())
        }
        Kind::Broadcast => ring::broadcast(ring, data, usize::from(what.root)),
        // When one byte of every rank has gone around the ring, all ranks have come.
        Kind::Barrier => {
            let mut bytes = vec![0; at.size];
            ring::all_gather(ring, &mut bytes[..], |rank| rank..rank + 1)
        }
        Kind::GatherBytes | Kind::Register => Ok(()),
    }
}

/// Checks that all ranks enter the same collective, before another implementation runs it.
pub(crate) fn agree(
    wiring: &mut Wiring,
    at: Neighbours,
    what: &Descriptor,
    watch: &Watch,
) -> Result<(), Failure> {
    match wiring {
        Wiring::Flat(transport) => {
            let transport = transport.as_mut();
            enter(
                &mut Ring {
                    transport,
                    at,
                    watch,
                },
                what,
            )
        }
        Wiring::Nodes(nodes) => nodes.agree(what, watch),
    }
}

/// Checks that all ranks enter the same collective.
fn enter(ring: &mut Ring<'_>, what: &Descriptor) -> Result<(), Failure> {
    match ring.transport.shared() {
        Some(shared) => Ok(shared.enter(what.encode(), ring.watch).map(drop)?),
        None => announce(ring, what),
    }
}

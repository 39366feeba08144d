//! Reductions of the sums of virtual ranks, in the order of their tree.
//!
//! Every rank brings some partial sums and owns a shard of the result. It gets its shard of the
//! partial sums of all ranks, from shared memory or directly from each of them, and adds them in
//! the order of the tree. A reduction to all ranks then gathers the shards. If each rank has one
//! partial sum, as many bytes travel as on a ring, and the order does not depend on the ranks.

use std::iter;
use std::ops::Range;

use super::{
    Descriptor, Failure, Kind, Neighbours, Operand, Ring, Wiring, ring, send_receive, shard_bytes,
};
use crate::buffer::Sums;
use crate::element::{DType, ReduceOp};
use crate::reduce;
use crate::shard::Cuts;
use crate::transport::shm::{PartialSums, Results};
use crate::transport::{Transport, TransportError, Watch};

/// Reduces the sums of virtual ranks. The result replaces the first sum: all of it, or this rank's
/// shard.
pub(crate) fn run_tree(
    wiring: &mut Wiring,
    at: Neighbours,
    (what, cuts, sums): (&Descriptor, &Cuts, &Sums),
    memory: Operand<'_>,
    watch: &Watch,
) -> Result<(), Failure> {
    let Wiring::Flat(transport) = wiring else {
        let (peer, transport) = (at.next(), "direct");
        return Err(TransportError::NoStream { peer, transport }.into());
    };
    let transport = transport.as_mut();
    let bytes = sums.len * what.dtype.size();
    let order = Order::of(what, sums, at.size);
    let shard = |rank| shard_bytes((what, cuts), bytes, at.size, rank);
    let data = match (transport.shared(), memory) {
        (Some(shared), Operand::Bucket(region, _)) => {
            let partial = PartialSums {
                places: &order.places,
                add: &|parts: &[&[u8]], out: &mut [u8]| order.add(parts, out),
                results: match what.kind {
                    Kind::ReduceScatter => Results::Owners,
                    _ => Results::Everybodys,
                },
            };
            let mine = shard(at.rank);
            return Ok(shared.reduce_partial(what.encode(), region, mine, &partial, watch)?);
        }
        (Some(shared), memory) => {
            shared.enter(what.encode(), watch)?;
            memory.bytes()
        }
        (None, memory) => memory.bytes(),
    };
    streamed((transport, at, watch), (what, &order), shard, data)
}

/// Completes the sum of a rank that has all virtual ranks.
pub(crate) fn finish_alone((dtype, op): (DType, Option<ReduceOp>), sums: &Sums, data: &mut [u8]) {
    if op == Some(ReduceOp::Mean) {
        let sum = &mut data[..sums.len * dtype.size()];
        reduce::divide(dtype, sum, sums.virtual_ranks.count());
    }
}

/// The partial sums of all ranks, and the order in which they are added.
struct Order {
    dtype: DType,
    /// Number of virtual ranks, for a mean.
    divisor: Option<usize>,
    /// Rank of each partial sum, and its first byte there.
    places: Vec<(usize, usize)>,
    additions: Vec<usize>,
}

impl Order {
    fn of(what: &Descriptor, sums: &Sums, size: usize) -> Self {
        let (dtype, shares) = (what.dtype, sums.virtual_ranks);
        let stride = sums.stride(dtype) * dtype.size();
        let (mut places, mut nodes) = (Vec::new(), Vec::new());
        for rank in 0..size {
            for (index, node) in shares.partial_sums(rank).into_iter().enumerate() {
                places.push((rank, index * stride));
                nodes.push(node);
            }
        }
        Self {
            dtype,
            divisor: (what.op == Some(ReduceOp::Mean)).then(|| shares.count()),
            places,
            additions: shares.additions(nodes),
        }
    }

    fn add(&self, parts: &[&[u8]], out: &mut [u8]) {
        reduce::tree(self.dtype, (parts, &self.additions), self.divisor, out);
    }

    /// First bytes of the partial sums of a rank.
    fn of_rank(&self, rank: usize) -> impl Iterator<Item = usize> {
        let own = move |(owner, place): &(usize, usize)| (*owner == rank).then_some(*place);
        self.places.iter().filter_map(own)
    }
}

/// Exchanges partial sums with every other rank, adds those of this rank's shard, and gathers the
/// shards if all ranks get them.
fn streamed(
    (transport, at, watch): (&mut dyn Transport, Neighbours, &Watch),
    (what, order): (&Descriptor, &Order),
    shard: impl Fn(usize) -> Range<usize>,
    data: &mut [u8],
) -> Result<(), Failure> {
    let ring = &mut Ring {
        transport,
        at,
        watch,
    };
    let mine = shard(at.rank);
    let mut arrived: Vec<Vec<u8>> = iter::repeat_with(Vec::new).take(at.size).collect();
    for distance in 1..at.size {
        let (to, from) = (at.ahead(distance), at.back(distance));
        let theirs = shard(to);
        let part = |place: usize| &data[place + theirs.start..place + theirs.end];
        let outgoing: Vec<&[u8]> = order.of_rank(at.rank).map(part).collect();
        let mut incoming = vec![0; order.of_rank(from).count() * mine.len()];
        send_receive(ring, (to, from), what, (&outgoing.concat(), &mut incoming))?;
        arrived[from] = incoming;
    }
    let own = order
        .of_rank(at.rank)
        .map(|place| &data[place + mine.start..place + mine.end]);
    let mut own = own.collect::<Vec<&[u8]>>().into_iter();
    let mut theirs: Vec<_> = arrived
        .iter()
        .map(|bytes| bytes.chunks_exact(mine.len().max(1)))
        .collect();
    let part = |(rank, _): &(usize, usize)| match *rank == at.rank {
        true => own.next(),
        false => theirs[*rank].next(),
    };
    let parts: Vec<&[u8]> = order
        .places
        .iter()
        .map(part)
        .map(Option::unwrap_or_default)
        .collect();
    let mut sum = vec![0; mine.len()];
    if !sum.is_empty() {
        order.add(&parts, &mut sum);
    }
    data[mine].copy_from_slice(&sum);
    match what.kind {
        Kind::ReduceScatter => Ok(()),
        _ => {
            let end = (0..at.size).map(|rank| shard(rank).end).max().unwrap_or(0);
            ring::all_gather(ring, &mut data[..end], shard)
        }
    }
}

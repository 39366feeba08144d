//! Collectives on small messages, in the fewest rounds, at the cost of more bytes.
//!
//! In each round a member of the ring doubles its blocks: it sends what it has to the member that
//! is 1, 2, 4 and so on ahead (Bruck et al., "Efficient algorithms for all-to-all communications in
//! multiport message-passing systems", 1997). All of `n` members have everything after `⌈log₂ n⌉`
//! rounds, where the ring takes `n - 1` hops, and `2 n - 2` for a reduction. A tree would add on
//! the way. Here every member gets all blocks and adds them in the ring's order, so that all bits
//! are the ring's.
//!
//! Every message carries its collective's descriptor: a disagreement of distant ranks would not
//! show at the ring's neighbours. All members wait for all others, also in a broadcast.

use std::ops::Range;

use super::ring::{Contribution, Reduction, Visit};
use super::{Descriptor, Failure, Kind, Ring, send_receive};
use crate::buffer::Buffer;
use crate::element::DType;
use crate::reduce;

/// Largest reduction in bytes. Each member receives about `n` times as much, and the ring's hops
/// take about `2 n` times as long. At 25 µs a hop and 1 ns a byte they break even at 50 KiB,
/// whatever `n` is.
const REDUCED: u64 = 32 * 1024;

/// Largest number of bytes that a member then receives: with thousands of members it would be too
/// much memory.
const RECEIVED: u64 = 8 << 20;

/// Largest total of blocks without a reduction. No byte comes to a member twice.
const GATHERED: u64 = 64 * 1024;

/// Whether a collective of `ranks` ranks uses this algorithm.
pub(super) fn suits(what: &Descriptor, ranks: usize) -> bool {
    let ranks = ranks as u64;
    match what.kind {
        // Compressed sums must be rounded on the way; here nothing is summed on the way.
        Kind::AllReduce | Kind::ReduceScatter if what.wire.is_some() => false,
        Kind::AllReduce | Kind::ReduceScatter => {
            let bytes = what.len.saturating_mul(what.dtype.of_sums().size() as u64);
            bytes <= REDUCED && bytes * ranks <= RECEIVED
        }
        Kind::AllGather | Kind::Broadcast => {
            suits_gather(what.len.saturating_mul(what.dtype.size() as u64))
        }
        Kind::Barrier => true,
        // The first exchange is one length from each rank.
        Kind::GatherBytes => suits_gather(ranks * size_of::<u64>() as u64),
        Kind::Register => false,
    }
}

/// Whether blocks of this total size are gathered with this algorithm.
pub(super) fn suits_gather(bytes: u64) -> bool {
    bytes <= GATHERED
}

/// The sums that a member needs.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Wanted {
    Own,
    All,
}

/// Reduces the elements of all members. Member `i` owns the bytes `owned(i)`.
pub(super) fn reduce(
    ring: &mut Ring<'_>,
    what: &Descriptor,
    (own, reduction, wanted): (&mut impl Contribution, Reduction, Wanted),
    owned: impl Fn(usize) -> Range<usize>,
) -> Result<(), Failure> {
    let at = ring.at;
    let chunks: Vec<Range<usize>> = (0..at.size).map(owned).collect();
    let ends = ends(chunks.iter().map(Range::len));
    let summand = ends.last().copied().unwrap_or(0);
    let block = own.summands() * summand;
    let mut blocks = Buffer::recycled(DType::U8, block * at.size);
    let mut rest = blocks.bytes_mut();
    for index in 0..own.summands() {
        for chunk in &chunks {
            let (here, after) = rest.split_at_mut(chunk.len());
            here.copy_from_slice(own.summand(index, chunk.clone()));
            rest = after;
        }
    }
    gather(ring, what, (&|_| block, &mut blocks))?;
    let op = reduction.op.before_division();
    for (owner, chunk) in chunks.into_iter().enumerate() {
        if chunk.is_empty() || (wanted == Wanted::Own && owner != at.rank) {
            continue;
        }
        let end = ends[owner];
        let place = end - chunk.len()..end;
        let mut parts = Vec::with_capacity(reduction.ranks);
        for (member, visit) in visits(owner, at.size, own.begins_where_it_ends()) {
            let block = &blocks.bytes()[at.distance_back(member) * block..][..block];
            let parts_of = |index: &usize| &block[index * summand..][place.clone()];
            parts.extend(own.summands_at(visit).iter().map(parts_of));
        }
        let sum = own.bytes_mut(chunk.clone());
        reduce::into(reduction.dtype, op, &parts, sum);
        reduction.complete(sum);
        own.hand_out(chunk);
    }
    Ok(())
}

/// The path of a sum on the ring that ends at `owner`, and begins there or at the next member.
fn visits(owner: usize, size: usize, begins_there: bool) -> impl Iterator<Item = (usize, Visit)> {
    let first = begins_there.then_some((owner, Visit::First));
    let middle = (1..size).map(move |hop| ((owner + hop) % size, Visit::Middle));
    first
        .into_iter()
        .chain(middle)
        .chain([(owner, Visit::Last)])
}

/// Sends the bytes `owned(i)` of each member `i` to all members.
pub(super) fn all_gather(
    ring: &mut Ring<'_>,
    what: &Descriptor,
    own: &mut impl Contribution,
    owned: impl Fn(usize) -> Range<usize>,
) -> Result<(), Failure> {
    let at = ring.at;
    let chunk = |distance: usize| owned(at.back(distance));
    let bytes = (0..at.size).map(|distance| chunk(distance).len()).sum();
    let mut blocks = Buffer::recycled(DType::U8, bytes);
    let mine = chunk(0);
    blocks.bytes_mut()[..mine.len()].copy_from_slice(own.bytes(mine.clone()));
    own.hand_out(mine.clone());
    let length = |distance| chunk(distance).len();
    gather(ring, what, (&length, &mut blocks))?;
    let mut rest = &blocks.bytes()[mine.len()..];
    for distance in 1..at.size {
        let chunk = chunk(distance);
        let (here, after) = rest.split_at(chunk.len());
        own.bytes_mut(chunk.clone()).copy_from_slice(here);
        own.hand_out(chunk);
        rest = after;
    }
    Ok(())
}

/// Gathers all other blocks after the own one. `length` is the size of the block of the member that
/// many places back on the ring; the previous member's block comes first.
fn gather(
    ring: &mut Ring<'_>,
    what: &Descriptor,
    (length, blocks): (&dyn Fn(usize) -> usize, &mut Buffer),
) -> Result<(), Failure> {
    let at = ring.at;
    let ends = ends((0..at.size).map(length));
    let end = |blocks: usize| ends[blocks - 1];
    let mut known = 1;
    while known < at.size {
        let more = known.min(at.size - known);
        let (mine, theirs) = blocks.bytes_mut().split_at_mut(end(known));
        let peers = (at.ahead(known), at.back(known));
        let theirs = &mut theirs[..end(known + more) - end(known)];
        send_receive(ring, peers, what, (&mine[..end(more)], theirs))?;
        known += more;
    }
    Ok(())
}

/// Ends of consecutive pieces of these lengths.
fn ends(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut end = 0;
    let add = |length| {
        end += length;
        end
    };
    lengths.map(add).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ReduceOp;

    fn sum() -> Descriptor {
        Descriptor {
            sequence: 1,
            kind: Kind::AllReduce,
            dtype: DType::F64,
            op: Some(ReduceOp::Sum),
            wire: None,
            root: 0,
            virtual_ranks: 0,
            len: 0,
            bucket: 0,
            cuts: 0,
        }
    }

    #[test]
    fn a_sum_goes_once_round_the_ring() {
        let members = |begins_there| visits(1, 4, begins_there).map(|(member, _)| member);
        assert!(members(false).eq([2, 3, 0, 1]));
        assert!(members(true).eq([1, 2, 3, 0, 1]));
        let visits: Vec<Visit> = visits(0, 2, true).map(|(_, visit)| visit).collect();
        assert!(visits == [Visit::First, Visit::Middle, Visit::Last]);
    }

    #[test]
    fn what_is_large_or_compressed_goes_round_the_ring() {
        let small = Descriptor {
            len: REDUCED / 8,
            ..sum()
        };
        let suits = |what| suits(&what, 4);
        assert!(suits(small));
        let len = small.len + 1;
        assert!(!suits(Descriptor { len, ..small }));
        let wire = Some(DType::BF16);
        assert!(!suits(Descriptor { wire, ..small }));
        let kind = Kind::Broadcast;
        assert!(suits(Descriptor { kind, len, ..small }));
        let len = u64::MAX;
        assert!(!suits(Descriptor { kind, len, ..small }));
    }

    #[test]
    fn halves_count_as_what_travels() {
        let len = REDUCED / 4;
        let halves = Descriptor {
            dtype: DType::BF16,
            len,
            ..sum()
        };
        assert!(suits(&halves, 4));
        let len = len + 1;
        assert!(!suits(&Descriptor { len, ..halves }, 4));
    }

    #[test]
    fn thousands_of_ranks_are_spared_thousands_of_blocks() {
        let len = REDUCED / 8;
        assert!(suits(&Descriptor { len, ..sum() }, 256));
        assert!(!suits(&Descriptor { len, ..sum() }, 257));
        assert!(suits(&Descriptor { len: 16, ..sum() }, 4096));
        let lengths = Descriptor {
            kind: Kind::GatherBytes,
            ..sum()
        };
        assert!(suits(&lengths, 8192));
        assert!(!suits(&lengths, 8193));
    }
}

//! Small messages: in as few rounds as they can take, whatever that costs in bytes.
//!
//! In each round a member of the ring has twice as many blocks as before: it gives what it has to
//! the one that is 1, 2, 4 and so on ahead (Bruck et al., "Efficient algorithms for all-to-all
//! communications in multiport message-passing systems", 1997). Of `n` members all have everything
//! after `⌈log₂ n⌉` rounds, where the ring takes `n - 1` hops, and `2 n - 2` for a reduction. A
//! tree would add on the way; here everybody gets what everybody brings and adds it up in the
//! ring's order, so that all bits are the ring's.
//!
//! Every message says which collective it is of: the ring's neighbours alone would not notice that
//! others disagree. All members wait for all others, in a broadcast too.

use std::ops::Range;

use super::ring::{Contribution, Reduction, Visit};
use super::{Descriptor, Failure, Kind, Neighbours, send_receive};
use crate::buffer::Buffer;
use crate::element::DType;
use crate::reduce;
use crate::transport::{Transport, Watch};

/// Most bytes of a reduction. Each member receives what all others bring, about `n` times as much,
/// while the ring's hops take about `2 n` times as long: where a hop costs 25 µs, and a byte 1 ns,
/// they are even at 50 KiB, whatever `n` is.
const REDUCED: u64 = 32 * 1024;

/// Most bytes that a member receives then: with thousands of them it would be too much memory.
const RECEIVED: u64 = 8 << 20;

/// Most bytes of all blocks together where nothing is reduced, and no byte comes to a member twice.
const GATHERED: u64 = 64 * 1024;

/// Whether a collective of `ranks` ranks goes this way.
pub(super) fn suits(what: &Descriptor, ranks: usize) -> bool {
    let ranks = ranks as u64;
    match what.kind {
        // Partial sums are rounded on the way, which cannot be made up for.
        Kind::AllReduce | Kind::ReduceScatter if what.wire.is_some() => false,
        Kind::AllReduce | Kind::ReduceScatter => {
            let bytes = what.len.saturating_mul(what.dtype.of_sums().size() as u64);
            bytes <= REDUCED && bytes * ranks <= RECEIVED
        }
        Kind::AllGather | Kind::Broadcast => {
            suits_gather(what.len.saturating_mul(what.dtype.size() as u64))
        }
        Kind::Barrier => true,
        // At first of a length from each.
        Kind::GatherBytes => suits_gather(ranks * size_of::<u64>() as u64),
        Kind::Register => false,
    }
}

/// Whether blocks of so many bytes together are gathered this way.
pub(super) fn suits_gather(bytes: u64) -> bool {
    bytes <= GATHERED
}

/// Whose sums a member needs.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Wanted {
    Own,
    All,
}

/// Reduces what all members bring. Member `i` owns the bytes `owned(i)`.
pub(super) fn reduce(
    transport: &mut dyn Transport,
    at: Neighbours,
    what: &Descriptor,
    (own, reduction, wanted): (&mut impl Contribution, Reduction, Wanted),
    owned: impl Fn(usize) -> Range<usize>,
    watch: &Watch,
) -> Result<(), Failure> {
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
    gather(transport, at, what, (&|_| block, &mut blocks), watch)?;
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

/// Where the sum goes on the ring that ends at `owner`, and begins there too or at the next one.
fn visits(owner: usize, size: usize, begins_there: bool) -> impl Iterator<Item = (usize, Visit)> {
    let first = begins_there.then_some((owner, Visit::First));
    let middle = (1..size).map(move |hop| ((owner + hop) % size, Visit::Middle));
    first
        .into_iter()
        .chain(middle)
        .chain([(owner, Visit::Last)])
}

/// Gives every member what each has in the bytes that `owned` says are its own.
pub(super) fn all_gather(
    transport: &mut dyn Transport,
    at: Neighbours,
    what: &Descriptor,
    own: &mut impl Contribution,
    owned: impl Fn(usize) -> Range<usize>,
    watch: &Watch,
) -> Result<(), Failure> {
    let chunk = |distance: usize| owned(at.back(distance));
    let bytes = (0..at.size).map(|distance| chunk(distance).len()).sum();
    let mut blocks = Buffer::recycled(DType::U8, bytes);
    let mine = chunk(0);
    blocks.bytes_mut()[..mine.len()].copy_from_slice(own.bytes(mine.clone()));
    own.hand_out(mine.clone());
    let length = |distance| chunk(distance).len();
    gather(transport, at, what, (&length, &mut blocks), watch)?;
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

/// Gathers everybody's blocks after the own one, each of the bytes that `length` has for how far
/// back on the ring it is from: first that of the member before this one.
fn gather(
    transport: &mut dyn Transport,
    at: Neighbours,
    what: &Descriptor,
    (length, blocks): (&dyn Fn(usize) -> usize, &mut Buffer),
    watch: &Watch,
) -> Result<(), Failure> {
    let ends = ends((0..at.size).map(length));
    let end = |blocks: usize| ends[blocks - 1];
    let mut known = 1;
    while known < at.size {
        let more = known.min(at.size - known);
        let (mine, theirs) = blocks.bytes_mut().split_at_mut(end(known));
        let peers = (at.ahead(known), at.back(known));
        let theirs = &mut theirs[..end(known + more) - end(known)];
        send_receive(transport, peers, what, (&mine[..end(more)], theirs), watch)?;
        known += more;
    }
    Ok(())
}

/// Where pieces of these lengths end that lie one after the other.
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

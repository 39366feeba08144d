//! Which rank owns which elements, and in which order a shard's sum is taken.
//!
//! Sums of floats depend on their order. Every algorithm of this crate takes that of the ring: the
//! sum of a shard begins at the rank after its owner and ends with the owner's part. So a sum has
//! the same bits on every transport, in whatever memory, and whether it was all-reduced or
//! reduce-scattered.

use std::ops::Range;

/// Rank `rank`'s shard of `len` elements: balanced, in rank order, the first `len % size` ranks
/// with one element more.
///
/// ```
/// assert_eq!(burn_dist::shard(10, 4, 0), 0..3);
/// assert_eq!(burn_dist::shard(10, 4, 3), 8..10);
/// ```
pub fn shard(len: usize, size: usize, rank: usize) -> Range<usize> {
    let (base, extra) = (len / size, len % size);
    let start = |rank: usize| rank * base + rank.min(extra);
    start(rank)..start(rank + 1)
}

/// The ranks in the order in which their parts of `owner`'s shard are added.
pub(crate) fn summands(owner: usize, size: usize) -> impl Iterator<Item = usize> {
    (1..=size).map(move |distance| (owner + distance) % size)
}

/// Cuts `range` of `len` elements where shards meet: every piece with its owner.
pub(crate) fn pieces(
    range: Range<usize>,
    len: usize,
    size: usize,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    (0..size).filter_map(move |owner| {
        let shard = shard(len, size, owner);
        let piece = range.start.max(shard.start)..range.end.min(shard.end);
        (piece.start < piece.end).then_some((owner, piece))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_cover_the_range_and_belong_to_their_owners(
            len in 0usize..1000,
            size in 1usize..9,
            start in 0usize..1000,
            count in 0usize..1000,
        ) {
            let start = start.min(len);
            let range = start..(start + count).min(len);
            let mut at = range.start;
            for (owner, piece) in pieces(range.clone(), len, size) {
                prop_assert_eq!(piece.start, at);
                prop_assert!(piece.end > at);
                let shard = shard(len, size, owner);
                prop_assert!(shard.start <= piece.start && piece.end <= shard.end);
                at = piece.end;
            }
            prop_assert_eq!(at, range.end);
        }
    }

    #[test]
    fn the_owner_is_added_last() {
        assert_eq!(summands(2, 4).collect::<Vec<_>>(), [3, 0, 1, 2]);
        assert_eq!(summands(0, 1).collect::<Vec<_>>(), [0]);
    }
}

//! Ownership of elements by ranks, and the order in which a shard is summed.
//!
//! Sums of floats depend on their order. Every algorithm of this crate uses that of the ring: the
//! sum of a shard begins at the rank after its owner and ends with the owner's part. So a sum has
//! the same bits on every transport, in any memory, and after all-reduce and reduce-scatter.

use std::ops::Range;
use std::sync::Arc;

/// Rank `rank`'s shard of `len` elements, balanced and in rank order.
///
/// The first `len % size` ranks have one element more.
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

/// Borders of the ranks' shards in a buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cuts {
    /// Balanced: see [`shard`].
    #[default]
    Even,
    /// The end of each rank's shard. A shard begins at the end of the previous one, and may be
    /// empty.
    Ends(Arc<[usize]>),
}

impl Cuts {
    /// Rank `rank`'s shard of `len` elements.
    pub fn shard(&self, len: usize, size: usize, rank: usize) -> Range<usize> {
        match self {
            Self::Even => shard(len, size, rank),
            Self::Ends(ends) => {
                let end = |rank: usize| ends.get(rank).copied().unwrap_or(len);
                rank.checked_sub(1).map_or(0, end)..end(rank)
            }
        }
    }

    /// Whether these are the shards of `size` ranks and cover `len` elements.
    pub(crate) fn fit(&self, len: usize, size: usize) -> bool {
        match self {
            Self::Even => true,
            Self::Ends(ends) => ends.len() == size && ends.is_sorted() && ends.last() == Some(&len),
        }
    }

    /// A digest for comparison between ranks; 0 if even.
    pub(crate) fn digest(&self) -> u32 {
        let Self::Ends(ends) = self else {
            return 0;
        };
        let mut hasher = blake3::Hasher::new();
        for end in ends.iter() {
            hasher.update(&(*end as u64).to_le_bytes());
        }
        let [a, b, c, d, ..] = *hasher.finalize().as_bytes();
        u32::from_le_bytes([a, b, c, d]).max(1)
    }
}

/// Divides things of these sizes evenly among `ranks`: the largest first, each to the rank with the
/// least. No rank has more than a third above the best division (Graham 1969,
/// <https://doi.org/10.1137/0117039>).
pub(crate) fn divide(sizes: &[usize], ranks: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(sizes[*index]));
    let mut loads = vec![0usize; ranks.max(1)];
    let mut owners = vec![0; sizes.len()];
    for index in order {
        let least = (0..loads.len()).min_by_key(|rank| loads[*rank]);
        let least = least.unwrap_or(0);
        loads[least] += sizes[index];
        owners[index] = least;
    }
    owners
}

/// The ranks in the order in which their parts of `owner`'s shard are summed.
pub(crate) fn summands(owner: usize, size: usize) -> impl Iterator<Item = usize> {
    (1..=size).map(move |distance| (owner + distance) % size)
}

/// Cuts `range` of `len` elements at the borders of shards: every piece with its owner.
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

    proptest! {
        /// Compares with all possible divisions.
        #[test]
        fn no_rank_has_more_than_a_third_above_the_best_division(
            sizes in prop::collection::vec(0usize..100, 0..7),
            ranks in 1usize..4,
        ) {
            let largest_load = |owners: &[usize]| {
                let load = |rank| {
                    let own = owners.iter().zip(&sizes).filter(|(owner, _)| **owner == rank);
                    own.map(|(_, size)| size).sum::<usize>()
                };
                (0..ranks).map(load).max().unwrap_or(0)
            };
            let division = |mut number: usize| -> Vec<usize> {
                let digit = |_| {
                    let digit = number % ranks;
                    number /= ranks;
                    digit
                };
                (0..sizes.len()).map(digit).collect()
            };
            let all = 0..ranks.pow(sizes.len() as u32);
            let best = all.map(|number| largest_load(&division(number))).min().unwrap_or(0);
            let owners = divide(&sizes, ranks);
            prop_assert!(owners.iter().all(|owner| *owner < ranks));
            prop_assert!(3 * largest_load(&owners) <= 4 * best, "{owners:?}");
        }

        #[test]
        fn uneven_cuts_tile_the_buffer(ends in prop::collection::vec(0usize..100, 1..9)) {
            let mut ends = ends;
            ends.sort_unstable();
            let (len, size) = (ends[ends.len() - 1], ends.len());
            let cuts = Cuts::Ends(ends.into());
            prop_assert!(cuts.fit(len, size));
            prop_assert!(!cuts.fit(len + 1, size) && !cuts.fit(len, size + 1));
            let mut at = 0;
            for rank in 0..size {
                let shard = cuts.shard(len, size, rank);
                prop_assert_eq!(shard.start, at);
                at = shard.end;
            }
            prop_assert_eq!(at, len);
            prop_assert!(cuts.digest() != 0 && Cuts::Even.digest() == 0);
        }
    }

    #[test]
    fn the_largest_are_divided_first() {
        assert_eq!(divide(&[10, 4, 3, 2, 9], 2), [0, 1, 0, 0, 1]);
        assert_eq!(divide(&[1, 1, 1], 3), [0, 1, 2]);
        assert_eq!(divide(&[1, 2], 1), [0, 0]);
        assert!(divide(&[], 3).is_empty());
    }

    #[test]
    fn the_owner_is_added_last() {
        assert_eq!(summands(2, 4).collect::<Vec<_>>(), [3, 0, 1, 2]);
        assert_eq!(summands(0, 1).collect::<Vec<_>>(), [0]);
    }
}

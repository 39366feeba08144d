//! Virtual ranks: the shares of a global batch, computed by any number of ranks.
//!
//! A sum of floats depends on its order. Here the order is a binary tree over the virtual ranks,
//! whatever ranks compute them: the left half of a node holds the largest power of two of its
//! virtual ranks, the right half the others. A rank computes consecutive virtual ranks and adds
//! what it can of the tree; the partial sums of all ranks are then added in the rest of the tree.
//! So 1, 2 or 5 ranks get the same bits.

use std::num::NonZeroUsize;
use std::ops::Range;

use crate::shard;

/// Largest number of virtual ranks.
pub const MOST_VIRTUAL_RANKS: usize = u16::MAX as usize;

/// Virtual ranks, divided among ranks: each rank computes consecutive ones.
///
/// ```
/// use burn_dist::VirtualRanks;
///
/// let five_of_twelve = VirtualRanks::new(12, 5)?;
/// assert_eq!(five_of_twelve.of_rank(0), 0..3);
/// assert_eq!(five_of_twelve.of_rank(4), 10..12);
/// # Ok::<(), burn_dist::VirtualRanksError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualRanks {
    count: NonZeroUsize,
    ranks: NonZeroUsize,
}

/// These virtual ranks cannot be divided among the ranks.
#[derive(Clone, Copy, thiserror::Error, PartialEq, Eq)]
pub enum VirtualRanksError {
    /// There are more ranks than virtual ranks, or no ranks at all.
    #[error("{ranks} ranks cannot share {count} virtual ranks: use 1 to {count} ranks")]
    Ranks {
        /// Number of virtual ranks.
        count: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// No virtual ranks, or too many.
    #[error("{count} virtual ranks: use 1 to {MOST_VIRTUAL_RANKS}")]
    Count {
        /// Number of virtual ranks.
        count: usize,
    },
}

crate::debug_is_display!(VirtualRanksError);

impl VirtualRanks {
    /// `count` virtual ranks, computed by `ranks` ranks.
    ///
    /// # Errors
    /// Fails if a rank would have none, or if `count` is 0 or above [`MOST_VIRTUAL_RANKS`].
    pub fn new(count: usize, ranks: usize) -> Result<Self, VirtualRanksError> {
        let wanted = NonZeroUsize::new(count).filter(|count| count.get() <= MOST_VIRTUAL_RANKS);
        let wanted = wanted.ok_or(VirtualRanksError::Count { count })?;
        match NonZeroUsize::new(ranks).filter(|ranks| *ranks <= wanted) {
            Some(ranks) => Ok(Self {
                count: wanted,
                ranks,
            }),
            None => Err(VirtualRanksError::Ranks { count, ranks }),
        }
    }

    /// Number of virtual ranks.
    pub fn count(&self) -> usize {
        self.count.get()
    }

    /// Number of ranks that compute them.
    pub fn ranks(&self) -> usize {
        self.ranks.get()
    }

    /// The virtual ranks of a rank. Empty if there is no such rank.
    pub fn of_rank(&self, rank: usize) -> Range<usize> {
        match rank < self.ranks() {
            true => shard(self.count(), self.ranks(), rank),
            false => self.count()..self.count(),
        }
    }

    /// Number of virtual ranks that a rank has less than the rank with the most.
    pub fn lacking(&self, rank: usize) -> usize {
        self.count().div_ceil(self.ranks()) - self.of_rank(rank).len()
    }

    /// The partial sums of a rank: the largest nodes of the tree over its virtual ranks alone, in
    /// order.
    pub fn partial_sums(&self, rank: usize) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        cover(0..self.count(), &self.of_rank(rank), &mut found);
        found
    }

    /// Largest number of partial sums of any rank.
    pub fn most_partial_sums(&self) -> usize {
        let number = |rank| self.partial_sums(rank).len();
        (0..self.ranks()).map(number).max().unwrap_or(1)
    }

    /// Largest number of sums that a rank has at once while it adds the sums of its virtual ranks,
    /// which come in order.
    pub fn most_sums(&self) -> usize {
        let most = |rank| {
            let (mut held, mut most) = (0, 0);
            for additions in self.additions(self.of_rank(rank).map(|one| one..one + 1)) {
                held += 1;
                most = most.max(held);
                held -= additions;
            }
            most
        };
        (0..self.ranks()).map(most).max().unwrap_or(1)
    }

    /// The order of a sum of `parts`, which are consecutive nodes of the tree: after each of them,
    /// how often the last two sums are replaced by their sum.
    ///
    /// In a sum over the partial sums of all ranks, one sum is left at the end.
    pub fn additions(&self, parts: impl IntoIterator<Item = Range<usize>>) -> Vec<usize> {
        let mut held: Vec<Range<usize>> = Vec::new();
        let add = |part| {
            held.push(part);
            let mut additions = 0;
            while let [.., left, right] = &held[..] {
                let both = left.start..right.end;
                if !self.is_node(&both) {
                    break;
                }
                held.truncate(held.len() - 2);
                held.push(both);
                additions += 1;
            }
            additions
        };
        parts.into_iter().map(add).collect()
    }

    fn is_node(&self, range: &Range<usize>) -> bool {
        let mut node = 0..self.count();
        while node.len() > range.len() {
            let Some([left, right]) = halves(&node) else {
                return false;
            };
            node = if range.start < left.end { left } else { right };
        }
        node == *range
    }
}

/// The halves of a node; `None` for a single virtual rank.
fn halves(node: &Range<usize>) -> Option<[Range<usize>; 2]> {
    let largest = node.len().checked_sub(1)?.checked_ilog2()?;
    let middle = node.start + (1 << largest);
    Some([node.start..middle, middle..node.end])
}

/// Adds the largest nodes below `node` that lie in `range` to `found`.
fn cover(node: Range<usize>, range: &Range<usize>, found: &mut Vec<Range<usize>>) {
    if node.start >= range.end || node.end <= range.start {
        return;
    }
    if range.start <= node.start && node.end <= range.end {
        return found.push(node);
    }
    for half in halves(&node).into_iter().flatten() {
        cover(half, range, found);
    }
}

/// A sum over the virtual ranks of one rank, as they come, in the order of the tree.
pub(crate) struct Adding {
    /// After each virtual rank, how often the last two sums are replaced by their sum.
    additions: Vec<usize>,
    /// Number of virtual ranks that are complete.
    complete: usize,
    /// Number of the sum that the current virtual rank brings.
    sum: usize,
}

impl Adding {
    /// The sum over `own`, the virtual ranks of a rank.
    pub(crate) fn of(all: VirtualRanks, own: Range<usize>) -> Self {
        Self {
            additions: all.additions(own.map(|one| one..one + 1)),
            complete: 0,
            sum: 0,
        }
    }

    /// Number of the sum that the current virtual rank brings.
    pub(crate) fn sum(&self) -> usize {
        self.sum
    }

    /// The additions after the current virtual rank: sums number `i` and `i + 1` become one.
    pub(crate) fn due(&self) -> impl Iterator<Item = usize> + use<> {
        let additions = self.additions.get(self.complete).copied().unwrap_or(0);
        (self.sum.saturating_sub(additions)..self.sum).rev()
    }

    /// The next virtual rank begins.
    pub(crate) fn end_virtual_rank(&mut self) {
        self.sum = self.sum + 1 - self.due().count();
        self.complete += 1;
    }

    /// The first virtual rank begins.
    pub(crate) fn begin_step(&mut self) {
        (self.complete, self.sum) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The sum of values in the order of the tree, by its definition.
    fn sum(node: Range<usize>, values: &[f32]) -> f32 {
        match halves(&node) {
            Some([left, right]) => sum(left, values) + sum(right, values),
            None => values[node.start],
        }
    }

    /// The sums that are left after `values` have come with these additions.
    fn fold(values: impl IntoIterator<Item = f32>, additions: &[usize]) -> Vec<f32> {
        let mut held = Vec::new();
        for (value, additions) in values.into_iter().zip(additions) {
            held.push(value);
            for _ in 0..*additions {
                let right = held.pop().unwrap();
                let left = held.pop().unwrap();
                held.push(left + right);
            }
        }
        held
    }

    proptest! {
        #[test]
        fn any_number_of_ranks_computes_the_sum_of_the_tree(
            values in prop::collection::vec(-1e6f32..1e6, 1..40),
            ranks in 1usize..40,
        ) {
            let count = values.len();
            let ranks = ranks.min(count);
            let shares = VirtualRanks::new(count, ranks).unwrap();
            let (mut parts, mut sums) = (Vec::new(), Vec::new());
            for rank in 0..ranks {
                let own = shares.of_rank(rank);
                prop_assert!(!own.is_empty());
                let leaves = own.clone().map(|one| one..one + 1);
                let folded = fold(values[own].iter().copied(), &shares.additions(leaves));
                let partial = shares.partial_sums(rank);
                prop_assert_eq!(folded.len(), partial.len());
                prop_assert!(partial.len() <= shares.most_partial_sums());
                prop_assert!(shares.most_partial_sums() <= shares.most_sums());
                prop_assert!(shares.most_sums() <= count.ilog2() as usize * 2 + 2);
                parts.extend(partial);
                sums.extend(folded);
            }
            let all = fold(sums, &shares.additions(parts));
            prop_assert_eq!(all.len(), 1);
            prop_assert_eq!(all[0].to_bits(), sum(0..count, &values).to_bits());
        }
    }

    #[test]
    fn a_share_of_powers_of_two_is_one_partial_sum() {
        for (count, ranks) in [(4, 2), (8, 2), (8, 8), (16, 4), (1, 1)] {
            let shares = VirtualRanks::new(count, ranks).unwrap();
            assert_eq!(shares.most_partial_sums(), 1, "{count} of {ranks}");
        }
        let uneven = VirtualRanks::new(12, 5).unwrap();
        let ends = |node: Range<usize>| (node.start, node.end);
        let of = |rank| uneven.partial_sums(rank).into_iter().map(ends).collect();
        let parts: Vec<Vec<_>> = (0..5).map(of).collect();
        assert_eq!(
            parts,
            [
                vec![(0, 2), (2, 3)],
                vec![(3, 4), (4, 6)],
                vec![(6, 8)],
                vec![(8, 10)],
                vec![(10, 12)],
            ]
        );
    }

    #[test]
    fn what_cannot_be_divided_is_refused() {
        for (count, ranks) in [(0, 1), (0, 0), (3, 4), (4, 0), (MOST_VIRTUAL_RANKS + 1, 1)] {
            assert!(VirtualRanks::new(count, ranks).is_err(), "{count} {ranks}");
        }
        let error = VirtualRanks::new(3, 4).unwrap_err().to_string();
        assert_eq!(
            error,
            "4 ranks cannot share 3 virtual ranks: use 1 to 3 ranks"
        );
        let most = VirtualRanks::new(MOST_VIRTUAL_RANKS, 1).unwrap();
        assert!(most.most_sums() <= 17);
        assert!(most.of_rank(1).is_empty());
        let uneven = VirtualRanks::new(12, 5).unwrap();
        assert_eq!([0, 1, 2, 4].map(|rank| uneven.lacking(rank)), [0, 0, 1, 1]);
    }
}

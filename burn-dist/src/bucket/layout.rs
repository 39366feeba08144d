//! Assigns parameters to buckets, and places within them.
//!
//! Gradients become ready roughly in the reverse order of the model's parameters, so buckets are
//! filled in that order. The first bucket is small, so that communication begins early.
//!
//! Sharding cuts the same buckets: rank `r` owns the [`shard`](crate::shard()) of every bucket that
//! a reduce-scatter leaves with it. A parameter across a border has one piece on each side.
//! Parameters whose optimizer needs all of them must not be cut. They have buckets of their own, in
//! which the parameters of one owner lie side by side, with the borders between owners.

use std::ops::Range;

use crate::shard::divide;
use crate::{Cuts, DType, VirtualRanks};

/// Offsets are multiples of this many bytes, so that kernels can use whole vectors.
const ALIGNMENT: usize = 64;

/// A trainable parameter as communication sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSpec {
    /// Path in the model, such as `blocks.0.conv1.weight`.
    pub path: String,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Element type of the parameter and its gradient.
    pub dtype: DType,
}

impl ParameterSpec {
    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Sizes of buckets, in bytes.
///
/// A bucket closes as soon as it holds this much, so it is larger by up to one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSizes {
    /// Size of the bucket that is ready first.
    pub first: usize,
    /// Size of all others.
    pub others: usize,
}

impl BucketSizes {
    /// The first bucket 1 MiB, the others `mib` MiB.
    pub fn from_mib(mib: usize) -> Self {
        let others = mib.saturating_mul(1 << 20);
        Self {
            first: others.min(1 << 20),
            others,
        }
    }
}

impl Default for BucketSizes {
    /// 8 MiB, the first 1 MiB.
    ///
    /// Large enough for a network, and small beside a model: with shards, several buckets are in
    /// flight at a time.
    fn default() -> Self {
        Self::from_mib(8)
    }
}

/// Place of a parameter in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Index of the parameter in visit order.
    pub parameter: usize,
    /// Its elements in the bucket.
    pub elements: Range<usize>,
}

/// Content of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketLayout {
    pub dtype: DType,
    /// Number of elements with padding.
    pub len: usize,
    pub slots: Vec<Slot>,
    /// Borders of the ranks' shards.
    pub cuts: Cuts,
    /// Whether its parameters are not cut.
    pub is_whole: bool,
}

impl BucketLayout {
    /// An empty bucket.
    pub(crate) const EMPTY: Self = Self {
        dtype: DType::F32,
        len: 0,
        slots: Vec::new(),
        cuts: Cuts::Even,
        is_whole: false,
    };

    fn open(dtype: DType) -> Self {
        Self {
            dtype,
            ..Self::EMPTY
        }
    }

    fn push(&mut self, parameter: usize, len: usize) {
        let start = self.len;
        let alignment = ALIGNMENT / self.dtype.size();
        self.len = (start + len).next_multiple_of(alignment);
        self.slots.push(Slot {
            parameter,
            elements: start..start + len,
        });
    }

    fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// Elements that rank `rank` owns.
    pub(crate) fn shard(&self, size: usize, rank: usize) -> Range<usize> {
        self.cuts.shard(self.len, size, rank)
    }

    /// Puts the parameters of every owner side by side, with the borders between owners.
    fn by_owner(mut self, owners: &Owners) -> Self {
        self.slots.sort_by_key(|slot| owners.of(slot.parameter));
        let mut bucket = Self::open(self.dtype);
        let mut ends = vec![0; owners.ranks];
        for slot in self.slots {
            bucket.push(slot.parameter, slot.elements.len());
            let owner = owners.of(slot.parameter).unwrap_or(0);
            ends[owner..].fill(bucket.len);
        }
        bucket.cuts = Cuts::Ends(ends.into());
        bucket.is_whole = true;
        bucket
    }

    /// The bucket of virtual ranks, with the borders of the ranks that compute them.
    pub(crate) fn over_ranks(mut self, of: VirtualRanks) -> Self {
        let last = |rank| self.shard(of.count(), of.of_rank(rank).end - 1);
        let ends = (0..of.ranks()).map(|rank| last(rank).end).collect();
        self.cuts = Cuts::Ends(ends);
        self
    }
}

/// Owners of the parameters that are not cut.
#[derive(Debug)]
pub(crate) struct Owners {
    ranks: usize,
    /// Owner by parameter; `None` if the parameter may be cut. May be shorter than the parameters.
    owners: Vec<Option<usize>>,
}

impl Owners {
    /// Every parameter may be cut.
    pub(crate) const NONE: Self = Self {
        ranks: 0,
        owners: Vec::new(),
    };

    /// Divides the parameters that stay `whole` among `ranks`.
    pub(crate) fn of_whole(parameters: &[ParameterSpec], whole: &[bool], ranks: usize) -> Self {
        let wanted = |index: &usize| whole.get(*index).is_some_and(|whole| *whole);
        let indices: Vec<usize> = (0..parameters.len()).filter(wanted).collect();
        let size = |index: &usize| parameters[*index].num_elements();
        let sizes: Vec<usize> = indices.iter().map(size).collect();
        let mut owners = vec![None; parameters.len()];
        for (index, owner) in indices.into_iter().zip(divide(&sizes, ranks)) {
            owners[index] = Some(owner);
        }
        Self { ranks, owners }
    }

    fn of(&self, parameter: usize) -> Option<usize> {
        self.owners.get(parameter).copied().flatten()
    }
}

/// The elements of each parameter that a rank owns: its part of the rank's shard of the bucket.
///
/// It is one range in the parameter's own count, because both are contiguous. It is often empty.
pub(crate) fn owned(
    layouts: &[BucketLayout],
    parameters: usize,
    size: usize,
    rank: usize,
) -> Vec<Range<usize>> {
    let mut owned = vec![0..0; parameters];
    for layout in layouts {
        let shard = layout.shard(size, rank);
        for slot in &layout.slots {
            let start = slot.elements.start;
            let begin = slot.elements.start.max(shard.start);
            let end = slot.elements.end.min(shard.end);
            if begin < end {
                owned[slot.parameter] = begin - start..end - start;
            }
        }
    }
    owned
}

/// Plans buckets for `parameters`, in the order in which they should fill.
///
/// A bucket has one element type, and either whole parameters or parameters that are cut.
pub(crate) fn plan(
    parameters: &[ParameterSpec],
    owners: &Owners,
    sizes: BucketSizes,
) -> Vec<BucketLayout> {
    let mut closed = Vec::new();
    let mut open: Vec<(bool, BucketLayout)> = Vec::new();
    let close = |(whole, bucket): (bool, BucketLayout)| match whole {
        true => bucket.by_owner(owners),
        false => bucket,
    };
    for (index, parameter) in parameters.iter().enumerate().rev() {
        let whole = owners.of(index).is_some();
        let mine = |(other, bucket): &(bool, BucketLayout)| {
            *other == whole && bucket.dtype == parameter.dtype
        };
        let position = open.iter().position(mine).unwrap_or_else(|| {
            open.push((whole, BucketLayout::open(parameter.dtype)));
            open.len() - 1
        });
        let (_, bucket) = &mut open[position];
        bucket.push(index, parameter.num_elements());
        let limit = if closed.is_empty() {
            sizes.first
        } else {
            sizes.others
        };
        if bucket.bytes() >= limit {
            closed.push(close(open.remove(position)));
        }
    }
    closed.extend(open.into_iter().map(close));
    closed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(dtype: DType, len: usize) -> ParameterSpec {
        ParameterSpec {
            path: String::new(),
            shape: vec![len],
            dtype,
        }
    }

    fn parameters_of(bucket: &BucketLayout) -> Vec<usize> {
        bucket.slots.iter().map(|slot| slot.parameter).collect()
    }

    #[test]
    fn the_last_parameters_come_first_and_the_first_bucket_is_small() {
        // conv1, conv2 and two linear layers, weights and biases.
        let lens = [288, 32, 18_432, 64, 1_179_648, 128, 1280, 10];
        let parameters: Vec<_> = lens.iter().map(|len| spec(DType::F32, *len)).collect();
        let buckets = plan(&parameters, &Owners::NONE, BucketSizes::default());
        let order: Vec<_> = buckets.iter().map(parameters_of).collect();
        // The large linear layer closes the first bucket, which travels while the convolutions
        // still compute.
        assert_eq!(order, [vec![7, 6, 5, 4], vec![3, 2, 1, 0]]);
    }

    #[test]
    fn no_parameters_need_no_bucket() {
        assert!(plan(&[], &Owners::NONE, BucketSizes::default()).is_empty());
    }

    fn dtype() -> impl Strategy<Value = DType> {
        prop_oneof![Just(DType::F32), Just(DType::BF16), Just(DType::F64)]
    }

    proptest! {
        #[test]
        fn every_parameter_has_one_aligned_place_of_its_own(
            lens in prop::collection::vec((dtype(), 0usize..3000, any::<bool>()), 0..40),
            first in 0usize..5000,
            others in 0usize..20_000,
            size in 1usize..6,
        ) {
            let parameters: Vec<_> = lens.iter().map(|(d, len, _)| spec(*d, *len)).collect();
            let whole: Vec<bool> = lens.iter().map(|(.., whole)| *whole).collect();
            let owners = Owners::of_whole(&parameters, &whole, size);
            let buckets = plan(&parameters, &owners, BucketSizes { first, others });
            let mut seen = vec![0; parameters.len()];
            for bucket in &buckets {
                let mut used = vec![0u8; bucket.len];
                for slot in &bucket.slots {
                    let parameter = &parameters[slot.parameter];
                    seen[slot.parameter] += 1;
                    prop_assert_eq!(bucket.dtype, parameter.dtype);
                    prop_assert_eq!(bucket.is_whole, whole[slot.parameter]);
                    prop_assert_eq!(slot.elements.len(), parameter.num_elements());
                    prop_assert_eq!(slot.elements.start * bucket.dtype.size() % ALIGNMENT, 0);
                    for place in slot.elements.clone() {
                        used[place] += 1;
                    }
                }
                prop_assert!(used.iter().all(|count| *count <= 1));
                // Without its last parameter a bucket is below the limit.
                let last = bucket.slots.iter().min_by_key(|slot| slot.parameter).unwrap();
                let alignment = ALIGNMENT / bucket.dtype.size();
                let last = last.elements.len().next_multiple_of(alignment);
                let before = (bucket.len - last) * bucket.dtype.size();
                prop_assert!(before == 0 || before < first.max(others));
            }
            prop_assert!(seen.iter().all(|count| *count == 1));
        }

        #[test]
        fn every_element_has_one_owner_and_whole_parameters_one_alone(
            lens in prop::collection::vec((0usize..500, any::<bool>()), 0..20),
            limit in 0usize..4000,
            size in 1usize..6,
        ) {
            let (lens, whole): (Vec<usize>, Vec<bool>) = lens.into_iter().unzip();
            let parameters: Vec<_> = lens.iter().map(|len| spec(DType::F32, *len)).collect();
            let whole_owners = Owners::of_whole(&parameters, &whole, size);
            let buckets = plan(
                &parameters,
                &whole_owners,
                BucketSizes { first: limit, others: limit },
            );
            prop_assert!(buckets.iter().all(|bucket| bucket.cuts.fit(bucket.len, size)));
            let mut loads = Vec::new();
            let mut owners: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
            let mut total = 0;
            for rank in 0..size {
                let (mut mine, mut load) = (0, 0);
                for (parameter, range) in owned(&buckets, lens.len(), size, rank).iter().enumerate() {
                    owners[parameter][range.clone()].iter_mut().for_each(|count| *count += 1);
                    if whole[parameter] {
                        prop_assert!(range.is_empty() || range.len() == lens[parameter]);
                        load += range.len();
                    }
                    mine += range.len();
                }
                // No rank has more than its part of every bucket that is cut.
                let cut = buckets.iter().filter(|b| !b.is_whole);
                let fair: usize = cut.map(|b| b.len.div_ceil(size)).sum();
                prop_assert!(mine - load <= fair);
                loads.push(load);
                total += mine;
            }
            prop_assert_eq!(total, lens.iter().sum::<usize>());
            prop_assert!(owners.iter().flatten().all(|count| *count == 1));
            // No rank has more than the others by more than one parameter.
            let largest = lens.iter().zip(&whole).filter(|(_, whole)| **whole);
            let largest = largest.map(|(len, _)| *len).max().unwrap_or(0);
            let most = loads.iter().max().copied().unwrap_or(0);
            prop_assert!(loads.iter().all(|load| most - load <= largest), "{loads:?}");
        }
    }
}

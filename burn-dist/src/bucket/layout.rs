//! Which parameters share a bucket and where each of them lies in it.
//!
//! Gradients become ready roughly in the reverse of the order in which the model declares its
//! parameters, so buckets are filled in that order. The first one is small: communication begins
//! early.
//!
//! The same buckets are what sharding cuts: rank `r` owns the [`shard`](crate::shard()) of every
//! bucket that a reduce-scatter leaves with it. A parameter that lies across a border has one piece
//! on each side.

use std::ops::Range;

use crate::{DType, shard};

/// Offsets are multiples of this many bytes, so that kernels can use whole vectors.
const ALIGNMENT: usize = 64;

/// A trainable parameter as communication sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSpec {
    /// Its path in the model, such as `blocks.0.conv1.weight`.
    pub path: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its element type, which its gradient shares.
    pub dtype: DType,
}

impl ParameterSpec {
    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// How large buckets become, in bytes. A bucket closes as soon as it holds this much, so it is
/// larger by up to one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSizes {
    /// The bucket that is ready first.
    pub first: usize,
    /// All others.
    pub others: usize,
}

impl BucketSizes {
    /// The first bucket 1 MiB, the others `mib`.
    pub fn from_mib(mib: usize) -> Self {
        let others = mib.saturating_mul(1 << 20);
        Self {
            first: others.min(1 << 20),
            others,
        }
    }
}

impl Default for BucketSizes {
    /// 8 MiB, the first 1 MiB: large enough for a network, and small beside a model, because with
    /// shards several of them are on their way at a time.
    fn default() -> Self {
        Self::from_mib(8)
    }
}

/// A parameter's place in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Index of the parameter in visit order.
    pub parameter: usize,
    /// Its elements.
    pub elements: Range<usize>,
}

/// The content of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketLayout {
    pub dtype: DType,
    /// Elements, padding included.
    pub len: usize,
    pub slots: Vec<Slot>,
}

impl BucketLayout {
    /// A bucket of nothing.
    pub(crate) const EMPTY: Self = Self {
        dtype: DType::F32,
        len: 0,
        slots: Vec::new(),
    };

    fn open(dtype: DType) -> Self {
        Self {
            dtype,
            len: 0,
            slots: Vec::new(),
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
}

/// The elements of each parameter that a rank owns, in the parameter's own count: what lies in its
/// shard of the bucket. One range, since both are contiguous; often an empty one.
pub(crate) fn owned(
    layouts: &[BucketLayout],
    parameters: usize,
    size: usize,
    rank: usize,
) -> Vec<Range<usize>> {
    let mut owned = vec![0..0; parameters];
    for layout in layouts {
        let shard = shard(layout.len, size, rank);
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

/// Buckets for `parameters`, in the order in which they are expected to be full. Element types do
/// not mix within a bucket.
pub(crate) fn plan(parameters: &[ParameterSpec], sizes: BucketSizes) -> Vec<BucketLayout> {
    let mut closed = Vec::new();
    let mut open: Vec<BucketLayout> = Vec::new();
    for (index, parameter) in parameters.iter().enumerate().rev() {
        let position = match open.iter().position(|b| b.dtype == parameter.dtype) {
            Some(position) => position,
            None => {
                open.push(BucketLayout::open(parameter.dtype));
                open.len() - 1
            }
        };
        let bucket = &mut open[position];
        bucket.push(index, parameter.num_elements());
        let limit = if closed.is_empty() {
            sizes.first
        } else {
            sizes.others
        };
        if bucket.bytes() >= limit {
            closed.push(open.remove(position));
        }
    }
    closed.extend(open);
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
        let buckets = plan(&parameters, BucketSizes::default());
        let order: Vec<_> = buckets.iter().map(parameters_of).collect();
        // The large linear layer closes the first bucket, so that it travels while the
        // convolutions still compute.
        assert_eq!(order, [vec![7, 6, 5, 4], vec![3, 2, 1, 0]]);
    }

    #[test]
    fn no_parameters_need_no_bucket() {
        assert!(plan(&[], BucketSizes::default()).is_empty());
    }

    fn dtype() -> impl Strategy<Value = DType> {
        prop_oneof![Just(DType::F32), Just(DType::BF16), Just(DType::F64)]
    }

    proptest! {
        #[test]
        fn every_parameter_has_one_aligned_place_of_its_own(
            lens in prop::collection::vec((dtype(), 0usize..3000), 0..40),
            first in 0usize..5000,
            others in 0usize..20_000,
        ) {
            let parameters: Vec<_> = lens.iter().map(|(d, len)| spec(*d, *len)).collect();
            let buckets = plan(&parameters, BucketSizes { first, others });
            let mut seen = vec![0; parameters.len()];
            for bucket in &buckets {
                let mut used = vec![0u8; bucket.len];
                for slot in &bucket.slots {
                    let parameter = &parameters[slot.parameter];
                    seen[slot.parameter] += 1;
                    prop_assert_eq!(bucket.dtype, parameter.dtype);
                    prop_assert_eq!(slot.elements.len(), parameter.num_elements());
                    prop_assert_eq!(slot.elements.start * bucket.dtype.size() % ALIGNMENT, 0);
                    for place in slot.elements.clone() {
                        used[place] += 1;
                    }
                }
                prop_assert!(used.iter().all(|count| *count <= 1));
                // Without its last parameter a bucket is below the limit.
                let last = bucket.slots.last().unwrap();
                let before = last.elements.start * bucket.dtype.size();
                prop_assert!(before == 0 || before < first.max(others));
            }
            prop_assert!(seen.iter().all(|count| *count == 1));
        }

        #[test]
        fn every_element_has_one_owner(
            lens in prop::collection::vec(0usize..500, 0..20),
            limit in 0usize..4000,
            size in 1usize..6,
        ) {
            let parameters: Vec<_> = lens.iter().map(|len| spec(DType::F32, *len)).collect();
            let buckets = plan(&parameters, BucketSizes { first: limit, others: limit });
            let mut owners: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
            let mut total = 0;
            for rank in 0..size {
                let mut mine = 0;
                for (parameter, range) in owned(&buckets, lens.len(), size, rank).iter().enumerate() {
                    owners[parameter][range.clone()].iter_mut().for_each(|count| *count += 1);
                    mine += range.len();
                }
                // Nobody has more than its part of every bucket.
                let fair: usize = buckets.iter().map(|b| b.len.div_ceil(size)).sum();
                prop_assert!(mine <= fair);
                total += mine;
            }
            prop_assert_eq!(total, lens.iter().sum::<usize>());
            prop_assert!(owners.iter().flatten().all(|count| *count == 1));
        }
    }
}

//! Divides a model's gradients among ranks: the buckets, and this rank's part of each parameter.

use std::ops::Range;

use super::error::BucketError;
use super::layout::{BucketLayout, BucketSizes, Owners, ParameterSpec, Slot, owned, plan};
use crate::collective::number_of;
use crate::{Compression, ProcessGroup, VirtualRanks};

/// The gradients that a rank keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeptGradients {
    /// All gradients, reduced.
    Whole,
    /// Memory for all gradients; only the shard is reduced.
    Scattered,
    /// The shard. Every backward sends all buckets, and their memory is freed on arrival.
    Sharded,
}

/// The virtual ranks whose gradients are reduced.
#[derive(Clone)]
pub(crate) struct VirtualGroup {
    /// The ranks that share one set of shards, each with a stream to every other.
    pub group: ProcessGroup,
    pub ranks: VirtualRanks,
}

impl VirtualGroup {
    /// The virtual ranks of this rank.
    pub(crate) fn own(&self) -> Range<usize> {
        self.ranks.of_rank(self.group.rank())
    }
}

/// The parameters of a model, divided into buckets and among ranks.
pub(crate) struct Partition {
    /// The ranks that share one set of shards.
    pub group: ProcessGroup,
    /// The ranks with the same shard as this one, if there are several sets.
    pub replicas: Option<ProcessGroup>,
    /// The virtual ranks that this rank computes some of, if gradients are reduced in their order.
    pub virtual_group: Option<VirtualGroup>,
    /// The trainable parameters in visit order.
    pub parameters: Vec<ParameterSpec>,
    /// The buckets, in the order in which they are sent.
    pub layouts: Vec<BucketLayout>,
    pub keep: KeptGradients,
    /// Number format in which gradients travel.
    pub compression: Compression,
    /// Number of the model in the group, from 1; 0 if models are not counted.
    model: u32,
    /// Bucket and slot of each parameter.
    places: Vec<(usize, usize)>,
    /// Elements of each parameter whose reduced gradient this rank has.
    pub owned: Vec<Range<usize>>,
    /// Elements of each parameter in this rank's shards: all of a shard, or the part of each of
    /// this rank's virtual ranks.
    pub shards: Vec<Vec<Range<usize>>>,
}

impl Partition {
    /// Divides `parameters` into buckets. If gradients are spread over ranks, each `whole`
    /// parameter has one owner. Every rank makes the call with the same arguments.
    pub(crate) fn new(
        group: &ProcessGroup,
        parameters: Vec<ParameterSpec>,
        whole: &[bool],
        sizes: BucketSizes,
        keep: KeptGradients,
    ) -> Result<Self, BucketError> {
        check_types(&parameters)?;
        let (rank, size) = (group.rank(), group.size());
        let owners = match keep {
            KeptGradients::Whole => Owners::NONE,
            _ => Owners::of_whole(&parameters, whole, size),
        };
        let layouts = plan(&parameters, &owners, sizes);
        let shard = owned(&layouts, parameters.len(), size, rank);
        Ok(Self {
            shards: vec![shard.clone()],
            ..Self::of(group, parameters, (layouts, shard), keep)
        })
    }

    /// Divides `parameters` among virtual ranks, in the same way whatever ranks compute them. A
    /// rank owns the shards of its virtual ranks, and keeps all gradients until they are reduced.
    pub(crate) fn among_virtual_ranks(
        group: &ProcessGroup,
        among: VirtualGroup,
        parameters: Vec<ParameterSpec>,
        whole: &[bool],
        sizes: BucketSizes,
        keep: KeptGradients,
    ) -> Result<Self, BucketError> {
        check_types(&parameters)?;
        let (count, own) = (among.ranks.count(), among.own());
        let owners = Owners::of_whole(&parameters, whole, count);
        let layouts = plan(&parameters, &owners, sizes);
        let shard = |of| owned(&layouts, parameters.len(), count, of);
        let shards = own.map(shard).collect();
        let over_ranks = |layout: BucketLayout| layout.over_ranks(among.ranks);
        let layouts: Vec<_> = layouts.into_iter().map(over_ranks).collect();
        let owned = owned(&layouts, parameters.len(), group.size(), group.rank());
        let keep = match keep {
            KeptGradients::Whole => KeptGradients::Whole,
            KeptGradients::Scattered | KeptGradients::Sharded => KeptGradients::Scattered,
        };
        Ok(Self {
            shards,
            virtual_group: Some(among),
            ..Self::of(group, parameters, (layouts, owned), keep)
        })
    }

    fn of(
        group: &ProcessGroup,
        parameters: Vec<ParameterSpec>,
        (layouts, owned): (Vec<BucketLayout>, Vec<Range<usize>>),
        keep: KeptGradients,
    ) -> Self {
        let mut places = vec![(0, 0); parameters.len()];
        for (bucket, layout) in layouts.iter().enumerate() {
            for (slot, Slot { parameter, .. }) in layout.slots.iter().enumerate() {
                places[*parameter] = (bucket, slot);
            }
        }
        let owned = match keep {
            KeptGradients::Whole => parameters.iter().map(|p| 0..p.num_elements()).collect(),
            _ => owned,
        };
        Self {
            group: group.clone(),
            replicas: None,
            virtual_group: None,
            parameters,
            layouts,
            keep,
            compression: Compression::None,
            model: 0,
            places,
            owned,
            shards: Vec::new(),
        }
    }

    /// Also reduces this rank's shards over `replicas`, the ranks with the same shards in other
    /// sets.
    pub(crate) fn replicated(self, replicas: Option<ProcessGroup>) -> Self {
        Self { replicas, ..self }
    }

    /// Sets the number of this model in the group, from 1.
    pub(crate) fn of_model(self, model: u32) -> Self {
        Self { model, ..self }
    }

    /// Sets the number format in which gradients travel.
    pub(crate) fn compressed(self, compression: Compression) -> Self {
        Self {
            compression,
            ..self
        }
    }

    /// Number by which ranks detect that they bring different buckets or models.
    pub(super) fn number(&self, bucket: usize) -> u32 {
        number_of(self.model, bucket)
    }

    /// Bucket and slot of a parameter.
    pub(super) fn place(&self, parameter: usize) -> Option<(usize, usize)> {
        self.places.get(parameter).copied()
    }

    /// Bucket of a parameter, and its elements there.
    pub(crate) fn place_of(&self, parameter: usize) -> Option<(usize, Range<usize>)> {
        let (bucket, slot) = self.place(parameter)?;
        let slot = self.layouts.get(bucket)?.slots.get(slot)?;
        Some((bucket, slot.elements.clone()))
    }

    /// Bucket of a parameter, and the place of its part in `of` there.
    pub(super) fn place_of_part(
        &self,
        parameter: usize,
        of: &[Range<usize>],
    ) -> Option<(usize, Range<usize>)> {
        let (bucket, elements) = self.place_of(parameter)?;
        let (start, part) = (elements.start, of.get(parameter)?);
        Some((bucket, start + part.start..start + part.end))
    }

    /// Elements of each parameter in one of this rank's [`shards`](Self::shards).
    pub(super) fn shard(&self, index: usize) -> &[Range<usize>] {
        self.shards.get(index).map_or(&[], Vec::as_slice)
    }

    /// Elements of a bucket that this rank owns.
    pub(super) fn shard_of(&self, bucket: usize) -> Range<usize> {
        let shard = |layout: &BucketLayout| layout.shard(self.group.size(), self.group.rank());
        self.layouts.get(bucket).map_or(0..0, shard)
    }
}

/// Checks that gradients can have the types of the parameters.
fn check_types(parameters: &[ParameterSpec]) -> Result<(), BucketError> {
    match parameters.iter().find(|p| !p.dtype.is_float()) {
        None => Ok(()),
        Some(parameter) => Err(BucketError::NotFloat {
            path: parameter.path.clone(),
            dtype: parameter.dtype,
        }),
    }
}

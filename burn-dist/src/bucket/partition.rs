//! Divides a model's gradients among ranks: the buckets, and this rank's part of each parameter.

use std::ops::Range;

use super::error::BucketError;
use super::layout::{BucketLayout, BucketSizes, Owners, ParameterSpec, Slot, owned, plan};
use crate::collective::number_of;
use crate::{Compression, ProcessGroup};

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

/// The parameters of a model, divided into buckets and among ranks.
pub(crate) struct Partition {
    /// The ranks that share one set of shards.
    pub group: ProcessGroup,
    /// The ranks with the same shard as this one, if there are several sets.
    pub replicas: Option<ProcessGroup>,
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
    /// Elements of each parameter in this rank's shards.
    pub shards: Vec<Range<usize>>,
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
        if let Some(parameter) = parameters.iter().find(|p| !p.dtype.is_float()) {
            return Err(BucketError::NotFloat {
                path: parameter.path.clone(),
                dtype: parameter.dtype,
            });
        }
        let owners = match keep {
            KeptGradients::Whole => Owners::NONE,
            _ => Owners::of_whole(&parameters, whole, group.size()),
        };
        let layouts = plan(&parameters, &owners, sizes);
        let mut places = vec![(0, 0); parameters.len()];
        for (bucket, layout) in layouts.iter().enumerate() {
            for (slot, Slot { parameter, .. }) in layout.slots.iter().enumerate() {
                places[*parameter] = (bucket, slot);
            }
        }
        let shards = owned(&layouts, parameters.len(), group.size(), group.rank());
        let owned = match keep {
            KeptGradients::Whole => parameters.iter().map(|p| 0..p.num_elements()).collect(),
            _ => shards.clone(),
        };
        Ok(Self {
            group: group.clone(),
            replicas: None,
            parameters,
            layouts,
            keep,
            compression: Compression::None,
            model: 0,
            places,
            owned,
            shards,
        })
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

    /// Elements of a bucket that this rank owns.
    pub(super) fn shard_of(&self, bucket: usize) -> Range<usize> {
        let shard = |layout: &BucketLayout| layout.shard(self.group.size(), self.group.rank());
        self.layouts.get(bucket).map_or(0..0, shard)
    }
}

//! Who has what of a model's gradients: the buckets that they travel in, and what of each parameter
//! is this rank's.

use std::ops::Range;

use super::error::BucketError;
use super::layout::{BucketLayout, BucketSizes, Owners, ParameterSpec, Slot, owned, plan};
use crate::collective::number_of;
use crate::{Compression, ProcessGroup};

/// What a rank keeps of the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeptGradients {
    /// All of them, reduced.
    Whole,
    /// The memory of all of them; only the shard is reduced.
    Scattered,
    /// Its shard. Every backward sends all buckets, and their memory is free on arrival.
    Sharded,
}

/// The parameters of a model, divided into buckets and among ranks.
pub(crate) struct Partition {
    /// The ranks that share one set of shards.
    pub group: ProcessGroup,
    /// The ranks that have the same shard as this one, where there are several sets.
    pub replicas: Option<ProcessGroup>,
    /// The trainable parameters in visit order.
    pub parameters: Vec<ParameterSpec>,
    /// The buckets, in the order in which they are sent.
    pub layouts: Vec<BucketLayout>,
    pub keep: KeptGradients,
    /// In which number format gradients travel.
    pub compression: Compression,
    /// Which of the models in the group, from 1; 0 if nobody counts.
    model: u32,
    /// Per parameter, its bucket and its slot there.
    places: Vec<(usize, usize)>,
    /// Per parameter, the elements of which this rank has the reduced gradient.
    pub owned: Vec<Range<usize>>,
    /// Per parameter, the elements that lie in this rank's shards.
    pub shards: Vec<Range<usize>>,
}

impl Partition {
    /// Divides `parameters` into buckets. Those that are to stay `whole` have one owner each where
    /// gradients are spread over the ranks. Every rank makes the call with the same arguments.
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

    /// There are other sets of shards than this group's: this rank's shards are reduced over
    /// `replicas`, too, the ranks that have the same.
    pub(crate) fn replicated(self, replicas: Option<ProcessGroup>) -> Self {
        Self { replicas, ..self }
    }

    /// There may be other models in the group, of which this has a number, from 1.
    pub(crate) fn of_model(self, model: u32) -> Self {
        Self { model, ..self }
    }

    /// Gradients travel in another number format.
    pub(crate) fn compressed(self, compression: Compression) -> Self {
        Self {
            compression,
            ..self
        }
    }

    /// By which ranks that bring another bucket, or one of another model, are told apart.
    pub(super) fn number(&self, bucket: usize) -> u32 {
        number_of(self.model, bucket)
    }

    /// The bucket of a parameter, and its slot there.
    pub(super) fn place(&self, parameter: usize) -> Option<(usize, usize)> {
        self.places.get(parameter).copied()
    }

    /// The bucket of a parameter, and its elements there.
    pub(crate) fn place_of(&self, parameter: usize) -> Option<(usize, Range<usize>)> {
        let (bucket, slot) = self.place(parameter)?;
        let slot = self.layouts.get(bucket)?.slots.get(slot)?;
        Some((bucket, slot.elements.clone()))
    }

    /// The bucket of a parameter, and where in it lies the part `of` each parameter.
    pub(super) fn place_of_part(
        &self,
        parameter: usize,
        of: &[Range<usize>],
    ) -> Option<(usize, Range<usize>)> {
        let (bucket, elements) = self.place_of(parameter)?;
        let (start, part) = (elements.start, of.get(parameter)?);
        Some((bucket, start + part.start..start + part.end))
    }

    /// The elements of a bucket that this rank owns.
    pub(super) fn shard_of(&self, bucket: usize) -> Range<usize> {
        let shard = |layout: &BucketLayout| layout.shard(self.group.size(), self.group.rank());
        self.layouts.get(bucket).map_or(0..0, shard)
    }
}

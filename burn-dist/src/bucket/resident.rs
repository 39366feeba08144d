//! Gradients on a device whose memory the processor does not share: they stay there until their
//! bucket is full, and what becomes of the bucket returns there.
//!
//! Reading a gradient waits for all that was queued on the device before it, so one read per
//! parameter would stop backward as often as the model has parameters.

use std::ops::Range;
use std::sync::Arc;
use std::{fmt, mem};

use burn::tensor::{Device, Tensor};

use super::layout::BucketLayout;
use crate::{Cuts, Error};

/// Numbers on a device that are computed with together, about, where they may be copies: 64 MiB of them.
pub(crate) const TOGETHER: usize = 1 << 24;

/// Collectives on the memory of a device. Every rank calls the same in the same order, on the thread
/// that computes.
pub(crate) trait DeviceCollectives: fmt::Debug + Send + Sync {
    /// Starts replacing `flat` by its mean over all ranks.
    fn start_mean(&self, flat: Tensor<1>) -> Box<dyn DeviceHandle>;

    /// Starts the same of a bucket that is cut into shards, of which only this rank's is wanted: what
    /// comes is as long as the shard, in memory of its own; anything if the shard is empty, since
    /// devices have no empty memory.
    fn start_mean_of_shard(&self, flat: Tensor<1>, cuts: &Cuts) -> Box<dyn DeviceHandle>;

    /// Starts filling in the shards of all ranks. `flat` has this rank's in its place, and is a bucket of this
    /// `number`, from 1: ranks that bring others are told apart.
    fn start_gather(&self, flat: Tensor<1>, number: u32, cuts: &Cuts) -> Box<dyn DeviceHandle>;
}

/// A collective on the device that was started.
pub(crate) trait DeviceHandle: Send {
    /// Waits for it, and gives the result.
    fn wait(self: Box<Self>) -> Result<Tensor<1>, Error>;
}

/// A rank without others.
#[derive(Debug)]
pub(crate) struct Alone;

impl DeviceCollectives for Alone {
    fn start_mean(&self, flat: Tensor<1>) -> Box<dyn DeviceHandle> {
        Box::new(flat)
    }

    fn start_mean_of_shard(&self, flat: Tensor<1>, _cuts: &Cuts) -> Box<dyn DeviceHandle> {
        Box::new(flat)
    }

    fn start_gather(&self, flat: Tensor<1>, _number: u32, _cuts: &Cuts) -> Box<dyn DeviceHandle> {
        Box::new(flat)
    }
}

/// What is there already.
impl DeviceHandle for Tensor<1> {
    fn wait(self: Box<Self>) -> Result<Tensor<1>, Error> {
        Ok(*self)
    }
}

/// Where the gradients of a reducer stay, and how they are reduced there.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) device: Device,
    /// Over the ranks that share one set of shards.
    pub(crate) within: Arc<dyn DeviceCollectives>,
    /// Over the ranks that have the same shard, where there are several sets.
    pub(crate) across: Option<Arc<dyn DeviceCollectives>>,
}

/// What is there of a bucket on the device, by slot.
#[derive(Default)]
pub(super) struct Parts {
    slots: Vec<Option<Tensor<1>>>,
}

impl Parts {
    /// Puts a gradient into its slot, or adds it to what lies there.
    pub fn add(&mut self, slot: usize, gradient: Tensor<1>) {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        let place = &mut self.slots[slot];
        *place = Some(match place.take() {
            Some(sum) => sum.add(gradient),
            None => gradient,
        });
    }

    /// Puts a gradient in place of the one that lies in its slot.
    pub fn replace(&mut self, slot: usize, gradient: Tensor<1>) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(gradient);
        }
    }

    pub fn get(&self, slot: usize) -> Option<&Tensor<1>> {
        self.slots.get(slot)?.as_ref()
    }

    /// What is there, in the order of the slots.
    pub fn all(&self) -> impl Iterator<Item = &Tensor<1>> {
        self.slots.iter().flatten()
    }

    pub fn clear(&mut self) {
        self.slots.clear();
    }

    /// The bucket; what is missing of it is zero, and so are its gaps.
    pub fn take_flat(&mut self, layout: &BucketLayout, device: &Device) -> Tensor<1> {
        let dtype = super::storage::burn_dtype(layout.dtype);
        let parts = layout.slots.iter().zip(mem::take(&mut self.slots));
        let parts = parts.filter_map(|(slot, part)| Some((slot.elements.clone(), part?)));
        assemble(Tensor::zeros([layout.len], (device, dtype)), parts)
    }
}

/// Writes `parts` to their places in `flat`.
pub(crate) fn assemble(
    flat: Tensor<1>,
    parts: impl IntoIterator<Item = (Range<usize>, Tensor<1>)>,
) -> Tensor<1> {
    #[cfg(own_gpu)]
    if kernels::gpu::computes_on(&flat.device()) {
        let parts = parts.into_iter().map(|(place, part)| (place.start, part));
        return kernels::gpu::put_parts(flat, parts.collect());
    }
    let put = |flat: Tensor<1>, (place, part)| flat.slice_assign(place, part);
    parts.into_iter().fold(flat, put)
}

/// Parts of what was assembled; without copies, where the device allows it.
pub(crate) fn take_parts(flat: Tensor<1>, places: &[Range<usize>]) -> Vec<Tensor<1>> {
    #[cfg(own_gpu)]
    if kernels::gpu::computes_on(&flat.device()) {
        return kernels::gpu::take_parts(flat, places);
    }
    let part = |place: &Range<usize>| flat.clone().slice(place.clone());
    places.iter().map(part).collect()
}

/// Sum of the squares of all `parts`, in `f32` on the device and read once. Where there are kernels for
/// the device, its order depends on the lengths alone.
pub(super) fn sum_of_squares(parts: impl Iterator<Item = Tensor<1>>) -> Result<f64, String> {
    let mut sums = Vec::new();
    let (mut together, mut numbers) = (Vec::new(), 0);
    for part in parts {
        numbers += part.shape().num_elements();
        together.push(part.cast(burn::tensor::FloatDType::F32));
        if numbers >= TOGETHER {
            sums.extend(squares(mem::take(&mut together)));
            numbers = 0;
        }
    }
    sums.extend(squares(together));
    if sums.is_empty() {
        return Ok(0.0);
    }
    let all = Tensor::cat(sums, 0).try_into_data();
    let all = all.map_err(|error| error.to_string())?;
    Ok(all.iter::<f64>().sum())
}

/// Sum of the squares of one.
pub(super) fn square(part: Tensor<1>) -> Tensor<1> {
    // Not `sum`, which adds atomically on CUDA, and so in another order each time.
    part.clone().mul(part).sum_dim(0)
}

/// Sums of the squares of parts of all `tensors`.
fn squares(tensors: Vec<Tensor<1>>) -> Option<Tensor<1>> {
    #[cfg(own_gpu)]
    if kernels::gpu::computes_on(&tensors.first()?.device()) {
        return kernels::gpu::sums_of_squares(tensors);
    }
    let sums: Vec<Tensor<1>> = tensors.into_iter().map(square).collect();
    (!sums.is_empty()).then(|| Tensor::cat(sums, 0))
}

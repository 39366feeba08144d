//! Gradients on a device whose memory the processor does not share: they stay there until their
//! bucket is full, and leave it in one piece if they have to leave it at all.
//!
//! Reading a gradient waits for all that was queued on the device before it, so one read per
//! parameter would stop backward as often as the model has parameters.

use std::fmt;
use std::sync::Arc;

use burn::tensor::{Device, Shape, Tensor, TensorData};

use super::layout::BucketLayout;
use crate::Error;

/// Reduces gradients without bringing them to the host.
pub(crate) trait DeviceReduce: fmt::Debug + Send + Sync {
    /// Starts replacing `flat` by its mean over all ranks. Every rank calls it in the same order, on
    /// the thread that computes.
    fn start_mean(&self, flat: Tensor<1>) -> Box<dyn DeviceHandle>;
}

/// A reduction on the device that was started.
pub(crate) trait DeviceHandle: Send {
    /// Waits for it, and gives the mean.
    fn wait(self: Box<Self>) -> Result<Tensor<1>, Error>;
}

/// Where the gradients of a reducer stay, and who reduces them there; without anybody they are
/// staged through host memory.
pub(super) struct Resident {
    pub device: Device,
    pub reduce: Option<Arc<dyn DeviceReduce>>,
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

    /// All slots one after the other, without gaps; what is missing is zero.
    pub fn take_flat(&mut self, layout: &BucketLayout, device: &Device) -> Tensor<1> {
        let dtype = super::storage::burn_dtype(layout.dtype);
        let parts: Vec<_> = layout
            .slots
            .iter()
            .enumerate()
            .map(|(index, slot)| {
                let part = self.slots.get_mut(index).and_then(Option::take);
                part.unwrap_or_else(|| Tensor::zeros([slot.elements.len()], (device, dtype)))
            })
            .collect();
        self.clear();
        Tensor::cat(parts, 0)
    }

    /// The slots of a bucket in what [`take_flat`](Self::take_flat) made.
    pub fn split(layout: &BucketLayout, flat: &Tensor<1>) -> Self {
        let mut start = 0;
        let slots = layout.slots.iter().map(|slot| {
            let range = start..start + slot.elements.len();
            start = range.end;
            Some(flat.clone().slice(range))
        });
        Self {
            slots: slots.collect(),
        }
    }
}

/// A reduced gradient, wherever it lies.
pub(crate) enum Gradient {
    Host(TensorData),
    Device(Box<Tensor<1>>),
}

impl Gradient {
    /// As a tensor like `value`.
    pub(crate) fn into_tensor<const D: usize>(self, shape: &Shape, value: &Tensor<D>) -> Tensor<D> {
        match self {
            Self::Host(data) => Tensor::from_data(data, (&value.device(), value.dtype())),
            Self::Device(flat) => flat.reshape(shape.clone()),
        }
    }
}

/// Sum of the squares of all `parts`, in `f32` on the device and read once.
pub(super) fn sum_of_squares(parts: impl Iterator<Item = Tensor<1>>) -> Result<f64, String> {
    let sums = parts.map(|part| {
        let part = part.cast(burn::tensor::FloatDType::F32);
        part.clone().mul(part).sum()
    });
    let sums: Vec<Tensor<1>> = sums.collect();
    if sums.is_empty() {
        return Ok(0.0);
    }
    let all = Tensor::cat(sums, 0).try_into_data();
    let all = all.map_err(|error| error.to_string())?;
    Ok(all.iter::<f64>().sum())
}

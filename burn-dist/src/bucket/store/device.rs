//! Gradients in device memory. They stay there until their bucket is full, and the reduced bucket
//! returns there.
//!
//! Reading from a device waits for all its queued work. One read per parameter would stop backward
//! once per parameter.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, FloatDType, Tensor};

use super::elements::{burn_dtype, gradient_dtype};
use super::{FusedStep, Gathering, GradientStore};
use crate::backend::gpu::Kernels;
use crate::bucket::error::BucketError;
use crate::bucket::layout::BucketLayout;
use crate::bucket::partition::{KeptGradients, Partition};
use crate::fused::{FusedState, OnDevice, step_on_device};
use crate::{Cuts, Error};

/// Approximate number of elements that are computed together on a device: 64 MiB, because they may
/// be copies.
const TOGETHER: usize = 1 << 24;

/// Collectives on device memory. Every rank makes the same calls in the same order, on the thread
/// that computes.
pub(crate) trait DeviceCollectives: Send + Sync {
    /// Starts replacing `flat` by its mean over all ranks.
    fn start_mean(&self, flat: Tensor<1>) -> Box<dyn DeviceHandle>;

    /// Starts the mean of a bucket if this rank wants only its shard.
    ///
    /// The result is as long as the shard, in memory of its own. It is arbitrary if the shard is
    /// empty, since devices have no empty memory.
    fn start_mean_of_shard(&self, flat: Tensor<1>, cuts: &Cuts) -> Box<dyn DeviceHandle>;

    /// Starts filling in the shards of all ranks. `flat` has this rank's shard in its place.
    /// `number` identifies the bucket, from 1: ranks that bring different buckets get an error.
    fn start_gather(&self, flat: Tensor<1>, number: u32, cuts: &Cuts) -> Box<dyn DeviceHandle>;
}

/// A started collective on a device.
pub(crate) trait DeviceHandle: Send {
    /// Waits for the collective and returns the result.
    fn wait(self: Box<Self>) -> Result<Tensor<1>, Error>;
}

/// A group of one rank.
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

/// A result that is already there.
impl DeviceHandle for Tensor<1> {
    fn wait(self: Box<Self>) -> Result<Tensor<1>, Error> {
        Ok(*self)
    }
}

/// A device and its collectives.
pub(crate) struct Resident {
    pub(crate) device: Device,
    /// Collectives over the ranks that share one set of shards.
    pub(crate) within: Arc<dyn DeviceCollectives>,
    /// Collectives over the ranks with the same shard, if there are several sets.
    pub(crate) across: Option<Arc<dyn DeviceCollectives>>,
}

/// The gradients of a model on a device. Only this rank's shard of a bucket is kept, unless the
/// rank keeps all gradients.
pub(crate) struct DeviceStore {
    partition: Arc<Partition>,
    on: Resident,
    buckets: Vec<Bucket>,
}

#[derive(Default)]
struct Bucket {
    /// Gradients that have arrived.
    parts: Parts,
    /// The bucket on its way to the mean.
    travelling: Option<Box<dyn DeviceHandle>>,
    /// The mean of the bucket, if it is kept whole and there are other ranks.
    mean: Option<Tensor<1>>,
    /// Otherwise the sum of this rank's shards over the backward passes of the step.
    shard: Option<Tensor<1>>,
    /// The shard on its way to the mean over replicas.
    replicating: Option<Box<dyn DeviceHandle>>,
}

impl DeviceStore {
    pub(crate) fn new(partition: Partition, on: Resident) -> Self {
        Self {
            buckets: partition
                .layouts
                .iter()
                .map(|_| Bucket::default())
                .collect(),
            partition: Arc::new(partition),
            on,
        }
    }

    /// Whether gradients are never sent.
    fn keeps_alone(&self) -> bool {
        self.partition.keep == KeptGradients::Whole && self.partition.group.size() == 1
    }

    /// The parts `of` the reduced gradients of `parameters`, in their order; `None` for empty
    /// parts.
    fn parts(&self, parameters: &[usize], of: &[Range<usize>]) -> Vec<Option<Tensor<1>>> {
        let mut found = vec![None; parameters.len()];
        // For each bucket, the parameters that are wanted and their places.
        let mut wanted: BTreeMap<usize, (Vec<usize>, Vec<Range<usize>>)> = BTreeMap::new();
        for (at, &parameter) in parameters.iter().enumerate() {
            let Some((index, slot)) = self.partition.place(parameter) else {
                continue;
            };
            let bucket = &self.buckets[index];
            if self.keeps_alone() {
                found[at] = bucket.parts.get(slot).cloned();
                continue;
            }
            let shift = match bucket.mean {
                Some(_) => 0,
                None => self.partition.shard_of(index).start,
            };
            let place = self.partition.place_of_part(parameter, of);
            if let Some((_, place)) = place.filter(|(_, place)| !place.is_empty()) {
                let (by, places) = wanted.entry(index).or_default();
                by.push(at);
                places.push(place.start - shift..place.end - shift);
            }
        }
        for (index, (by, places)) in wanted {
            let bucket = &self.buckets[index];
            let flat = bucket.mean.as_ref().or(bucket.shard.as_ref()).cloned();
            let parts = flat.map(|flat| take_parts(flat, &places));
            for (at, part) in by.into_iter().zip(parts.into_iter().flatten()) {
                found[at] = Some(part);
            }
        }
        found
    }
}

impl GradientStore for DeviceStore {
    fn partition(&self) -> &Arc<Partition> {
        &self.partition
    }

    fn device(&self) -> &Device {
        &self.on.device
    }

    fn together(&self) -> usize {
        TOGETHER
    }

    fn put(&mut self, parameter: usize, gradient: Tensor<1>) -> Result<(), BucketError> {
        let Some((index, slot)) = self.partition.place(parameter) else {
            return Ok(());
        };
        let spec = &self.partition.parameters[parameter];
        let (len, dtype) = (gradient.shape().num_elements(), gradient.dtype());
        if len != spec.num_elements() || gradient_dtype(dtype) != Some(spec.dtype) {
            let found = (len, dtype);
            return Err(BucketError::mismatch(spec, spec.num_elements(), found));
        }
        self.buckets[index].parts.add(slot, gradient);
        Ok(())
    }

    fn end_virtual_rank(&mut self) -> Result<(), BucketError> {
        Err(BucketError::Order(
            "virtual ranks were used with gradients on a device; keep the model on the CPU",
        ))
    }

    fn send(&mut self, index: usize) -> Result<(), BucketError> {
        if self.keeps_alone() {
            return Ok(());
        }
        let (layout, bucket) = (&self.partition.layouts[index], &mut self.buckets[index]);
        let flat = bucket.parts.take_flat(layout, &self.on.device);
        bucket.travelling = Some(match self.partition.keep {
            KeptGradients::Whole => self.on.within.start_mean(flat),
            _ => self.on.within.start_mean_of_shard(flat, &layout.cuts),
        });
        Ok(())
    }

    fn arrive(&mut self, index: usize) -> Result<bool, BucketError> {
        let bucket = &mut self.buckets[index];
        let Some(handle) = bucket.travelling.take() else {
            return Ok(false);
        };
        let arrived = handle.wait()?;
        if self.partition.keep == KeptGradients::Whole {
            bucket.mean = Some(arrived);
            return Ok(true);
        }
        if self.partition.shard_of(index).is_empty() {
            return Ok(false);
        }
        bucket.shard = Some(match bucket.shard.take() {
            Some(sum) => sum.add(arrived),
            None => arrived,
        });
        Ok(true)
    }

    fn replicate(&mut self, index: usize) -> Result<(), BucketError> {
        let bucket = &mut self.buckets[index];
        if let Some(across) = &self.on.across
            && let Some(shard) = bucket.shard.take()
        {
            bucket.replicating = Some(across.start_mean(shard));
        }
        Ok(())
    }

    fn arrive_replicated(&mut self, index: usize) -> Result<(), BucketError> {
        let bucket = &mut self.buckets[index];
        if let Some(handle) = bucket.replicating.take() {
            bucket.shard = Some(handle.wait()?);
        }
        Ok(())
    }

    fn sum_of_squares(&self, _shard: usize) -> Result<f64, BucketError> {
        let sum = match self.keeps_alone() {
            true => sum_of_squares(self.buckets.iter().flat_map(|b| b.parts.all()).cloned()),
            // Between its parts a shard is zero.
            false => sum_of_squares(self.buckets.iter().enumerate().filter_map(
                |(index, bucket)| {
                    let own = self.partition.shard_of(index);
                    let mean = bucket.mean.clone().filter(|_| !own.is_empty());
                    let of_mean = mean.and_then(|mean| take_parts(mean, &[own]).pop());
                    of_mean.or_else(|| bucket.shard.clone())
                },
            )),
        };
        sum.map_err(|reason| BucketError::unreadable(None, reason))
    }

    fn squares(&self, shard: usize, parameters: &[usize]) -> Result<Vec<f64>, BucketError> {
        let mut squares = vec![0.0; parameters.len()];
        let parts = self.parts(parameters, self.partition.shard(shard));
        let (at, sums): (Vec<usize>, Vec<Tensor<1>>) = parts
            .into_iter()
            .enumerate()
            .filter_map(|(at, part)| Some((at, part?.cast(FloatDType::F32))))
            .map(|(at, part)| (at, square(part)))
            .unzip();
        if sums.is_empty() {
            return Ok(squares);
        }
        // One read for all of them.
        let read = Tensor::cat(sums, 0).try_into_data();
        let read = read.map_err(|error| BucketError::unreadable(None, error.to_string()))?;
        for (at, sum) in at.into_iter().zip(read.iter::<f64>()) {
            squares[at] = sum;
        }
        Ok(squares)
    }

    fn shard(&self, parameters: &[usize]) -> Result<Vec<Option<Tensor<1>>>, BucketError> {
        Ok(self.parts(parameters, &self.partition.owned))
    }

    fn replace(&mut self, parameter: usize, gradient: Tensor<1>) -> Result<(), BucketError> {
        let place = self
            .partition
            .place_of_part(parameter, &self.partition.owned);
        let slot = self.partition.place(parameter);
        let (Some((index, slot)), Some((_, place))) = (slot, place) else {
            return Ok(());
        };
        let (alone, start) = (self.keeps_alone(), self.partition.shard_of(index).start);
        let bucket = &mut self.buckets[index];
        if alone {
            bucket.parts.replace(slot, gradient);
        } else if let Some(mean) = bucket.mean.take() {
            bucket.mean = Some(assemble(mean, [(place, gradient)]));
        } else if let Some(shard) = bucket.shard.take() {
            let place = place.start - start..place.end - start;
            bucket.shard = Some(assemble(shard, [(place, gradient)]));
        }
        Ok(())
    }

    fn step(
        &self,
        parameters: Vec<FusedStep<'_>>,
        factor: Option<f32>,
    ) -> Result<Vec<(Tensor<1>, Option<FusedState>)>, BucketError> {
        let indices: Vec<usize> = parameters.iter().map(|step| step.parameter).collect();
        let gradients = self.parts(&indices, &self.partition.owned);
        let (mut stepping, mut kept) = (Vec::new(), Vec::new());
        for (mut step, gradients) in parameters.into_iter().zip(gradients) {
            kept.push(match gradients {
                Some(gradients) => {
                    stepping.push(OnDevice {
                        fused: step.fused,
                        learning_rate: step.learning_rate,
                        values: step.values.take(),
                        gradients,
                        state: step.state,
                    });
                    Ok(step.values)
                }
                None => Err((step.values.get(), step.state)),
            });
        }
        // If kernels are turned off, no parameter is stepped here.
        let stepped = match (stepping.is_empty(), Kernels::on(self.device())) {
            (true, _) => Vec::new(),
            (false, Some(kernels)) => step_on_device(kernels, stepping, factor),
            (false, None) => {
                let reason = "its kernels were disabled after the optimizer was created";
                return Err(Error::Device {
                    reason: reason.to_owned(),
                }
                .into());
            }
        };
        let mut stepped = stepped.into_iter();
        let results = kept.into_iter().filter_map(|kept| match kept {
            Ok(part) => stepped
                .next()
                .map(|(values, state)| (part.put(values), state)),
            Err(unchanged) => Some(unchanged),
        });
        Ok(results.collect())
    }

    fn blend(
        &self,
        averages_and_values: Vec<[Tensor<1>; 2]>,
        weight: f32,
    ) -> Result<Vec<Tensor<1>>, BucketError> {
        Ok(blend(averages_and_values, weight))
    }

    fn gather(
        &self,
        bucket: usize,
        piece: &mut dyn FnMut(usize) -> Option<Tensor<1>>,
    ) -> Result<Box<dyn Gathering>, Error> {
        let partition = &self.partition;
        let Some(layout) = partition.layouts.get(bucket) else {
            return Ok(Box::new(DeviceGathering::default()));
        };
        let flat = Tensor::empty([layout.len], (&self.on.device, burn_dtype(layout.dtype)));
        let parts = layout.slots.iter().filter_map(|slot| {
            let (_, place) = partition.place_of_part(slot.parameter, &partition.owned)?;
            let piece = piece(slot.parameter).filter(|_| !place.is_empty())?;
            Some((place, piece))
        });
        let flat = assemble(flat, parts);
        let number = partition.number(bucket);
        Ok(Box::new(DeviceGathering {
            coming: Some(self.on.within.start_gather(flat, number, &layout.cuts)),
            there: None,
        }))
    }

    fn reset(&mut self) {
        for bucket in &mut self.buckets {
            bucket.parts.clear();
            bucket.mean = None;
            bucket.shard = None;
        }
    }

    #[cfg(test)]
    fn replicating(&self) -> usize {
        let travels = |bucket: &&Bucket| bucket.replicating.is_some();
        self.buckets.iter().filter(travels).count()
    }
}

/// A bucket of values in flight on the device.
#[derive(Default)]
struct DeviceGathering {
    coming: Option<Box<dyn DeviceHandle>>,
    there: Option<Tensor<1>>,
}

impl Gathering for DeviceGathering {
    fn wait(&mut self) -> Result<(), Error> {
        if let Some(handle) = self.coming.take() {
            self.there = Some(handle.wait()?);
        }
        Ok(())
    }

    fn parts(&self, places: &[Range<usize>]) -> Vec<Tensor<1>> {
        let there = self.there.clone();
        there.map_or(Vec::new(), |flat| take_parts(flat, places))
    }

    fn replace(&self, layout: &BucketLayout, values: &mut [Tensor<1>]) -> Result<(), Error> {
        let places: Vec<_> = layout
            .slots
            .iter()
            .map(|slot| slot.elements.clone())
            .collect();
        for (slot, part) in layout.slots.iter().zip(self.parts(&places)) {
            if let Some(values) = values.get_mut(slot.parameter) {
                *values = part;
            }
        }
        Ok(())
    }
}

/// The parts of a bucket that are on the device, by slot.
#[derive(Default)]
struct Parts {
    slots: Vec<Option<Tensor<1>>>,
}

impl Parts {
    /// Puts a gradient into its slot, or adds it to the one there.
    fn add(&mut self, slot: usize, gradient: Tensor<1>) {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        let place = &mut self.slots[slot];
        *place = Some(match place.take() {
            Some(sum) => sum.add(gradient),
            None => gradient,
        });
    }

    /// Replaces the gradient in a slot.
    fn replace(&mut self, slot: usize, gradient: Tensor<1>) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(gradient);
        }
    }

    fn get(&self, slot: usize) -> Option<&Tensor<1>> {
        self.slots.get(slot)?.as_ref()
    }

    /// All parts, in the order of the slots.
    fn all(&self) -> impl Iterator<Item = &Tensor<1>> {
        self.slots.iter().flatten()
    }

    fn clear(&mut self) {
        self.slots.clear();
    }

    /// The bucket as one tensor; missing parts and gaps are zero.
    fn take_flat(&mut self, layout: &BucketLayout, device: &Device) -> Tensor<1> {
        let dtype = burn_dtype(layout.dtype);
        let parts = layout.slots.iter().zip(mem::take(&mut self.slots));
        let parts = parts.filter_map(|(slot, part)| Some((slot.elements.clone(), part?)));
        assemble(Tensor::zeros([layout.len], (device, dtype)), parts)
    }
}

/// Writes `parts` to their places in `flat`.
fn assemble(
    flat: Tensor<1>,
    parts: impl IntoIterator<Item = (Range<usize>, Tensor<1>)>,
) -> Tensor<1> {
    if let Some(kernels) = Kernels::on(&flat.device()) {
        let parts = parts.into_iter().map(|(place, part)| (place.start, part));
        return kernels.put_parts(flat, parts.collect());
    }
    let put = |flat: Tensor<1>, (place, part)| flat.slice_assign(place, part);
    parts.into_iter().fold(flat, put)
}

/// Parts of an assembled tensor, without copies if the device allows it.
pub(crate) fn take_parts(flat: Tensor<1>, places: &[Range<usize>]) -> Vec<Tensor<1>> {
    if let Some(kernels) = Kernels::on(&flat.device()) {
        return kernels.take_parts(flat, places);
    }
    let part = |place: &Range<usize>| flat.clone().slice(place.clone());
    places.iter().map(part).collect()
}

/// Sum of squares of all `parts`, in `f32` on the device, with one read. With kernels for the
/// device, its order depends only on the lengths.
fn sum_of_squares(parts: impl Iterator<Item = Tensor<1>>) -> Result<f64, String> {
    let mut sums = Vec::new();
    let (mut together, mut numbers) = (Vec::new(), 0);
    for part in parts {
        numbers += part.shape().num_elements();
        together.push(part.cast(FloatDType::F32));
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

/// Sum of squares of one part.
fn square(part: Tensor<1>) -> Tensor<1> {
    // Not `sum`: on CUDA it adds atomically, in a different order each time.
    part.clone().mul(part).sum_dim(0)
}

/// Sums of squares of parts of all `tensors`.
fn squares(tensors: Vec<Tensor<1>>) -> Option<Tensor<1>> {
    if let Some(kernels) = Kernels::on(&tensors.first()?.device()) {
        return kernels.sums_of_squares(tensors);
    }
    let sums: Vec<Tensor<1>> = tensors.into_iter().map(square).collect();
    (!sums.is_empty()).then(|| Tensor::cat(sums, 0))
}

/// Moves averages towards values by `weight` of the distance.
fn blend(averages_and_values: Vec<[Tensor<1>; 2]>, weight: f32) -> Vec<Tensor<1>> {
    if let Some([average, _]) = averages_and_values.first()
        && let Some(kernels) = Kernels::on(&average.device())
    {
        return kernels.blend(weight, averages_and_values);
    }
    let blended = averages_and_values.into_iter().map(|[average, values]| {
        let step = (values - average.clone()).mul_scalar(weight);
        average + step
    });
    blended.collect()
}

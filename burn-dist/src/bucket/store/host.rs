//! Gradients in host memory, in buckets that collectives reduce in place.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{AllocationProperty, Bytes, DType as BurnDType, Device, Tensor, TensorData};

use super::elements::{self, Addition};
use super::{FusedStep, Gathering, GradientStore};
use crate::bucket::error::BucketError;
use crate::bucket::layout::BucketLayout;
use crate::bucket::partition::{KeptGradients, Partition};
use crate::flat;
use crate::fused::FusedState;
use crate::reduce::vectorised;
use crate::virtual_ranks::Adding;
use crate::{Buffer, DType, Error, Handle, ReduceOp};

/// The gradients of a model in host memory.
pub(crate) struct HostStore {
    partition: Arc<Partition>,
    device: Device,
    buckets: Vec<Bucket>,
    /// Whether a gradient lies in its place, by parameter.
    present: Vec<bool>,
    /// The sum over this rank's virtual ranks, if there are any.
    adding: Option<Adding>,
}

struct Bucket {
    memory: BucketMemory,
    /// Sum of this rank's shards over the backward passes of the step, if nothing else is kept.
    shard: Option<Shard>,
    /// This rank's shard on its way to the mean over replicas.
    replicating: Option<Handle>,
}

struct Shard {
    buffer: Buffer,
    arrival: Addition,
}

enum BucketMemory {
    /// Not needed at the moment.
    None,
    Here(Buffer),
    Travelling(Handle),
    Lost,
}

impl HostStore {
    /// Allocates the buckets. A collective call.
    pub(crate) fn new(partition: Partition) -> Result<Self, BucketError> {
        let (group, keep, compression) = (&partition.group, partition.keep, partition.compression);
        let bucket = |layout: &BucketLayout| -> Result<Bucket, BucketError> {
            let memory = match keep {
                _ if let Some(among) = &partition.virtual_group => {
                    Some(among.group.sums(layout.dtype, layout.len, among.ranks)?)
                }
                KeptGradients::Whole => Some(group.bucket(layout.dtype, layout.len)?),
                // Memory that all ranks map would count once for each rank.
                KeptGradients::Scattered => Some(Buffer::zeroed(layout.dtype, layout.len)),
                KeptGradients::Sharded => None,
            };
            let own = layout.shard(group.size(), group.rank()).len();
            Ok(Bucket {
                memory: memory.map_or(BucketMemory::None, |b| {
                    BucketMemory::Here(b.compress(compression))
                }),
                shard: (keep == KeptGradients::Sharded).then(|| Shard {
                    buffer: Buffer::zeroed(layout.dtype, own).compress(compression),
                    arrival: Addition::First,
                }),
                replicating: None,
            })
        };
        Ok(Self {
            buckets: partition
                .layouts
                .iter()
                .map(bucket)
                .collect::<Result<_, _>>()?,
            present: vec![false; partition.parameters.len()],
            adding: partition
                .virtual_group
                .as_ref()
                .map(|among| Adding::of(among.ranks, among.own())),
            device: Device::flex(),
            partition: Arc::new(partition),
        })
    }

    /// Memory for a bucket, with arbitrary contents: every slot is written or cleared before the
    /// bucket is sent, and padding is never read.
    fn new_memory(&self, bucket: usize) -> Buffer {
        let layout = &self.partition.layouts[bucket];
        Buffer::recycled(layout.dtype, layout.len).compress(self.partition.compression)
    }

    /// Place of the reduced gradient of this rank's part `of` a parameter.
    fn reduced(&self, parameter: usize, of: &[Range<usize>]) -> Option<(&Buffer, Range<usize>)> {
        let (index, place) = self.partition.place_of_part(parameter, of)?;
        let bucket = self.buckets.get(index)?;
        match (&bucket.shard, &bucket.memory) {
            (Some(_), _) if place.is_empty() => None,
            (Some(own), _) => {
                let shift = self.partition.shard_of(index).start;
                Some((&own.buffer, place.start - shift..place.end - shift))
            }
            (None, BucketMemory::Here(buffer)) => Some((buffer, place)),
            _ => None,
        }
    }

    /// Completes a bucket after a virtual rank, or for sending: missing gradients are zero, and
    /// what can be added of the sum over virtual ranks is added.
    fn complete(&self, index: usize, buffer: &mut Buffer) -> Result<(), BucketError> {
        let sum = self.adding.as_ref().map_or(0, Adding::sum);
        for slot in &self.partition.layouts[index].slots {
            if !self.present[slot.parameter] {
                elements::clear(buffer, &within(buffer, sum, &slot.elements))?;
            }
        }
        for sum in self.adding.iter().flat_map(Adding::due) {
            buffer.add_sums(sum);
        }
        Ok(())
    }

    /// The error for a part of a parameter that cannot be read.
    fn unreadable(&self, parameter: usize, reason: String) -> BucketError {
        BucketError::unreadable(self.partition.parameters.get(parameter), reason)
    }
}

impl GradientStore for HostStore {
    fn partition(&self) -> &Arc<Partition> {
        &self.partition
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn together(&self) -> usize {
        1
    }

    fn put(&mut self, parameter: usize, gradient: Tensor<1>) -> Result<(), BucketError> {
        let Some((index, place)) = self.partition.place_of(parameter) else {
            return Ok(());
        };
        let gradient = gradient.try_into_data();
        let gradient = gradient.map_err(|e| self.unreadable(parameter, e.to_string()))?;
        let arrival = match mem::replace(&mut self.present[parameter], true) {
            true => Addition::Further,
            false => Addition::First,
        };
        if matches!(self.buckets[index].memory, BucketMemory::None) {
            self.buckets[index].memory = BucketMemory::Here(self.new_memory(index));
        }
        let spec = &self.partition.parameters[parameter];
        let BucketMemory::Here(buffer) = &mut self.buckets[index].memory else {
            return Err(BucketError::Late {
                path: spec.path.clone(),
            });
        };
        let sum = self.adding.as_ref().map_or(0, Adding::sum);
        let place = within(buffer, sum, &place);
        if !elements::put(buffer, &place, &gradient, arrival)? {
            let found = (gradient.num_elements(), gradient.dtype());
            return Err(BucketError::mismatch(spec, spec.num_elements(), found));
        }
        Ok(())
    }

    fn end_virtual_rank(&mut self) -> Result<(), BucketError> {
        for index in 0..self.buckets.len() {
            let memory = mem::replace(&mut self.buckets[index].memory, BucketMemory::Lost);
            let (memory, completed) = match memory {
                BucketMemory::Here(mut buffer) => {
                    let completed = self.complete(index, &mut buffer);
                    (BucketMemory::Here(buffer), completed)
                }
                other => (other, Ok(())),
            };
            self.buckets[index].memory = memory;
            completed?;
        }
        self.present.fill(false);
        if let Some(adding) = &mut self.adding {
            adding.end_virtual_rank();
        }
        Ok(())
    }

    fn send(&mut self, index: usize) -> Result<(), BucketError> {
        let mut buffer = match mem::replace(&mut self.buckets[index].memory, BucketMemory::Lost) {
            BucketMemory::Here(buffer) => buffer,
            BucketMemory::None => self.new_memory(index),
            other => {
                self.buckets[index].memory = other;
                return Ok(());
            }
        };
        self.complete(index, &mut buffer)?;
        let partition = &self.partition;
        let among = partition.virtual_group.as_ref();
        let layout = &partition.layouts[index];
        let group = among.map_or(&partition.group, |among| &among.group);
        let buffer = buffer.numbered(partition.number(index));
        self.buckets[index].memory = match partition.keep {
            KeptGradients::Whole if group.size() == 1 && among.is_none() => {
                BucketMemory::Here(buffer)
            }
            KeptGradients::Whole => {
                BucketMemory::Travelling(group.start_all_reduce(buffer, ReduceOp::Mean))
            }
            _ => {
                let buffer = buffer.cut(layout.cuts.clone());
                BucketMemory::Travelling(group.start_reduce_scatter(buffer, ReduceOp::Mean))
            }
        };
        if partition.keep == KeptGradients::Sharded {
            // The next backward of the step begins with empty places.
            for slot in &layout.slots {
                self.present[slot.parameter] = false;
            }
        }
        Ok(())
    }

    fn arrive(&mut self, index: usize) -> Result<bool, BucketError> {
        let Some(bucket) = self.buckets.get_mut(index) else {
            return Ok(false);
        };
        let buffer = match mem::replace(&mut bucket.memory, BucketMemory::Lost) {
            BucketMemory::Travelling(handle) => handle.wait()?,
            other => {
                bucket.memory = other;
                return Ok(false);
            }
        };
        bucket.memory = match &mut bucket.shard {
            None => BucketMemory::Here(buffer),
            Some(own) => {
                let part = self.partition.shard_of(index);
                elements::take_shard(&mut own.buffer, &buffer, &part, own.arrival)?;
                own.arrival = Addition::Further;
                BucketMemory::None
            }
        };
        Ok(true)
    }

    fn replicate(&mut self, index: usize) -> Result<(), BucketError> {
        let (Some(replicas), Some(bucket)) =
            (&self.partition.replicas, self.buckets.get_mut(index))
        else {
            return Ok(());
        };
        let own = match (&mut bucket.shard, &bucket.memory) {
            (Some(own), _) => mem::replace(&mut own.buffer, Buffer::zeroed(DType::F32, 0)),
            (None, BucketMemory::Here(buffer)) => {
                let part = self.partition.shard_of(index);
                let own = Buffer::zeroed(buffer.dtype(), part.len());
                let mut own = own.compress(self.partition.compression);
                elements::take_shard(&mut own, buffer, &part, Addition::First)?;
                own
            }
            _ => return Ok(()),
        };
        bucket.replicating = Some(replicas.start_all_reduce(own, ReduceOp::Mean));
        Ok(())
    }

    fn arrive_replicated(&mut self, index: usize) -> Result<(), BucketError> {
        let Some(bucket) = self.buckets.get_mut(index) else {
            return Ok(());
        };
        let Some(handle) = bucket.replicating.take() else {
            return Ok(());
        };
        let mean = handle.wait()?;
        match (&mut bucket.shard, &mut bucket.memory) {
            (Some(own), _) => own.buffer = mean,
            (None, BucketMemory::Here(buffer)) => {
                elements::give_shard(&mean, buffer, &self.partition.shard_of(index))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn sum_of_squares(&self, shard: usize) -> Result<f64, BucketError> {
        let slots = self.partition.layouts.iter().flat_map(|b| &b.slots);
        let parameters: Vec<usize> = slots.map(|slot| slot.parameter).collect();
        Ok(self.squares(shard, &parameters)?.into_iter().sum())
    }

    fn squares(&self, shard: usize, parameters: &[usize]) -> Result<Vec<f64>, BucketError> {
        let shard = self.partition.shard(shard);
        let own = |parameter: &usize| match self.reduced(*parameter, shard) {
            Some((buffer, place)) => Ok(elements::sum_of_squares(buffer, &place)?),
            None => Ok(0.0),
        };
        parameters.iter().map(own).collect()
    }

    fn shard(&self, parameters: &[usize]) -> Result<Vec<Option<Tensor<1>>>, BucketError> {
        let own = |parameter: &usize| {
            let found = self.reduced(*parameter, &self.partition.owned);
            let Some((buffer, place)) = found else {
                return Ok(None);
            };
            let data = elements::read(buffer, &place)?;
            let dtype = data.dtype();
            Ok(Some(Tensor::from_data(data, (&self.device, dtype))))
        };
        parameters.iter().map(own).collect()
    }

    fn replace(&mut self, parameter: usize, gradient: Tensor<1>) -> Result<(), BucketError> {
        let Some((_, place)) = self.reduced(parameter, &self.partition.owned) else {
            return Ok(());
        };
        let gradient = gradient.try_into_data();
        let gradient = gradient.map_err(|e| self.unreadable(parameter, e.to_string()))?;
        let bucket = self.partition.place(parameter).map(|(bucket, _)| bucket);
        let bucket = bucket.and_then(|bucket| self.buckets.get_mut(bucket));
        let buffer = match bucket.map(|b| (&mut b.shard, &mut b.memory)) {
            Some((Some(own), _)) => &mut own.buffer,
            Some((None, BucketMemory::Here(buffer))) => buffer,
            _ => return Ok(()),
        };
        elements::put(buffer, &place, &gradient, Addition::First)?;
        Ok(())
    }

    fn step(
        &self,
        parameters: Vec<FusedStep<'_>>,
        factor: Option<f32>,
    ) -> Result<Vec<(Tensor<1>, Option<FusedState>)>, BucketError> {
        let step = |step: FusedStep<'_>| {
            let (part, mut state) = (step.values, step.state);
            let found = self.reduced(step.parameter, &self.partition.owned);
            let Some((buffer, place)) = found else {
                return Ok((part.get(), state));
            };
            let gradients = buffer.as_slice::<f32>().map_err(Error::from)?;
            let gradients = gradients.get(place).unwrap_or_default();
            let elements = part.elements.clone();
            let stepped = flat::change(part.values, |all| {
                let own = all.get_mut(elements).unwrap_or_default();
                let rate = step.learning_rate;
                step.fused.step(rate, own, gradients, factor, &mut state)
            });
            let stepped = stepped.flatten();
            stepped.map_err(|reason| self.unreadable(step.parameter, reason))?;
            Ok((part.get(), state))
        };
        parameters.into_iter().map(step).collect()
    }

    fn blend(
        &self,
        averages_and_values: Vec<[Tensor<1>; 2]>,
        weight: f32,
    ) -> Result<Vec<Tensor<1>>, BucketError> {
        let blended = averages_and_values
            .into_iter()
            .map(|[mut average, values]| {
                let blended = flat::look(&values, |values| {
                    flat::change(&mut average, |average| blend(average, values, weight))
                });
                let blended = blended.flatten().map(|()| average);
                blended.map_err(|reason| BucketError::unreadable(None, reason))
            });
        blended.collect()
    }

    fn gather(
        &self,
        bucket: usize,
        piece: &mut dyn FnMut(usize) -> Option<Tensor<1>>,
    ) -> Result<Box<dyn Gathering>, Error> {
        let partition = &self.partition;
        let empty = BucketLayout::EMPTY;
        let layout = partition.layouts.get(bucket).unwrap_or(&empty);
        let mut buffer = Buffer::recycled(DType::F32, layout.len);
        let values = buffer.as_mut_slice::<f32>()?;
        for slot in &layout.slots {
            let place = partition.place_of_part(slot.parameter, &partition.owned);
            let own = place.and_then(|(_, place)| values.get_mut(place));
            if let Some(own) = own.filter(|own| !own.is_empty())
                && let Some(piece) = piece(slot.parameter)
            {
                let copied = flat::look(&piece, |piece| {
                    let fits = piece.len() == own.len();
                    fits.then(|| own.copy_from_slice(piece)).is_some()
                });
                match copied {
                    Ok(true) => {}
                    Ok(false) => return Err(unfit("a gathered piece has another length")),
                    Err(reason) => return Err(unfit(&reason)),
                }
            }
        }
        let buffer = buffer.cut(layout.cuts.clone());
        let buffer = buffer.numbered(partition.number(bucket));
        Ok(Box::new(HostGathering {
            coming: Some(partition.group.start_all_gather(buffer)),
            there: bytes::Bytes::new(),
        }))
    }

    fn reset(&mut self) {
        self.present.fill(false);
        if let Some(adding) = &mut self.adding {
            adding.begin_step();
        }
        for own in self.buckets.iter_mut().filter_map(|b| b.shard.as_mut()) {
            own.arrival = Addition::First;
        }
    }

    #[cfg(test)]
    fn replicating(&self) -> usize {
        let travels = |bucket: &&Bucket| bucket.replicating.is_some();
        self.buckets.iter().filter(travels).count()
    }
}

/// A place of a bucket in the sum number `sum` of its buffer.
fn within(buffer: &Buffer, sum: usize, place: &Range<usize>) -> Range<usize> {
    let start = match sum {
        0 => 0,
        sum => buffer.sum_place(sum).start,
    };
    start + place.start..start + place.end
}

fn unfit(reason: &str) -> Error {
    Error::Device {
        reason: reason.to_owned(),
    }
}

/// Moves an average towards `values` by `weight` of the distance. Works on any part of a parameter.
fn blend(average: &mut [f32], values: &[f32], weight: f32) {
    vectorised(
        #[inline(always)]
        || {
            for (average, value) in average.iter_mut().zip(values) {
                *average += (value - *average) * weight;
            }
        },
    );
}

/// A bucket of values on its way into host memory, in `f32`.
struct HostGathering {
    coming: Option<Handle>,
    /// Shared, because its parts may outlive it.
    there: bytes::Bytes,
}

struct Owner(Buffer);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl HostGathering {
    fn part(&self, place: &Range<usize>) -> Option<bytes::Bytes> {
        let bytes = place.start * size_of::<f32>()..place.end * size_of::<f32>();
        (bytes.end <= self.there.len()).then(|| self.there.slice(bytes))
    }
}

impl Gathering for HostGathering {
    fn wait(&mut self) -> Result<(), Error> {
        if let Some(handle) = self.coming.take() {
            self.there = bytes::Bytes::from_owner(Owner(handle.wait()?));
        }
        Ok(())
    }

    fn parts(&self, places: &[Range<usize>]) -> Vec<Tensor<1>> {
        let part = |place: &Range<usize>| {
            // A writer gets a copy.
            let part = Bytes::from_shared(self.part(place)?, AllocationProperty::Native);
            let data = TensorData::from_bytes(part, [place.len()], BurnDType::F32);
            Some(Tensor::from_data(data, (&Device::flex(), BurnDType::F32)))
        };
        places.iter().map_while(part).collect()
    }

    fn replace(&self, layout: &BucketLayout, values: &mut [Tensor<1>]) -> Result<(), Error> {
        for slot in layout.slots.iter().filter(|slot| !slot.elements.is_empty()) {
            let (Some(values), Some(part)) =
                (values.get_mut(slot.parameter), self.part(&slot.elements))
            else {
                continue;
            };
            let part: &[f32] = bytemuck::cast_slice(&part);
            let replaced = flat::change(values, |values| {
                let fits = values.len() == part.len();
                fits.then(|| values.copy_from_slice(part)).is_some()
            });
            match replaced {
                Ok(true) => {}
                Ok(false) => return Err(unfit("a gathered parameter has another length")),
                Err(reason) => return Err(unfit(&reason)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blending_is_the_same_in_parts() {
        let values: Vec<f32> = (0..37u8).map(|i| f32::from(i).sin()).collect();
        let mut whole = vec![0.5f32; 37];
        let mut parts = whole.clone();
        blend(&mut whole, &values, 0.3);
        for (average, values) in parts.chunks_mut(10).zip(values.chunks(10)) {
            blend(average, values, 0.3);
        }
        assert_eq!(whole, parts);
        assert!((f64::from(whole[1]) - (0.35 + 0.3 * 1f64.sin())).abs() < 1e-6);
    }
}

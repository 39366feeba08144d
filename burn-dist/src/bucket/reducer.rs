//! Collects gradients into buckets during backward and starts each bucket's reduction when it is
//! full: an all-reduce, or a reduce-scatter where every rank needs its own shard alone. Where several
//! groups of ranks have a set of shards each, a shard that has arrived goes on its way again in the
//! last backward of a step, to the mean over the ranks that have the same.
//!
//! A bucket is full when none of its parameters has a use left in the graph. Buckets start in
//! their layout's order on every rank, whatever order the hooks fire in, because ranks must issue
//! collectives in the same order. What is still missing when backward ends (parameters without
//! a gradient, or with uses in a graph that this backward did not reach) counts as zero.

use std::fmt;
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{Device, Shape, Tensor};

use super::error::BucketError;
use super::layout::{BucketLayout, BucketSizes, Owners, ParameterSpec, Slot, owned, plan};
use super::resident::{self, DeviceHandle, DeviceReduce, Gradient, Parts, Resident};
use super::storage::{self, Arrival};
use crate::autograd::GradientSink;
use crate::{Buffer, DType, Handle, ProcessGroup, ReduceOp};

/// Buckets on their way at a time, where their memory is given back on arrival.
const IN_FLIGHT: usize = 2;

/// What a rank keeps of the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gradients {
    /// All of them, reduced.
    Whole,
    /// The memory of all of them; only the shard is reduced.
    Scattered,
    /// Its shard. Every backward sends all buckets, and their memory is free on arrival.
    Sharded,
}

/// Gradients of one model on their way to the mean over all ranks.
pub(crate) struct Reducer {
    /// The ranks that share one set of shards.
    group: ProcessGroup,
    /// The ranks that have the same shard as this one, where there are several sets.
    replicas: Option<ProcessGroup>,
    parameters: Vec<ParameterSpec>,
    layouts: Vec<BucketLayout>,
    keep: Gradients,
    /// Per parameter, its bucket and its slot there.
    places: Vec<(usize, usize)>,
    /// Per parameter, the elements of which this rank has the reduced gradient.
    owned: Vec<Range<usize>>,
    /// Per parameter, the elements that lie in this rank's shards.
    shards: Vec<Range<usize>>,
    /// Per parameter, its uses in graphs that are alive.
    uses: Vec<AtomicUsize>,
    /// Where gradients stay until their bucket is full, if not in host memory.
    resident: Option<Resident>,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    buckets: Vec<Bucket>,
    /// Per parameter, whether a gradient lies in its place.
    present: Vec<bool>,
    /// Per parameter, whether any backward of this step had a gradient; after the last one, on any
    /// rank.
    marks: Vec<u8>,
    /// Per parameter, whether nothing more is expected in this backward.
    complete: Vec<bool>,
    /// The bucket to start next.
    next: usize,
    health: Health,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Between backward passes of a step.
    Waiting,
    /// Backward runs; gradients stay on this rank.
    Accumulating,
    /// Full buckets are sent.
    Sending {
        /// Whether this is the last backward of the step.
        last: bool,
    },
    /// All buckets have been sent.
    Sent,
    /// All buckets hold the mean over ranks.
    Reduced,
}

struct Bucket {
    memory: Memory,
    /// Parameters that are not complete.
    missing: usize,
    /// Sum of this rank's shards over the backward passes of the step, where nothing else is kept.
    shard: Option<Shard>,
    /// This rank's shard, on its way to the mean over replicas.
    replicating: Option<Handle>,
    /// What lies on the device.
    parts: Parts,
}

struct Shard {
    buffer: Buffer,
    arrival: Arrival,
}

enum Memory {
    /// Not needed at the moment.
    None,
    Here(Buffer),
    Travelling(Handle),
    /// On the device, from where it does not return to the host.
    TravellingThere(Box<dyn DeviceHandle>),
    Lost,
}

enum Health {
    Good,
    /// An error inside backward that has not been reported yet.
    Failing(BucketError),
    Failed(String),
}

impl Reducer {
    /// Allocates the buckets for `parameters`, of which those that are to stay `whole` have one
    /// owner each where gradients are spread over the ranks. A collective call: every rank makes it
    /// with the same arguments.
    pub(crate) fn new(
        group: &ProcessGroup,
        parameters: Vec<ParameterSpec>,
        whole: &[bool],
        sizes: BucketSizes,
        keep: Gradients,
    ) -> Result<Self, BucketError> {
        if let Some(parameter) = parameters.iter().find(|p| !p.dtype.is_float()) {
            return Err(BucketError::NotFloat {
                path: parameter.path.clone(),
                dtype: parameter.dtype,
            });
        }
        let owners = match keep {
            Gradients::Whole => Owners::NONE,
            _ => Owners::of_whole(&parameters, whole, group.size()),
        };
        let layouts = plan(&parameters, &owners, sizes);
        let mut places = vec![(0, 0); parameters.len()];
        let mut buckets = Vec::with_capacity(layouts.len());
        for (bucket, layout) in layouts.iter().enumerate() {
            for (slot, Slot { parameter, .. }) in layout.slots.iter().enumerate() {
                places[*parameter] = (bucket, slot);
            }
            let memory = match keep {
                Gradients::Whole => Memory::Here(group.bucket(layout.dtype, layout.len)?),
                // Memory that all ranks have mapped would count as often as there are ranks.
                Gradients::Scattered => Memory::Here(Buffer::zeroed(layout.dtype, layout.len)),
                Gradients::Sharded => Memory::None,
            };
            let own = layout.shard(group.size(), group.rank()).len();
            buckets.push(Bucket {
                memory,
                missing: layout.slots.len(),
                shard: (keep == Gradients::Sharded).then(|| Shard {
                    buffer: Buffer::zeroed(layout.dtype, own),
                    arrival: Arrival::First,
                }),
                replicating: None,
                parts: Parts::default(),
            });
        }
        let shards = owned(&layouts, parameters.len(), group.size(), group.rank());
        let owned = match keep {
            Gradients::Whole => parameters.iter().map(|p| 0..p.num_elements()).collect(),
            _ => shards.clone(),
        };
        Ok(Self {
            group: group.clone(),
            replicas: None,
            uses: parameters.iter().map(|_| AtomicUsize::new(0)).collect(),
            state: Mutex::new(State {
                phase: Phase::Waiting,
                buckets,
                present: vec![false; parameters.len()],
                marks: vec![0; parameters.len()],
                complete: vec![false; parameters.len()],
                next: 0,
                health: Health::Good,
            }),
            parameters,
            layouts,
            keep,
            places,
            owned,
            shards,
            resident: None,
        })
    }

    /// There are other sets of shards than this group's: reduces this rank's shards over `replicas`,
    /// too, the ranks that have the same.
    pub(crate) fn replicated(mut self, replicas: Option<ProcessGroup>) -> Self {
        self.replicas = replicas;
        self
    }

    /// Gradients are on `device`, whose memory the processor does not share: collects them there, and
    /// has them reduced there by `reduce` where all of them are kept.
    pub(crate) fn on_device(
        mut self,
        device: Device,
        reduce: Option<Arc<dyn DeviceReduce>>,
    ) -> Self {
        let reduce = reduce.filter(|_| self.keep == Gradients::Whole);
        self.resident = Some(Resident { device, reduce });
        if self.stays_on_device() {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            for bucket in &mut state.buckets {
                bucket.memory = Memory::None;
            }
        }
        self
    }

    /// Whether gradients never come to the host.
    fn stays_on_device(&self) -> bool {
        let alone = self.keep == Gradients::Whole && self.group.size() == 1;
        let resident = self.resident.as_ref();
        resident.is_some_and(|resident| alone || resident.reduce.is_some())
    }

    /// The buckets, in the order in which they are sent.
    pub(crate) fn layouts(&self) -> &[BucketLayout] {
        &self.layouts
    }

    /// Per parameter, the elements of which this rank has the reduced gradient.
    pub(crate) fn owned(&self) -> &[Range<usize>] {
        &self.owned
    }

    /// The trainable parameters in visit order.
    pub(crate) fn parameters(&self) -> &[ParameterSpec] {
        &self.parameters
    }

    /// Backward is about to run. In the `last` one of a step, full buckets are sent.
    pub(crate) fn begin_backward(&self, last: bool) -> Result<(), BucketError> {
        let mut state = self.lock();
        self.check(&mut state)?;
        match state.phase {
            Phase::Waiting => {}
            Phase::Accumulating | Phase::Sending { .. } => {
                return Err(BucketError::Order(
                    "backward was called while backward runs",
                ));
            }
            Phase::Sent | Phase::Reduced => {
                return Err(BucketError::Order(
                    "backward was called after the last micro-batch of a step: call step first",
                ));
            }
        }
        if !last && self.keep != Gradients::Sharded {
            state.phase = Phase::Accumulating;
            return Ok(());
        }
        state.phase = Phase::Sending { last };
        state.next = 0;
        state.complete.fill(false);
        for (bucket, layout) in state.buckets.iter_mut().zip(&self.layouts) {
            bucket.missing = layout.slots.len();
        }
        // What the graph does not use will not be heard of.
        for parameter in 0..self.parameters.len() {
            if self.uses[parameter].load(Ordering::Acquire) == 0 {
                self.complete(&mut state, parameter)?;
            }
        }
        Ok(())
    }

    /// Backward has returned.
    pub(crate) fn end_backward(&self) -> Result<(), BucketError> {
        let mut state = self.lock();
        self.check(&mut state)?;
        state.phase = match state.phase {
            Phase::Sending { last } => {
                for parameter in 0..self.parameters.len() {
                    self.complete(&mut state, parameter)?;
                }
                if last { Phase::Sent } else { Phase::Waiting }
            }
            _ => Phase::Waiting,
        };
        Ok(())
    }

    /// Waits until all buckets hold the mean over ranks.
    pub(crate) fn wait(&self) -> Result<(), BucketError> {
        let mut state = self.lock();
        self.check(&mut state)?;
        if state.phase != Phase::Sent {
            return Err(BucketError::Order(
                "step was called before backward had run for every micro-batch",
            ));
        }
        let received = (0..self.layouts.len())
            .try_for_each(|index| self.receive_bucket(&mut state, index))
            .and_then(|()| {
                (0..self.layouts.len())
                    .try_for_each(|index| self.receive_replica(&mut state, index))
            })
            .and_then(|()| {
                let marks = &mut state.marks;
                self.group.all_reduce::<u8>(marks, ReduceOp::Max)?;
                match &self.replicas {
                    Some(replicas) => Ok(replicas.all_reduce::<u8>(marks, ReduceOp::Max)?),
                    None => Ok(()),
                }
            });
        if let Err(error) = received {
            state.health = Health::Failed(error.to_string());
            return Err(error);
        }
        state.phase = Phase::Reduced;
        Ok(())
    }

    /// Euclidean norm of all reduced gradients together; the same bits on every rank, and whatever
    /// the ranks keep of the gradients. A collective call.
    pub(crate) fn norm(&self) -> Result<f64, BucketError> {
        let state = self.lock();
        if self.stays_on_device() {
            return self.norm_on_device(&state);
        }
        let mut sum = 0.0;
        for slot in self.layouts.iter().flat_map(|layout| &layout.slots) {
            // Of its shards alone, where it has more: sums of the same parts have the same bits.
            let mine = self.shards.get(slot.parameter);
            if let Some((buffer, place)) = self.reduced(&state, slot.parameter, mine) {
                sum += storage::sum_of_squares(buffer, &place)?;
            }
        }
        let mut sums = [sum];
        self.group.all_reduce::<f64>(&mut sums, ReduceOp::Sum)?;
        Ok(sums[0].sqrt())
    }

    fn norm_on_device(&self, state: &State) -> Result<f64, BucketError> {
        let slots = |bucket: usize| self.layouts.get(bucket).map_or(0, |l| l.slots.len());
        let parts = state
            .buckets
            .iter()
            .enumerate()
            .flat_map(|(index, bucket)| {
                (0..slots(index)).filter_map(|slot| bucket.parts.get(slot).cloned())
            });
        let sum = resident::sum_of_squares(parts.collect());
        let sum = sum.map_err(|reason| BucketError::Read {
            path: "all parameters".to_owned(),
            reason,
        })?;
        Ok(sum.sqrt())
    }

    /// Hands the reduced gradient of the elements that this rank owns of a parameter to `then`, as
    /// `f32`; not if no rank had one.
    pub(crate) fn with_owned(
        &self,
        parameter: usize,
        then: impl FnOnce(&[f32]),
    ) -> Result<(), BucketError> {
        let state = self.lock();
        if state.marks.get(parameter).is_none_or(|mark| *mark == 0) {
            return Ok(());
        }
        if let Some((buffer, place)) = self.reduced(&state, parameter, self.owned.get(parameter)) {
            let values = buffer.as_slice::<f32>().map_err(crate::Error::from)?;
            then(values.get(place).unwrap_or_default());
        }
        Ok(())
    }

    /// Where the reduced gradient of a `part` of a parameter lies, which this rank has.
    fn reduced<'s>(
        &self,
        state: &'s State,
        parameter: usize,
        part: Option<&Range<usize>>,
    ) -> Option<(&'s Buffer, Range<usize>)> {
        let ((index, slot), part) = (self.place(parameter)?, part?);
        let start = slot.elements.start;
        let place = start + part.start..start + part.end;
        let bucket = state.buckets.get(index)?;
        match (&bucket.shard, &bucket.memory) {
            (Some(_), _) if place.is_empty() => None,
            (Some(own), _) => {
                let shift = self.shard_of(index).start;
                Some((&own.buffer, place.start - shift..place.end - shift))
            }
            (None, Memory::Here(buffer)) => Some((buffer, place)),
            _ => None,
        }
    }

    /// The elements of a bucket that this rank owns.
    fn shard_of(&self, bucket: usize) -> Range<usize> {
        let shard = |layout: &BucketLayout| layout.shard(self.group.size(), self.group.rank());
        self.layouts.get(bucket).map_or(0..0, shard)
    }

    /// Waits for a bucket that is on its way, and takes its shard out if nothing else is kept.
    fn receive_bucket(&self, state: &mut State, index: usize) -> Result<(), BucketError> {
        let Some(bucket) = state.buckets.get_mut(index) else {
            return Ok(());
        };
        let buffer = match mem::replace(&mut bucket.memory, Memory::Lost) {
            Memory::Travelling(handle) => handle.wait()?,
            Memory::TravellingThere(handle) => {
                let flat = handle.wait()?;
                if let Some(layout) = self.layouts.get(index) {
                    bucket.parts = Parts::split(layout, &flat);
                }
                bucket.memory = Memory::None;
                return Ok(());
            }
            other => {
                bucket.memory = other;
                return Ok(());
            }
        };
        bucket.memory = match &mut bucket.shard {
            None => Memory::Here(buffer),
            Some(own) => {
                let part = self.shard_of(index);
                storage::take_shard(&mut own.buffer, &buffer, &part, own.arrival)?;
                own.arrival = Arrival::Further;
                Memory::None
            }
        };
        self.replicate(state, index)
    }

    /// Sends the shard of a bucket that has arrived for the last time in this step on to the mean over
    /// replicas.
    fn replicate(&self, state: &mut State, index: usize) -> Result<(), BucketError> {
        let is_last = match state.phase {
            Phase::Sending { last } => last && index < state.next,
            phase => phase == Phase::Sent,
        };
        let replicas = self.replicas.as_ref().filter(|_| is_last);
        let (Some(replicas), Some(bucket)) = (replicas, state.buckets.get_mut(index)) else {
            return Ok(());
        };
        let own = match (&mut bucket.shard, &bucket.memory) {
            (Some(own), _) => mem::replace(&mut own.buffer, Buffer::zeroed(DType::F32, 0)),
            (None, Memory::Here(buffer)) => {
                let part = self.shard_of(index);
                let mut own = Buffer::zeroed(buffer.dtype(), part.len());
                storage::take_shard(&mut own, buffer, &part, Arrival::First)?;
                own
            }
            _ => return Ok(()),
        };
        bucket.replicating = Some(replicas.start_all_reduce(own, ReduceOp::Mean));
        Ok(())
    }

    /// Waits for a shard that is on its way to the mean over replicas.
    fn receive_replica(&self, state: &mut State, index: usize) -> Result<(), BucketError> {
        let Some(bucket) = state.buckets.get_mut(index) else {
            return Ok(());
        };
        let Some(handle) = bucket.replicating.take() else {
            return Ok(());
        };
        let mean = handle.wait()?;
        match (&mut bucket.shard, &mut bucket.memory) {
            (Some(own), _) => own.buffer = mean,
            (None, Memory::Here(buffer)) => {
                storage::give_shard(&mean, buffer, &self.shard_of(index))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The reduced gradient of a parameter times `factor`, or `None` if no rank had one.
    pub(crate) fn gradient(
        &self,
        parameter: usize,
        shape: &Shape,
        factor: Option<f64>,
    ) -> Result<Option<Gradient>, BucketError> {
        let state = self.lock();
        let Some((bucket, slot)) = self.place(parameter) else {
            return Ok(None);
        };
        if state.marks.get(parameter).is_none_or(|mark| *mark == 0) {
            return Ok(None);
        }
        if self.stays_on_device() {
            let (_, index) = self.places[parameter];
            let part = state.buckets[bucket].parts.get(index).cloned();
            return Ok(part.map(|part| {
                Gradient::Device(match factor {
                    Some(factor) => part.mul_scalar(factor),
                    None => part,
                })
            }));
        }
        let Memory::Here(buffer) = &state.buckets[bucket].memory else {
            return Ok(None);
        };
        let data = storage::read(buffer, &slot.elements, shape, factor)?;
        Ok(data.map(Gradient::Host))
    }

    /// The gradients have been used: the next backward begins a new step.
    pub(crate) fn reset(&self) {
        let mut state = self.lock();
        state.phase = Phase::Waiting;
        state.present.fill(false);
        state.marks.fill(0);
        for bucket in &mut state.buckets {
            bucket.parts.clear();
        }
        for own in state.buckets.iter_mut().filter_map(|b| b.shard.as_mut()) {
            own.arrival = Arrival::First;
        }
    }

    /// Number of buckets that the running backward has sent.
    #[cfg(test)]
    pub(super) fn sent(&self) -> usize {
        self.lock().next
    }

    /// Number of shards that are on their way to the mean over replicas.
    #[cfg(test)]
    pub(super) fn replicating(&self) -> usize {
        let state = self.lock();
        let all = state.buckets.iter().filter(|b| b.replicating.is_some());
        all.count()
    }

    /// The bucket of a parameter, and its elements there.
    pub(crate) fn place_of(&self, parameter: usize) -> Option<(usize, Range<usize>)> {
        let (bucket, slot) = self.place(parameter)?;
        Some((bucket, slot.elements.clone()))
    }

    fn place(&self, parameter: usize) -> Option<(usize, &Slot)> {
        let (bucket, slot) = *self.places.get(parameter)?;
        Some((bucket, self.layouts.get(bucket)?.slots.get(slot)?))
    }

    /// Reports an error from inside backward once, and refuses everything after it.
    fn check(&self, state: &mut State) -> Result<(), BucketError> {
        match mem::replace(&mut state.health, Health::Good) {
            Health::Good => Ok(()),
            Health::Failing(error) => {
                // The other ranks wait for buckets that will not come.
                let reason = error.to_string();
                if self.group.size() > 1 || self.replicas.is_some() {
                    self.group.abort(&reason);
                }
                state.health = Health::Failed(reason);
                Err(error)
            }
            Health::Failed(reason) => {
                state.health = Health::Failed(reason.clone());
                Err(BucketError::Failed { reason })
            }
        }
    }

    fn receive(
        &self,
        state: &mut State,
        parameter: usize,
        gradient: Tensor<1>,
        last_use: bool,
    ) -> Result<(), BucketError> {
        let Some((index, slot)) = self.place(parameter) else {
            return Ok(());
        };
        let spec = &self.parameters[parameter];
        if self.resident.is_some() {
            return self.receive_on_device(state, parameter, gradient, last_use);
        }
        let gradient = gradient
            .try_into_data()
            .map_err(|error| BucketError::Read {
                path: spec.path.clone(),
                reason: error.to_string(),
            })?;
        let arrival = if mem::replace(&mut state.present[parameter], true) {
            Arrival::Further
        } else {
            Arrival::First
        };
        if let Some(mark) = state.marks.get_mut(parameter) {
            *mark = 1;
        }
        if !state.complete[parameter] {
            // It may still be on its way from the backward before.
            self.receive_bucket(state, index)?;
        }
        let bucket = &mut state.buckets[index];
        if matches!(bucket.memory, Memory::None) && !state.complete[parameter] {
            bucket.memory = self.new_memory(index);
        }
        let is_sent = matches!(state.phase, Phase::Sending { .. }) && index < state.next;
        let (Memory::Here(buffer), false) = (&mut bucket.memory, is_sent) else {
            return Err(BucketError::Late {
                path: spec.path.clone(),
            });
        };
        if !storage::put(buffer, &slot.elements, &gradient, arrival)? {
            return Err(BucketError::Mismatch {
                path: spec.path.clone(),
                expected_len: spec.num_elements(),
                expected: spec.dtype,
                found_len: gradient.num_elements(),
                found: format!("{:?}", gradient.dtype()),
            });
        }
        if last_use && matches!(state.phase, Phase::Sending { .. }) {
            self.complete(state, parameter)?;
        }
        Ok(())
    }

    fn receive_on_device(
        &self,
        state: &mut State,
        parameter: usize,
        gradient: Tensor<1>,
        last_use: bool,
    ) -> Result<(), BucketError> {
        let spec = &self.parameters[parameter];
        let (bucket, slot) = self.places[parameter];
        let sending = matches!(state.phase, Phase::Sending { .. });
        if sending && state.complete[parameter] {
            return Err(BucketError::Late {
                path: spec.path.clone(),
            });
        }
        let (len, dtype) = (gradient.shape().num_elements(), gradient.dtype());
        if len != spec.num_elements() || storage::gradient_dtype(dtype) != Some(spec.dtype) {
            return Err(BucketError::Mismatch {
                path: spec.path.clone(),
                expected_len: spec.num_elements(),
                expected: spec.dtype,
                found_len: len,
                found: format!("{dtype:?}"),
            });
        }
        if let Some(mark) = state.marks.get_mut(parameter) {
            *mark = 1;
        }
        state.buckets[bucket].parts.add(slot, gradient);
        if last_use && sending {
            self.complete(state, parameter)?;
        }
        Ok(())
    }

    /// Sends a full bucket from the device: as it is where it is reduced there, else through host
    /// memory. True if nothing is left to do.
    fn send_from_device(&self, state: &mut State, index: usize) -> Result<bool, BucketError> {
        let (Some(resident), Some(bucket)) = (&self.resident, state.buckets.get_mut(index)) else {
            return Ok(false);
        };
        let layout = &self.layouts[index];
        if self.keep == Gradients::Whole && self.group.size() == 1 {
            return Ok(true);
        }
        let flat = bucket.parts.take_flat(layout, &resident.device);
        if let Some(reduce) = &resident.reduce {
            bucket.memory = Memory::TravellingThere(reduce.start_mean(flat));
            return Ok(true);
        }
        if matches!(bucket.memory, Memory::None) {
            bucket.memory = self.new_memory(index);
        }
        let data = flat.try_into_data().map_err(|error| BucketError::Read {
            path: format!("bucket {index}"),
            reason: error.to_string(),
        })?;
        if let Memory::Here(buffer) = &mut state.buckets[index].memory {
            storage::fill(buffer, &layout.slots, &data)?;
        }
        for slot in &layout.slots {
            state.present[slot.parameter] = true;
        }
        Ok(false)
    }

    /// Nothing more is expected for a parameter: sends what is full and next in order.
    fn complete(&self, state: &mut State, parameter: usize) -> Result<(), BucketError> {
        let Some((index, _)) = self.place(parameter) else {
            return Ok(());
        };
        if mem::replace(&mut state.complete[parameter], true) {
            return Ok(());
        }
        state.buckets[index].missing -= 1;
        while let Some(bucket) = state.buckets.get_mut(state.next)
            && bucket.missing == 0
        {
            self.send(state, state.next)?;
            state.next += 1;
        }
        Ok(())
    }

    fn new_memory(&self, bucket: usize) -> Memory {
        self.layouts.get(bucket).map_or(Memory::Lost, |layout| {
            Memory::Here(Buffer::recycled(layout.dtype, layout.len))
        })
    }

    /// Sends a bucket; what is missing in it is zero.
    fn send(&self, state: &mut State, index: usize) -> Result<(), BucketError> {
        self.receive_bucket(state, index)?;
        if self.send_from_device(state, index)? {
            return Ok(());
        }
        let Some(bucket) = state.buckets.get_mut(index) else {
            return Ok(());
        };
        let mut buffer = match mem::replace(&mut bucket.memory, Memory::Lost) {
            Memory::Here(buffer) => buffer,
            Memory::None => match self.new_memory(index) {
                Memory::Here(buffer) => buffer,
                _ => return Ok(()),
            },
            other => {
                bucket.memory = other;
                return Ok(());
            }
        };
        for slot in &self.layouts[index].slots {
            if !state.present[slot.parameter] {
                storage::clear(&mut buffer, &slot.elements)?;
            }
        }
        bucket.memory = match self.keep {
            Gradients::Whole if self.group.size() == 1 => Memory::Here(buffer),
            Gradients::Whole => {
                Memory::Travelling(self.group.start_all_reduce(buffer, ReduceOp::Mean))
            }
            _ => {
                let buffer = buffer.cut(self.layouts[index].cuts.clone());
                Memory::Travelling(self.group.start_reduce_scatter(buffer, ReduceOp::Mean))
            }
        };
        if self.keep == Gradients::Sharded {
            // The next backward of the step begins with empty places.
            for slot in &self.layouts[index].slots {
                state.present[slot.parameter] = false;
            }
        }
        if self.keep == Gradients::Sharded || self.replicas.is_some() {
            for earlier in 0..(index + 1).saturating_sub(IN_FLIGHT) {
                self.receive_bucket(state, earlier)?;
            }
        }
        if self.keep == Gradients::Scattered {
            // Copies of shards that have yet to return.
            for earlier in 0..(index + 1).saturating_sub(2 * IN_FLIGHT) {
                self.receive_replica(state, earlier)?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while collecting is recorded by the hook; the state stays consistent enough to
        // report it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GradientSink for Reducer {
    fn used(&self, parameter: usize) {
        if let Some(uses) = self.uses.get(parameter) {
            uses.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn released(&self, parameter: usize) {
        if let Some(uses) = self.uses.get(parameter) {
            uses.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn is_collecting(&self) -> bool {
        matches!(
            self.lock().phase,
            Phase::Accumulating | Phase::Sending { .. }
        )
    }

    fn collect(&self, parameter: usize, gradient: Tensor<1>) {
        let last_use = self
            .uses
            .get(parameter)
            .is_some_and(|uses| uses.load(Ordering::Acquire) == 1);
        let mut state = self.lock();
        if !matches!(state.health, Health::Good) {
            return;
        }
        if let Err(error) = self.receive(&mut state, parameter, gradient, last_use) {
            state.health = Health::Failing(error);
        }
    }

    fn panicked(&self, parameter: usize, reason: &str) {
        let path = self
            .parameters
            .get(parameter)
            .map_or_else(String::new, |spec| spec.path.clone());
        let mut state = self.lock();
        if matches!(state.health, Health::Good) {
            state.health = Health::Failing(BucketError::Panicked {
                path,
                reason: reason.to_owned(),
            });
        }
    }
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Reducer({} parameters in {} buckets)",
            self.parameters.len(),
            self.layouts.len()
        )
    }
}

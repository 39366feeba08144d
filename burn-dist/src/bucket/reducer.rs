//! Collects gradients into buckets during backward and starts each bucket's all-reduce when it is
//! full.
//!
//! A bucket is full when none of its parameters has a use left in the graph. Buckets start in
//! their layout's order on every rank, whatever order the hooks fire in, because ranks must issue
//! collectives in the same order. What is still missing when backward ends (parameters without
//! a gradient, or with uses in a graph that this backward did not reach) counts as zero.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{Shape, Tensor, TensorData};

use super::error::BucketError;
use super::layout::{BucketLayout, BucketSizes, ParameterSpec, Slot, plan};
use super::storage::{self, Arrival};
use crate::autograd::GradientSink;
use crate::{Buffer, Handle, ProcessGroup, ReduceOp};

/// Gradients of one model on their way to the mean over all ranks.
pub(crate) struct Reducer {
    group: ProcessGroup,
    parameters: Vec<ParameterSpec>,
    layouts: Vec<BucketLayout>,
    /// Per parameter, its bucket and its slot there.
    places: Vec<(usize, usize)>,
    /// Per parameter, its uses in graphs that are alive.
    uses: Vec<AtomicUsize>,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    buckets: Vec<Bucket>,
    /// Per parameter, whether this step has put a gradient into its place.
    present: Vec<bool>,
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
    /// The last backward of the step runs; full buckets are sent.
    Sending,
    /// All buckets have been sent.
    Sent,
    /// All buckets hold the mean over ranks.
    Reduced,
}

struct Bucket {
    memory: Memory,
    /// Parameters that are not complete.
    missing: usize,
}

enum Memory {
    Here(Buffer),
    Travelling(Handle),
    Lost,
}

enum Health {
    Good,
    /// An error inside backward that has not been reported yet.
    Failing(BucketError),
    Failed(String),
}

impl Reducer {
    /// Allocates the buckets for `parameters`. A collective call: every rank makes it with the
    /// same arguments.
    pub(crate) fn new(
        group: &ProcessGroup,
        parameters: Vec<ParameterSpec>,
        sizes: BucketSizes,
    ) -> Result<Self, BucketError> {
        if let Some(parameter) = parameters.iter().find(|p| !p.dtype.is_float()) {
            return Err(BucketError::NotFloat {
                path: parameter.path.clone(),
                dtype: parameter.dtype,
            });
        }
        let layouts = plan(&parameters, sizes);
        let mut places = vec![(0, 0); parameters.len()];
        let mut buckets = Vec::with_capacity(layouts.len());
        for (bucket, layout) in layouts.iter().enumerate() {
            for (slot, Slot { parameter, .. }) in layout.slots.iter().enumerate() {
                places[*parameter] = (bucket, slot);
            }
            buckets.push(Bucket {
                memory: Memory::Here(group.bucket(layout.dtype, layout.len)?),
                missing: layout.slots.len(),
            });
        }
        Ok(Self {
            group: group.clone(),
            uses: parameters.iter().map(|_| AtomicUsize::new(0)).collect(),
            state: Mutex::new(State {
                phase: Phase::Waiting,
                buckets,
                present: vec![false; parameters.len()],
                complete: vec![false; parameters.len()],
                next: 0,
                health: Health::Good,
            }),
            parameters,
            layouts,
            places,
        })
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
            Phase::Accumulating | Phase::Sending => {
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
        if !last {
            state.phase = Phase::Accumulating;
            return Ok(());
        }
        state.phase = Phase::Sending;
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
        if state.phase == Phase::Sending {
            for parameter in 0..self.parameters.len() {
                self.complete(&mut state, parameter)?;
            }
            state.phase = Phase::Sent;
        } else {
            state.phase = Phase::Waiting;
        }
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
        for bucket in &mut state.buckets {
            let outcome = match mem::replace(&mut bucket.memory, Memory::Lost) {
                Memory::Travelling(handle) => handle.wait(),
                Memory::Here(buffer) => Ok(buffer),
                Memory::Lost => continue,
            };
            match outcome {
                Ok(buffer) => bucket.memory = Memory::Here(buffer),
                Err(error) => {
                    state.health = Health::Failed(error.to_string());
                    return Err(error.into());
                }
            }
        }
        state.phase = Phase::Reduced;
        Ok(())
    }

    /// Euclidean norm of all reduced gradients together; the same bits on every rank.
    pub(crate) fn norm(&self) -> Result<f64, BucketError> {
        let state = self.lock();
        let mut sum = 0.0;
        for (bucket, layout) in state.buckets.iter().zip(&self.layouts) {
            let Memory::Here(buffer) = &bucket.memory else {
                continue;
            };
            for slot in &layout.slots {
                sum += storage::sum_of_squares(buffer, &slot.elements)?;
            }
        }
        Ok(sum.sqrt())
    }

    /// The reduced gradient of a parameter times `factor`, or `None` if no rank had one.
    pub(crate) fn gradient(
        &self,
        parameter: usize,
        shape: &Shape,
        factor: Option<f64>,
    ) -> Result<Option<TensorData>, BucketError> {
        let state = self.lock();
        let Some((bucket, slot)) = self.place(parameter) else {
            return Ok(None);
        };
        let Memory::Here(buffer) = &state.buckets[bucket].memory else {
            return Ok(None);
        };
        if !storage::is_marked(buffer, slot.mark)? {
            return Ok(None);
        }
        Ok(storage::read(buffer, &slot.elements, shape, factor)?)
    }

    /// The gradients have been used: the next backward begins a new step.
    pub(crate) fn reset(&self) {
        let mut state = self.lock();
        state.phase = Phase::Waiting;
        state.present.fill(false);
    }

    /// Number of buckets that the running backward has sent.
    #[cfg(test)]
    pub(super) fn sent(&self) -> usize {
        self.lock().next
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
                if self.group.size() > 1 {
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
        let Memory::Here(buffer) = &mut state.buckets[index].memory else {
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
        if last_use && state.phase == Phase::Sending {
            self.complete(state, parameter)?;
        }
        Ok(())
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
            let layout = &self.layouts[state.next];
            if let Memory::Here(mut buffer) = mem::replace(&mut bucket.memory, Memory::Lost) {
                for slot in &layout.slots {
                    let present = state.present[slot.parameter];
                    if !present {
                        storage::clear(&mut buffer, &slot.elements)?;
                    }
                    storage::set_mark(&mut buffer, slot.mark, present)?;
                }
                bucket.memory = if self.group.size() > 1 {
                    Memory::Travelling(self.group.start_all_reduce(buffer, ReduceOp::Mean))
                } else {
                    Memory::Here(buffer)
                };
            }
            state.next += 1;
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
        matches!(self.lock().phase, Phase::Accumulating | Phase::Sending)
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

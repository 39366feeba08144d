//! Collects gradients into buckets during backward and starts each bucket's reduction when it is
//! full: an all-reduce, or a reduce-scatter where every rank needs its own shard alone. Where several
//! groups of ranks have a set of shards each, a shard that has arrived goes on its way again in the
//! last backward of a step, to the mean over the ranks that have the same.
//!
//! A bucket is full when none of its parameters has a use left in the graph. Buckets start in
//! their layout's order on every rank, whatever order the hooks fire in, because ranks must issue
//! collectives in the same order. What is still missing when backward ends (parameters without
//! a gradient, or with uses in a graph that this backward did not reach) counts as zero.
//!
//! `phases` follows the calls of a step and `collect` those of the hooks, `send` and `replicas` have
//! what is on its way, `reduced` is for the optimizer, and `change` for who changes gradients before it.
//! `on_device` has all of it for gradients that stay on a device.

mod change;
mod collect;
mod on_device;
mod phases;
mod reduced;
mod replicas;
mod send;
mod state;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::error::BucketError;
use super::layout::{BucketLayout, BucketSizes, Owners, ParameterSpec, Slot, owned, plan};
use super::resident::Resident;
use super::storage::Arrival;
use crate::collective::number_of;
use crate::{Buffer, Compression, DType, ProcessGroup};
use state::{Bucket, Health, Memory, Phase, Shard, State, There};

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
    compression: Compression,
    /// Which of the models in the group, from 1; 0 if nobody counts.
    model: u32,
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
        let mut reducer = Self::without_memory(group, parameters, whole, sizes, keep)?;
        let state = reducer.state.get_mut();
        let state = state.unwrap_or_else(PoisonError::into_inner);
        for (bucket, layout) in state.buckets.iter_mut().zip(&reducer.layouts) {
            bucket.memory = match keep {
                Gradients::Whole => Memory::Here(group.bucket(layout.dtype, layout.len)?),
                // Memory that all ranks have mapped would count as often as there are ranks.
                Gradients::Scattered => Memory::Here(Buffer::zeroed(layout.dtype, layout.len)),
                Gradients::Sharded => Memory::None,
            };
            let own = layout.shard(group.size(), group.rank()).len();
            bucket.shard = (keep == Gradients::Sharded).then(|| Shard {
                buffer: Buffer::zeroed(layout.dtype, own),
                arrival: Arrival::First,
            });
        }
        Ok(reducer)
    }

    /// The same without buckets in host memory, to be put [on a device](Self::on_device).
    pub(crate) fn without_memory(
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
            buckets.push(Bucket {
                memory: Memory::None,
                missing: layout.slots.len(),
                shard: None,
                replicating: None,
                there: There::default(),
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
            compression: Compression::None,
            model: 0,
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

    /// There may be other models in the group, of which this has a number, from 1.
    pub(crate) fn of_model(mut self, model: u32) -> Self {
        self.model = model;
        self
    }

    /// By which ranks that bring another bucket, or one of another model, are told apart.
    pub(crate) fn number(&self, bucket: usize) -> u32 {
        number_of(self.model, bucket)
    }

    /// Gradients travel in another number format.
    pub(crate) fn compressed(mut self, compression: Compression) -> Self {
        self.compression = compression;
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let none = || Buffer::zeroed(DType::F32, 0);
        for bucket in &mut state.buckets {
            if let Memory::Here(buffer) = &mut bucket.memory {
                *buffer = std::mem::replace(buffer, none()).compress(compression);
            }
            if let Some(own) = &mut bucket.shard {
                own.buffer = std::mem::replace(&mut own.buffer, none()).compress(compression);
            }
        }
        self
    }

    /// Gradients are on a device whose memory the processor does not share: collects and reduces them
    /// there. For a reducer [without memory](Self::without_memory).
    pub(crate) fn on_device(mut self, resident: Resident) -> Self {
        self.resident = Some(resident);
        self
    }

    /// The device on which gradients stay, if it is not the processor.
    pub(crate) fn resident(&self) -> Option<&Resident> {
        self.resident.as_ref()
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

    /// The bucket of a parameter, and its elements there.
    pub(crate) fn place_of(&self, parameter: usize) -> Option<(usize, Range<usize>)> {
        let (bucket, slot) = self.place(parameter)?;
        Some((bucket, slot.elements.clone()))
    }

    fn place(&self, parameter: usize) -> Option<(usize, &Slot)> {
        let (bucket, slot) = *self.places.get(parameter)?;
        Some((bucket, self.layouts.get(bucket)?.slots.get(slot)?))
    }

    /// The elements of a bucket that this rank owns.
    fn shard_of(&self, bucket: usize) -> Range<usize> {
        let shard = |layout: &BucketLayout| layout.shard(self.group.size(), self.group.rank());
        self.layouts.get(bucket).map_or(0..0, shard)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while collecting is recorded by the hook; the state stays consistent enough to
        // report it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        let travels = |b: &&Bucket| b.replicating.is_some() || b.there.replicating.is_some();
        state.buckets.iter().filter(travels).count()
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

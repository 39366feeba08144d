//! Ranks that exchange device memory. Every call is checked, told to the other ranks, and passed to
//! the device's thread ([`Lane`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use super::NcclError;
use super::call::Inside;
use super::lane::{Job, Lane, Task};
use crate::backend::cuda::nccl::{Nccl, UniqueId};
use crate::collective::{Descriptor, Kind};
use crate::error::{CollectiveError, Error};
use crate::{Buffer, Cuts, DType, Handle, ProcessGroup, ReduceOp, shard};

/// Time between two checks whether the thread will return at all.
const LOOK: Duration = Duration::from_millis(50);

/// Words of an announcement.
pub(super) const WORD: usize = Descriptor::BYTES / size_of::<u64>();

/// A group of ranks that exchange device memory.
pub(crate) struct Communicator<N: Nccl> {
    lane: Arc<Lane<N>>,
    /// Number on the lane.
    number: usize,
    group: ProcessGroup,
    sequence: AtomicU64,
}

/// A collective call.
#[derive(Clone, Debug)]
pub(crate) struct DeviceCall {
    pub kind: Kind,
    /// `None` without a reduction.
    pub op: Option<ReduceOp>,
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
    /// Root; 0 without one.
    pub root: usize,
    /// Number of the bucket, from 1; 0 if none is needed.
    pub bucket: u32,
    /// Borders of the ranks' shards.
    pub cuts: Cuts,
}

/// A started collective.
pub(crate) struct Started<M> {
    answer: Receiver<Result<M, Error>>,
    group: ProcessGroup,
    inside: Arc<Inside>,
}

impl<M> Started<M> {
    /// Waits until the collective is done and returns the memory.
    pub fn wait(self) -> Result<M, Error> {
        answer_of(&self.answer, || self.inside.check(&self.group))?
    }
}

/// The thread's answer, unless `look` finds that it is in a call that will not return.
fn answer_of<T>(
    answer: &Receiver<T>,
    look: impl Fn() -> Result<(), NcclError>,
) -> Result<T, NcclError> {
    loop {
        match answer.recv_timeout(LOOK) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(NcclError::NoProgress),
            Err(RecvTimeoutError::Timeout) => look()?,
        }
    }
}

impl<N: Nccl> Communicator<N> {
    /// Connects all ranks of `group` on the thread of their device. A collective call; no other
    /// thread may use the group meanwhile.
    pub fn connect(lane: &Arc<Lane<N>>, group: &ProcessGroup) -> Result<Self, Error> {
        let id = exchange_id(&*lane.nccl, group)?;
        let (report, connected) = sync_channel(1);
        let number = lane.number();
        lane.have_done(Task::Connect(number, group.clone(), id, report));
        // A hanging thread cannot be called back; the process ends with this error.
        let outcome = answer_of(&connected, || lane.inside.check(group));
        drop(connected);
        if let Err(error) = outcome.and_then(|connected| connected) {
            group.abort(&error.to_string());
            return Err(error.into());
        }
        Ok(Self {
            lane: lane.clone(),
            number,
            group: group.clone(),
            sequence: AtomicU64::new(0),
        })
    }

    /// The group in host memory.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Starts a collective on the elements in `memory`. Every rank makes the same call, on the
    /// thread that also calls the host group's collectives.
    pub fn start(&self, call: DeviceCall, memory: N::Memory) -> Started<N::Memory> {
        let (answer, receiver) = sync_channel(1);
        let started = Started {
            answer: receiver,
            group: self.group.clone(),
            inside: self.lane.inside.clone(),
        };
        if let Some(error) = refuse(&call, self.group.size()) {
            let _ = answer.send(Err(error.into()));
            return started;
        }
        let DeviceCall {
            kind,
            op,
            dtype,
            len,
            root,
            bucket,
            cuts,
        } = call;
        let what = Descriptor {
            sequence: self.sequence.fetch_add(1, Ordering::AcqRel) + 1,
            kind,
            dtype,
            op,
            wire: None,
            root: u16::try_from(root).unwrap_or(u16::MAX),
            virtual_ranks: 0,
            len: len as u64,
            bucket,
            cuts: match kind.has_shards() {
                true => cuts.digest(),
                false => 0,
            },
        };
        let job = Job {
            called: tell(&self.group, &what),
            what,
            cuts,
            memory,
            answer,
        };
        self.lane.have_done(Task::Run(self.number, job));
        started
    }
}

impl<N: Nccl> Drop for Communicator<N> {
    fn drop(&mut self) {
        let (done, closed) = sync_channel(1);
        self.lane.have_done(Task::Close(self.number, done));
        // A thread that hangs is not waited for.
        let _ = answer_of(&closed, || self.lane.inside.look(&self.group));
    }
}

/// Errors in the call that need no other rank.
fn refuse(call: &DeviceCall, size: usize) -> Option<CollectiveError> {
    let DeviceCall {
        dtype, len, root, ..
    } = *call;
    let mean = call.op == Some(ReduceOp::Mean);
    if mean && !matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16) {
        return Some(CollectiveError::MeanOfIntegers { dtype });
    }
    if call.kind.has_shards() && !call.cuts.fit(len, size) {
        return Some(CollectiveError::Cuts { len, size });
    }
    (root >= size).then_some(CollectiveError::NoSuchRoot { root, size })
}

/// Sends all ranks the id that rank 0 creates, or its error.
fn exchange_id<N: Nccl>(nccl: &N, group: &ProcessGroup) -> Result<UniqueId, Error> {
    let mut own = None;
    let mut message = [0u8; 129];
    if group.rank() == 0 {
        let id = nccl.unique_id();
        if let Ok(id) = &id {
            message[0] = 1;
            message[1..].copy_from_slice(id);
        }
        own = id.err();
    }
    group.broadcast(&mut message, 0)?;
    if let Some(error) = own {
        return Err(error.into());
    }
    let [good, id @ ..] = message;
    if good == 0 {
        let reason = "rank 0 could not create an NCCL id".to_owned();
        return Err(NcclError::PeerFailed { reason }.into());
    }
    Ok(id)
}

/// Starts telling all ranks which collective this one calls.
fn tell(group: &ProcessGroup, what: &Descriptor) -> Handle {
    let (size, rank) = (group.size(), group.rank());
    let mut words = vec![0i64; size * WORD];
    for (place, word) in words[shard(size * WORD, size, rank)]
        .iter_mut()
        .zip(what.encode())
    {
        *place = word.cast_signed();
    }
    group.start_all_gather(Buffer::from_slice(&words))
}

//! One thread that carries collectives out, one after the other, and watches over them.
//!
//! The caller says at once, through the host group, what it calls: the thread compares that between
//! all ranks before NCCL sees it. NCCL itself would hang or add up wrong numbers where ranks
//! disagree. That exchange also tells who does not come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::NcclError;
use super::api::{Nccl, UniqueId};
use super::call::Inside;
use crate::collective::{Descriptor, Kind};
use crate::error::{CollectiveError, Error};
use crate::{Buffer, Cuts, DType, Handle, ProcessGroup, ReduceOp, shard};

/// How long the thread asks without a pause whether a collective is done.
const EAGER: Duration = Duration::from_micros(200);

/// How long it sleeps in between, later.
const PAUSE: Duration = Duration::from_micros(50);

/// How often whoever waits for the thread looks whether it is to come back at all.
const LOOK: Duration = Duration::from_millis(50);

/// How often, at the end.
const END: Duration = Duration::from_millis(1);

/// Words of what a rank says that it calls.
const WORD: usize = Descriptor::BYTES / size_of::<u64>();

/// Ranks that exchange device memory.
pub(crate) struct Communicator<N: Nccl> {
    group: ProcessGroup,
    sequence: AtomicU64,
    jobs: Option<Sender<Job<N>>>,
    thread: Option<thread::JoinHandle<()>>,
    inside: Arc<Inside>,
}

struct Job<N: Nccl> {
    what: Descriptor,
    cuts: Cuts,
    /// What all ranks call.
    called: Handle,
    memory: N::Memory,
    answer: SyncSender<Result<N::Memory, Error>>,
}

/// What a rank asks for.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub kind: Kind,
    /// `None` where nothing is reduced.
    pub op: Option<ReduceOp>,
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
    /// From where; 0 where there is no root.
    pub root: usize,
    /// Which of several alike it is, from 1; 0 where they need not be told apart.
    pub bucket: u32,
    /// Where the elements are cut into the ranks' shards.
    pub cuts: Cuts,
}

/// A collective that was started.
pub(crate) struct Started<M> {
    answer: Receiver<Result<M, Error>>,
    group: ProcessGroup,
    inside: Arc<Inside>,
}

impl<M> Started<M> {
    /// Waits until the collective is done, and gives the memory back.
    pub fn wait(self) -> Result<M, Error> {
        loop {
            match self.answer.recv_timeout(LOOK) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Disconnected) => return Err(NcclError::NoProgress.into()),
                Err(RecvTimeoutError::Timeout) => self.inside.check(&self.group)?,
            }
        }
    }
}

impl<N: Nccl> Communicator<N> {
    /// Connects all ranks of `group`. A collective call; no other thread may use the group meanwhile.
    pub fn connect(nccl: N, group: &ProcessGroup) -> Result<Self, Error> {
        let id = exchange_id(&nccl, group)?;
        let (jobs, receiver) = channel();
        let (connected, report) = sync_channel(1);
        let own = group.clone();
        let inside = Arc::new(Inside::default());
        let seen = inside.clone();
        let thread = thread::Builder::new()
            .name(format!("nccl-{}", group.rank()))
            .spawn(move || serve(&nccl, (&own, &seen), &id, &connected, &receiver))
            .map_err(|error| NcclError::Call {
                call: "thread",
                code: error.raw_os_error().unwrap_or_default(),
                reason: error.to_string(),
            })?;
        // A thread that is still in there cannot be called back; the process ends with this error.
        let outcome = loop {
            match report.recv_timeout(LOOK) {
                Ok(outcome) => break outcome,
                Err(RecvTimeoutError::Disconnected) => break Err(NcclError::NoProgress),
                Err(RecvTimeoutError::Timeout) => match inside.check(group) {
                    Ok(()) => {}
                    Err(error) => break Err(error),
                },
            }
        };
        if let Err(error) = outcome {
            group.abort(&error.to_string());
            return Err(error.into());
        }
        Ok(Self {
            group: group.clone(),
            sequence: AtomicU64::new(0),
            jobs: Some(jobs),
            thread: Some(thread),
            inside,
        })
    }

    /// The ranks, in host memory.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Starts a collective on the elements in `memory`. Every rank calls the same on the thread that
    /// also calls the host group's collectives.
    pub fn start(&self, call: Call, memory: N::Memory) -> Started<N::Memory> {
        let (answer, receiver) = sync_channel(1);
        let started = Started {
            answer: receiver,
            group: self.group.clone(),
            inside: self.inside.clone(),
        };
        if let Some(error) = refuse(&call, self.group.size()) {
            let _ = answer.send(Err(error.into()));
            return started;
        }
        let Call {
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
        if let Some(jobs) = &self.jobs {
            // If the thread is gone, the answer's end goes with the job and says so.
            let _ = jobs.send(job);
        }
        started
    }
}

impl<N: Nccl> Drop for Communicator<N> {
    fn drop(&mut self) {
        self.jobs = None;
        let Some(thread) = self.thread.take() else {
            return;
        };
        while !thread.is_finished() {
            if self.inside.check(&self.group).is_err() {
                return; // What does not come back cannot be waited for.
            }
            thread::sleep(END);
        }
        let _ = thread.join();
    }
}

impl<N: Nccl> std::fmt::Debug for Communicator<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, size) = (self.group.rank(), self.group.size());
        write!(f, "Communicator(rank {rank} of {size})")
    }
}

/// What can be known to be wrong without the others.
fn refuse(call: &Call, size: usize) -> Option<CollectiveError> {
    let Call {
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

/// Gives all ranks the id that rank 0 makes, or its error.
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
        let reason = "rank 0 could not make an id for the communicator".to_owned();
        return Err(NcclError::PeerFailed { reason }.into());
    }
    Ok(id)
}

/// Starts telling all ranks what this one calls.
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

/// Whether all ranks call the same; `ranks` has their numbers in the world, `rank` is this one's in the group.
fn compare(
    called: &Buffer,
    what: &Descriptor,
    (rank, ranks): (usize, &[usize]),
) -> Result<(), Error> {
    let words = called.as_slice::<i64>()?;
    for (peer, words) in ranks.iter().zip(words.chunks_exact(WORD)) {
        let mut theirs = [0; WORD];
        for (word, raw) in theirs.iter_mut().zip(words) {
            *word = raw.cast_unsigned();
        }
        let theirs = Descriptor::decode(theirs);
        if theirs.as_ref() != Some(what) {
            return Err(CollectiveError::Mismatch {
                rank: ranks.get(rank).copied().unwrap_or(rank),
                mine: *what,
                peer: *peer,
                theirs,
            }
            .into());
        }
    }
    Ok(())
}

/// The life of the thread.
fn serve<N: Nccl>(
    nccl: &N,
    (group, inside): (&ProcessGroup, &Inside),
    id: &UniqueId,
    connected: &SyncSender<Result<(), NcclError>>,
    jobs: &Receiver<Job<N>>,
) {
    let met = inside.during(group.patience().limit(), || {
        nccl.connect(id, group.size(), group.rank())
    });
    let mut communicator = match met {
        Ok(communicator) => {
            let _ = connected.send(Ok(()));
            Some(communicator)
        }
        Err(error) => {
            let _ = connected.send(Err(error));
            None
        }
    };
    let mut first_error = None;
    while let Ok(job) = jobs.recv() {
        let Job {
            what,
            cuts,
            called,
            memory,
            answer,
        } = job;
        let Some(active) = communicator.as_mut() else {
            let first: Option<&String> = first_error.as_ref();
            let first = first.cloned().unwrap_or_default();
            let _ = answer.send(Err(CollectiveError::Unusable { first }.into()));
            continue;
        };
        let done = carry_out(
            nccl,
            active,
            (group, inside),
            (&what, &cuts),
            called,
            memory,
        );
        if let Err(error) = &done {
            if let Some(communicator) = communicator.take() {
                nccl.abort(communicator);
            }
            first_error = Some(error.to_string());
            group.abort(&error.to_string());
        }
        let _ = answer.send(done);
    }
    if let Some(communicator) = communicator {
        nccl.close(communicator);
    }
}

fn carry_out<N: Nccl>(
    nccl: &N,
    communicator: &mut N::Communicator,
    (group, inside): (&ProcessGroup, &Inside),
    (what, cuts): (&Descriptor, &Cuts),
    called: Handle,
    mut memory: N::Memory,
) -> Result<N::Memory, Error> {
    compare(&called.wait()?, what, (group.rank(), group.world_ranks()))?;
    nccl.make_ready(&mut memory)?;
    if what.kind == Kind::Barrier || what.len == 0 {
        return Ok(memory);
    }
    let limit = group.patience().limit();
    // Where ranks have not exchanged anything in this way yet, NCCL connects them first, and waits for those that do
    // not come.
    inside.during(limit, || {
        nccl.enqueue(communicator, what, cuts, &mut memory)
    })?;
    let begin = Instant::now();
    loop {
        if nccl.is_done(communicator)? {
            group.patience().note(what);
            return Ok(memory);
        }
        let waited = begin.elapsed();
        if waited < EAGER {
            thread::yield_now();
            continue;
        }
        nccl.asynchronous_error(communicator)?;
        if let Some(reason) = group.fault() {
            return Err(NcclError::PeerFailed { reason }.into());
        }
        if waited > limit {
            return Err(NcclError::TimedOut {
                seconds: limit.as_secs(),
            }
            .into());
        }
        thread::sleep(PAUSE);
    }
}

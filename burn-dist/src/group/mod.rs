//! The ranks that communicate: the public handle on everything above.
//!
//! Every collective runs in the order in which it was called. Asynchronous ones run on one
//! progress thread, so that the caller goes on computing; blocking ones run on the caller's thread,
//! after those that it has started, and cost no hand-over.

mod busy;
mod connect;
mod engine;
mod handle;
mod locality;
mod members;
mod patience;
mod processors;
mod program;
mod queue;
mod recorder;
mod split;
mod threads;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use busy::Busy;
pub use handle::Handle;
pub(crate) use patience::Patience;

use crate::backend::mpi;
use crate::buffer::Buffer;
use crate::collective::Kind;
use crate::element::{DType, Element, ReduceOp};
use crate::error::Error;
use crate::rendezvous::Store;
use crate::shard;
use crate::watchdog;
pub use crate::watchdog::Abort;
use crate::world::World;
use engine::{Call, Target};
use queue::Queue;

/// Which transport a group uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportKind {
    /// Shared memory within a host; between hosts MPI where it started the ranks, else TCP. Where
    /// hosts have one rank each or not all as many, or ranks of one host do not follow each other,
    /// all ranks are one ring over MPI or TCP.
    #[default]
    Auto,
    /// Shared memory; an error when the ranks are not on one host.
    Shm,
    /// TCP, also within a host.
    Tcp,
    /// MPI's messages; only in a world that MPI started (feature `mpi`).
    Mpi,
}

impl TransportKind {
    /// Whether this program is built with it.
    pub fn is_built(self) -> bool {
        self != Self::Mpi || mpi::BUILT
    }

    /// All of them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Shm, Self::Tcp, Self::Mpi];

    /// The name used in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Mpi => "mpi",
        }
    }
}

impl std::str::FromStr for TransportKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|known| known.name() == name);
        let known = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("there is no transport {name:?}: use one of {}", known()))
    }
}

/// Who computes what a collective computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Ours: direct reduction where ranks share memory, elsewhere rings, and few rounds for small
    /// messages. Sums have the same bits wherever the ranks are.
    #[default]
    Auto,
    /// Ours, but over several hosts those of each host are added up first, with
    /// [`TransportKind::Auto`]. The least goes over the network, of two hosts with many ranks half
    /// as much as on one ring, but sums differ from those of other arrangements of the ranks in
    /// their last bits. Any arrangement will do that has as many ranks on each host.
    NodeFirst,
    /// MPI's own collectives; only in a world that MPI started (feature `mpi`).
    Mpi,
}

impl Algorithm {
    /// Whether this program is built with it.
    pub fn is_built(self) -> bool {
        self != Self::Mpi || mpi::BUILT
    }

    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::NodeFirst, Self::Mpi];

    /// The name used in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::NodeFirst => "node-first",
            Self::Mpi => "mpi",
        }
    }
}

/// How a group is connected and how long it is patient.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Which transport.
    pub transport: TransportKind,
    /// Which algorithms.
    pub algorithm: Algorithm,
    /// Takes ranks for such of one host only in blocks of so many, by their number in the world,
    /// and not those that are on different hosts: to try on one host what is done over several. The
    /// same on all ranks.
    pub ranks_per_node: Option<NonZeroUsize>,
    /// Whether ranks that run different executables are refused.
    pub same_program: bool,
    /// How long the ranks may take to find each other.
    pub connect_timeout: Duration,
    /// How long a collective may take until the first floating-point numbers have been reduced,
    /// which are gradients as a rule: some ranks load data, or compile kernels. At least as long as
    /// `timeout`.
    pub first_timeout: Duration,
    /// How long every later collective may take. Ranks that are [busy](ProcessGroup::busy) with
    /// files are waited for up to `first_timeout` more.
    pub timeout: Duration,
    /// What ends this process when its run has failed and it goes on nevertheless: in a kernel, a
    /// read or a write that does not come back. By default nothing does: a library does not end its
    /// program unasked.
    ///
    /// The process ends by `_exit`, without destructors, some time after the first failure of any
    /// rank, whatever it does, also after its last handle on the group. Only a process that has
    /// left the group before is spared.
    pub abort: Option<Abort>,
    /// Is called once this rank has reached the store, while it connects: a process that something
    /// ends meanwhile tells the others why by [`Connecting::abort`].
    pub connecting: Option<fn(Connecting)>,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            transport: TransportKind::Auto,
            algorithm: Algorithm::Auto,
            ranks_per_node: None,
            same_program: true,
            connect_timeout: Duration::from_secs(120),
            first_timeout: Duration::from_secs(600),
            timeout: Duration::from_secs(300),
            abort: None,
            connecting: None,
        }
    }
}

/// A rank that connects to the others, for [`GroupOptions::connecting`].
#[derive(Clone, Debug)]
pub struct Connecting {
    store: Weak<Store>,
}

impl Connecting {
    /// Tells all other ranks why this one stops. Does nothing when this rank has left.
    pub fn abort(&self, reason: &str) {
        if let Some(store) = self.store.upgrade() {
            store.abort(reason);
        }
    }
}

/// The ranks of a run, or [some](ProcessGroup::split) of them, connected. Clones are handles on the
/// same group.
///
/// With the last handle, those in [`Parallel`](crate::parallel::Parallel) among them, this rank
/// leaves the run, and a collective that others still call fails at once. Where rank 0 hosts the
/// store (with all launchers but the local one), dropping its last handle waits for the other ranks
/// to leave, as long as [`connect_timeout`](GroupOptions::connect_timeout) at most; then groups of
/// other ranks end, too.
///
/// A process is in one group of its `World` at a time: [`split`](ProcessGroup::split) it for more.
/// Under [`LocalLauncher`](crate::launch::LocalLauncher) and `torchrun` it may connect again when
/// all ranks have left.
#[derive(Clone)]
pub struct ProcessGroup {
    queue: Arc<Queue>,
}

impl ProcessGroup {
    /// A group of one, in which every collective is done at once.
    pub fn single() -> Self {
        Self {
            queue: Queue::new(engine::Engine::single()),
        }
    }

    /// Connects `size` ranks that are all in this process, each to be used by a thread of its own:
    /// for tests and for trying things out. They use the real transports. Move each into its
    /// thread: a handle that is left outside keeps its rank in the run when the thread has ended,
    /// and the others wait for it.
    ///
    /// # Errors
    /// When the ranks cannot be connected.
    pub fn in_process(size: usize, options: &GroupOptions) -> Result<Vec<Self>, Error> {
        threads::connect_all(size, options)
    }

    /// Connects the ranks of `world` with default options. All ranks call it.
    ///
    /// # Errors
    /// When the ranks do not find each other in time, or cannot be connected.
    pub fn connect(world: &World) -> Result<Self, Error> {
        Self::connect_with(world, GroupOptions::default())
    }

    /// Connects the ranks of `world`. All ranks call it, with the same transport.
    ///
    /// # Errors
    /// When the ranks do not find each other in time, or cannot be connected.
    pub fn connect_with(world: &World, options: GroupOptions) -> Result<Self, Error> {
        if world.size() == 1 {
            return Ok(Self::single());
        }
        let abort = options.abort;
        if abort.is_some() {
            watchdog::start().map_err(Error::Watchdog)?;
        }
        let engine = connect::connect(world, options)?;
        if let Some(abort) = abort {
            engine.poison().put_on_leash(abort);
        }
        Ok(Self {
            queue: Queue::new(engine),
        })
    }

    /// Divides the ranks of this group: those that name the same `colour` become a group of their
    /// own, ordered by `key` and, where that is the same, by their rank here. All ranks call it.
    ///
    /// The new group has this one's options: with [`TransportKind::Auto`] ranks of one host share
    /// memory, whatever this group uses. It has a progress thread and an order of collectives of
    /// its own; ranks that wait for each other in several groups have to use them in the same
    /// order, and a rank divides one group at a time. What breaks one group breaks all groups of
    /// all ranks, so that nobody waits in vain. Messages and [`world_ranks`](Self::world_ranks)
    /// name ranks by their number in the world.
    ///
    /// # Errors
    /// When the ranks cannot be connected; this group is unusable then, too.
    pub fn split(&self, colour: u64, key: u64) -> Result<Self, Error> {
        let engine = self
            .queue
            .inline(|engine| split::split(engine, colour, key))?;
        Ok(Self {
            queue: Queue::new(engine),
        })
    }

    /// The rank in the world of every rank of this group.
    pub fn world_ranks(&self) -> &[usize] {
        self.queue.members().ranks()
    }

    /// This process's rank in this group.
    pub fn rank(&self) -> usize {
        self.queue.place().rank
    }

    /// Number of ranks: of all of them, or of those that [`split`](Self::split) put here.
    pub fn size(&self) -> usize {
        self.queue.place().size
    }

    /// The node that this rank is on: nodes are numbered in the order of their first ranks.
    pub fn node(&self) -> usize {
        self.queue.place().node
    }

    /// Number of nodes: hosts, or separate containers on one host.
    pub fn nodes(&self) -> usize {
        self.queue.place().nodes
    }

    /// Name of the transport in use: `"shm+tcp"` and `"shm+mpi"` where there is one within nodes
    /// and another between them, `"none"` for a group of one.
    pub fn transport(&self) -> &'static str {
        self.queue.place().transport
    }

    /// Makes the memory that collectives like best: a bucket that all ranks have mapped where the
    /// transport can share memory, plain memory elsewhere. Zeroed. All ranks call it.
    ///
    /// # Errors
    /// When a rank has no memory for it.
    pub fn bucket(&self, dtype: DType, len: usize) -> Result<Buffer, Error> {
        self.queue.inline(|engine| engine.bucket(dtype, len))
    }

    /// The number of the next model that is trained in this group. Every rank calls it for the same
    /// models.
    pub(crate) fn next_model(&self) -> u32 {
        self.queue.next_model()
    }

    /// Starts reducing `buffer` over all ranks.
    pub fn start_all_reduce(&self, buffer: Buffer, op: ReduceOp) -> Handle {
        self.queue.start(
            Call {
                kind: Kind::AllReduce,
                op: Some(op),
                root: 0,
            },
            buffer,
        )
    }

    /// Starts reducing `buffer` over all ranks so that this rank's [`shard`] of it is right, or the
    /// one that [`Buffer::cut`] says; the rest is undefined.
    pub fn start_reduce_scatter(&self, buffer: Buffer, op: ReduceOp) -> Handle {
        self.queue.start(
            Call {
                kind: Kind::ReduceScatter,
                op: Some(op),
                root: 0,
            },
            buffer,
        )
    }

    /// Starts filling `buffer` with every rank's [`shard`] of it, or the one that [`Buffer::cut`]
    /// says.
    pub fn start_all_gather(&self, buffer: Buffer) -> Handle {
        self.queue.start(
            Call {
                kind: Kind::AllGather,
                op: None,
                root: 0,
            },
            buffer,
        )
    }

    /// Starts copying `buffer` from rank `root` to all ranks.
    pub fn start_broadcast(&self, buffer: Buffer, root: usize) -> Handle {
        self.queue.start(
            Call {
                kind: Kind::Broadcast,
                op: None,
                root,
            },
            buffer,
        )
    }

    /// Starts a barrier: it is done when all ranks have started it.
    pub fn start_barrier(&self) -> Handle {
        let call = Call {
            kind: Kind::Barrier,
            op: None,
            root: 0,
        };
        self.queue.start(call, Buffer::zeroed(DType::U8, 0))
    }

    /// Reduces `buffer` over all ranks on this thread: the quickest way when there is nothing to
    /// compute meanwhile.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn all_reduce_buffer(&self, buffer: &mut Buffer, op: ReduceOp) -> Result<(), Error> {
        let call = Call {
            kind: Kind::AllReduce,
            op: Some(op),
            root: 0,
        };
        self.queue
            .inline(|engine| engine.run(call, Target::Buffer(buffer)))
    }

    /// Reduces `data` over all ranks, in place.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.blocking(
            Call {
                kind: Kind::AllReduce,
                op: Some(op),
                root: 0,
            },
            data,
        )
    }

    /// Reduces `data` over all ranks and gives the range that is right here: this rank's
    /// [`shard`]. The rest is undefined.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn reduce_scatter<T: Element>(
        &self,
        data: &mut [T],
        op: ReduceOp,
    ) -> Result<Range<usize>, Error> {
        self.blocking(
            Call {
                kind: Kind::ReduceScatter,
                op: Some(op),
                root: 0,
            },
            data,
        )?;
        Ok(shard(data.len(), self.size(), self.rank()))
    }

    /// Fills `data` with every rank's [`shard`] of it.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn all_gather<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        self.blocking(
            Call {
                kind: Kind::AllGather,
                op: None,
                root: 0,
            },
            data,
        )
    }

    /// Copies `data` from rank `root` to all ranks. That may be done on some, the root too, before
    /// others have come.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.blocking(
            Call {
                kind: Kind::Broadcast,
                op: None,
                root,
            },
            data,
        )
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn barrier(&self) -> Result<(), Error> {
        self.blocking::<u8>(
            Call {
                kind: Kind::Barrier,
                op: None,
                root: 0,
            },
            &mut [],
        )
    }

    /// [`barrier`](Self::barrier), for which the others may be as late as `limit`, whatever the
    /// group's time-out: where one rank has something to do for all. A rank that fails is noticed
    /// at once even so, and one that is stopped within the group's time-out and some seconds.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn barrier_within(&self, limit: Duration) -> Result<(), Error> {
        let call = Call {
            kind: Kind::Barrier,
            op: None,
            root: 0,
        };
        self.queue
            .inline(|engine| engine.run_within(limit, call, Target::Slice(DType::U8, &mut [])))
    }

    /// Every rank's `payload`, of whatever length, in rank order: for small things such as digests
    /// and names, of all ranks together at most [`MOST_GATHERED`](crate::collective::MOST_GATHERED)
    /// bytes.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn gather_bytes(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.queue.inline(|engine| engine.gather_bytes(payload))
    }

    /// Tells all other ranks why this one stops, so that they stop too and can say whose fault it
    /// was. The group is unusable afterwards.
    pub fn abort(&self, reason: &str) {
        self.queue.abort(reason);
    }

    /// From now on, when a collective fails here, what the flight recorder has of the last ones is
    /// written to `flight-recorder-rank-N.txt` in `folder`, which should exist; N is this process's
    /// rank in the world. Without a folder, or where the file cannot be written, it goes to the
    /// log. For all groups that this rank [split](Self::split) from the same one, whenever it did,
    /// under names of their own.
    pub fn keep_flight_recorder_in(&self, folder: impl Into<PathBuf>) {
        self.queue.poison().keep_flight_recorder_in(folder.into());
    }

    /// For work with files that the other ranks wait for longer than for other work, which need not
    /// be the last: a slow disk is no failure. See [`Busy::during`].
    pub fn busy(&self) -> Busy {
        self.queue.poison().busy().clone()
    }

    /// What has gone wrong here or, as far as it is known, on another rank, so that the group is
    /// unusable.
    pub fn fault(&self) -> Option<String> {
        self.queue.fault()
    }

    /// How long collectives may take.
    pub(crate) fn patience(&self) -> &Patience {
        self.queue.patience()
    }

    fn blocking<T: Element>(&self, call: Call, data: &mut [T]) -> Result<(), Error> {
        let bytes = bytemuck::cast_slice_mut(data);
        self.queue
            .inline(|engine| engine.run(call, Target::Slice(T::DTYPE, bytes)))
    }
}

impl std::fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "ProcessGroup(rank {} of {}, {})",
            self.rank(),
            self.size(),
            self.transport()
        )
    }
}

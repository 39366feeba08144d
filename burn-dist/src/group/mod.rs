//! [`ProcessGroup`]: the connected ranks and their collectives.
//!
//! Collectives run in the order of the calls. Asynchronous ones run on one progress thread while
//! the caller computes. Blocking ones run on the caller's thread, after all that it started before.

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
mod states;
mod threads;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use busy::Busy;
pub use handle::Handle;
pub(crate) use patience::Patience;
pub use states::{RankState, RankStates};

use crate::backend::mpi;
use crate::buffer::{Buffer, Sums};
use crate::collective::Kind;
use crate::element::{DType, Element, ReduceOp};
use crate::error::Error;
use crate::named::named;
use crate::rendezvous::Store;
use crate::shard;
use crate::thread_limit;
use crate::transport::Reach;
use crate::virtual_ranks::VirtualRanks;
use crate::watchdog;
pub use crate::watchdog::Abort;
use crate::world::World;
use engine::{Call, Target};
use queue::Queue;

/// The transport of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportKind {
    /// Shared memory within a host; between hosts MPI if it started the ranks, else TCP.
    ///
    /// All ranks form one ring over MPI or TCP if hosts have one rank each or different numbers of
    /// ranks, or if the ranks of a host are not consecutive.
    #[default]
    Auto,
    /// Shared memory. Fails if the ranks are on several hosts.
    Shm,
    /// TCP, also within a host.
    Tcp,
    /// MPI messages, in a world that MPI started (feature `mpi`).
    Mpi,
}

impl TransportKind {
    /// Whether this build supports it.
    pub fn is_built(self) -> bool {
        self != Self::Mpi || mpi::BUILT
    }
}

named! {
    TransportKind { Auto = "auto", Shm = "shm", Tcp = "tcp", Mpi = "mpi", }
    parsed as "transport"
}

/// The implementation of the collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Our algorithms: direct reduction in shared memory, rings elsewhere, few rounds for small
    /// messages. Sums have the same bits wherever the ranks are.
    #[default]
    Auto,
    /// Our algorithms, but each host first sums its own ranks. Needs [`TransportKind::Auto`] and
    /// the same number of ranks on every host, in any placement.
    ///
    /// It sends the least over the network: with two hosts and many ranks, half as much as one
    /// ring. Sums differ in their last bits from those of other placements of the ranks.
    NodeFirst,
    /// MPI's own collectives, in a world that MPI started (feature `mpi`).
    Mpi,
}

impl Algorithm {
    /// Whether this build supports it.
    pub fn is_built(self) -> bool {
        self != Self::Mpi || mpi::BUILT
    }
}

named! {
    Algorithm { Auto = "auto", NodeFirst = "node-first", Mpi = "mpi", }
    parsed as "algorithm"
}

/// Options for connecting a group and for its timeouts.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The transport.
    pub transport: TransportKind,
    /// The implementation of the collectives.
    pub algorithm: Algorithm,
    /// Treats every block of this many consecutive ranks on one host as a host of its own. This
    /// simulates several hosts on one. The same on all ranks.
    pub ranks_per_node: Option<NonZeroUsize>,
    /// Whether to refuse ranks that run different executables.
    pub same_program: bool,
    /// Time for the ranks to find each other.
    pub connect_timeout: Duration,
    /// Timeout of collectives until the first floating-point reduction (usually gradients) is done.
    /// Until then some ranks load data or compile kernels. At least as long as `timeout`.
    pub first_timeout: Duration,
    /// Timeout of later collectives. [Busy](ProcessGroup::busy) ranks get up to `first_timeout`
    /// more.
    pub timeout: Duration,
    /// Ends this process if its run has failed and it does not end by itself.
    ///
    /// That happens in a kernel or in a read that does not return. Default: none, because a library
    /// does not end its program unasked.
    ///
    /// The process ends by `_exit`, without destructors, some time after the first failure of any
    /// rank. It does so whatever the process is doing, also after its last handle on the group is
    /// gone. A process that left the group before the failure goes on.
    pub abort: Option<Abort>,
    /// Callback that runs once this rank has reached the store, while it connects. If the process
    /// has to end meanwhile, it can tell the others why with [`Connecting::abort`].
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

/// A rank that is connecting to the others, for [`GroupOptions::connecting`].
#[derive(Clone, Debug)]
pub struct Connecting {
    store: Weak<Store>,
}

impl Connecting {
    /// Tells all other ranks why this one stops. Does nothing if this rank has left.
    pub fn abort(&self, reason: &str) {
        if let Some(store) = self.store.upgrade() {
            store.abort(reason);
        }
    }
}

/// The connected ranks of a run, or [some](ProcessGroup::split) of them. Clones are handles on the
/// same group.
///
/// This rank leaves the run when its last handle is dropped, including those in
/// [`Parallel`](crate::parallel::Parallel). A collective that others still call then fails at once.
/// If rank 0 hosts the store (all launchers but the local one), dropping its last handle waits up
/// to [`connect_timeout`](GroupOptions::connect_timeout) for the other ranks to leave. After that,
/// their groups end.
///
/// A process is in one group of its `World` at a time. Use [`split`](ProcessGroup::split) for more
/// groups. Under [`LocalLauncher`](crate::launch::LocalLauncher) and `torchrun` it may connect
/// again once all ranks have left.
#[derive(Clone)]
pub struct ProcessGroup {
    queue: Arc<Queue>,
}

impl ProcessGroup {
    /// A group of one rank. Its collectives finish at once.
    pub fn single() -> Self {
        Self {
            queue: Queue::new(engine::Engine::single()),
        }
    }

    /// Connects `size` ranks of this process, one for each thread, for tests and experiments.
    ///
    /// They use the real transports. Move each handle into its thread: a handle that stays outside
    /// keeps its rank in the run after the thread has ended, and the others wait for it.
    ///
    /// # Errors
    /// Fails if the ranks cannot be connected.
    pub fn in_process(size: usize, options: &GroupOptions) -> Result<Vec<Self>, Error> {
        threads::connect_all(size, options)
    }

    /// Connects the ranks of `world` with default options. All ranks call it.
    ///
    /// # Errors
    /// Fails if the ranks do not find each other in time or cannot be connected.
    pub fn connect(world: &World) -> Result<Self, Error> {
        Self::connect_with(world, GroupOptions::default())
    }

    /// Connects the ranks of `world`. All ranks call it, with the same transport.
    ///
    /// # Errors
    /// Fails if the ranks do not find each other in time or cannot be connected.
    pub fn connect_with(world: &World, options: GroupOptions) -> Result<Self, Error> {
        if world.size() == 1 {
            return Ok(Self::single());
        }
        let abort = options.abort;
        if abort.is_some() {
            watchdog::start().map_err(|error| Error::Watchdog(thread_limit::named(error)))?;
        }
        let engine = connect::connect(world, options)?;
        if let Some(abort) = abort {
            engine.poison.put_on_leash(abort);
        }
        Ok(Self {
            queue: Queue::new(engine),
        })
    }

    /// Connects the ranks that are left after a failure, as a new group. All of them call it, on a
    /// group of all ranks of the world.
    ///
    /// The first one waits at most `wait` for the others that are still connected. The ranks that
    /// came keep their order and get new numbers from 0. This group and all others of this process
    /// stay unusable. [`Abort`] does not end the process for their failure any more. A rank that
    /// calls it without a failure makes the others fail, so that they call it too.
    ///
    /// The ranks meet at the store of the first group: under MPI, Slurm and torchrun it ends with
    /// rank 0, and so does the run. The launcher must let ranks live when others fail, see
    /// [`LocalLauncher::outlive`]. Then make a new `Parallel`, and restore the state from a
    /// checkpoint or from `MemoryCopies`.
    ///
    /// [`LocalLauncher::outlive`]: crate::launch::LocalLauncher::outlive
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use burn_dist::{Error, ProcessGroup};
    ///
    /// fn train(group: &ProcessGroup) -> Result<(), Error> {
    ///     // Restores the newest state, and trains to the end.
    ///     # group.barrier()
    /// }
    ///
    /// # fn main() -> Result<(), Error> {
    /// # let mut group = ProcessGroup::single();
    /// while let Err(error) = train(&group) {
    ///     eprintln!("rank {}: {error}", group.rank());
    ///     group = group.reform(Duration::from_secs(30))?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the store is gone, if the others went on without this rank, or if another rank
    /// fails meanwhile. After the last, the ranks may call it again. Also fails with the transport
    /// `mpi`.
    pub fn reform(&self, wait: Duration) -> Result<Self, Error> {
        // What runs here ends; the others learn of it.
        self.queue.poison.inject("it re-forms the group");
        let store = self.queue.poison.store();
        let Some(store) = store.and_then(|store| store.upgrade()) else {
            return Ok(Self::single());
        };
        let (options, server) = self.queue.inline(|engine| {
            let link = engine.link.as_ref();
            Ok((
                link.map(|link| link.options.clone()).unwrap_or_default(),
                link.and_then(|link| link.server.clone()),
            ))
        })?;
        if options.transport == TransportKind::Mpi || options.algorithm == Algorithm::Mpi {
            return Err(connect::no_mpi("MPI ends all ranks if one fails").into());
        }
        // A rank that waits here is not one that hangs.
        self.queue.poison.take_off_leash();
        let reformed = store.reform(wait).inspect_err(|_| {
            if let Some(abort) = options.abort {
                self.queue.poison.put_on_leash(abort);
            }
        })?;
        if reformed.size() == 1 {
            return Ok(Self::single());
        }
        let abort = options.abort;
        let mut engine = connect::through(Arc::new(reformed), options, None)?;
        if let Some(server) = server {
            engine = engine.hosting(server);
        }
        if let Some(abort) = abort {
            engine.poison.put_on_leash(abort);
        }
        Ok(Self {
            queue: Queue::new(engine),
        })
    }

    /// Divides this group: ranks with the same `colour` form a new group. All ranks call it.
    ///
    /// Ranks in the new group are ordered by `key`, then by their rank here. As with
    /// `MPI_Comm_split`.
    ///
    /// The new group has this group's options. With [`TransportKind::Auto`], ranks of one host
    /// share memory whatever this group uses. The new group has its own progress thread and its own
    /// order of collectives. Ranks that wait for each other in several groups must use these groups
    /// in the same order, and a rank divides one group at a time. A failure in one group fails all
    /// groups of all ranks, so nobody waits forever. Messages and
    /// [`world_ranks`](Self::world_ranks) use ranks in the world.
    ///
    /// # Errors
    /// Fails if the ranks cannot be connected; this group is then unusable too.
    pub fn split(&self, colour: u64, key: u64) -> Result<Self, Error> {
        self.split_reaching((colour, key), Reach::default())
    }

    fn split_reaching(&self, place: (u64, u64), reach: Reach) -> Result<Self, Error> {
        let engine = self
            .queue
            .inline(|engine| split::split(engine, place, reach))?;
        Ok(Self {
            queue: Queue::new(engine),
        })
    }

    /// A group of the same ranks in which every rank has a stream to every other. All ranks call
    /// it.
    ///
    /// It reduces the sums of [`VirtualRanks`]. On one host it shares memory; between hosts, each
    /// rank has its own TCP connections or MPI messages to all others. As after
    /// [`split`](Self::split), the two groups have their own order of collectives.
    ///
    /// # Errors
    /// Fails if the ranks cannot be connected; this group is then unusable too.
    pub fn meshed(&self) -> Result<Self, Error> {
        self.split_reaching((0, self.rank() as u64), Reach::All)
    }

    /// The rank in the world of every rank of this group.
    pub fn world_ranks(&self) -> &[usize] {
        self.queue.members.ranks()
    }

    /// Rank of this process in this group.
    pub fn rank(&self) -> usize {
        self.queue.place.rank
    }

    /// Number of ranks in this group.
    pub fn size(&self) -> usize {
        self.queue.place.size
    }

    /// Index of this rank's node. Nodes are numbered in the order of their first ranks.
    pub fn node(&self) -> usize {
        self.queue.place.node
    }

    /// Number of nodes: hosts, or separate containers on one host.
    pub fn nodes(&self) -> usize {
        self.queue.place.nodes
    }

    /// Name of the transport in use. `"shm+tcp"` and `"shm+mpi"` use shared memory within nodes and
    /// the other between them; `"none"` is a group of one.
    pub fn transport(&self) -> &'static str {
        self.queue.place.transport
    }

    /// Asks the other ranks how far they are, for displays. Not a collective call.
    pub fn rank_states(&self) -> RankStates {
        RankStates::new(self.queue.poison.store(), self.queue.members.clone())
    }

    /// Allocates the memory that collectives are fastest on, zeroed. All ranks call it.
    ///
    /// If the transport shares memory, all ranks have it mapped. Otherwise it is plain memory.
    ///
    /// # Errors
    /// Fails if a rank is out of memory.
    pub fn bucket(&self, dtype: DType, len: usize) -> Result<Buffer, Error> {
        self.queue.inline(|engine| engine.bucket(dtype, len))
    }

    /// Memory for the sums of `len` elements that a rank's [virtual ranks](VirtualRanks) bring,
    /// zeroed. All ranks of a [meshed](Self::meshed) group call it.
    ///
    /// Sum number `i` lies in [`Buffer::sum_place`]`(i)`. There is room for
    /// [`VirtualRanks::most_sums`] of them. A rank adds the sums of its virtual ranks in the order
    /// of [`VirtualRanks::additions`]; the sums left at the end are its partial sums. A reduction
    /// adds the partial sums of all ranks in the order of the tree, and leaves the result in place
    /// of the first one. A mean is over virtual ranks. Nothing is compressed.
    ///
    /// ```
    /// use burn_dist::{DType, ProcessGroup, ReduceOp, VirtualRanks};
    ///
    /// let group = ProcessGroup::single().meshed()?;
    /// let shares = VirtualRanks::new(4, group.size())?;
    /// let mut sums = group.sums(DType::F32, 3, shares)?;
    /// let place = sums.sum_place(0);
    /// sums.as_mut_slice::<f32>()?[place.clone()].copy_from_slice(&[1.0, 2.0, 4.0]);
    /// group.all_reduce_buffer(&mut sums, ReduceOp::Mean)?;
    /// assert_eq!(sums.as_slice::<f32>()?[place], [0.25, 0.5, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if a rank is out of memory.
    pub fn sums(&self, dtype: DType, len: usize, of: VirtualRanks) -> Result<Buffer, Error> {
        let sums = Sums {
            virtual_ranks: of,
            len,
        };
        let all = sums.stride(dtype) * of.most_sums();
        Ok(self.bucket(dtype, all)?.with_sums(sums))
    }

    /// Number of the next model to train in this group. All ranks create the same models in the
    /// same order.
    pub(crate) fn next_model(&self) -> u32 {
        self.queue.next_model()
    }

    /// Starts reducing `buffer` over all ranks.
    pub fn start_all_reduce(&self, buffer: Buffer, op: ReduceOp) -> Handle {
        self.queue
            .start(Call::reduction(Kind::AllReduce, op), buffer)
    }

    /// Starts reducing `buffer` over all ranks. Afterwards only this rank's [`shard`] of it (or the
    /// one that [`Buffer::cut`] sets) is valid.
    pub fn start_reduce_scatter(&self, buffer: Buffer, op: ReduceOp) -> Handle {
        self.queue
            .start(Call::reduction(Kind::ReduceScatter, op), buffer)
    }

    /// Starts filling `buffer` with every rank's [`shard`] of it.
    ///
    /// [`Buffer::cut`] sets other shards.
    pub fn start_all_gather(&self, buffer: Buffer) -> Handle {
        self.queue.start(Call::plain(Kind::AllGather), buffer)
    }

    /// Starts copying `buffer` from rank `root` to all ranks.
    pub fn start_broadcast(&self, buffer: Buffer, root: usize) -> Handle {
        self.queue.start(Call::broadcast(root), buffer)
    }

    /// Starts a barrier. It is done when all ranks have started it.
    pub fn start_barrier(&self) -> Handle {
        let call = Call::plain(Kind::Barrier);
        self.queue.start(call, Buffer::zeroed(DType::U8, 0))
    }

    /// Reduces `buffer` over all ranks on this thread. Use it if nothing else can be computed
    /// meanwhile.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn all_reduce_buffer(&self, buffer: &mut Buffer, op: ReduceOp) -> Result<(), Error> {
        let call = Call::reduction(Kind::AllReduce, op);
        self.queue
            .inline(|engine| engine.run(call, Target::Buffer(buffer)))
    }

    /// Reduces `data` over all ranks, in place.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.blocking(Call::reduction(Kind::AllReduce, op), data)
    }

    /// Reduces `data` over all ranks and returns the valid range, this rank's [`shard`]. The rest
    /// is undefined.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn reduce_scatter<T: Element>(
        &self,
        data: &mut [T],
        op: ReduceOp,
    ) -> Result<Range<usize>, Error> {
        self.blocking(Call::reduction(Kind::ReduceScatter, op), data)?;
        Ok(shard(data.len(), self.size(), self.rank()))
    }

    /// Fills `data` with every rank's [`shard`] of it.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn all_gather<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        self.blocking(Call::plain(Kind::AllGather), data)
    }

    /// Copies `data` from rank `root` to all ranks. Some ranks, including the root, may return
    /// before others have called it.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.blocking(Call::broadcast(root), data)
    }

    /// Waits until all ranks have called it.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn barrier(&self) -> Result<(), Error> {
        self.blocking::<u8>(Call::plain(Kind::Barrier), &mut [])
    }

    /// Waits until all ranks have called it, with `limit` in place of the group's timeout.
    ///
    /// For work that one rank does for all. A rank that fails is still noticed at once. A rank that
    /// is stopped is noticed within the group's timeout plus some seconds.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn barrier_within(&self, limit: Duration) -> Result<(), Error> {
        let call = Call::plain(Kind::Barrier);
        self.queue
            .inline(|engine| engine.run_within(limit, call, Target::Slice(DType::U8, &mut [])))
    }

    /// Gathers every rank's `payload`, in rank order. Lengths may differ.
    ///
    /// Meant for digests, names and other small data: at most
    /// [`MOST_GATHERED`](crate::collective::MOST_GATHERED) bytes from all ranks together.
    ///
    /// # Errors
    /// See [`CollectiveError`](crate::CollectiveError).
    pub fn gather_bytes(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.queue.inline(|engine| engine.gather_bytes(payload))
    }

    /// Tells all other ranks why this one stops, so that they stop too and name the culprit. The
    /// group is unusable afterwards.
    pub fn abort(&self, reason: &str) {
        self.queue.poison.inject(reason);
    }

    /// Writes the flight recorder to `folder` when a collective fails, from now on.
    ///
    /// The file is `flight-recorder-rank-N.txt`, where N is this process's rank in the world.
    /// `folder` should exist. Without a folder, or if the file cannot be written, the report goes
    /// to the log. The setting holds for all groups [split](Self::split) from the same one, before
    /// or after this call; their files have names of their own.
    pub fn keep_flight_recorder_in(&self, folder: impl Into<PathBuf>) {
        self.queue.poison.keep_flight_recorder_in(folder.into());
    }

    /// Marks file work that the other ranks wait for longer, because a slow disk is no failure. See
    /// [`Busy::during`].
    pub fn busy(&self) -> Busy {
        self.queue.poison.busy.clone()
    }

    /// The failure, here or on another rank, that made this group unusable.
    pub fn fault(&self) -> Option<String> {
        self.queue.poison.fault()
    }

    /// Timeouts of collectives.
    pub(crate) fn patience(&self) -> &Patience {
        &self.queue.patience
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

//! Runs collectives one after the other, numbers them, and names the rank, the collective and, if
//! known, the culprit in errors.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::GroupOptions;
use super::busy::Busy;
use super::members::Members;
use super::patience::Patience;
use super::recorder::Recorder;
use crate::backend::mpi::{self, Collectives, Session};
use crate::buffer::{Buffer, Sums};
use crate::collective::{self, Descriptor, Failure, Kind, Neighbours, Operand, Wiring};
use crate::element::{DType, ReduceOp};
use crate::error::{CollectiveError, Error};
use crate::rendezvous::{Store, StoreServer};
use crate::shard::Cuts;
use crate::transport::{Appeal, Interrupt, TransportError, Watch, shm::SharedMemory};
use crate::watchdog::{Abort, Leash};
use crate::wire::Fault;

/// Time for the store to find out which rank holds the others up.
const SURVEY: Duration = Duration::from_secs(1);

/// Time for a rank to answer while others wait for it patiently.
const SILENCE: Duration = Duration::from_secs(10);

/// Time for the news of a peer's end to arrive after its connection broke.
const NEWS: Duration = Duration::from_millis(500);

/// A collective call without its elements.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub kind: Kind,
    pub op: Option<ReduceOp>,
    pub root: usize,
}

impl Call {
    /// One that needs nothing but elements.
    pub fn plain(kind: Kind) -> Self {
        Self {
            kind,
            op: None,
            root: 0,
        }
    }

    pub fn reduction(kind: Kind, op: ReduceOp) -> Self {
        Self {
            op: Some(op),
            ..Self::plain(kind)
        }
    }

    pub fn broadcast(root: usize) -> Self {
        Self {
            root,
            ..Self::plain(Kind::Broadcast)
        }
    }
}

/// The elements of a call.
pub(super) enum Target<'a> {
    Slice(DType, &'a mut [u8]),
    Buffer(&'a mut Buffer),
}

/// Place of this rank in its group.
#[derive(Clone, Copy)]
pub(super) struct Standing {
    pub rank: usize,
    pub size: usize,
    pub node: usize,
    pub nodes: usize,
    pub transport: &'static str,
    /// Whether every rank of this host has a CPU of its own.
    pub has_processor: bool,
}

impl Standing {
    /// The place in a group of one.
    pub const ALONE: Self = Self {
        rank: 0,
        size: 1,
        node: 0,
        nodes: 1,
        transport: "none",
        has_processor: true,
    };
}

/// Connection to the other ranks.
pub(super) struct Connection {
    pub store: Arc<Store>,
    pub wiring: Wiring,
    /// The options as requested.
    pub options: GroupOptions,
    /// The store, if this process hosts it for its own ranks.
    pub server: Option<Arc<StoreServer>>,
    /// MPI, if it started the ranks.
    pub mpi: Option<Arc<Session>>,
    /// MPI's own collectives, if requested.
    pub collectives: Option<Collectives>,
}

pub(super) struct Engine {
    pub place: Standing,
    pub members: Members,
    pub link: Option<Connection>,
    sequence: u64,
    /// Set if the group has a link.
    appeal: Option<Appeal>,
    recorder: Recorder,
    pub poison: Poison,
    pub patience: Patience,
    /// Timeout of the next collective, if it differs from the others.
    own_limit: Option<Duration>,
}

/// The first error of a group.
struct FirstError {
    text: String,
    /// The rank that caused it, with its reason in words, if it was another one.
    fault: Option<Fault>,
}

/// Poisons the group after the first failure, and keeps the reason.
///
/// All groups of this rank share it, because a failure of one of them ends the run. They also share
/// the folder of the flight recorder.
#[derive(Clone)]
pub(super) struct Poison {
    first: Arc<Mutex<Option<FirstError>>>,
    store: Option<Arc<Store>>,
    /// Highest number among the groups of this rank.
    highest: Arc<AtomicU64>,
    /// Folder for the flight recorder's reports. It is set after the group connects: a run has a
    /// folder only once everything is checked.
    records: Arc<Mutex<Option<PathBuf>>>,
    /// See [`ProcessGroup::busy`](super::ProcessGroup::busy).
    pub busy: Busy,
    /// Ends the process some time after the run has failed.
    leash: Arc<Mutex<Option<Leash>>>,
}

impl Poison {
    fn new(store: Option<Arc<Store>>) -> Self {
        let progress = store.as_ref().map(|store| store.progress());
        Self {
            first: Arc::default(),
            busy: Busy::new(progress.unwrap_or_default()),
            store,
            highest: Arc::default(),
            records: Arc::default(),
            leash: Arc::default(),
        }
    }

    /// Ends the process some time after the run has failed, from now on.
    pub fn put_on_leash(&self, abort: Abort) {
        if let Some(store) = &self.store {
            let mut leash = self.leash.lock();
            leash.get_or_insert_with(|| Leash::new(store.faults(), abort));
        }
    }

    /// Lets the process go on after the failure.
    pub fn take_off_leash(&self) {
        let leash = self.leash.lock().take();
        leash.map(Leash::release).unwrap_or_default();
    }

    /// The store of the run. `None` for a single rank.
    pub fn store(&self) -> Option<Weak<Store>> {
        self.store.as_ref().map(Arc::downgrade)
    }

    /// See [`ProcessGroup::keep_flight_recorder_in`](super::ProcessGroup::keep_flight_recorder_in).
    pub fn keep_flight_recorder_in(&self, folder: PathBuf) {
        *self.records.lock() = Some(folder);
    }

    fn records(&self) -> Option<PathBuf> {
        self.records.lock().clone()
    }

    /// Highest number among the groups of this rank.
    pub fn highest(&self) -> u64 {
        self.highest.load(Ordering::Relaxed)
    }

    /// Notes that this rank is in group `number`.
    pub fn raise(&self, number: u64) {
        self.highest.fetch_max(number, Ordering::Relaxed);
    }

    /// Tells all ranks. A collective that runs here ends together with those of the others.
    pub fn inject(&self, reason: &str) {
        self.inject_because_of(None, reason, None);
    }

    /// Does the same, and blames rank `culprit` of the world, which has failed with `fault`.
    fn inject_because_of(&self, culprit: Option<usize>, reason: &str, fault: Option<Fault>) {
        let mut first = self.first.lock();
        if first.is_none() {
            *first = Some(FirstError {
                text: reason.to_owned(),
                fault,
            });
            if let Some(store) = &self.store {
                store.abort_because_of(culprit, reason);
            }
        }
    }

    /// The error of this rank or, if known, of another rank.
    pub fn fault(&self) -> Option<String> {
        let first = self.first.lock();
        let theirs = || self.store.as_ref()?.faults().get();
        let own = first.as_ref().map(|first| first.text.clone());
        own.or_else(|| Some(theirs()?.to_string()))
    }

    fn check(&self) -> Result<(), CollectiveError> {
        let first = self.first.lock();
        match &*first {
            Some(first) => Err(CollectiveError::Unusable {
                first: first.text.clone(),
                fault: first.fault.clone(),
            }),
            None => Ok(()),
        }
    }
}

impl Engine {
    pub fn single() -> Self {
        Self::new(Standing::ALONE, Members::all(1), None, Poison::new(None))
    }

    /// The group of all ranks of a run.
    pub fn whole(place: Standing, link: Connection) -> Self {
        let poison = Poison::new(Some(link.store.clone()));
        Self::new(place, Members::all(place.size), Some(link), poison)
    }

    /// A group of `members`. It fails together with the groups that share its poison. A group of
    /// one needs no link.
    pub fn new(
        place: Standing,
        members: Members,
        link: Option<Connection>,
        poison: Poison,
    ) -> Self {
        let appeal = link.as_ref().map(|link| appeal(link, &members, place.rank));
        let patience = match &link {
            Some(link) => Patience::new(&link.options),
            None => Patience::new(&GroupOptions::default()),
        };
        Self {
            patience,
            own_limit: None,
            place,
            members,
            link,
            appeal,
            sequence: 0,
            recorder: Recorder::new(),
            poison,
        }
    }

    /// Keeps the store alive as long as this rank.
    pub fn hosting(mut self, server: Arc<StoreServer>) -> Self {
        if let Some(link) = &mut self.link {
            link.server = Some(server);
        }
        self
    }

    /// Poisons the group after an error that the ranks cannot recover from.
    pub fn break_with(&mut self, reason: &str) {
        self.poison.inject(reason);
    }

    pub fn run(&mut self, call: Call, target: Target<'_>) -> Result<(), Error> {
        let (dtype, bytes) = match &target {
            Target::Slice(dtype, bytes) => (*dtype, bytes.len()),
            Target::Buffer(buffer) => (buffer.dtype(), buffer.bytes().len()),
        };
        if call.op == Some(ReduceOp::Mean) && !dtype.is_float() {
            return Err(CollectiveError::MeanOfIntegers { dtype }.into());
        }
        if call.root >= self.place.size {
            let (root, size) = (call.root, self.place.size);
            return Err(CollectiveError::NoSuchRoot { root, size }.into());
        }
        let number = match &target {
            Target::Buffer(buffer) => buffer.number(),
            Target::Slice(..) => 0,
        };
        let cuts = match &target {
            Target::Buffer(buffer) if call.kind.has_shards() => buffer.cuts().clone(),
            _ => Cuts::Even,
        };
        let sums = match &target {
            Target::Buffer(buffer) if call.op.is_some() => buffer.sums(),
            _ => None,
        };
        let wire = match &target {
            Target::Buffer(buffer) if sums.is_none() => {
                buffer.compression().of_reduction(dtype, call.op)
            }
            _ => None,
        };
        let size = self.place.size;
        let len = sums.map_or(bytes / dtype.size(), |sums| sums.len);
        if let Some(sums) = sums {
            self.check_sums(&sums, call.op)?;
        }
        if !cuts.fit(len, size) {
            return Err(CollectiveError::Cuts { len, size }.into());
        }
        let target = match wire.is_some() || sums.is_some() {
            true => target,
            false => match self.run_by_mpi(call, &cuts, target)? {
                Some(target) => target,
                None => return Ok(()),
            },
        };
        let mut target = target;
        let Some(shared) = self.link.as_mut().map(|link| link.wiring.shared()) else {
            self.poison.check()?;
            if let (Some(sums), Target::Buffer(buffer)) = (sums, target) {
                collective::finish_alone((dtype, call.op), &sums, buffer.bytes_mut());
            }
            return Ok(());
        };
        let memory = match &mut target {
            Target::Slice(_, bytes) => Operand::Private(bytes),
            Target::Buffer(buffer) => {
                let owned = buffer
                    .region()
                    .is_some_and(|region| shared.is_some_and(|shared| shared.owns(region)));
                match buffer.region_mut().filter(|_| owned) {
                    Some(region) => Operand::Bucket(region, bytes),
                    None => Operand::Private(buffer.bytes_mut()),
                }
            }
        };
        let bucket = match &memory {
            Operand::Bucket(region, _) => SharedMemory::bucket_number(region) + 1,
            Operand::Private(_) => number,
        };
        let what = Descriptor {
            sequence: self.sequence + 1,
            kind: call.kind,
            dtype,
            op: call.op,
            wire,
            root: call.root as u16,
            virtual_ranks: sums.map_or(0, |sums| sums.virtual_ranks.count() as u16),
            len: len as u64,
            bucket,
            cuts: cuts.digest(),
        };
        let done = self.perform(what, |wiring, at, watch| match &sums {
            Some(sums) => collective::run_tree(wiring, at, (&what, &cuts, sums), memory, watch),
            None => collective::run(wiring, at, (&what, &cuts), memory, watch),
        });
        if let (Err(_), Target::Buffer(buffer)) = (&done, target) {
            // Peers that have not heard of the failure may still write to it.
            buffer.leave_registered();
        }
        done
    }

    /// Checks that this group can add the sums of virtual ranks.
    fn check_sums(&self, sums: &Sums, op: Option<ReduceOp>) -> Result<(), CollectiveError> {
        let (ranks, size) = (sums.virtual_ranks.ranks(), self.place.size);
        let meshed = self
            .link
            .as_ref()
            .is_none_or(|link| link.wiring.is_meshed());
        if ranks == size && meshed && matches!(op, Some(ReduceOp::Sum | ReduceOp::Mean)) {
            return Ok(());
        }
        Err(CollectiveError::VirtualRanks { ranks, size })
    }

    /// Runs the collective with MPI's own implementation, or returns the target.
    fn run_by_mpi<'t>(
        &mut self,
        call: Call,
        cuts: &Cuts,
        target: Target<'t>,
    ) -> Result<Option<Target<'t>>, Error> {
        let Some(mut native) = self.link.as_mut().and_then(|link| link.collectives.take()) else {
            return Ok(Some(target));
        };
        let (dtype, bytes) = match &target {
            Target::Slice(dtype, bytes) => (*dtype, bytes.len()),
            Target::Buffer(buffer) => (buffer.dtype(), buffer.bytes().len()),
        };
        let what = Descriptor {
            op: call.op,
            root: call.root as u16,
            cuts: cuts.digest(),
            ..self.describe(call.kind, dtype, bytes / dtype.size())
        };
        let done = if Collectives::can(&what) {
            let native = &mut native;
            self.perform(what, |wiring, at, watch| {
                collective::agree(wiring, at, &what, watch)?;
                match target {
                    Target::Buffer(buffer) if !buffer.is_registered() => {
                        native.run((&what, cuts), buffer, watch)
                    }
                    Target::Buffer(buffer) => {
                        native.run_on_slice((&what, cuts), buffer.bytes_mut(), watch)
                    }
                    Target::Slice(_, bytes) => native.run_on_slice((&what, cuts), bytes, watch),
                }
            })
            .map(|()| None)
        } else {
            Ok(Some(target))
        };
        if let Some(link) = &mut self.link {
            link.collectives = Some(native);
        }
        done
    }

    /// Runs a collective with the timeout `limit`.
    pub fn run_within(
        &mut self,
        limit: Duration,
        call: Call,
        target: Target<'_>,
    ) -> Result<(), Error> {
        self.own_limit = Some(limit);
        let done = self.run(call, target);
        self.own_limit = None;
        done
    }

    pub fn bucket(&mut self, dtype: DType, len: usize) -> Result<Buffer, Error> {
        let shares = self
            .link
            .as_mut()
            .is_some_and(|link| link.wiring.shared().is_some());
        if !shares {
            self.poison.check()?;
            return Ok(Buffer::zeroed(dtype, len));
        }
        let what = self.describe(Kind::Register, dtype, len);
        let region = self.perform(what, |wiring, at, watch| {
            collective::register(wiring, at, &what, len * dtype.size(), watch)
        })?;
        Ok(match region {
            Some(region) => Buffer::registered(dtype, len, region),
            None => Buffer::zeroed(dtype, len),
        })
    }

    pub fn gather_bytes(&mut self, payload: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if self.link.is_none() {
            let bytes = payload.len() as u64;
            return match bytes > collective::MOST_GATHERED {
                true => Err(CollectiveError::TooLarge { bytes }.into()),
                false => Ok(vec![payload.to_vec()]),
            };
        }
        let what = self.describe(Kind::GatherBytes, DType::U8, 0);
        self.perform(what, |wiring, at, watch| {
            collective::gather_bytes(wiring, at, &what, payload, watch)
        })
    }

    fn describe(&self, kind: Kind, dtype: DType, len: usize) -> Descriptor {
        let sequence = self.sequence + 1;
        Descriptor {
            sequence,
            kind,
            dtype,
            op: None,
            wire: None,
            root: 0,
            virtual_ranks: 0,
            len: len as u64,
            bucket: 0,
            cuts: 0,
        }
    }

    fn perform<R: Default>(
        &mut self,
        what: Descriptor,
        work: impl FnOnce(&mut Wiring, Neighbours, &Watch) -> Result<R, Failure>,
    ) -> Result<R, Error> {
        self.poison.check()?;
        let Some(link) = &mut self.link else {
            return Ok(R::default());
        };
        self.sequence = what.sequence;
        let progress = self.members.progress(what.sequence);
        self.poison.busy.advance(progress);
        self.recorder.begin(self.members.describe(what));
        let ranks = self.members.ranks().clone();
        let appeal = self.appeal.clone();
        let (limit, appeal) = match (self.own_limit, appeal) {
            (Some(limit), Some(appeal)) => {
                let (look, judge) = patient(link, &self.members, self.place.rank, limit, appeal);
                (look, Some(judge))
            }
            (own, appeal) => (own.unwrap_or_else(|| self.patience.limit()), appeal),
        };
        let mut watch = Watch::new(limit, link.store.faults(), ranks);
        if let Some(appeal) = appeal {
            watch = watch.appealing(Appeal {
                sequence: what.sequence,
                ..appeal
            });
        }
        let at = Neighbours {
            rank: self.place.rank,
            size: self.place.size,
        };
        match work(&mut link.wiring, at, &watch) {
            Ok(result) => {
                self.recorder.end();
                self.patience.note(&what);
                Ok(result)
            }
            // Every rank knows the lengths now, and none has sent more than its length.
            Err(Failure::TooLarge { bytes }) => {
                self.recorder.end();
                Err(CollectiveError::TooLarge { bytes }.into())
            }
            Err(failure) => {
                let explained = Explained {
                    what: self.members.describe(what),
                    rank: self.members.in_world(self.place.rank),
                    members: &self.members,
                    store: &link.store,
                };
                let (error, culprit) = explained.error(failure, watch.limit());
                let folder = self.poison.records();
                self.recorder
                    .dump(explained.rank, self.members.label(), folder.as_deref());
                let fault = error.of_another_rank().map(|(rank, reason)| Fault {
                    rank,
                    reason: reason.to_owned(),
                });
                self.poison
                    .inject_because_of(culprit, &error.to_string(), fault);
                mpi::note_failure();
                Err(error.into())
            }
        }
    }
}

/// The question for more time for a collective of these ranks. `own` is this rank's index among
/// them.
fn appeal(link: &Connection, members: &Members, own: usize) -> Appeal {
    let (store, members) = (link.store.clone(), members.clone());
    let own = members.in_world(own);
    let judge = move |sequence: u64| {
        let Ok(survey) = store.survey(SURVEY) else {
            return false;
        };
        let others = members.ranks().iter().filter(|rank| **rank != own);
        let mut late = others
            .map(|rank| survey.get(*rank).copied().flatten())
            .filter(|progress| {
                let reached = progress.map(|progress| members.reached(progress));
                !matches!(reached, Some(Ok(reached)) if reached >= sequence)
            })
            .peekable();
        late.peek().is_some() && late.all(|progress| progress.is_some_and(Members::is_busy))
    };
    Appeal {
        sequence: 0,
        most: link.options.first_timeout,
        judge: Arc::new(judge),
    }
}

/// How long to wait in a collective with timeout `limit`, and whom to ask for more time after that.
/// The question is repeated. Late ranks may do work that all wait for, but a rank that does not
/// answer is stopped. After `limit`, `then` is asked.
fn patient(
    link: &Connection,
    members: &Members,
    own: usize,
    limit: Duration,
    then: Appeal,
) -> (Duration, Appeal) {
    let look = link.options.timeout;
    if look.is_zero() || limit <= look {
        return (limit, then);
    }
    let (store, members) = (link.store.clone(), members.clone());
    let own = members.in_world(own);
    let begin = Instant::now();
    let most = (limit - look).saturating_add(then.most);
    let judge = move |sequence: u64| {
        if begin.elapsed() >= limit {
            return (then.judge)(sequence);
        }
        let Ok(survey) = store.survey(SILENCE.min(look).max(SURVEY)) else {
            return false;
        };
        let mut others = members.ranks().iter().filter(|rank| **rank != own);
        others.all(|rank| survey.get(*rank).is_some_and(Option::is_some))
    };
    let appeal = Appeal {
        sequence: then.sequence,
        most,
        judge: Arc::new(judge),
    };
    (look, appeal)
}

/// A failed collective, with everything that the message needs.
struct Explained<'a> {
    what: Descriptor,
    /// Rank of this process in the world.
    rank: usize,
    members: &'a Members,
    store: &'a Store,
}

impl Explained<'_> {
    /// The error, and the rank of the world that caused it if it is another one.
    fn error(&self, failure: Failure, limit: Duration) -> (CollectiveError, Option<usize>) {
        let (rank, what, members) = (self.rank, self.what, self.members);
        let error = match failure {
            Failure::Mismatch { rank: peer, theirs } => CollectiveError::Mismatch {
                rank,
                mine: what,
                peer: members.in_world(peer),
                theirs: theirs.map(|theirs| members.describe(theirs)),
            },
            Failure::TooLarge { bytes } => CollectiveError::TooLarge { bytes },
            Failure::Waiting {
                interrupt: Interrupt::Fault(fault),
                ..
            } => self.because_of(fault),
            Failure::Waiting {
                rank: peer,
                interrupt: Interrupt::TimedOut,
            } => {
                let (verdict, culprit) = self.find_laggards();
                let error = CollectiveError::TimedOut {
                    rank,
                    what,
                    peer: members.in_world(peer),
                    seconds: limit.as_secs(),
                    verdict,
                };
                return (error, culprit);
            }
            Failure::Transport(
                source @ (TransportError::Closed { .. } | TransportError::Peer { .. }),
            ) => {
                // The store knows a moment later why the peer closed its connection or withdrew its
                // memory.
                let faults = self.store.faults();
                let peer = source.peer().map(|peer| members.in_world(peer));
                let left = || peer.is_some_and(|peer| faults.left(peer));
                let deadline = Instant::now() + NEWS;
                while !faults.is_faulty() && !left() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let has_left = || peer.and_then(|peer| faults.left_behind_by(peer));
                match faults.get().or_else(has_left) {
                    Some(fault) => self.because_of(fault),
                    None => self.transport(source),
                }
            }
            Failure::Transport(source) => self.transport(source),
        };
        let culprit = match &error {
            CollectiveError::PeerFailed { failed, .. } => *failed,
            _ => None,
        };
        (error, culprit)
    }

    fn because_of(&self, fault: Fault) -> CollectiveError {
        CollectiveError::PeerFailed {
            rank: self.rank,
            what: self.what,
            failed: fault.rank,
            reason: fault.to_string(),
        }
    }

    fn transport(&self, source: TransportError) -> CollectiveError {
        CollectiveError::Transport {
            rank: self.rank,
            what: self.what,
            source: self.members.name(source),
        }
    }

    /// The ranks of the group that have not reached the collective, in words, and the one that is
    /// furthest behind.
    fn find_laggards(&self) -> (String, Option<usize>) {
        let survey = match self.store.survey(SURVEY) {
            Ok(survey) => survey,
            Err(error) => {
                let words = format!("cannot find out which rank is late: {error}");
                return (words, None);
            }
        };
        let (mut words, mut elsewhere) = (Vec::new(), Vec::new());
        // A rank that does not answer comes before all others, and may be why they are behind.
        let mut last: Option<(Option<u64>, usize)> = None;
        let mut note = |reached: Option<u64>, rank| {
            if last.is_none_or(|(least, _)| reached < least) {
                last = Some((reached, rank));
            }
        };
        // This rank waits, even if it has begun a collective in another group since.
        for rank in self
            .members
            .ranks()
            .iter()
            .filter(|rank| **rank != self.rank)
        {
            let progress = survey.get(*rank).copied().flatten();
            match progress.map(|progress| self.members.reached(progress)) {
                None => {
                    note(None, *rank);
                    words.push(format!(
                        "rank {rank} does not answer: its process is stopped or its host is down"
                    ));
                }
                Some(Ok(reached)) if reached < self.what.sequence => {
                    note(Some(reached), *rank);
                    let busy = match progress.is_some_and(Members::is_busy) {
                        true => ", still reading or writing files",
                        false => "",
                    };
                    words.push(format!("rank {rank} has only reached #{reached}{busy}"));
                }
                Some(Err(reached)) => {
                    elsewhere.push(format!(
                        "rank {rank} last reached #{reached} of another group"
                    ));
                }
                Some(Ok(_)) => {}
            }
        }
        // A rank that waits here may have begun a collective in another group. It is blamed only if
        // no other rank is behind.
        if words.is_empty() {
            words = elsewhere;
        }
        if words.is_empty() {
            words.push("all ranks entered it, so a connection between two of them is stuck".into());
        }
        (words.join("; "), last.map(|(_, rank)| rank))
    }
}

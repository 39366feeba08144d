//! The store: accepts ranks and passes on their messages.
//!
//! For every rank one thread reads and one writes; one more keeps the time. They are few, mostly
//! asleep, and none can hold up another. While all ranks are connected the store does not listen.

use super::error::RendezvousError;
use super::protocol::{self, FrameError, Message, Refusal};
use super::roster::Roster;
use super::waiting_room::{Place, Waiter, WaitingRoom};
use crate::open_files;
use crate::thread_limit;
use crate::wire::Fault;
use crate::wire::Secret;
use crate::wire::auth::{Accepted, AuthError, HANDSHAKE_LIMIT, Keys, Purpose};
use crate::wire::net::{configure_control, listen_at, pause_listening, resume_listening};
use crate::wire::seal::{Opener, Sealer};
use crate::wire::strangers::Strangers;
use crate::world::MAX_WORLD_SIZE;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Open files per rank: its connection, twice while it authenticates.
pub(crate) const FILES_PER_RANK: usize = 2;

/// Pause between looks at whether all ranks have come.
const LOOK: Duration = Duration::from_millis(100);

/// The running store.
///
/// Dropping it ends all connections at once, which ranks see as a fault. Wait with
/// [`StoreServer::wait_until_left`] first.
#[derive(Debug)]
pub struct StoreServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Signals a change to the time keeper and to waiters.
    changed: Condvar,
    strangers: Strangers,
    /// A byte makes the accepting thread check the state.
    wake: UnixStream,
}

struct State {
    roster: Roster,
    /// Number of the world, from 0. It grows when ranks re-form it.
    world: u32,
    /// The ranks in the first world of the ranks in this one.
    first_ranks: Vec<usize>,
    /// Ranks that wait to re-form the world.
    room: Option<WaitingRoom>,
    closed: bool,
}

impl State {
    /// The rank of a connection, if its world is the current one.
    fn rank_of(&self, place: &Place) -> Option<usize> {
        let (world, rank) = place.get()?;
        (*world == self.world).then_some(*rank)
    }

    /// The rank in this world of the rank `first` in the first one.
    fn now(&self, first: usize) -> Option<usize> {
        self.first_ranks.iter().position(|rank| *rank == first)
    }

    /// Forms the world that ranks wait for, if it is time.
    fn reform(&mut self, now: Instant) {
        if self.room.as_ref().is_some_and(WaitingRoom::is_empty) {
            self.room = None;
        }
        let ready = |room: &mut WaitingRoom| room.is_ready(&self.roster, now);
        let Some(room) = self.room.take_if(ready) else {
            return;
        };
        self.world += 1;
        let (roster, before) = room.form(self.world);
        let first = before.iter().filter_map(|rank| self.first_ranks.get(*rank));
        self.first_ranks = first.copied().collect();
        self.roster = roster;
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl StoreServer {
    /// Starts a store for `size` ranks that listens at `address` (port 0: any free one).
    ///
    /// # Errors
    /// Fails if the port is in use, if the address does not belong to this machine, or if the
    /// limits of threads or open files are too low.
    pub fn bind(address: SocketAddr, size: usize, secret: Secret) -> Result<Self, RendezvousError> {
        let listener = listen_at(address).map_err(RendezvousError::listen(address))?;
        Self::on(listener, size, secret)
    }

    /// Starts a store for `size` ranks that listens on `listener`.
    ///
    /// # Errors
    /// Fails if the limits of threads or open files are too low.
    pub fn on(listener: TcpListener, size: usize, secret: Secret) -> Result<Self, RendezvousError> {
        let system = RendezvousError::system("cannot start the store");
        let address = listener.local_addr().map_err(&system)?;
        listener.set_nonblocking(true).map_err(&system)?;
        let (wake, woken) = UnixStream::pair().map_err(&system)?;
        for end in [&wake, &woken] {
            end.set_nonblocking(true).map_err(&system)?;
        }
        let size = size.min(MAX_WORLD_SIZE);
        open_files::make_room(size, FILES_PER_RANK)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                roster: Roster::new(size),
                world: 0,
                first_ranks: (0..size).collect(),
                room: None,
                closed: false,
            }),
            changed: Condvar::new(),
            strangers: Strangers::new(&secret, Purpose::Store, 64 + size.min(1024)),
            wake,
        });
        let mut server = Self {
            address,
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let keeper = Arc::clone(&shared);
        for (name, body) in [
            (
                "store-accept",
                Box::new(move || accept(&listener, &woken, &shared)) as Box<dyn FnOnce() + Send>,
            ),
            ("store-time", Box::new(move || keep_time(&keeper))),
        ] {
            let thread = std::thread::Builder::new().name(name.into());
            let thread = thread.spawn(body).map_err(thread_limit::named);
            server.threads.push(thread.map_err(&system)?);
        }
        Ok(server)
    }

    /// Lets ranks connect again when all have left without a failure.
    ///
    /// For a store that outlives them.
    #[must_use]
    pub fn for_runs_in_turn(self) -> Self {
        self.shared.state.lock().roster.begin_again();
        self
    }

    /// Listens on `listener` too, until all ranks have come.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub(super) fn also_on(&mut self, listener: TcpListener) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("store-notice".into());
        let thread = thread.spawn(move || accept_until_complete(&listener, &shared))?;
        self.threads.push(thread);
        Ok(())
    }

    /// The address of the store.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The first rank that failed, and the reason.
    pub fn first_fault(&self) -> Option<Fault> {
        let state = self.shared.state.lock();
        let mut fault = state.roster.first_fault()?;
        let first = |rank: usize| state.first_ranks.get(rank).copied();
        fault.rank = fault.rank.and_then(first);
        Some(fault)
    }

    /// Tells all ranks that the process of `rank` failed.
    ///
    /// For a launcher, which may know before the connection ends. The rank may have left or may
    /// never have connected. A rank that failed before keeps its reason.
    pub fn report_failure(&self, rank: usize, reason: &str) {
        let mut state = self.shared.state.lock();
        // One that the world was re-formed without has failed before.
        if let Some(rank) = state.now(rank) {
            state.roster.end_of_process(rank, reason);
        }
        drop(state);
        self.shared.look();
    }

    /// Does a [`StoreServer::report_failure`] only if `rank` has never been connected.
    ///
    /// For a process that ended properly, whose goodbye may still be in flight.
    pub fn report_absence(&self, rank: usize, reason: &str) {
        let mut state = self.shared.state.lock();
        if let Some(rank) = state.now(rank).filter(|rank| state.roster.is_absent(*rank)) {
            state.roster.fail(rank, reason);
        }
    }

    /// Waits until every rank but `this` has been connected, at most `limit`.
    pub(crate) fn wait_until_seen(&self, this: usize, limit: Duration) {
        let mut state = self.shared.state.lock();
        let unseen = |state: &mut State| state.roster.absent().any(|rank| rank != this);
        let changed = &self.shared.changed;
        changed.wait_while_for(&mut state, unseen, limit);
    }

    /// Waits until all others have been sent why `rank` aborts, at most `limit`.
    pub(crate) fn wait_until_told(&self, rank: usize, limit: Duration) {
        let deadline = Instant::now() + limit;
        while !self.shared.state.lock().roster.has_told(rank) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The reason that `rank` gave when it aborted.
    pub fn abort_reason(&self, rank: usize) -> Option<String> {
        let state = self.shared.state.lock();
        state.roster.abort_reason(state.now(rank)?)
    }

    /// Waits until no rank is connected, at most `limit`. Returns whether all are gone.
    pub fn wait_until_left(&self, limit: Duration) -> bool {
        let mut state = self.shared.state.lock();
        let present = |state: &mut State| state.roster.peers().next().is_some();
        let changed = &self.shared.changed;
        changed.wait_while_for(&mut state, present, limit);
        state.roster.peers().next().is_none()
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        for stream in state.roster.peers().filter_map(|peer| peer.stream.as_ref()) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(room) = &state.room {
            room.dismiss();
        }
        drop(state);
        self.shared.strangers.dismiss();
        self.shared.look();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Makes all threads check the state.
    fn look(&self) {
        self.changed.notify_all();
        // If another byte does not fit, the thread is about to check.
        let _ = (&self.wake).write(&[1]);
    }
}

/// Ends waits that are over, and sleeps in between.
fn keep_time(shared: &Shared) {
    let mut state = shared.state.lock();
    while !state.closed {
        let now = Instant::now();
        state.reform(now);
        let next = state.roster.tick(now);
        let room = state.room.as_ref().map(|room| room.deadline);
        match next.into_iter().chain(room).min() {
            None => shared.changed.wait(&mut state),
            Some(next) => drop(shared.changed.wait_until(&mut state, next)),
        }
    }
}

fn accept(listener: &TcpListener, mut woken: &UnixStream, shared: &Arc<Shared>) {
    let mut listens = true;
    loop {
        let state = shared.state.lock();
        // After a failure, ranks may re-form their world.
        let failed = state.room.is_some() || state.roster.first_fault().is_some();
        let (closed, wanted) = (state.closed, failed || !state.roster.is_complete());
        drop(state);
        if closed {
            return;
        }
        if listens && !wanted && pause_listening(listener) {
            listens = false;
        } else if !listens && wanted {
            listens = resume_listening(listener).unwrap_or_else(|error| {
                tracing::warn!("store: cannot listen again: {error}");
                false
            });
        }
        let mut waits = vec![PollFd::new(woken, PollFlags::IN)];
        if listens {
            waits.push(PollFd::new(listener, PollFlags::IN));
        }
        let polled = poll(&mut waits, None);
        let _ = woken.read(&mut [0; 64]);
        if !listens {
            continue;
        }
        match listener.accept() {
            Ok((stream, from)) => greet(stream, from, shared),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // A signal ended the wait, or waiting fails.
                if polled.is_err() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            // Probably out of file descriptors: others may free some.
            Err(error) => {
                let refusals = shared.strangers.refusals();
                refusals.warn(format_args!("store: cannot accept a connection: {error}"));
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Accepts connections until all ranks have come or the store closes.
fn accept_until_complete(listener: &TcpListener, shared: &Arc<Shared>) {
    let look = Timespec {
        tv_sec: 0,
        tv_nsec: LOOK.subsec_nanos().into(),
    };
    loop {
        let state = shared.state.lock();
        if state.closed || state.roster.is_complete() {
            return;
        }
        drop(state);
        let polled = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&look));
        match listener.accept() {
            Ok((stream, from)) => greet(stream, from, shared),
            Err(error) if error.kind() == ErrorKind::WouldBlock && polled.is_ok() => {}
            // A signal ended the wait, or there are no file descriptors left.
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Gives a new connection a thread, which serves it once it has authenticated.
fn greet(stream: TcpStream, from: SocketAddr, shared: &Arc<Shared>) {
    let shared_ = Arc::clone(shared);
    let refusals = shared.strangers.refusals();
    let then = move |stream, proved: Result<Accepted, AuthError>| match proved {
        Ok(accepted) => serve(stream, from, accepted, &shared_),
        Err(AuthError::WrongSecret) => {
            shared_.state.lock().roster.note_refusal();
            refusals.warn(format_args!(
                "store: refused a connection from {from}: it has another secret. If it is a rank \
                 of this run, its node has another key file (~/.config/burn-dist/key) or \
                 BURN_DIST_SECRET than rank 0: copy rank 0's"
            ));
        }
        Err(error) => {
            refusals.warn(format_args!(
                "store: refused a connection from {from}: {error}"
            ));
        }
    };
    let heard = shared
        .strangers
        .hear(stream, "store-rank", HANDSHAKE_LIMIT, then);
    if let Err(error) = heard {
        let refusals = shared.strangers.refusals();
        refusals.warn(format_args!(
            "store: cannot read from a connection from {from}: {error}"
        ));
    }
}

/// Serves one rank from the moment it has proved that it knows the secret.
fn serve(stream: TcpStream, from: SocketAddr, accepted: Accepted, shared: &Arc<Shared>) {
    let Accepted { context, session } = accepted;
    let Keys { send, receive } = session;
    let (outbox, mail) = mpsc::channel();
    if let Err(error) = configure_control(&stream) {
        tracing::warn!("store: lost a connection from {from}: {error}");
        return;
    }
    let stream = Arc::new(stream);
    let place = Place::default();
    let joined = match decode_context(&context) {
        None => Err(Refusal::BadContext),
        Some(asks) => {
            let mut state = shared.state.lock();
            if state.closed {
                return;
            }
            let waiter = Waiter {
                outbox,
                stream: Some(Arc::clone(&stream)),
                place: Arc::clone(&place),
            };
            take_in(&mut state, asks, waiter)
        }
    };
    match joined {
        Ok(()) => {}
        Err(refusal) => {
            let refusals = shared.strangers.refusals();
            refusals.warn(format_args!(
                "store: refused a rank from {from}: {refusal:?}"
            ));
            let _ = stream.set_write_timeout(Some(HANDSHAKE_LIMIT));
            let refusal = Message::Refused(refusal).encode();
            let _ = (&*stream).write_all(&{ send }.seal(&refusal));
            return;
        }
    };
    shared.look();
    let writing = Arc::clone(&stream);
    let writer = std::thread::Builder::new().name("store-mail".into());
    if let Err(error) = writer.spawn(move || deliver(&writing, send, &mail)) {
        let error = thread_limit::named(error);
        let reason = format!("the store cannot start another thread: {error}");
        lose(shared, &place, &reason);
        return;
    }
    listen(&stream, receive, &place, shared);
    shared.look();
}

/// Writes the outbox until the rank is gone, then ends the connection.
fn deliver(mut stream: &TcpStream, mut sealer: Sealer, mail: &Receiver<Arc<[u8]>>) {
    while let Ok(frame) = mail.recv() {
        if stream.write_all(&sealer.seal(&frame)).is_err() {
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
}

/// Takes a rank in, or lets it wait until the others of a world to re-form are there.
fn take_in(state: &mut State, asks: Asks, waiter: Waiter) -> Result<(), Refusal> {
    let (rank, size) = (asks.rank, asks.size);
    let Some((world, wait)) = asks.reform else {
        let Waiter {
            outbox,
            stream,
            place,
        } = waiter;
        state.roster.join(rank, size, outbox, stream)?;
        let _ = place.set((state.world, rank));
        return Ok(());
    };
    if world != state.world || size != state.roster.size() || rank >= size {
        return Err(Refusal::LeftOut);
    }
    let now = Instant::now();
    // The others may not know yet that this rank stops.
    state.roster.fail(rank, "it re-forms the world");
    let room = state
        .room
        .get_or_insert_with(|| WaitingRoom::new(now + wait));
    room.enter(rank, waiter);
    state.reform(now);
    Ok(())
}

/// Handles the end of a rank's connection without a goodbye.
fn lose(shared: &Shared, place: &Place, reason: &str) {
    let mut state = shared.state.lock();
    match state.rank_of(place) {
        Some(rank) => state.roster.lose(rank, reason),
        None => {
            if let Some(room) = &mut state.room {
                room.leave(place);
            }
        }
    }
    drop(state);
    shared.look();
}

fn listen(mut stream: &TcpStream, mut opener: Opener, place: &Place, shared: &Shared) {
    loop {
        let lost = match protocol::read(&mut stream, &mut opener) {
            Ok(Message::Bye) => {
                let mut state = shared.state.lock();
                if let Some(rank) = state.rank_of(place) {
                    state.roster.leave(rank);
                }
                return;
            }
            Ok(message) => {
                let mut state = shared.state.lock();
                // A world that was re-formed has no use for messages any more.
                let received = match state.rank_of(place) {
                    Some(rank) => state.roster.receive(rank, message, Instant::now()),
                    None => Ok(()),
                };
                let has_failed = state.roster.first_fault().is_some();
                drop(state);
                match has_failed {
                    true => shared.look(),
                    false => drop(shared.changed.notify_all()),
                };
                match received {
                    Ok(()) => continue,
                    Err(violation) => format!("it sent {}", violation.0),
                }
            }
            Err(FrameError::Stream(_)) => {
                "its connection closed unexpectedly: the process was killed or crashed, or its \
                 host is down"
                    .into()
            }
            Err(error) => format!("it sent {error}"),
        };
        lose(shared, place, &lost);
        let _ = stream.shutdown(Shutdown::Both);
        return;
    }
}

/// A rank's statement about itself in the handshake.
pub(crate) fn encode_context(rank: usize, size: usize) -> [u8; 8] {
    let mut context = [0; 8];
    context[..4].copy_from_slice(&(rank as u32).to_le_bytes());
    context[4..].copy_from_slice(&(size as u32).to_le_bytes());
    context
}

/// The statement of a rank that asks to re-form the world with this number, and how long the store
/// waits for the others.
pub(crate) fn encode_reform((rank, size): (usize, usize), world: u32, wait: Duration) -> [u8; 16] {
    let wait = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
    let mut context = [0; 16];
    context[..8].copy_from_slice(&encode_context(rank, size));
    context[8..12].copy_from_slice(&world.to_le_bytes());
    context[12..].copy_from_slice(&wait.to_le_bytes());
    context
}

/// A rank's statement about itself.
struct Asks {
    rank: usize,
    size: usize,
    /// The number of the world to re-form, and how long to wait for the others.
    reform: Option<(u32, Duration)>,
}

fn decode_context(context: &[u8]) -> Option<Asks> {
    let (words, rest) = context.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let (rank, size, reform) = match (&words[..], rest) {
        ([rank, size], []) => (*rank, *size, None),
        ([rank, size, world, wait], []) => {
            let wait = Duration::from_millis(u64::from(*wait));
            (*rank, *size, Some((*world, wait)))
        }
        _ => return None,
    };
    Some(Asks {
        rank: rank as usize,
        size: size as usize,
        reform,
    })
}

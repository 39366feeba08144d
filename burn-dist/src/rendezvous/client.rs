//! A rank's end of the control connection.

use super::connect::{Attempt, Entered, check, host, meeting};
use super::error::{RendezvousError, still_missing};
use super::protocol::{self, GatherFailure, MAX_PAYLOAD, MAX_TAG, Message};
use super::reform::{self, Reformed};
use super::server::StoreServer;
use crate::deadline;
use crate::process::Process;
use crate::thread_limit;
use crate::wire::Secret;
use crate::wire::auth::Keys;
use crate::wire::net::configure_control;
use crate::wire::seal::{Opener, Sealer};
use crate::wire::{Fault, FaultBoard};
use crate::world::{Launch, Meeting, World};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Extra time for the store's answer, beyond the time that it was given.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the end waits for the store to note a goodbye.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long a rank that hosts the store and gives up waits until the store has told the others why.
/// Its process may end then.
const LAST_WORD: Duration = Duration::from_millis(500);
/// Time for ranks whose launcher is gone to save their state and end. The launcher's store is not
/// needed in a step.
const SAVING: Duration = Duration::from_secs(600);

/// Pause between looks for the end of other ranks meanwhile.
const LOOK: Duration = Duration::from_millis(200);

/// Callback for the end of the launcher.
type Told = Box<dyn FnOnce() + Send>;

/// Called once when the store of this process's launcher is gone.
static LAUNCHER_GONE: Mutex<Option<Told>> = Mutex::new(None);

/// Calls `then` when the store of this crate's launchers is gone. The run then fails 10 minutes
/// later instead of at once.
pub(crate) fn when_launcher_is_gone(then: impl FnOnce() + Send + 'static) {
    *LAUNCHER_GONE.lock() = Some(Box::new(then));
}

/// One authenticated connection to the store, open for the whole run.
///
/// It can be used from any thread. Its own thread listens to the store, so a computing rank still
/// answers questions about its progress, and learns at once when another rank fails. Dropping it
/// tells the others that this rank is done.
#[derive(Debug)]
pub struct Store {
    terms: Terms,
    local_ip: IpAddr,
    store_ip: IpAddr,
    faults: FaultBoard,
    progress: Arc<AtomicU64>,
    /// `None` for a single rank.
    link: Option<Control>,
    /// The store, if this process is rank 0 and no launcher hosts it.
    server: Option<Arc<StoreServer>>,
}

/// The part of a connection to the store that goes on in one that replaces it.
#[derive(Clone, Debug)]
struct Terms {
    rank: usize,
    size: usize,
    /// Number of the world, from 0. It grows when ranks re-form it.
    world: u32,
    secret: Secret,
    /// Limit of an exchange.
    timeout: Duration,
    /// Meaning of the end of the connection.
    gone: String,
    /// Whether the store is that of this crate's launchers.
    is_of_launcher: bool,
}

#[derive(Debug)]
struct Control {
    address: SocketAddr,
    wire: Arc<Wire>,
    monitor: Option<JoinHandle<()>>,
    /// Number of the next exchange. Locked during an exchange, so only one runs at a time.
    exchange: Mutex<u64>,
    /// Number of the last survey. Locked during a survey.
    survey: Mutex<u64>,
}

/// State that the monitor thread shares with the callers.
#[derive(Debug)]
struct Wire {
    writer: Mutex<Writer>,
    inbox: Mutex<Inbox>,
    changed: Condvar,
    /// This side ends the connection, so its end is not a fault.
    closing: AtomicBool,
    /// Processes of the other ranks. Once the launcher is gone, the monitor polls them.
    peers: Mutex<BTreeMap<usize, Process>>,
}

/// Sends frames, each with the next tag.
#[derive(Debug)]
struct Writer {
    stream: TcpStream,
    sealer: Sealer,
}

impl Writer {
    fn send(&mut self, message: &Message) -> std::io::Result<()> {
        self.stream.write_all(&self.sealer.seal(&message.encode()))
    }
}

#[derive(Debug, Default)]
struct Inbox {
    gathered: Vec<Option<Vec<u8>>>,
    missing: usize,
    sequence: u64,
    failure: Option<GatherFailure>,
    surveyed: Option<(u64, Vec<Option<u64>>)>,
    ended: bool,
}

impl Store {
    /// Connects this rank to the run's store; rank 0 starts the store if no launcher does.
    ///
    /// It retries for `timeout`, since the store may start later. `timeout` is also how long
    /// [`Store::all_gather`] waits for the other ranks.
    ///
    /// # Errors
    /// Fails if no store answers in time. Also fails if the store has another version, run or world
    /// size, or already has this rank.
    pub fn connect(world: &World, timeout: Duration) -> Result<Self, RendezvousError> {
        let deadline = deadline::after(timeout);
        tracing::info!("{}", world.describe());
        let (rank, size) = (world.rank(), world.size());
        if size == 1 {
            return Self::alone(timeout);
        }
        let mut meeting = meeting(world, timeout)?;
        check(world, &meeting.master)?;
        let server = match world.hosts_store() {
            true => Some(host(world, &mut meeting)?),
            false => None,
        };
        let Meeting { master, secret, .. } = &meeting;
        let entered = match &server {
            Some(server) => Attempt::new(world, secret, deadline).once(server.address())?,
            None => Attempt::new(world, secret, deadline).retry(master, timeout)?,
        };
        let address = entered.address;
        let gone = match world.launch() {
            Launch::Local => {
                format!("the launcher is gone (its store at {address} closed the connection)")
            }
            Launch::Agent => {
                format!("the first agent is gone (its store at {address} closed the connection)")
            }
            _ => format!("rank 0 is gone (its store at {address} closed the connection)"),
        };
        let terms = Terms {
            rank,
            size,
            world: 0,
            secret: secret.clone(),
            timeout,
            gone,
            is_of_launcher: world.is_of_own_launcher(),
        };
        Self::over(entered, terms, server.map(Arc::new))
    }

    /// Joins the ranks that are left, at the same store. They may have other ranks than here.
    ///
    /// The first one waits for the others at most `wait`. Then the ranks that came form the world.
    /// All ranks of this store get a failure if there is none yet.
    ///
    /// # Errors
    /// Fails if the store is gone, or if the others went on without this rank.
    pub fn reform(&self, wait: Duration) -> Result<Self, RendezvousError> {
        if self.link.is_none() {
            return Self::alone(self.terms.timeout);
        }
        let Reformed {
            rank,
            size,
            entered,
        } = reform::join(self, wait)?;
        let terms = Terms {
            rank,
            size,
            world: self.terms.world + 1,
            ..self.terms.clone()
        };
        Self::over(entered, terms, self.server.clone())
    }

    /// Starts to listen to the store.
    fn over(
        entered: Entered,
        terms: Terms,
        server: Option<Arc<StoreServer>>,
    ) -> Result<Self, RendezvousError> {
        let Entered {
            stream,
            session,
            address,
        } = entered;
        let Keys { send, receive } = session;
        let system = RendezvousError::system("cannot set up the connection to the store");
        configure_control(&stream).map_err(&system)?;
        // A store that accepts nothing for this long counts as gone.
        stream
            .set_write_timeout(Some(terms.timeout.max(PATIENCE)))
            .map_err(&system)?;
        let local_ip = stream.local_addr().map_err(&system)?.ip().to_canonical();
        let store_ip = address.ip().to_canonical();
        let faults = FaultBoard::new(terms.size);
        let progress = Arc::new(AtomicU64::new(0));
        let wire = Arc::new(Wire {
            writer: Mutex::new(Writer {
                stream: stream.try_clone().map_err(&system)?,
                sealer: send,
            }),
            inbox: Mutex::default(),
            changed: Condvar::new(),
            closing: AtomicBool::new(false),
            peers: Mutex::default(),
        });
        let monitor = Monitor {
            stream,
            opener: receive,
            address,
            size: terms.size,
            wire: Arc::clone(&wire),
            faults: faults.clone(),
            progress: Arc::clone(&progress),
            gone: terms.gone.clone(),
            is_of_launcher: terms.is_of_launcher,
        };
        let thread = std::thread::Builder::new().name("store-monitor".into());
        let monitor = thread.spawn(move || monitor.run());
        let monitor = monitor.map_err(thread_limit::named).map_err(&system)?;
        Ok(Self {
            terms,
            local_ip,
            store_ip,
            faults,
            progress,
            link: Some(Control {
                address,
                wire,
                monitor: Some(monitor),
                exchange: Mutex::new(0),
                survey: Mutex::new(0),
            }),
            server,
        })
    }

    fn alone(timeout: Duration) -> Result<Self, RendezvousError> {
        Ok(Self {
            terms: Terms {
                rank: 0,
                size: 1,
                world: 0,
                secret: Secret::generate()?.1,
                timeout,
                gone: String::new(),
                is_of_launcher: false,
            },
            local_ip: Ipv4Addr::LOCALHOST.into(),
            store_ip: Ipv4Addr::LOCALHOST.into(),
            faults: FaultBoard::new(1),
            progress: Arc::default(),
            link: None,
            server: None,
        })
    }

    /// Address of the store. `None` for a single rank.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.link.as_ref().map(|link| link.address)
    }

    /// Number of the world, from 0.
    pub(super) fn world_number(&self) -> u32 {
        self.terms.world
    }

    /// Rank of this process.
    pub fn rank(&self) -> usize {
        self.terms.rank
    }

    /// The world size.
    pub fn size(&self) -> usize {
        self.terms.size
    }

    /// Gives `payload` to all ranks and returns theirs, in rank order.
    ///
    /// All ranks call it with the same `tag` in the same order. It waits as long as the limit of
    /// [`Store::connect`].
    ///
    /// # Errors
    /// Fails if a rank does not come in time, failed, left or is at another tag, or if the store is
    /// gone. Also fails if the payload is longer than [`MAX_PAYLOAD`] bytes or the tag longer than
    /// [`MAX_TAG`]. After an error that other ranks share, no exchange works any more.
    pub fn all_gather(&self, tag: &str, payload: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        self.all_gather_within(tag, payload, self.terms.timeout)
    }

    /// Does a [`Store::all_gather`] with its own timeout; that of the rank that calls first counts.
    ///
    /// # Errors
    /// As [`Store::all_gather`].
    pub fn all_gather_within(
        &self,
        tag: &str,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, RendezvousError> {
        if payload.len() > MAX_PAYLOAD {
            let bytes = payload.len();
            return Err(RendezvousError::PayloadTooLong { bytes });
        }
        if tag.len() > MAX_TAG {
            return Err(RendezvousError::TagTooLong { bytes: tag.len() });
        }
        let Some(link) = &self.link else {
            return Ok(vec![payload.to_vec()]);
        };
        let mut sequence = link.exchange.lock();
        let mut inbox = link.wire.inbox.lock();
        self.check(link, &inbox)?;
        inbox.gathered = vec![None; self.terms.size];
        inbox.missing = self.terms.size;
        inbox.sequence = *sequence;
        drop(inbox);

        self.send(
            link,
            &Message::Gather {
                sequence: *sequence,
                timeout,
                tag: tag.into(),
                payload: payload.into(),
            },
        )?;
        let limit = timeout.saturating_add(PATIENCE);
        let mut inbox = link.wire.wait(limit, |inbox| {
            inbox.missing > 0 && self.check(link, inbox).is_ok()
        });
        if inbox.missing == 0 {
            *sequence += 1;
            return Ok(inbox.gathered.drain(..).flatten().collect());
        }
        self.check(link, &inbox)?;
        Err(RendezvousError::Silent {
            address: link.address,
            waited: limit,
        })
    }

    /// Asks every rank for its number in [`Store::progress`], for at most `timeout`.
    ///
    /// `None` for ranks that did not answer: they are stopped, failed or gone.
    ///
    /// # Errors
    /// Fails if the store does not answer or is gone.
    pub fn survey(&self, timeout: Duration) -> Result<Vec<Option<u64>>, RendezvousError> {
        let Some(link) = &self.link else {
            return Ok(vec![Some(self.progress.load(Ordering::Acquire))]);
        };
        let mut number = link.survey.lock();
        *number += 1;
        let survey = *number;
        self.send(link, &Message::Survey { survey, timeout })?;
        let limit = timeout.saturating_add(PATIENCE);
        let is_answer = |inbox: &Inbox| matches!(&inbox.surveyed, Some((id, _)) if *id == survey);
        let mut inbox = link
            .wire
            .wait(limit, |inbox| !is_answer(inbox) && !inbox.ended);
        match inbox.surveyed.take() {
            Some((id, progress)) if id == survey => Ok(progress),
            _ if inbox.ended => Err(self.ended(link)),
            _ => Err(RendezvousError::Silent {
                address: link.address,
                waited: limit,
            }),
        }
    }

    /// The board with the failures of other ranks.
    pub fn faults(&self) -> FaultBoard {
        self.faults.clone()
    }

    /// Tells all other ranks why this one stops, and wakes waiters on this rank.
    ///
    /// Best effort: nobody may be left to hear.
    pub fn abort(&self, reason: &str) {
        self.abort_because_of(None, reason);
    }

    /// Does the same and blames `culprit`: the others learn that it failed.
    pub fn abort_because_of(&self, culprit: Option<usize>, reason: &str) {
        let Some(link) = &self.link else { return };
        self.faults.record(Fault {
            rank: culprit.or(Some(self.terms.rank)),
            reason: reason.into(),
        });
        let reason = reason.into();
        let sent = self.send(link, &Message::Abort { culprit, reason });
        if let (Ok(()), Some(server)) = (sent, &self.server) {
            server.wait_until_told(self.terms.rank, LAST_WORD);
        }
    }

    /// The number that other ranks see in a [`Store::survey`]: the collective entered last.
    pub fn progress(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.progress)
    }

    /// Watches the processes of other ranks on this machine. Once the launcher is gone, a rank that
    /// waits for one of them fails soon after that process has ended.
    pub(crate) fn watch_processes(&self, peers: impl IntoIterator<Item = (usize, Pid)>) {
        let Some(link) = &self.link else { return };
        let mut watched = link.wire.peers.lock();
        for (rank, pid) in peers {
            watched.entry(rank).or_insert_with(|| Process::new(pid));
        }
    }

    /// The address by which other ranks reach this one: that of the interface towards the store.
    pub fn local_ip(&self) -> IpAddr {
        self.local_ip
    }

    /// The address by which this rank reaches the store.
    pub(crate) fn store_ip(&self) -> IpAddr {
        self.store_ip
    }

    /// The run's secret, for connections between ranks.
    pub fn secret(&self) -> &Secret {
        &self.terms.secret
    }

    fn send(&self, link: &Control, message: &Message) -> Result<(), RendezvousError> {
        let sent = link.wire.writer.lock().send(message);
        sent.map_err(|_| self.ended(link))
    }

    /// Checks that an exchange can still succeed.
    fn check(&self, link: &Control, inbox: &Inbox) -> Result<(), RendezvousError> {
        if let Some(fault) = self.faults.get() {
            return Err(RendezvousError::Fault(fault));
        }
        if let Some(failure) = &inbox.failure {
            return Err(RendezvousError::gather(link.address, failure.clone()));
        }
        match inbox.ended {
            true => Err(self.ended(link)),
            false => Ok(()),
        }
    }

    fn ended(&self, link: &Control) -> RendezvousError {
        RendezvousError::Fault(self.faults.get().unwrap_or_else(|| Fault {
            rank: None,
            reason: format!("the connection to the store at {} is closed", link.address),
        }))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort("it panicked");
        }
        if let Some(link) = &mut self.link {
            link.close();
        }
        // A connection that replaces this one goes on with the store.
        if let Some(server) = self.server.take().and_then(Arc::into_inner) {
            // Others may still need the store, but not once the run has failed.
            let limit = match server.first_fault() {
                Some(_) => FAREWELL,
                None => self.terms.timeout,
            };
            if !server.wait_until_left(limit) {
                tracing::debug!("rank 0 closes the store while ranks are still connected");
            }
        }
    }
}

impl Control {
    fn close(&mut self) {
        // Locked, so that it does not fall between a waiter's check and its sleep.
        let inbox = self.wire.inbox.lock();
        self.wire.closing.store(true, Ordering::Release);
        drop(inbox);
        self.wire.changed.notify_all();
        let mut writer = self.wire.writer.lock();
        let _ = writer.stream.set_write_timeout(Some(FAREWELL));
        let _ = writer.send(&Message::Bye);
        let _ = writer.stream.shutdown(Shutdown::Write);
        drop(writer);
        // The store answers a goodbye by ending the connection.
        drop(self.wire.wait(FAREWELL, |inbox| !inbox.ended));
        let _ = self.wire.writer.lock().stream.shutdown(Shutdown::Both);
        if let Some(monitor) = self.monitor.take() {
            let _ = monitor.join();
        }
    }
}

impl Wire {
    fn wait(&self, limit: Duration, waits: impl Fn(&Inbox) -> bool) -> MutexGuard<'_, Inbox> {
        let mut inbox = self.inbox.lock();
        self.changed
            .wait_while_for(&mut inbox, |inbox| waits(inbox), limit);
        inbox
    }
}

/// The thread that listens to the store.
struct Monitor {
    stream: TcpStream,
    opener: Opener,
    address: SocketAddr,
    size: usize,
    wire: Arc<Wire>,
    faults: FaultBoard,
    progress: Arc<AtomicU64>,
    /// Meaning of the end of the connection.
    gone: String,
    /// Whether the store is that of this crate's launchers.
    is_of_launcher: bool,
}

impl Monitor {
    fn run(mut self) {
        let reason = loop {
            match protocol::read(&mut self.stream, &mut self.opener) {
                Ok(message) => {
                    if let Err(reason) = self.receive(message) {
                        break reason;
                    }
                }
                Err(protocol::FrameError::Stream(_)) => {
                    // Waiters for the store's answer wait in vain, even while others save.
                    self.wire.inbox.lock().ended = true;
                    self.wire.changed.notify_all();
                    self.leave_time_to_save();
                    break self.gone.clone();
                }
                Err(error) => break format!("the store at {} sent {error}", self.address),
            }
        };
        if !self.wire.closing.load(Ordering::Acquire) {
            self.faults.record(Fault { rank: None, reason });
        }
        self.wire.inbox.lock().ended = true;
        self.wire.changed.notify_all();
    }

    /// If a callback for the end of the launcher is set, ranks save their state before the run
    /// fails: they still have each other. Every wait for another rank keeps its timeout.
    fn leave_time_to_save(&self) {
        let is_closing = || self.wire.closing.load(Ordering::Acquire);
        if !self.is_of_launcher || is_closing() || self.faults.is_faulty() {
            return;
        }
        let then = LAUNCHER_GONE.lock().take();
        let Some(then) = then else { return };
        then();
        let goes_on = || !is_closing() && !self.faults.is_faulty();
        let deadline = deadline::after(SAVING);
        while goes_on() && Instant::now() < deadline {
            for (rank, process) in &*self.wire.peers.lock() {
                if process.has_ended() {
                    self.faults.record_ended(*rank);
                }
            }
            drop(self.wire.wait(LOOK, |_| goes_on()));
        }
    }

    fn receive(&mut self, message: Message) -> Result<(), String> {
        let mut inbox = self.wire.inbox.lock();
        match message {
            Message::Gathered {
                sequence,
                rank,
                payload,
            } => {
                let expected = inbox.sequence == sequence;
                match inbox.gathered.get_mut(rank) {
                    Some(slot @ None) if expected => *slot = Some(payload),
                    _ => {
                        return Err(
                            "the store sent an exchange that this rank did not ask for".into()
                        );
                    }
                }
                inbox.missing = inbox.missing.saturating_sub(1);
            }
            Message::GatherFailed(failure) => {
                inbox.failure.get_or_insert(failure);
            }
            Message::PeerFailed { rank, reason } => {
                let rank = Some(rank);
                self.faults.record(Fault { rank, reason });
            }
            Message::PeerLeft { rank } => self.faults.record_left(rank),
            Message::Surveyed { survey, progress } if progress.len() == self.size => {
                inbox.surveyed = Some((survey, progress));
            }
            Message::Query { query } => {
                drop(inbox);
                let progress = self.progress.load(Ordering::Acquire);
                // A lost connection shows at the next read.
                let _ = self
                    .wire
                    .writer
                    .lock()
                    .send(&Message::Report { query, progress });
                return Ok(());
            }
            Message::Waiting {
                waited,
                ranks,
                refused,
            } => {
                let text = still_missing(self.address, waited, &ranks, refused);
                match tracing::dispatcher::has_been_set() {
                    true => tracing::warn!("{text}"),
                    // Somebody waits in front of a program that shows no messages.
                    false => eprintln!("warning: {text}"),
                }
                return Ok(());
            }
            _ => return Err("the store sent an unexpected message".into()),
        }
        drop(inbox);
        self.wire.changed.notify_all();
        Ok(())
    }
}

//! A rank's way into the run: finds or starts the store, connects, authenticates and is welcomed.

use parking_lot::Mutex;

use super::error::RendezvousError;
use super::protocol::{self, Message, Refusal};
use super::roster::SAYS_WHO_IS_MISSING;
use super::server::{StoreServer, encode_context};
use crate::wire::Secret;
use crate::wire::auth::{self, AuthError, HANDSHAKE_LIMIT, Keys, Limits, Purpose, StreamError};
use crate::wire::net::{LOOPBACK, listen_at, listen_everywhere, listening_user};
use crate::world::{Launch, Master, Meeting, World};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How long the first attempt waits for an address that does not react; later ones wait longer.
const FIRST_PATIENCE: Duration = Duration::from_secs(1);

/// Divisor of the total time if the store may be at one of several ports. After this part nothing
/// more is expected of a port and, once the store of another run has refused this rank, of any
/// port.
const ONE_PORT: u32 = 4;

/// Time between two looks at the port of [`Master::notice`]. Ranks usually meet sooner.
const NOTICE_EVERY: Duration = Duration::from_secs(2);
/// Time for one look.
const NOTICE_LIMIT: Duration = Duration::from_secs(1);

/// How long the store of our own launchers may refuse connections. It listens before ranks are
/// started, so after that its launcher is gone, and nobody waits for this rank or would end it.
const ORPHANED: Duration = Duration::from_secs(2);

/// How long a rank 0 that cannot host the store tells that to other ranks of its machine.
const TELLS: Duration = Duration::from_secs(4);
/// How long they then get to read it.
const READS: Duration = Duration::from_secs(1);

/// The ranks' meeting place, from the world or agreed over MPI, for which ranks wait up to `limit`
/// for each other. All ranks call it.
pub(super) fn meeting(world: &World, limit: Duration) -> Result<Meeting, RendezvousError> {
    if let Some(companion) = &world.from_launcher.companion {
        let met = companion.meet(world, limit);
        return met.map_err(|reason| RendezvousError::Mpi { reason });
    }
    match (world.master(), world.secret()) {
        (Some(master), Some(secret)) => Ok(Meeting {
            master: master.clone(),
            secret: secret.clone(),
            listener: None,
        }),
        _ => Err(RendezvousError::NoStore { size: world.size() }),
    }
}

/// Refuses impossible settings on every rank alike: the others would wait for rank 0 forever.
pub(super) fn check(world: &World, master: &Master) -> Result<(), RendezvousError> {
    match master.loopback() {
        // Agents have reached each other at this address.
        Some(ip) if world.nodes() > 1 && world.launch() != Launch::Agent => {
            Err(RendezvousError::Loopback {
                master: master.clone(),
                address: (ip, master.port).into(),
            })
        }
        _ => Ok(()),
    }
}

/// Starts the store on rank 0, at the address that the others know. If that fails, tells the ranks
/// that it can reach.
pub(super) fn host(world: &World, meeting: &mut Meeting) -> Result<StoreServer, RendezvousError> {
    let listener = meeting.listener.take();
    let Meeting { master, secret, .. } = &*meeting;
    if let Some(listener) = listener {
        return StoreServer::on(listener, world.size(), secret.clone());
    }
    let hosted = host_at_a_port(world, master, secret);
    if let Err(error) = &hosted {
        tell_others(world, master, secret, error);
    }
    hosted
}

fn host_at_a_port(
    world: &World,
    master: &Master,
    secret: &Secret,
) -> Result<StoreServer, RendezvousError> {
    let mut taken = Vec::new();
    for port in master.ports() {
        match host_at(world, master, port, secret) {
            Err(RendezvousError::PortInUse { address }) => taken.push(address),
            Ok(mut server) => {
                taken.iter().for_each(|taken| warn_of(*taken, port));
                give_notice(&mut server, master);
                return Ok(server);
            }
            other => return other,
        }
    }
    Err(match taken.first() {
        Some(address) => RendezvousError::PortInUse { address: *address },
        None => RendezvousError::NoStore { size: world.size() },
    })
}

/// Listens at the port of [`Master::notice`]. The run does not need it.
fn give_notice(server: &mut StoreServer, master: &Master) {
    let Some(port) = master.notice else {
        return;
    };
    let address = SocketAddr::new(server.address().ip(), port);
    let listening = listen_at(address).and_then(|listener| server.also_on(listener));
    if let Err(error) = listening {
        tracing::debug!("the store does not listen at {address}: {error}");
    }
}

/// Warns that the port is in use; no other program has a reason to choose it.
fn warn_of(taken: SocketAddr, port: u16) {
    let holder = match listening_user(taken.port()) {
        Some(user) => format!("a process of user {user}"),
        None => "another process".to_owned(),
    };
    tracing::warn!(
        "{holder} listens at {taken}, the port derived for this run, so the ranks use port {port} \
         instead. If it is not a run of yours, someone may be trying to intercept this one"
    );
}

fn host_at(
    world: &World,
    master: &Master,
    port: u16,
    secret: &Secret,
) -> Result<StoreServer, RendezvousError> {
    let mut failure = None;
    for address in resolve(master, port)? {
        if address.ip().is_loopback() && may_span_nodes(world, master) {
            let master = master.clone();
            failure.get_or_insert(RendezvousError::Loopback { master, address });
            continue;
        }
        match StoreServer::bind(address, world.size(), secret.clone()) {
            Ok(server) => return Ok(server),
            Err(RendezvousError::Listen { source, .. })
                if source.kind() == ErrorKind::AddrNotAvailable =>
            {
                let master = master.clone();
                failure.get_or_insert(RendezvousError::NotLocal { master, address });
            }
            Err(error) => return Err(error),
        }
    }
    let failure = failure.unwrap_or(RendezvousError::NoStore { size: world.size() });
    if master.ip().is_some() {
        return Err(failure);
    }
    // Other hosts may know this one's name by a better address (Debian's own is 127.0.1.1).
    let address = (LOOPBACK[0], port).into();
    let listener = listen_everywhere(port).map_err(RendezvousError::listen(address))?;
    match &failure {
        RendezvousError::NotLocal { master, address } => tracing::warn!(
            "MASTER_ADDR={} is {} here, which is not an address of this machine. The store listens \
             at all its addresses, port {port}",
            master.host,
            address.ip()
        ),
        _ => tracing::debug!("the store listens at all addresses, port {port}: {failure}"),
    }
    StoreServer::on(listener, world.size(), secret.clone())
}

/// Whether ranks may be on other machines.
fn may_span_nodes(world: &World, master: &Master) -> bool {
    world.nodes() > 1 || (world.assumes_local_size() && master.loopback().is_none())
}

/// Tells the other ranks why there is no store.
///
/// Ranks of the same machine also look for the store at its loopback address, and learn it there.
/// Ranks of other machines look only at MASTER_ADDR. If that address is translated on the way (the
/// public address of a virtual machine, a Kubernetes service), they reach this rank and learn that
/// it is refused. Otherwise it leads nowhere or to a third machine, and nobody can tell them: they
/// go on until their launcher ends them or they time out.
fn tell_others(world: &World, master: &Master, secret: &Secret, error: &RendezvousError) {
    let may_be_reached = world.nodes() > 1 && matches!(error, RendezvousError::NotLocal { .. });
    let alone = world.local_size() == 1 && !may_be_reached;
    if alone || matches!(error, RendezvousError::PortInUse { .. }) {
        return;
    }
    let host = |listener| StoreServer::on(listener, world.size(), secret.clone()).ok();
    let everywhere = || {
        let mut ports = master.ports().filter(|_| may_be_reached);
        ports.find_map(|port| host(listen_everywhere(port).ok()?))
    };
    let here = || places_here(master).find_map(|place| host(listen_at(place).ok()?));
    if let Some(server) = everywhere().or_else(here) {
        server.report_failure(world.rank(), &error.to_string());
        server.wait_until_seen(world.rank(), TELLS);
        server.wait_until_left(READS);
    }
}

/// The possible places of a store on this machine.
fn places_here(master: &Master) -> impl Iterator<Item = SocketAddr> {
    let place = move |ip| master.ports().map(move |port| SocketAddr::new(ip, port));
    LOOPBACK.into_iter().flat_map(place)
}

fn resolve(master: &Master, port: u16) -> Result<Vec<SocketAddr>, RendezvousError> {
    let addresses = (master.host.as_str(), port).to_socket_addrs();
    let source = match addresses.map(Vec::from_iter) {
        Ok(addresses) if !addresses.is_empty() => return Ok(addresses),
        Ok(_) => ErrorKind::NotFound.into(),
        Err(source) => source,
    };
    let master = master.clone();
    Err(RendezvousError::Resolve { master, source })
}

/// One rank's attempts to enter the run.
pub(super) struct Attempt<'a> {
    world: &'a World,
    secret: &'a Secret,
    begin: Instant,
    deadline: Instant,
}

/// Looks at the port at which a rank learns that its secret differs from that of rank 0.
///
/// Anybody may listen there, so an answer explains and decides nothing.
struct Notice {
    port: Option<u16>,
    next: Instant,
    /// The error of a rank with another secret.
    denied: Option<RendezvousError>,
}

impl Notice {
    fn of(master: &Master) -> Self {
        Self {
            port: master.notice,
            next: Instant::now() + NOTICE_EVERY,
            denied: None,
        }
    }

    fn look(&mut self, attempt: &Attempt<'_>, addresses: &[SocketAddr]) -> Option<Entered> {
        let port = self.port.filter(|_| self.next <= Instant::now())?;
        for address in addresses {
            let address = SocketAddr::new(address.ip(), port);
            let soon = attempt.deadline.min(Instant::now() + NOTICE_LIMIT);
            match attempt.attempt(address, FIRST_PATIENCE, soon) {
                Ok(entered) => return Some(entered),
                Err(AttemptFailure::Final(error @ RendezvousError::WrongSecret { .. })) => {
                    tracing::warn!("cannot join: {error}");
                    (self.port, self.denied) = (None, Some(error));
                    return None;
                }
                Err(_) => {}
            }
        }
        self.next = Instant::now() + NOTICE_EVERY;
        None
    }
}

/// A rank that has entered the run.
pub(super) struct Entered {
    pub stream: TcpStream,
    pub session: Keys,
    /// Address of the store.
    pub address: SocketAddr,
}

/// How one attempt failed.
enum AttemptFailure {
    /// It may succeed later.
    Later(SocketAddr, StreamError),
    /// The store that answered is about to end, or this rank has left it: it belongs to the
    /// previous run, whose place ours takes, or to a local launch, where ranks meet again when all
    /// have left.
    Ending(RendezvousError),
    /// The answer came from a program that never will be our store.
    Final(RendezvousError),
    /// As `Final`; the program belongs to no run or another version, or relays to a store.
    Stranger(RendezvousError),
}

impl std::fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Later(address, StreamError::Io(error)) => write!(f, "{address}: {error}"),
            Self::Later(address, error) => write!(f, "the program at {address}: {error}"),
            Self::Ending(error) | Self::Final(error) | Self::Stranger(error) => error.fmt(f),
        }
    }
}

impl<'a> Attempt<'a> {
    pub(super) fn new(world: &'a World, secret: &'a Secret, deadline: Instant) -> Self {
        Self {
            world,
            secret,
            begin: Instant::now(),
            deadline,
        }
    }

    /// Retries until the deadline.
    pub(super) fn retry(
        &self,
        master: &Master,
        timeout: Duration,
    ) -> Result<Entered, RendezvousError> {
        let reminder = self.reminder(master);
        let mut pause = Duration::from_millis(10);
        let mut connecting = FIRST_PATIENCE;
        let mut refused: Option<(Instant, RendezvousError)> = None;
        let mut stranger = None;
        let mut relays = BTreeSet::new();
        let mut notice = Notice::of(master);
        let patience = (timeout / ONE_PORT).max(HANDSHAKE_LIMIT);
        loop {
            let mut last = None;
            let addresses = resolve(master, master.port);
            for address in addresses.as_deref().unwrap_or_default() {
                for port in master.ports() {
                    let address = SocketAddr::new(address.ip(), port);
                    let verdict = match master.fallback.is_empty() {
                        true => self.deadline,
                        false => self.deadline.min(Instant::now() + patience),
                    };
                    let failure = match self.attempt(address, connecting, verdict) {
                        Ok(entered) => return Ok(entered),
                        Err(failure) => failure,
                    };
                    reminder.note(failure.to_string());
                    match failure {
                        AttemptFailure::Final(error) | AttemptFailure::Stranger(error)
                            if master.fallback.is_empty() =>
                        {
                            return Err(error);
                        }
                        // This port may belong to another run, or to any program.
                        AttemptFailure::Final(error) => {
                            refused.get_or_insert((Instant::now(), error));
                        }
                        AttemptFailure::Stranger(error) => {
                            if let RendezvousError::Relayed { .. } = error
                                && relays.insert(address)
                            {
                                let rank = self.world.rank();
                                tracing::warn!("rank {rank} tries the next port: {error}");
                            }
                            stranger = stranger.or(Some(error));
                        }
                        later => last = Some(later),
                    }
                }
            }
            let tried = addresses.as_deref().unwrap_or_default();
            let beside = self.beside(master, tried);
            if let Some(entered) = beside.or_else(|| notice.look(self, tried)) {
                return Ok(entered);
            }
            match refused.take() {
                Some((since, error)) if since.elapsed() > patience => return Err(error),
                other => refused = other,
            }
            if let Err(error) = &addresses {
                reminder.note(error.to_string());
            }
            if Instant::now() + pause >= self.deadline {
                addresses?;
                let refused = refused.map(|(_, error)| error);
                return Err(match refused.or(notice.denied).or(stranger) {
                    Some(error) => error,
                    None => self.gave_up(last, master, timeout),
                });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            connecting = (connecting * 2).min(HANDSHAKE_LIMIT);
        }
    }

    /// A rank 0 that its name does not lead to may be on this machine. Other listeners there do not
    /// matter.
    fn beside(&self, master: &Master, tried: &[SocketAddr]) -> Option<Entered> {
        let is_local = self.world.is_of_own_launcher() || self.world.node() > 0;
        if is_local || tried.iter().any(|address| address.ip().is_loopback()) {
            return None;
        }
        let soon = Instant::now() + HANDSHAKE_LIMIT;
        places_here(master).find_map(|place| self.attempt(place, FIRST_PATIENCE, soon).ok())
    }

    /// Tries once, if this process has its own store.
    pub(super) fn once(&self, address: SocketAddr) -> Result<Entered, RendezvousError> {
        let mut ips = vec![address.ip()];
        if address.ip().is_unspecified() {
            ips = LOOPBACK.into();
            ips.retain(|ip| ip.is_ipv4() || address.is_ipv6());
        }
        let mut failed = None;
        for ip in ips {
            let address = SocketAddr::new(ip, address.port());
            match self.attempt(address, HANDSHAKE_LIMIT, self.deadline) {
                Ok(entered) => return Ok(entered),
                Err(failure) => drop(failed.get_or_insert(failure)),
            }
        }
        Err(match failed {
            Some(
                AttemptFailure::Final(error)
                | AttemptFailure::Ending(error)
                | AttemptFailure::Stranger(error),
            ) => error,
            Some(AttemptFailure::Later(address, StreamError::Io(source))) => {
                RendezvousError::Unreachable { address, source }
            }
            Some(AttemptFailure::Later(address, error)) => RendezvousError::NotAStore {
                address,
                reason: error.to_string(),
            },
            None => RendezvousError::NoStore {
                size: self.world.size(),
            },
        })
    }

    /// The error if nothing accepts connections at `address`.
    fn unreachable(&self, address: SocketAddr, source: std::io::Error) -> AttemptFailure {
        let refused = source.kind() == ErrorKind::ConnectionRefused;
        let is_orphan = self.world.is_of_own_launcher() && self.begin.elapsed() > ORPHANED;
        match refused && is_orphan {
            true => AttemptFailure::Final(RendezvousError::LauncherGone { address, source }),
            false => AttemptFailure::Later(address, StreamError::Io(source)),
        }
    }

    fn gave_up(
        &self,
        last: Option<AttemptFailure>,
        master: &Master,
        waited: Duration,
    ) -> RendezvousError {
        match last {
            Some(AttemptFailure::Later(_, StreamError::Io(source))) => {
                RendezvousError::NothingListens {
                    master: master.clone(),
                    waited,
                    source,
                }
            }
            Some(AttemptFailure::Later(address, error)) => RendezvousError::NotAStore {
                address,
                reason: match error {
                    StreamError::TimedOut => format!("{error} (rank 0 may be suspended)"),
                    other => other.to_string(),
                },
            },
            Some(
                AttemptFailure::Final(error)
                | AttemptFailure::Ending(error)
                | AttemptFailure::Stranger(error),
            ) => error,
            None => RendezvousError::NothingListens {
                master: master.clone(),
                waited,
                source: ErrorKind::TimedOut.into(),
            },
        }
    }

    /// Tries once. The other host may take `connecting` to answer at all; the program that answers
    /// may consider this rank's proof until `verdict`.
    fn attempt(
        &self,
        address: SocketAddr,
        connecting: Duration,
        verdict: Instant,
    ) -> Result<Entered, AttemptFailure> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let limit = left.clamp(Duration::from_millis(1), HANDSHAKE_LIMIT);
        let refused = |error| self.unreachable(address, error);
        let mut stream =
            TcpStream::connect_timeout(&address, limit.min(connecting)).map_err(refused)?;
        // If nobody listens, a connection within one host can end up at its own start.
        if stream.local_addr().ok() == Some(address) {
            return Err(refused(ErrorKind::ConnectionRefused.into()));
        }
        let deadline = Instant::now() + limit;
        let (rank, size) = (self.world.rank(), self.world.size());
        let context = encode_context(rank, size);
        // Once it has shown that it knows the secret, this rank may already be accepted. A retry
        // would find itself there.
        let limits = Limits {
            proof: deadline,
            verdict: verdict.max(deadline),
        };
        let mut session =
            auth::connect_side(&stream, self.secret, Purpose::Store, &context, limits).map_err(
                |error| match error {
                    AuthError::Stream(error) => AttemptFailure::Later(address, error),
                    error @ (AuthError::NotBurnDist
                    | AuthError::Purpose
                    | AuthError::Relayed { .. }
                    | AuthError::Version { .. }) => {
                        AttemptFailure::Stranger(RendezvousError::handshake(address, error))
                    }
                    other => AttemptFailure::Final(RendezvousError::handshake(address, other)),
                },
            )?;
        let left = self.deadline.saturating_duration_since(Instant::now());
        let _ = stream.set_read_timeout(Some(left.max(HANDSHAKE_LIMIT)));
        match protocol::read(&mut stream, &mut session.receive) {
            Ok(Message::Welcome) => {
                let _ = stream.set_read_timeout(None);
                Ok(Entered {
                    stream,
                    session,
                    address,
                })
            }
            Ok(Message::Refused(refusal)) => {
                let error = RendezvousError::refused(address, rank, size, refusal);
                Err(match refusal {
                    Refusal::RankGone | Refusal::Ending => AttemptFailure::Ending(error),
                    _ => AttemptFailure::Final(error),
                })
            }
            Ok(_) => Err(AttemptFailure::Final(RendezvousError::NotAStore {
                address,
                reason: "it did not accept this rank".into(),
            })),
            Err(protocol::FrameError::Stream(error)) => Err(AttemptFailure::Later(address, error)),
            Err(error) => Err(AttemptFailure::Final(RendezvousError::NotAStore {
                address,
                reason: format!("it sent {error}"),
            })),
        }
    }

    /// Reports after a while that this rank is still trying.
    fn reminder(&self, master: &Master) -> Reminder {
        let (rank, master) = (self.world.rank(), master.clone());
        let left = self.deadline.saturating_duration_since(Instant::now());
        let left = left.saturating_sub(SAYS_WHO_IS_MISSING).as_secs();
        Reminder::new(SAYS_WHO_IS_MISSING, move |last| {
            tracing::warn!(
                "rank {rank} has not reached rank 0 at {master} in {} s and tries for {left} s \
                 more ({last}). Check that rank 0 runs there and that MASTER_ADDR leads there from \
                 this host. If MASTER_ADDR is not an address of rank 0's host, rank 0 has ended \
                 and reports it{}",
                SAYS_WHO_IS_MISSING.as_secs(),
                match is_own(&master) {
                    true => ". It is an address of this host",
                    false => "",
                }
            );
        })
    }
}

/// Whether the address of the store belongs to this machine, loopback aside.
fn is_own(master: &Master) -> bool {
    let addresses = resolve(master, 0).unwrap_or_default();
    let own =
        |address: &SocketAddr| !address.ip().is_loopback() && UdpSocket::bind(address).is_ok();
    addresses.iter().any(own)
}

/// Reports something once, after a while, unless it is dropped before.
struct Reminder {
    last: Arc<Mutex<String>>,
    _alive: Sender<()>,
}

impl Reminder {
    /// `say` gets the latest note.
    fn new(after: Duration, say: impl FnOnce(&str) + Send + 'static) -> Self {
        let last = Arc::new(Mutex::new("no answer yet".to_owned()));
        let (alive, dropped) = channel();
        let noted = last.clone();
        // Without a thread, the error at the end says it.
        let _ = std::thread::Builder::new()
            .name("store-patience".into())
            .spawn(move || {
                if dropped.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                    say(&noted.lock());
                }
            });
        Self {
            last,
            _alive: alive,
        }
    }

    fn note(&self, last: String) {
        *self.last.lock() = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reminder_says_what_was_noted_last_and_only_in_need() {
        let (told, heard) = channel();
        let after = Duration::from_millis(50);
        let say = |told: Sender<String>| move |last: &str| told.send(last.into()).unwrap();
        let reminder = Reminder::new(after, say(told.clone()));
        reminder.note("connection refused".into());
        let heard_in_need = heard.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(heard_in_need, "connection refused");
        drop(Reminder::new(after, say(told)));
        // The other end of the channel is gone with the thread.
        let rest = heard.recv_timeout(Duration::from_secs(20));
        assert_eq!(rest, Err(RecvTimeoutError::Disconnected));
        drop(reminder);
    }
}

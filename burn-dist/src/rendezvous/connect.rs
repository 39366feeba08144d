//! The way into a run: find the store or start it, connect, prove oneself, be welcomed.

use super::auth::{self, AuthError, HANDSHAKE_LIMIT, Limits, Purpose, StreamError};
use super::error::RendezvousError;
use super::protocol::{self, Message, Refusal};
use super::server::{StoreServer, encode_context};
use crate::world::{Launch, Master, Secret, World};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Where the store may be at one of several ports: the part of all the time that ranks have for finding each other
/// after which nothing more is expected of a port, and, once the store of another run has refused this rank, of any.
const ONE_PORT: u32 = 4;

/// How long the store of a local launch may refuse connections. It listens before ranks are started, so its launcher
/// is gone then, and nobody else waits for this rank or would end it.
const ORPHANED: Duration = Duration::from_secs(2);

/// Where the ranks of a run meet.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub master: Master,
    pub secret: Secret,
    /// Where the store is to listen, on rank 0, if it has been decided already.
    pub listener: Option<TcpListener>,
}

impl Meeting {
    /// As the world says, or agreed on over MPI, for which ranks wait `limit` for each other. All ranks call it.
    pub(super) fn of(world: &World, limit: Duration) -> Result<Self, RendezvousError> {
        #[cfg(not(feature = "mpi"))]
        let _ = limit;
        #[cfg(feature = "mpi")]
        if world.link.mpi.is_some() {
            return crate::mpi::meet(world, limit).map_err(|error| RendezvousError::Mpi {
                reason: error.to_string(),
            });
        }
        match (world.master(), world.secret()) {
            (Some(master), Some(secret)) => Ok(Self {
                master: master.clone(),
                secret: secret.clone(),
                listener: None,
            }),
            _ => Err(RendezvousError::NoStore { size: world.size() }),
        }
    }
}

/// Starts the store on rank 0, at the address that the others were told.
pub(super) fn host(world: &World, meeting: &mut Meeting) -> Result<StoreServer, RendezvousError> {
    let listener = meeting.listener.take();
    let Meeting { master, secret, .. } = &*meeting;
    if let Some(listener) = listener {
        return StoreServer::on(listener, world.size(), secret.clone());
    }
    let mut in_use = None;
    for port in master.ports() {
        match host_at(world, master, port, secret) {
            Err(error @ RendezvousError::PortInUse { .. }) => in_use = in_use.or(Some(error)),
            other => return other,
        }
    }
    Err(in_use.unwrap_or(RendezvousError::NoStore { size: world.size() }))
}

fn host_at(
    world: &World,
    master: &Master,
    port: u16,
    secret: &Secret,
) -> Result<StoreServer, RendezvousError> {
    let mut failure = None;
    for address in resolve(master, port)? {
        if address.ip().is_loopback() && world.nodes() > 1 {
            let master = master.clone();
            failure = Some(RendezvousError::Loopback { master, address });
            continue;
        }
        match StoreServer::bind(address, world.size(), secret.clone()) {
            Ok(server) => return Ok(server),
            Err(RendezvousError::Listen { source, .. })
                if source.kind() == std::io::ErrorKind::AddrNotAvailable =>
            {
                let master = master.clone();
                failure.get_or_insert(RendezvousError::NotLocal { master, address });
            }
            Err(error) => return Err(error),
        }
    }
    Err(failure.unwrap_or(RendezvousError::NoStore { size: world.size() }))
}

fn resolve(master: &Master, port: u16) -> Result<Vec<SocketAddr>, RendezvousError> {
    let addresses = (master.host.as_str(), port).to_socket_addrs();
    match addresses.map(Vec::from_iter) {
        Ok(addresses) if !addresses.is_empty() => Ok(addresses),
        Ok(_) => Err(RendezvousError::Resolve {
            master: master.clone(),
            source: std::io::ErrorKind::NotFound.into(),
        }),
        Err(source) => Err(RendezvousError::Resolve {
            master: master.clone(),
            source,
        }),
    }
}

/// Attempts of one rank to get into the run.
pub(super) struct Attempt<'a> {
    world: &'a World,
    secret: &'a Secret,
    begin: Instant,
    deadline: Instant,
}

/// How one attempt failed.
enum Failure {
    /// It may work later.
    Later(SocketAddr, StreamError),
    /// What answered is a store that this rank was in, or one that is about to end: that of the run before, whose
    /// place ours takes when it is gone; or that of a local launch, where ranks meet again when all of them have left.
    Ending(RendezvousError),
    /// Something answered that never will be our store.
    Final(RendezvousError),
    /// The same, and it is none of any run, or of another version.
    Stranger(RendezvousError),
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

    /// Tries until the deadline.
    pub(super) fn retry(
        &self,
        master: &Master,
        timeout: Duration,
    ) -> Result<(TcpStream, SocketAddr), RendezvousError> {
        let mut pause = Duration::from_millis(10);
        let mut refused: Option<(Instant, RendezvousError)> = None;
        let mut stranger = None;
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
                    match self.attempt(address, verdict) {
                        Ok(stream) => return Ok((stream, address)),
                        Err(Failure::Final(error) | Failure::Stranger(error))
                            if master.fallback.is_empty() =>
                        {
                            return Err(error);
                        }
                        // This port may be another run's, or anybody's.
                        Err(Failure::Final(error)) => {
                            refused.get_or_insert((Instant::now(), error));
                        }
                        Err(Failure::Stranger(error)) => stranger = stranger.or(Some(error)),
                        Err(later) => last = Some(later),
                    }
                }
            }
            match refused.take() {
                Some((since, error)) if since.elapsed() > patience => return Err(error),
                other => refused = other,
            }
            if Instant::now() + pause >= self.deadline {
                addresses?;
                let refused = refused.map(|(_, error)| error);
                return Err(match refused.or(stranger) {
                    Some(error) => error,
                    None => self.gave_up(last, master, timeout),
                });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Tries once, where the store is known to listen.
    pub(super) fn once(
        &self,
        address: SocketAddr,
    ) -> Result<(TcpStream, SocketAddr), RendezvousError> {
        match self.attempt(address, self.deadline) {
            Ok(stream) => Ok((stream, address)),
            Err(Failure::Final(error) | Failure::Ending(error) | Failure::Stranger(error)) => {
                Err(error)
            }
            Err(Failure::Later(address, error)) => Err(RendezvousError::NotAStore {
                address,
                reason: error.to_string(),
            }),
        }
    }

    /// What it means that nothing takes connections at `address`.
    fn unreachable(&self, address: SocketAddr, source: std::io::Error) -> Failure {
        let refused = source.kind() == std::io::ErrorKind::ConnectionRefused;
        match refused && self.world.launch() == Launch::Local && self.begin.elapsed() > ORPHANED {
            true => Failure::Final(RendezvousError::LauncherGone { address, source }),
            false => Failure::Later(address, StreamError::Io(source)),
        }
    }

    fn gave_up(&self, last: Option<Failure>, master: &Master, waited: Duration) -> RendezvousError {
        match last {
            Some(Failure::Later(_, StreamError::Io(source))) => RendezvousError::NothingListens {
                master: master.clone(),
                waited,
                source,
            },
            Some(Failure::Later(address, error)) => RendezvousError::NotAStore {
                address,
                reason: error.to_string(),
            },
            Some(Failure::Final(error) | Failure::Ending(error) | Failure::Stranger(error)) => {
                error
            }
            None => RendezvousError::NothingListens {
                master: master.clone(),
                waited,
                source: std::io::ErrorKind::TimedOut.into(),
            },
        }
    }

    /// `verdict` is until when whoever answers may think about this rank's proof.
    fn attempt(&self, address: SocketAddr, verdict: Instant) -> Result<TcpStream, Failure> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let limit = left.clamp(Duration::from_millis(1), HANDSHAKE_LIMIT);
        let refused = |error| self.unreachable(address, error);
        let mut stream = TcpStream::connect_timeout(&address, limit).map_err(refused)?;
        // With nobody listening, a connection within one host can end up at its own start.
        if stream.local_addr().ok() == Some(address) {
            return Err(refused(std::io::ErrorKind::ConnectionRefused.into()));
        }
        let deadline = Instant::now() + limit;
        let (rank, size) = (self.world.rank(), self.world.size());
        let context = encode_context(rank, size);
        // Once it has shown that it knows the secret, this rank may already be in: trying again would find itself there.
        let limits = Limits {
            proof: deadline,
            verdict: verdict.max(deadline),
        };
        auth::connect_side(&stream, self.secret, Purpose::Store, &context, limits).map_err(
            |error| match error {
                AuthError::Stream(error) => Failure::Later(address, error),
                error @ (AuthError::NotBurnDist
                | AuthError::Purpose
                | AuthError::Version { .. }) => {
                    Failure::Stranger(RendezvousError::handshake(address, error))
                }
                other => Failure::Final(RendezvousError::handshake(address, other)),
            },
        )?;
        let left = self.deadline.saturating_duration_since(Instant::now());
        let _ = stream.set_read_timeout(Some(left.max(HANDSHAKE_LIMIT)));
        match protocol::read(&mut stream) {
            Ok(Message::Welcome) => {
                let _ = stream.set_read_timeout(None);
                Ok(stream)
            }
            Ok(Message::Refused(refusal)) => {
                let error = RendezvousError::refused(address, rank, size, refusal);
                Err(match refusal {
                    Refusal::RankGone | Refusal::Ending => Failure::Ending(error),
                    _ => Failure::Final(error),
                })
            }
            Ok(_) => Err(Failure::Final(RendezvousError::NotAStore {
                address,
                reason: "it did not welcome this rank".into(),
            })),
            Err(protocol::FrameError::Stream(error)) => Err(Failure::Later(address, error)),
            Err(error) => Err(Failure::Final(RendezvousError::NotAStore {
                address,
                reason: error.to_string(),
            })),
        }
    }
}

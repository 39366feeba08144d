//! TCP between hosts, or between processes of one host that cannot share memory.
//!
//! Each rank has a non-blocking connection to the next rank on the ring and one from the previous,
//! with system buffers of a few segments. For small messages it also has one to and from each rank
//! that is 2, 4, 8 and so on away, or on request to and from all. Before data moves, both sides
//! prove that they know the run's secret and that nobody relays the connection. The data itself is
//! neither encrypted nor authenticated: anybody who can change packets between the hosts can change
//! it.

mod accept;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use super::{Interest, Reach, Transport, TransportError};
use crate::deadline;
use crate::wire::Secret;
use crate::wire::auth::{self, AuthError, HANDSHAKE_LIMIT, Limits, Purpose, StreamError};
use crate::wire::net;

const NAME: &str = "tcp";

/// Bytes that the system should buffer per direction: a few segments of the ring.
const SOCKET_BUFFER: usize = 4 << 20;

/// How long a rank retries a connection that is refused or dropped.
const TRIES_AGAIN: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How long a rank with its own CPU polls before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// This rank's listening socket, before ranks know each other's addresses.
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    reach: Reach,
}

/// The TCP transport of one rank.
pub struct Tcp {
    meshed: bool,
    /// By rank, the nearest first.
    outgoing: Vec<(usize, TcpStream)>,
    incoming: Vec<(usize, TcpStream)>,
    spin: Duration,
}

impl Listener {
    /// Listens on a free port of `ip`, the address by which the other ranks reach this one.
    ///
    /// An unspecified `ip` means all addresses.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn bind(ip: IpAddr) -> Result<Self, TransportError> {
        let fail = |source| setup(format!("listening on {ip}"), source);
        let listener = match ip.is_unspecified() {
            true => net::listen_everywhere(0).map_err(fail)?,
            false => TcpListener::bind((ip, 0)).map_err(fail)?,
        };
        listener.set_nonblocking(true).map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        Ok(Self {
            listener,
            address,
            reach: Reach::default(),
        })
    }

    /// Sets the ranks to connect with; the same on all ranks.
    #[must_use]
    pub fn reaching(mut self, reach: Reach) -> Self {
        self.reach = reach;
        self
    }

    /// The address for the other ranks.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects to the ranks that this one sends to, and waits for its senders.
    ///
    /// # Errors
    /// Fails if a rank cannot be reached, does not come in time, or does not know the secret.
    pub fn connect(
        self,
        rank: usize,
        addresses: &[SocketAddr],
        secret: &Secret,
        timeout: Duration,
    ) -> Result<Tcp, TransportError> {
        let size = addresses.len();
        let deadline = deadline::after(timeout);
        let reach = self.reach;
        let senders: Vec<usize> = reach
            .distances(size)
            .map(|far| (rank + size - far) % size)
            .collect();
        // All at once: every rank accepts and connects, and a handshake needs both sides.
        let (outgoing, incoming) = thread::scope(|scope| {
            let call = |far| {
                let peer = (rank + far) % size;
                let pair = Pair {
                    from: rank,
                    to: peer,
                    size,
                };
                let connect = move || pair.connect(addresses[peer], secret, deadline);
                (peer, scope.spawn(connect))
            };
            let calls: Vec<_> = reach.distances(size).map(call).collect();
            let incoming = self.accept(rank, size, &senders, secret, deadline);
            let answer = |(to, call): (usize, thread::ScopedJoinHandle<'_, _>)| {
                let panicked = |_| Err(peer(to, "the connecting thread panicked".into()));
                call.join().unwrap_or_else(panicked).map(|made| (to, made))
            };
            let outgoing: Result<Vec<_>, _> = calls.into_iter().map(answer).collect();
            (outgoing, incoming)
        });
        let tcp = Tcp {
            meshed: senders.len() + 1 == size,
            spin: Duration::ZERO,
            outgoing: outgoing?,
            incoming: senders.into_iter().zip(incoming?).collect(),
        };
        tcp.prepare()
            .map_err(|source| setup("setting socket options".into(), source))?;
        Ok(tcp)
    }

    /// A connection from each of the `senders`.
    fn accept(
        &self,
        rank: usize,
        size: usize,
        senders: &[usize],
        secret: &Secret,
        deadline: Instant,
    ) -> Result<Vec<TcpStream>, TransportError> {
        let identify = |sender: &usize| {
            let (from, to) = (*sender, rank);
            Pair { from, to, size }.identify()
        };
        let wanted: Vec<Vec<u8>> = senders.iter().map(identify).collect();
        let accepted = accept::accept(&self.listener, secret, &wanted, deadline);
        let accepted =
            accepted.map_err(|source| setup(format!("accepting on {}", self.address), source))?;
        let named = senders.iter().zip(accepted).map(|(sender, stream)| {
            let late = || format!("did not connect to {} in time", self.address);
            stream.ok_or_else(|| peer(*sender, late()))
        });
        named.collect()
    }
}

/// The two ranks of a connection, in a group of `size`.
#[derive(Clone, Copy)]
struct Pair {
    from: usize,
    to: usize,
    size: usize,
}

impl Pair {
    /// Connects one to the other. The other may be too busy for a while to accept.
    fn connect(
        self,
        address: SocketAddr,
        secret: &Secret,
        deadline: Instant,
    ) -> Result<TcpStream, TransportError> {
        let mut pause = FIRST_PAUSE;
        let mut refused_since = None;
        loop {
            let failure = match self.attempt(address, secret, deadline) {
                Ok(stream) => return Ok(stream),
                Err(failure) => failure,
            };
            let until = match &failure {
                AuthError::Stream(StreamError::TimedOut) => deadline,
                AuthError::Stream(_) => {
                    let since = *refused_since.get_or_insert_with(Instant::now);
                    deadline.min(since + TRIES_AGAIN)
                }
                _ => Instant::now(),
            };
            if Instant::now() + pause >= until {
                return Err(self.name(address, failure));
            }
            tracing::debug!("retrying to connect to {address}: {failure}");
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn attempt(
        self,
        address: SocketAddr,
        secret: &Secret,
        deadline: Instant,
    ) -> Result<TcpStream, AuthError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = left.clamp(Duration::from_millis(1), HANDSHAKE_LIMIT);
        let stream = TcpStream::connect_timeout(&address, limit).map_err(|error| {
            AuthError::Stream(match error.kind() {
                ErrorKind::TimedOut => StreamError::TimedOut,
                _ => StreamError::Io(error),
            })
        })?;
        // Once it has proved itself it may be accepted, and would not be heard a second time.
        let limits = Limits {
            proof: deadline.min(Instant::now() + HANDSHAKE_LIMIT),
            verdict: deadline,
        };
        auth::connect_side(&stream, secret, Purpose::Data, &self.identify(), limits)?;
        Ok(stream)
    }

    fn name(self, address: SocketAddr, failure: AuthError) -> TransportError {
        match failure {
            AuthError::Stream(StreamError::Io(source)) => TransportError::Stream {
                peer: self.to,
                transport: NAME,
                action: "connecting",
                source,
            },
            other => peer(
                self.to,
                format!("the handshake at {address} failed: {other}"),
            ),
        }
    }

    /// The rank's description of itself in the handshake.
    fn identify(self) -> Vec<u8> {
        let words = [self.from, self.to, self.size];
        words
            .iter()
            .flat_map(|word| (*word as u64).to_le_bytes())
            .collect()
    }
}

fn setup(action: String, source: std::io::Error) -> TransportError {
    TransportError::Setup {
        transport: NAME,
        action,
        source,
    }
}

fn peer(rank: usize, reason: String) -> TransportError {
    TransportError::Peer {
        transport: NAME,
        rank,
        reason,
    }
}

impl Tcp {
    fn prepare(&self) -> std::io::Result<()> {
        for (_, stream) in self.outgoing.iter().chain(&self.incoming) {
            net::configure(stream)?;
            stream.set_nonblocking(true)?;
        }
        // Connections to ranks further away carry small messages only.
        for (_, stream) in self
            .outgoing
            .first()
            .into_iter()
            .chain(self.incoming.first())
        {
            // The system may give less; that costs speed, not correctness.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(stream, SOCKET_BUFFER);
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(stream, SOCKET_BUFFER);
        }
        Ok(())
    }
}

/// The stream to or from a rank.
fn find(streams: &[(usize, TcpStream)], peer: usize) -> Result<&TcpStream, TransportError> {
    let found = streams.iter().find(|(rank, _)| *rank == peer);
    let (_, stream) = found.ok_or(TransportError::NoStream {
        peer,
        transport: NAME,
    })?;
    Ok(stream)
}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn set_has_processor(&mut self, has_processor: bool) {
        self.spin = match has_processor {
            true => SPIN,
            false => Duration::ZERO,
        };
    }

    fn is_meshed(&self) -> bool {
        self.meshed
    }

    fn try_send(&mut self, to: usize, bytes: &[u8]) -> Result<usize, TransportError> {
        let mut stream = find(&self.outgoing, to)?;
        moved(to, "sending", stream.write(bytes))
    }

    fn try_recv(&mut self, from: usize, bytes: &mut [u8]) -> Result<usize, TransportError> {
        let mut stream = find(&self.incoming, from)?;
        if bytes.is_empty() {
            return Ok(0);
        }
        match stream.read(bytes) {
            Ok(0) => Err(TransportError::Closed {
                peer: from,
                transport: NAME,
            }),
            result => moved(from, "receiving", result),
        }
    }

    fn wait(&mut self, interest: Interest, limit: Duration) -> Result<(), TransportError> {
        let mut fds = Vec::with_capacity(2);
        if let Some(to) = interest.send_to {
            let stream = find(&self.outgoing, to)?;
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::OUT));
        }
        if let Some(from) = interest.recv_from {
            let stream = find(&self.incoming, from)?;
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN));
        }
        let limit = Timespec::try_from(limit).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        let start = Instant::now();
        while start.elapsed() < self.spin {
            if rustix::event::poll(&mut fds, Some(&NOW)).is_ok_and(|ready| ready > 0) {
                return Ok(());
            }
        }
        match rustix::event::poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(TransportError::Stream {
                peer: interest.recv_from.or(interest.send_to).unwrap_or_default(),
                transport: NAME,
                action: "waiting",
                source: error.into(),
            }),
        }
    }
}

fn moved(
    peer: usize,
    action: &'static str,
    result: std::io::Result<usize>,
) -> Result<usize, TransportError> {
    match result {
        Ok(count) => Ok(count),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(0)
        }
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted
            ) =>
        {
            Err(TransportError::Closed {
                peer,
                transport: NAME,
            })
        }
        Err(source) => Err(TransportError::Stream {
            peer,
            transport: NAME,
            action,
            source,
        }),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Silent connections, and ranks that must not wait until they time out.
    #[test]
    fn silent_connections_hold_nobody_up() {
        let listeners = [(); 2].map(|()| Listener::bind(Ipv4Addr::LOCALHOST.into()).unwrap());
        let addresses = listeners.each_ref().map(Listener::address);
        let silent: Vec<TcpStream> = (0..2 * 8)
            .map(|at| TcpStream::connect(addresses[at % 2]).unwrap())
            .collect();
        let secret = &Secret::generate().unwrap().1;
        // One after the other they would take 5 seconds each.
        let limit = Duration::from_secs(20);
        thread::scope(|scope| {
            for (rank, listener) in listeners.into_iter().enumerate() {
                scope.spawn(move || listener.connect(rank, &addresses, secret, limit).unwrap());
            }
        });
        for mut stream in silent {
            let mut rest = Vec::new();
            stream.set_read_timeout(Some(limit)).unwrap();
            let _ = stream.read_to_end(&mut rest);
        }
    }

    /// More connections than are heard at the same time; the rank comes last.
    #[test]
    fn the_oldest_makes_room() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let secret = &Secret::generate().unwrap().1;
        let deadline = Instant::now() + Duration::from_secs(20);
        thread::scope(|scope| {
            scope.spawn(move || {
                let silent: Vec<TcpStream> = (0..100)
                    .map(|_| TcpStream::connect(address).unwrap())
                    .collect();
                PAIR.connect(address, secret, deadline).unwrap();
                drop(silent);
            });
            let wanted = [PAIR.identify()];
            let accepted = accept::accept(&listener, secret, &wanted, deadline).unwrap();
            assert!(accepted.iter().all(Option::is_some));
        });
    }

    const PAIR: Pair = Pair {
        from: 3,
        to: 0,
        size: 4,
    };

    /// The first connection is refused, the second ends in the middle of the handshake.
    #[test]
    fn a_connection_that_fails_is_tried_again() {
        let address = {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            listener.local_addr().unwrap()
        };
        let secret = &Secret::generate().unwrap().1;
        let deadline = Instant::now() + Duration::from_secs(20);
        thread::scope(|scope| {
            let connecting = scope.spawn(move || PAIR.connect(address, secret, deadline));
            thread::sleep(Duration::from_millis(50));
            let listener = TcpListener::bind(address).unwrap();
            drop(listener.accept().unwrap());
            listener.set_nonblocking(true).unwrap();
            let wanted = [PAIR.identify()];
            let accepted = accept::accept(&listener, secret, &wanted, deadline).unwrap();
            assert!(accepted.iter().all(Option::is_some));
            connecting.join().unwrap().unwrap();
        });
    }

    /// A rank that was told a wrong address may have connected through a relay.
    #[test]
    fn a_relayed_connection_is_refused_by_both() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let relay = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (between, target) = (relay.local_addr().unwrap(), listener.local_addr().unwrap());
        let secret = &Secret::generate().unwrap().1;
        let deadline = Instant::now() + Duration::from_secs(1);
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut caller = relay.accept().unwrap().0;
                let mut called = TcpStream::connect(target).unwrap();
                let (mut back, mut to) = (called.try_clone().unwrap(), caller.try_clone().unwrap());
                scope.spawn(move || std::io::copy(&mut back, &mut to));
                let _ = std::io::copy(&mut caller, &mut called);
            });
            let connecting = scope.spawn(move || PAIR.connect(between, secret, deadline));
            let wanted = [PAIR.identify()];
            let accepted = accept::accept(&listener, secret, &wanted, deadline).unwrap();
            assert!(accepted.iter().all(Option::is_none));
            let error = connecting.join().unwrap().unwrap_err().to_string();
            let named = [between, target].map(|end| error.contains(&end.to_string()));
            assert!(error.contains("a relay") && named == [true; 2], "{error}");
        });
    }

    /// Takes half a minute: the system would end the connection to a rank that is late and reads
    /// nothing for that long.
    #[test]
    fn the_system_does_not_decide_how_late_a_rank_may_be() {
        let listeners = [(); 2].map(|()| Listener::bind(Ipv4Addr::LOCALHOST.into()).unwrap());
        let addresses = listeners.each_ref().map(Listener::address);
        let secret = &Secret::generate().unwrap().1;
        let limit = Duration::from_secs(20);
        thread::scope(|scope| {
            for (rank, listener) in listeners.into_iter().enumerate() {
                scope.spawn(move || {
                    let tcp = listener.connect(rank, &addresses, secret, limit).unwrap();
                    for (_, stream) in tcp.outgoing.iter().chain(&tcp.incoming) {
                        assert_eq!(rustix::net::sockopt::tcp_user_timeout(stream), Ok(0));
                    }
                });
            }
        });
    }
}

//! Authenticated connections between agents: dialing, listening, sending and reading.
//!
//! Every connection has a thread that reads it. It passes messages to the agent's one queue, which
//! is bounded, so a peer that sends too much is read more slowly.

use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::message::{FrameError, Message};
use crate::wire::Secret;
use crate::wire::auth::{self, Accepted, AuthError, HANDSHAKE_LIMIT, Keys, Purpose, Timed};
use crate::wire::net::{configure_control, read_exact_by, write_all_by};
use crate::wire::seal::Sealer;
use crate::wire::strangers::Strangers;

/// A peer that sends nothing for this long is gone. Agents send a beat every second.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// Time for one message to be sent.
const SENDING: Duration = Duration::from_secs(2);
/// Time for a connection to be opened.
const CONNECTING: Duration = Duration::from_secs(2);
/// Largest number of callers that have not authenticated yet.
const STRANGERS: usize = 64;
/// Pause between looks at whether a listener is still wanted.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Largest number of events that wait for the agent.
pub(super) const QUEUE: usize = 256;

/// An event of a connection.
pub(super) enum Event {
    /// A peer has connected and authenticated.
    Called(Link),
    /// The dialing with this number has succeeded or failed.
    Dialed(u64, Result<Link, DialError>),
    /// A message arrived.
    Received(LinkId, Message),
    /// The connection ended.
    Closed(LinkId, Loss),
}

/// How a connection ended.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    /// Whether the peer was silent: its whole node may be gone.
    pub silent: bool,
    /// The end in words.
    pub words: String,
}

/// Number of a connection, unique in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkId(u64);

impl LinkId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The sending half of a connection. Dropping it ends the connection.
pub(super) struct Link {
    pub id: LinkId,
    stream: TcpStream,
    sealer: Sealer,
    /// The address of the other end.
    pub peer: SocketAddr,
    /// The address of this end.
    pub local: SocketAddr,
}

/// The reason why no connection came about.
#[derive(Debug)]
pub(super) enum DialError {
    /// Nothing answers there, or not now.
    Unreachable(String),
    /// The program there will never be a peer.
    Refused(String),
}

impl Link {
    /// Sends a message, within two seconds.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), String> {
        let frame = self.sealer.seal(&message.encode());
        let deadline = Instant::now() + SENDING;
        write_all_by(&mut Half(&self.stream), &frame, deadline).map_err(|error| error.to_string())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// One direction of a stream. Its time limits do not disturb the other.
struct Half<'a>(&'a TcpStream);

impl Read for Half<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&mut &*self.0).read(buffer)
    }
}

impl io::Write for Half<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&mut &*self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Timed for Half<'_> {
    /// Limits writes; reads have the deadline of [`Patient`].
    fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_write_timeout(timeout)
    }

    fn addresses(&self) -> io::Result<Option<(SocketAddr, SocketAddr)>> {
        Ok(None)
    }
}

/// Reads whole messages, each within [`SILENCE`].
struct Patient<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut half = ReadHalf(self.stream);
        match read_exact_by(&mut half, buffer, self.deadline) {
            Ok(()) => Ok(buffer.len()),
            Err(auth::StreamError::Closed) => Err(ErrorKind::UnexpectedEof.into()),
            Err(auth::StreamError::TimedOut) => Err(ErrorKind::TimedOut.into()),
            Err(auth::StreamError::Io(error)) => Err(error),
        }
    }
}

struct ReadHalf<'a>(&'a TcpStream);

impl Read for ReadHalf<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&mut &*self.0).read(buffer)
    }
}

impl io::Write for ReadHalf<'_> {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(ErrorKind::Unsupported.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Timed for ReadHalf<'_> {
    fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }

    fn addresses(&self) -> io::Result<Option<(SocketAddr, SocketAddr)>> {
        Ok(None)
    }
}

/// The two halves of an authenticated stream.
fn split(stream: TcpStream, keys: Keys) -> io::Result<(Link, Reader)> {
    configure_control(&stream)?;
    let id = LinkId::next();
    let link = Link {
        id,
        stream: stream.try_clone()?,
        sealer: keys.send,
        peer: canonical(stream.peer_addr()?),
        local: canonical(stream.local_addr()?),
    };
    let reader = Reader {
        id,
        stream,
        opener: keys.receive,
    };
    Ok((link, reader))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The receiving half of a connection.
struct Reader {
    id: LinkId,
    stream: TcpStream,
    opener: crate::wire::seal::Opener,
}

impl Reader {
    /// Passes messages on until the connection ends.
    fn run(mut self, events: &SyncSender<Event>) {
        loop {
            let mut patient = Patient {
                stream: &self.stream,
                deadline: Instant::now() + SILENCE,
            };
            let event = match Message::read(&mut patient, &mut self.opener) {
                Ok(Message::Beat) => continue,
                Ok(message) => Event::Received(self.id, message),
                Err(error) => Event::Closed(self.id, Loss::of(&error)),
            };
            let is_last = matches!(event, Event::Closed(..));
            if events.send(event).is_err() || is_last {
                return;
            }
        }
    }
}

impl Loss {
    fn of(error: &FrameError) -> Self {
        let silent = matches!(error, FrameError::Stream(auth::StreamError::TimedOut));
        let words = match silent {
            true => format!("it was silent for {} s", SILENCE.as_secs()),
            false => error.to_string(),
        };
        Self { silent, words }
    }
}

/// Connects to `address` in a thread, which then reads the connection.
pub(super) fn dial(
    number: u64,
    address: SocketAddr,
    secret: &Secret,
    events: &SyncSender<Event>,
) -> io::Result<()> {
    let (secret, events) = (secret.clone(), events.clone());
    let thread = thread::Builder::new().name("agent-dial".into());
    let body = move || match connect(address, &secret) {
        Ok((link, reader)) => {
            if events.send(Event::Dialed(number, Ok(link))).is_ok() {
                reader.run(&events);
            }
        }
        Err(error) => drop(events.send(Event::Dialed(number, Err(error)))),
    };
    thread.spawn(body).map(drop)
}

fn connect(address: SocketAddr, secret: &Secret) -> Result<(Link, Reader), DialError> {
    let unreachable = |error: io::Error| DialError::Unreachable(format!("{address}: {error}"));
    let stream = TcpStream::connect_timeout(&address, CONNECTING).map_err(unreachable)?;
    // A port of this host that nobody listens at can connect to itself.
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        return Err(unreachable(ErrorKind::ConnectionRefused.into()));
    }
    let deadline = Instant::now() + HANDSHAKE_LIMIT;
    let keys = auth::connect_side(&stream, secret, Purpose::Agents, b"", deadline);
    let keys = keys.map_err(|error| match error {
        AuthError::Stream(error) => DialError::Unreachable(format!("{address}: {error}")),
        AuthError::WrongSecret => DialError::Refused(format!(
            "the agent at {address} has another secret. Give all nodes the same BURN_DIST_SECRET, \
             or the same key file (~/.config/burn-dist/key)"
        )),
        error => DialError::Refused(format!("the program at {address} is no agent: {error}")),
    })?;
    split(stream, keys).map_err(unreachable)
}

/// A listener of an agent. Dropping it ends it.
pub(super) struct Door {
    pub address: SocketAddr,
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Accepts connections of peers that know `secret`.
    pub(super) fn open(
        listener: TcpListener,
        secret: &Secret,
        events: &SyncSender<Event>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = canonical(listener.local_addr()?);
        let closed = Arc::new(AtomicBool::new(false));
        let (closing, events) = (Arc::clone(&closed), events.clone());
        let strangers = Strangers::new(secret, Purpose::Agents, STRANGERS);
        let thread = thread::Builder::new().name("agent-accept".into());
        let thread = thread.spawn(move || accept(&listener, &strangers, &events, &closing))?;
        Ok(Self {
            address,
            closed,
            thread: Some(thread),
        })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(
    listener: &TcpListener,
    strangers: &Strangers,
    events: &SyncSender<Event>,
    closed: &AtomicBool,
) {
    while !closed.load(Ordering::SeqCst) {
        let polled = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&LOOK));
        match listener.accept() {
            Ok((stream, from)) => greet(stream, from, strangers, events),
            Err(error) if error.kind() == ErrorKind::WouldBlock && polled.is_ok() => {}
            // A signal ended the wait, or there are no file descriptors left.
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn greet(stream: TcpStream, from: SocketAddr, strangers: &Strangers, events: &SyncSender<Event>) {
    let events = events.clone();
    let refusals = strangers.refusals();
    let log = refusals.clone();
    let then = move |stream, proved: Result<Accepted, AuthError>| match proved {
        Ok(accepted) => {
            if let Ok((link, reader)) = split(stream, accepted.session)
                && events.send(Event::Called(link)).is_ok()
            {
                reader.run(&events);
            }
        }
        Err(error) => log.warn(format_args!(
            "agent: refused a connection from {from}: {error}"
        )),
    };
    if let Err(error) = strangers.hear(stream, "agent-peer", HANDSHAKE_LIMIT, then) {
        refusals.warn(format_args!(
            "agent: cannot read from a connection from {from}: {error}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, sync_channel};

    const LONG: Duration = Duration::from_secs(20);

    fn secret(text: &str) -> Secret {
        Secret::from_text(text).unwrap()
    }

    fn next(events: &Receiver<Event>) -> Event {
        events.recv_timeout(LONG).unwrap()
    }

    fn door(secret: &Secret, events: &SyncSender<Event>) -> Door {
        Door::open(TcpListener::bind("127.0.0.1:0").unwrap(), secret, events).unwrap()
    }

    #[test]
    fn messages_arrive_and_the_end_is_told() {
        let secret = secret("a secret of this test, long enough");
        let (here, events) = sync_channel(QUEUE);
        let (there, of_dialer) = sync_channel(QUEUE);
        let door = door(&secret, &here);
        dial(7, door.address, &secret, &there).unwrap();
        let Event::Dialed(7, Ok(mut link)) = next(&of_dialer) else {
            panic!("not dialed");
        };
        link.send(&Message::Welcome).unwrap();
        link.send(&Message::Beat).unwrap();
        link.send(&Message::Yield).unwrap();
        let Event::Called(accepted) = next(&events) else {
            panic!("not called");
        };
        for expected in [Message::Welcome, Message::Yield] {
            assert!(
                matches!(next(&events), Event::Received(id, message) if id == accepted.id && message == expected)
            );
        }
        drop(link);
        assert!(matches!(next(&events), Event::Closed(id, _) if id == accepted.id));
        assert!(matches!(next(&of_dialer), Event::Closed(..)));
    }

    #[test]
    fn another_secret_is_refused_and_nobody_is_no_error_for_good() {
        let (here, _events) = sync_channel(QUEUE);
        let (there, of_dialer) = sync_channel(QUEUE);
        let door = door(&secret("a secret of this test, long enough"), &here);
        let other = secret("another secret, also long enough");
        dial(1, door.address, &other, &there).unwrap();
        match next(&of_dialer) {
            Event::Dialed(1, Err(DialError::Refused(why))) => {
                assert!(why.contains("another secret"), "{why}");
            }
            _ => panic!("not refused"),
        }
        let address = door.address;
        drop(door);
        dial(2, address, &other, &there).unwrap();
        let dialed = next(&of_dialer);
        assert!(matches!(
            dialed,
            Event::Dialed(2, Err(DialError::Unreachable(_)))
        ));
    }
}

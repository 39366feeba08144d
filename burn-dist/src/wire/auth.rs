//! Mutual authentication: both ends prove that they know the run's secret, and that nobody relays
//! the connection.
//!
//! The store and every listening transport use it. Four messages have fixed sizes, so an unknown
//! peer cannot make us allocate memory:
//!
//! ```text
//! connecting → accepting   magic, version, purpose, nonce, ends, context
//! accepting  → connecting  magic, version, purpose, nonce, ends
//! connecting → accepting   keyed hash ("connect", both messages)
//! accepting  → connecting  verdict, keyed hash ("accept", verdict, both messages)
//! ```
//!
//! The connecting side proves itself first, so a stranger who connects learns nothing that helps to
//! guess the secret. A proof binds:
//!
//! - the **moment**: it includes both nonces;
//! - the **role**: magic and label differ in the two directions;
//! - the **purpose**: a store is not a data connection;
//! - the **run**: its name is part of the key (see [`Secret`]), its size part of the context;
//! - the **ends**: each side states both addresses and ports as its own socket has them. Through a
//!   relay or a NAT the two statements differ, and both sides refuse the connection;
//! - the **context**: the identity and purpose of the connecting side.
//!
//! Both sides derive [`Keys`] from the handshake. The control connection seals every frame with
//! them. Data connections do not: their payload is neither encrypted nor authenticated.

use super::Secret;
use super::net::{read_exact_by, write_all_by};
use std::fmt;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

pub use super::net::StreamError;
pub use super::seal::Keys;

/// Version of burn-dist's protocols. Both ends must have the same.
pub const VERSION: u16 = 4;

/// Longest context that the connecting side can state about itself, in bytes.
pub const MAX_CONTEXT: usize = 48;

/// Longest handshake, so that a silent peer holds nobody up.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

// Different in the two directions, so that a socket connected to itself is not a peer.
const CONNECT_MAGIC: [u8; 8] = *b"BURNDIS>";
const ACCEPT_MAGIC: [u8; 8] = *b"BURNDIS<";

const PREFIX: usize = 12;
const NONCE: usize = 32;
const MAC: usize = 32;
const ENDS: usize = 2 * END;
const END: usize = 18;
const OPENING: usize = PREFIX + NONCE + ENDS + 1 + MAX_CONTEXT;
const ANSWER: usize = PREFIX + NONCE + ENDS;

const ACCEPTED: u8 = 1;
const DENIED: u8 = 2;
/// The proof is right, but the two sides do not see the same ends.
const RELAYED: u8 = 3;

/// A stream with time limits for reads and writes.
pub trait Timed: Read + Write {
    /// Limits each following read and write; `None` lifts the limit.
    ///
    /// # Errors
    /// Fails if the system refuses.
    fn set_timeout(&mut self, timeout: Option<Duration>) -> std::io::Result<()>;

    /// Addresses of this end and the other end; `None` if ends have no addresses.
    ///
    /// # Errors
    /// Fails if the stream is no longer connected.
    fn addresses(&self) -> std::io::Result<Option<(SocketAddr, SocketAddr)>>;
}

macro_rules! timed {
    ($addresses:path; $($stream:ty),*) => {$(
        impl Timed for $stream {
            fn set_timeout(&mut self, timeout: Option<Duration>) -> std::io::Result<()> {
                self.set_read_timeout(timeout)?;
                self.set_write_timeout(timeout)
            }

            fn addresses(&self) -> std::io::Result<Option<(SocketAddr, SocketAddr)>> {
                $addresses(self)
            }
        }
    )*};
}
timed!(of_tcp; TcpStream, &TcpStream);
timed!(of_unix; UnixStream, &UnixStream);

fn of_tcp(stream: &TcpStream) -> std::io::Result<Option<(SocketAddr, SocketAddr)>> {
    Ok(Some((stream.local_addr()?, stream.peer_addr()?)))
}

fn of_unix(_: &UnixStream) -> std::io::Result<Option<(SocketAddr, SocketAddr)>> {
    Ok(None)
}

/// The two ends of a connection, as one side sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The end that connected.
    pub from: SocketAddr,
    /// The end that accepted.
    pub to: SocketAddr,
}

impl Ends {
    /// IPv4 in one form only, and without the interface number, which differs between hosts.
    fn new(from: SocketAddr, to: SocketAddr) -> Self {
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        Self {
            from: plain(from),
            to: plain(to),
        }
    }

    fn encode(ends: Option<Self>) -> [u8; ENDS] {
        let mut bytes = [0; ENDS];
        let ends = ends.map(|ends| [ends.from, ends.to]);
        for (end, bytes) in ends.iter().flatten().zip(bytes.chunks_exact_mut(END)) {
            let ip = match end.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[..16].copy_from_slice(&ip.octets());
            bytes[16..].copy_from_slice(&end.port().to_be_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (from, to) = bytes.split_first_chunk::<END>()?;
        let end = |bytes: &[u8; END]| {
            let (ip, port) = bytes.split_first_chunk::<16>()?;
            let port = u16::from_be_bytes(port.try_into().ok()?);
            Some(SocketAddr::new(Ipv6Addr::from(*ip).into(), port))
        };
        Some(Self::new(end(from)?, end(to.first_chunk()?)?))
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {}", self.from, self.to)
    }
}

/// Purpose of a connection. Both ends must state the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// A rank's control connection to the store.
    Store = 1,
    /// A connection between two ranks that carries data.
    Data = 2,
    /// A connection between two agents of a launch on several nodes.
    Agents = 3,
}

/// The reason why a handshake failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The peer speaks another protocol.
    #[error("it does not speak the burn-dist protocol")]
    NotBurnDist,
    /// The peer has another version of burn-dist.
    #[error(
        "it speaks version {theirs} of the burn-dist protocol, this process version {ours}. Start \
         the same program everywhere"
    )]
    Version {
        /// Our version.
        ours: u16,
        /// The peer's version.
        theirs: u16,
    },
    /// One end is a store, and the other a data connection.
    #[error("it serves another purpose (a store is not a data connection)")]
    Purpose,
    /// The peer does not have our secret.
    #[error("it has another secret")]
    WrongSecret,
    /// The peer has our secret, but something between us relays the bytes.
    #[error(
        "a relay or a NAT is in between: this side sees the connection as {ours}, the other side \
         as {theirs}"
    )]
    Relayed {
        /// The ends as this side sees them.
        ours: Box<Ends>,
        /// The ends as the other side sees them.
        theirs: Box<Ends>,
    },
    /// The listener ended it.
    #[error("it had not authenticated when its place was needed or the listener closed")]
    Dropped,
    /// The context is longer than [`MAX_CONTEXT`] bytes.
    #[error("{bytes} bytes of context are too many; the maximum is {MAX_CONTEXT}")]
    ContextTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The system has no random numbers.
    #[error("the system returned no random numbers: {0}")]
    Random(getrandom::Error),
    /// The connection ended, broke or was silent for too long.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

crate::debug_is_display!(AuthError);

/// Deadlines of the connecting side.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Deadline for the other side to take the proof.
    pub proof: Instant,
    /// Deadline for its verdict.
    pub verdict: Instant,
}

impl From<Instant> for Limits {
    /// Sets both to `deadline`.
    fn from(deadline: Instant) -> Self {
        Self {
            proof: deadline,
            verdict: deadline,
        }
    }
}

/// Runs the handshake of the connecting side.
///
/// `context` says who this is. The other side gets it and can trust it as far as it trusts the
/// secret. Afterwards the stream has no time limits.
///
/// # Errors
/// See [`AuthError`]; the stream is then useless.
pub fn connect_side<S: Timed>(
    mut stream: S,
    secret: &Secret,
    purpose: Purpose,
    context: &[u8],
    limits: impl Into<Limits>,
) -> Result<Keys, AuthError> {
    let limits = limits.into();
    let addresses = stream.addresses().map_err(StreamError::from)?;
    let ours = addresses.map(|(local, peer)| Ends::new(local, peer));
    let opening = opening(purpose, ours, context)?;
    write_all_by(&mut stream, &opening, limits.proof)?;

    let mut answer = [0; ANSWER];
    read_prefix(&mut stream, &mut answer, ACCEPT_MAGIC, limits.proof)?;
    check_prefix(&answer, purpose)?;
    read_exact_by(&mut stream, &mut answer[PREFIX..], limits.proof)?;

    let handshake = Handshake {
        secret,
        opening: &opening,
        answer: &answer,
    };
    write_all_by(&mut stream, handshake.proof().as_bytes(), limits.proof)?;

    let mut verdict = [0; 1 + MAC];
    read_exact_by(&mut stream, &mut verdict, limits.verdict)?;
    let (code, theirs) = (verdict[0], mac(&verdict[1..]));
    // Comparing `blake3::Hash` takes the same time wherever the two differ.
    if theirs != handshake.verdict(code) || !matches!(code, ACCEPTED | RELAYED) {
        return Err(AuthError::WrongSecret);
    }
    handshake.check_ends(ours, &answer[PREFIX + NONCE..])?;
    if code != ACCEPTED {
        return Err(AuthError::WrongSecret);
    }
    stream.set_timeout(None).map_err(StreamError::Io)?;
    Ok(handshake.session(Side::Connect))
}

/// An accepted and authenticated connection.
#[derive(Debug)]
pub struct Accepted {
    /// The other side's statement about itself.
    pub context: Vec<u8>,
    /// The keys of the connection.
    pub session: Keys,
}

/// Runs the handshake of the accepting side. Afterwards the stream has no time limits.
///
/// # Errors
/// See [`AuthError`]; the stream is then useless.
pub fn accept_side<S: Timed>(
    stream: S,
    secret: &Secret,
    purpose: Purpose,
    deadline: Instant,
) -> Result<Accepted, AuthError> {
    accept_side_if(stream, secret, purpose, deadline, || true)
}

/// Does [`accept_side`], and calls `take` after the other side's proof and before the verdict. So a
/// peer that receives a positive verdict is accepted.
pub(crate) fn accept_side_if<S: Timed>(
    mut stream: S,
    secret: &Secret,
    purpose: Purpose,
    deadline: Instant,
    take: impl FnOnce() -> bool,
) -> Result<Accepted, AuthError> {
    let mut opening = [0; OPENING];
    read_prefix(&mut stream, &mut opening, CONNECT_MAGIC, deadline)?;
    let addresses = stream.addresses().map_err(StreamError::from)?;
    let ours = addresses.map(|(local, peer)| Ends::new(peer, local));
    let answer = answer(purpose, ours)?;
    if let Err(mismatch) = check_prefix(&opening, purpose) {
        // The answer tells the peer what we are. Reading the peer's bytes first keeps the system
        // from dropping that answer when the connection ends. Another version may send less, so the
        // read is short.
        let soon = deadline.min(Instant::now() + Duration::from_millis(100));
        let _ = read_exact_by(&mut stream, &mut opening[PREFIX..], soon);
        write_all_by(&mut stream, &answer, deadline)?;
        return Err(mismatch);
    }
    read_exact_by(&mut stream, &mut opening[PREFIX..], deadline)?;
    write_all_by(&mut stream, &answer, deadline)?;

    let handshake = Handshake {
        secret,
        opening: &opening,
        answer: &answer,
    };
    let mut theirs = [0; MAC];
    read_exact_by(&mut stream, &mut theirs, deadline)?;
    let mut verdict = [0; 1 + MAC];
    if mac(&theirs) != handshake.proof() {
        verdict[0] = DENIED;
        write_all_by(&mut stream, &verdict, deadline)?;
        return Err(AuthError::WrongSecret);
    }
    let direct = handshake.check_ends(ours, &opening[PREFIX + NONCE..]);
    verdict[0] = match direct {
        Ok(()) => ACCEPTED,
        Err(_) => RELAYED,
    };
    if direct.is_ok() && !take() {
        return Err(StreamError::Closed.into());
    }
    let proof = handshake.verdict(verdict[0]);
    verdict[1..].copy_from_slice(proof.as_bytes());
    write_all_by(&mut stream, &verdict, deadline)?;
    direct?;
    stream.set_timeout(None).map_err(StreamError::Io)?;

    let context = &opening[PREFIX + NONCE + ENDS..];
    let length = usize::from(context[0]).min(MAX_CONTEXT);
    Ok(Accepted {
        context: context[1..=length].to_vec(),
        session: handshake.session(Side::Accept),
    })
}

#[derive(Clone, Copy)]
enum Side {
    Connect,
    Accept,
}

/// The messages of a handshake, and the hashes that only the two sides can compute.
struct Handshake<'a> {
    secret: &'a Secret,
    opening: &'a [u8; OPENING],
    answer: &'a [u8; ANSWER],
}

impl Handshake<'_> {
    /// All parts have fixed sizes, so no two sets of parts give the same input.
    fn hash(&self, label: &[u8; 16], code: u8) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(self.secret.key());
        hasher.update(label).update(&[code]);
        hasher.update(self.opening).update(self.answer);
        hasher.finalize()
    }

    fn proof(&self) -> blake3::Hash {
        self.hash(b"burn-dist connec", 0)
    }

    fn verdict(&self, code: u8) -> blake3::Hash {
        self.hash(b"burn-dist accept", code)
    }

    fn session(&self, side: Side) -> Keys {
        let up = *self.hash(b"burn-dist key up", 0).as_bytes();
        let down = *self.hash(b"burn-dist key dn", 0).as_bytes();
        match side {
            Side::Connect => Keys::new(up, down),
            Side::Accept => Keys::new(down, up),
        }
    }

    /// Compares the other side's statement, which a proof has vouched for, with ours.
    fn check_ends(&self, ours: Option<Ends>, theirs: &[u8]) -> Result<(), AuthError> {
        let Some(ours) = ours else { return Ok(()) };
        match Ends::decode(theirs) {
            Some(theirs) if theirs == ours => Ok(()),
            Some(theirs) => Err(AuthError::Relayed {
                ours: ours.into(),
                theirs: theirs.into(),
            }),
            None => Err(AuthError::NotBurnDist),
        }
    }
}

fn mac(bytes: &[u8]) -> blake3::Hash {
    let mut mac = [0; MAC];
    mac.copy_from_slice(bytes);
    blake3::Hash::from_bytes(mac)
}

fn opening(
    purpose: Purpose,
    ends: Option<Ends>,
    context: &[u8],
) -> Result<[u8; OPENING], AuthError> {
    if context.len() > MAX_CONTEXT {
        return Err(AuthError::ContextTooLong {
            bytes: context.len(),
        });
    }
    let mut message = [0; OPENING];
    write_prefix(&mut message, CONNECT_MAGIC, purpose, ends)?;
    let tail = &mut message[PREFIX + NONCE + ENDS..];
    tail[0] = context.len() as u8;
    tail[1..=context.len()].copy_from_slice(context);
    Ok(message)
}

fn answer(purpose: Purpose, ends: Option<Ends>) -> Result<[u8; ANSWER], AuthError> {
    let mut message = [0; ANSWER];
    write_prefix(&mut message, ACCEPT_MAGIC, purpose, ends)?;
    Ok(message)
}

/// Magic, version, purpose, a new nonce and the ends. The first twelve bytes never change their
/// meaning.
fn write_prefix(
    message: &mut [u8],
    magic: [u8; 8],
    purpose: Purpose,
    ends: Option<Ends>,
) -> Result<(), AuthError> {
    message[..8].copy_from_slice(&magic);
    message[8..10].copy_from_slice(&VERSION.to_le_bytes());
    message[10] = purpose as u8;
    message[PREFIX + NONCE..PREFIX + NONCE + ENDS].copy_from_slice(&Ends::encode(ends));
    getrandom::fill(&mut message[PREFIX..PREFIX + NONCE]).map_err(AuthError::Random)
}

/// Reads the first twelve bytes, and fails at the first that is not ours.
fn read_prefix<S: Timed>(
    stream: &mut S,
    message: &mut [u8],
    magic: [u8; 8],
    deadline: Instant,
) -> Result<(), AuthError> {
    for (index, expected) in magic.into_iter().enumerate() {
        read_exact_by(stream, &mut message[index..=index], deadline)?;
        if message[index] != expected {
            return Err(AuthError::NotBurnDist);
        }
    }
    read_exact_by(stream, &mut message[magic.len()..PREFIX], deadline)?;
    Ok(())
}

fn check_prefix(message: &[u8], purpose: Purpose) -> Result<(), AuthError> {
    let theirs = u16::from_le_bytes([message[8], message[9]]);
    if theirs != VERSION {
        return Err(AuthError::Version {
            ours: VERSION,
            theirs,
        });
    }
    if message[10] != purpose as u8 {
        return Err(AuthError::Purpose);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::TcpListener;
    use std::thread;

    fn secret(text: &str) -> Secret {
        Secret::from_text(text).unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn shake(
        connecting: (&Secret, Purpose),
        accepting: (&Secret, Purpose),
        context: &[u8],
    ) -> (Result<Keys, AuthError>, Result<Accepted, AuthError>) {
        let (a, b) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            // Owned, so that a failing side closes its end as it would in the field.
            let accept = scope.spawn(move || accept_side(b, accepting.0, accepting.1, soon()));
            let connect = connect_side(a, connecting.0, connecting.1, context, soon());
            (connect, accept.join().unwrap())
        })
    }

    /// A listener, and a relay that passes all bytes to it in both directions.
    fn relayed(listener: &TcpListener) -> (SocketAddr, thread::JoinHandle<()>) {
        let relay = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, target) = (relay.local_addr().unwrap(), listener.local_addr().unwrap());
        let pass = |mut from: TcpStream, mut to: TcpStream| {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        };
        let relaying = thread::spawn(move || {
            let caller = relay.accept().unwrap().0;
            let called = TcpStream::connect(target).unwrap();
            let back = (called.try_clone().unwrap(), caller.try_clone().unwrap());
            let up = thread::spawn(move || pass(caller, called));
            pass(back.0, back.1);
            up.join().unwrap();
        });
        (address, relaying)
    }

    #[test]
    fn both_sides_refuse_a_relay_and_name_what_each_sees() {
        let secret = &secret("0123456789abcdef");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (relay, relaying) = relayed(&listener);
        let (connect, accept) = thread::scope(|scope| {
            let accept = scope.spawn(|| {
                let stream = listener.accept().unwrap().0;
                accept_side(stream, secret, Purpose::Data, soon())
            });
            let stream = TcpStream::connect(relay).unwrap();
            let connect = connect_side(stream, secret, Purpose::Data, b"", soon());
            (connect, accept.join().unwrap())
        });
        relaying.join().unwrap();
        let Err(AuthError::Relayed { ours, theirs }) = connect else {
            panic!("{connect:?}");
        };
        assert_eq!(
            (ours.to, theirs.to),
            (relay, listener.local_addr().unwrap())
        );
        assert_ne!(ours.from, theirs.from);
        let Err(AuthError::Relayed {
            ours: of_other,
            theirs: of_this,
        }) = accept
        else {
            panic!("{accept:?}");
        };
        assert_eq!((ours, theirs), (of_this, of_other));
    }

    /// An IPv6 listener sees IPv4 callers under other addresses than the callers themselves.
    #[test]
    fn ends_are_compared_in_one_form() {
        let listener = match TcpListener::bind("[::]:0") {
            Ok(listener) => listener,
            Err(error) => return println!("SKIPPED: no IPv6 here: {error}"),
        };
        let port = listener.local_addr().unwrap().port();
        let secret = &secret("0123456789abcdef");
        for ip in ["127.0.0.1", "::1"] {
            let Ok(stream) = TcpStream::connect((ip, port)) else {
                println!("SKIPPED: {ip} can't be reached here");
                continue;
            };
            thread::scope(|scope| {
                let accept = scope.spawn(|| {
                    let stream = listener.accept().unwrap().0;
                    accept_side(stream, secret, Purpose::Data, soon())
                });
                connect_side(&stream, secret, Purpose::Data, b"", soon()).unwrap();
                accept.join().unwrap().unwrap();
            });
        }
    }

    #[test]
    fn the_two_sides_share_keys_that_no_other_handshake_has() {
        let secret = secret("0123456789abcdef");
        let pair = (&secret, Purpose::Store);
        let (connect, accept) = shake(pair, pair, b"");
        let (mut connect, mut accept) = (connect.unwrap(), accept.unwrap().session);
        let sealed = connect.send.seal(b"frame");
        let (frame, tag) = sealed.split_at(5);
        assert!(accept.receive.check(&[frame], tag));
        let sealed = accept.send.seal(b"frame");
        let (frame, tag) = sealed.split_at(5);
        let mut other = shake(pair, pair, b"").0.unwrap();
        assert!(!other.receive.check(&[frame], tag));
        // Nor is a frame accepted in the other direction.
        assert!(!accept.receive.check(&[frame], tag));
        assert!(connect.receive.check(&[frame], tag));
    }

    #[test]
    fn same_secret_passes_and_context_arrives() {
        let secret = secret("0123456789abcdef");
        let pair = (&secret, Purpose::Data);
        for context in [&b""[..], b"rank 3 of 4", &[7; MAX_CONTEXT]] {
            let (connect, accept) = shake(pair, pair, context);
            connect.unwrap();
            assert_eq!(accept.unwrap().context, context);
        }
    }

    #[test]
    fn other_secret_is_refused_on_both_sides() {
        let (one, two) = (secret("0123456789abcdef"), secret("0123456789abcdeg"));
        let (connect, accept) = shake((&one, Purpose::Store), (&two, Purpose::Store), b"");
        assert!(
            matches!(connect, Err(AuthError::WrongSecret)),
            "{connect:?}"
        );
        assert!(matches!(accept, Err(AuthError::WrongSecret)), "{accept:?}");
    }

    #[test]
    fn other_purpose_is_refused_on_both_sides() {
        let secret = secret("0123456789abcdef");
        let (connect, accept) = shake((&secret, Purpose::Store), (&secret, Purpose::Data), b"");
        assert!(matches!(connect, Err(AuthError::Purpose)), "{connect:?}");
        assert!(matches!(accept, Err(AuthError::Purpose)), "{accept:?}");
    }

    #[test]
    fn other_version_is_named() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let mut opening = opening(Purpose::Store, None, b"").unwrap();
        opening[8..10].copy_from_slice(&7u16.to_le_bytes());
        a.write_all(&opening).unwrap();
        let accept = accept_side(b, &secret("0123456789abcdef"), Purpose::Store, soon());
        let theirs = match accept {
            Err(AuthError::Version { theirs, .. }) => theirs,
            other => panic!("{other:?}"),
        };
        assert_eq!(theirs, 7);
        // The peer still gets our answer, so it can name both versions.
        let mut answer = [0; ANSWER];
        a.read_exact(&mut answer).unwrap();
        assert!(check_prefix(&answer, Purpose::Store).is_ok());
    }

    #[test]
    fn too_much_context_is_refused() {
        let (a, _b) = UnixStream::pair().unwrap();
        let secret = secret("0123456789abcdef");
        let result = connect_side(a, &secret, Purpose::Data, &[0; MAX_CONTEXT + 1], soon());
        assert!(matches!(
            result,
            Err(AuthError::ContextTooLong { bytes: 49 })
        ));
    }

    #[test]
    fn a_proof_can_not_be_replayed_or_reflected() {
        let secret = secret("0123456789abcdef");
        // An attacker without the secret answers with the victim's own message.
        let (a, mut b) = UnixStream::pair().unwrap();
        let attacker = thread::spawn(move || {
            let mut opening = [0; OPENING];
            b.read_exact(&mut opening).unwrap();
            let mut answer = [0; ANSWER];
            answer.copy_from_slice(&opening[..ANSWER]);
            answer[..8].copy_from_slice(&ACCEPT_MAGIC);
            b.write_all(&answer).unwrap();
            let mut verdict = [ACCEPTED; 1 + MAC];
            b.read_exact(&mut verdict[1..]).unwrap();
            b.write_all(&verdict).unwrap();
        });
        let result = connect_side(a, &secret, Purpose::Store, b"", soon());
        assert!(matches!(result, Err(AuthError::WrongSecret)), "{result:?}");
        attacker.join().unwrap();
    }

    #[test]
    fn silence_and_drip_end_at_the_deadline() {
        let secret = secret("0123456789abcdef");
        let (mut a, b) = UnixStream::pair().unwrap();
        let drip = thread::spawn(move || {
            for byte in CONNECT_MAGIC {
                if a.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        let start = Instant::now();
        let result = accept_side(
            b,
            &secret,
            Purpose::Store,
            start + Duration::from_millis(200),
        );
        assert!(
            matches!(result, Err(AuthError::Stream(StreamError::TimedOut))),
            "{result:?}"
        );
        assert!(start.elapsed() < Duration::from_millis(1500));
        drip.join().unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn garbage_never_passes(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), good in 0usize..12) {
            let start = write_start();
            let take = good.min(bytes.len());
            bytes[..take].copy_from_slice(&start[..take]);
            let (mut a, b) = UnixStream::pair().unwrap();
            a.write_all(&bytes).unwrap();
            a.shutdown(std::net::Shutdown::Write).unwrap();
            let result = accept_side(b, &secret("0123456789abcdef"), Purpose::Store, soon());
            prop_assert!(result.is_err());
        }

        #[test]
        fn garbage_answers_never_pass(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), good in 0usize..12) {
            let mut start = write_start();
            start[..8].copy_from_slice(&ACCEPT_MAGIC);
            let take = good.min(bytes.len());
            bytes[..take].copy_from_slice(&start[..take]);
            let (a, mut b) = UnixStream::pair().unwrap();
            b.write_all(&bytes).unwrap();
            b.shutdown(std::net::Shutdown::Write).unwrap();
            let result = connect_side(a, &secret("0123456789abcdef"), Purpose::Store, b"", soon());
            prop_assert!(result.is_err());
        }
    }

    fn write_start() -> [u8; PREFIX] {
        let mut start = [0; PREFIX];
        start.copy_from_slice(&opening(Purpose::Store, None, b"").unwrap()[..PREFIX]);
        start
    }
}

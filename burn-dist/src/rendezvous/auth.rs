//! Proof, in both directions, that the other end of a connection knows the run's secret.
//!
//! Used by the store and by every transport that listens. Four messages of fixed size, so that
//! nothing an unknown peer sends can make us allocate:
//!
//! ```text
//! connecting → accepting   magic, version, purpose, nonce, context
//! accepting  → connecting  magic, version, purpose, nonce
//! connecting → accepting   keyed hash ("connect", both messages)
//! accepting  → connecting  verdict, keyed hash ("accept", both messages)
//! ```
//!
//! The connecting side proves itself first, so a stranger who connects learns nothing that would
//! help to guess the secret. The nonces make every proof new, the labels keep one side's proof
//! from serving as the other's, the purpose keeps a store from being taken for a data connection,
//! and the context (who connects) is covered by the proof.
//!
//! What follows on the connection is neither encrypted nor authenticated: the network between the
//! ranks is trusted not to be rewritten on the way, as in every training system of the field.

use super::net::{read_exact_by, write_all_by};
use crate::world::Secret;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

pub use super::net::StreamError;

/// Version of everything that burn-dist speaks over connections. Both ends must have the same.
pub const VERSION: u16 = 1;

/// Most bytes of context that the connecting side can state about itself.
pub const MAX_CONTEXT: usize = 48;

/// Longest time a handshake may take, so that a silent peer holds nobody up.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

// Different in the two directions: a socket that was connected to itself is then no peer.
const CONNECT_MAGIC: [u8; 8] = *b"BURNDIS>";
const ACCEPT_MAGIC: [u8; 8] = *b"BURNDIS<";

const PREFIX: usize = 12;
const NONCE: usize = 32;
const MAC: usize = 32;
const OPENING: usize = PREFIX + NONCE + 1 + MAX_CONTEXT;
const ANSWER: usize = PREFIX + NONCE;

const ACCEPTED: u8 = 1;
const DENIED: u8 = 2;

/// A stream whose reads and writes can be limited in time.
pub trait Timed: Read + Write {
    /// Limits each following read and write; `None` lifts the limit.
    ///
    /// # Errors
    /// If the system refuses.
    fn set_timeout(&mut self, timeout: Option<Duration>) -> std::io::Result<()>;
}

macro_rules! timed {
    ($($stream:ty),*) => {$(
        impl Timed for $stream {
            fn set_timeout(&mut self, timeout: Option<Duration>) -> std::io::Result<()> {
                self.set_read_timeout(timeout)?;
                self.set_write_timeout(timeout)
            }
        }
    )*};
}
timed!(TcpStream, UnixStream, &TcpStream, &UnixStream);

/// What a connection is for. Both ends must mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// A rank's control connection to the store.
    Store = 1,
    /// A connection between two ranks on which a transport moves data.
    Data = 2,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// What the peer sends is not our protocol.
    #[error("it does not speak burn-dist's protocol")]
    NotBurnDist,
    /// The peer is another version of burn-dist.
    #[error(
        "it speaks version {theirs} of burn-dist's protocol, this process {ours}: use the same program everywhere"
    )]
    Version {
        /// Our version.
        ours: u16,
        /// The peer's version.
        theirs: u16,
    },
    /// A store was taken for a data connection or the reverse.
    #[error("it serves another purpose (a store is not a data connection)")]
    Purpose,
    /// The peer does not have our secret.
    #[error("it has another secret")]
    WrongSecret,
    /// More than [`MAX_CONTEXT`] bytes of context.
    #[error("{bytes} bytes of context, at most {MAX_CONTEXT} fit")]
    ContextTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The system gave no random numbers.
    #[error("the system gave no random numbers: {0}")]
    Random(getrandom::Error),
    /// The connection ended, broke or was silent for too long.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// Until when the side that connected waits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For the other side to take the proof.
    pub proof: Instant,
    /// For what it says to that.
    pub verdict: Instant,
}

impl From<Instant> for Limits {
    /// Both until then.
    fn from(deadline: Instant) -> Self {
        Self {
            proof: deadline,
            verdict: deadline,
        }
    }
}

/// Handshake of the side that connected. `context` says who this is; the other side gets it, and
/// can trust it as far as it trusts the secret. Leaves the stream without time limits.
///
/// # Errors
/// See [`AuthError`]; the stream is then of no further use.
pub fn connect_side<S: Timed>(
    mut stream: S,
    secret: &Secret,
    purpose: Purpose,
    context: &[u8],
    limits: impl Into<Limits>,
) -> Result<(), AuthError> {
    let limits = limits.into();
    let opening = opening(purpose, context)?;
    write_all_by(&mut stream, &opening, limits.proof)?;

    let mut answer = [0; ANSWER];
    read_prefix(&mut stream, &mut answer, ACCEPT_MAGIC, limits.proof)?;
    check_prefix(&answer, purpose)?;
    read_exact_by(&mut stream, &mut answer[PREFIX..], limits.proof)?;

    let proof = proof(secret, Side::Connect, &opening, &answer);
    write_all_by(&mut stream, proof.as_bytes(), limits.proof)?;

    let mut verdict = [0; 1 + MAC];
    read_exact_by(&mut stream, &mut verdict, limits.verdict)?;
    let (code, theirs) = (verdict[0], mac(&verdict[1..]));
    // Comparing `blake3::Hash` takes the same time wherever the two differ.
    if code != ACCEPTED || theirs != self::proof(secret, Side::Accept, &opening, &answer) {
        return Err(AuthError::WrongSecret);
    }
    stream.set_timeout(None).map_err(StreamError::Io)?;
    Ok(())
}

/// Handshake of the side that accepted. Gives the context that the other side stated. Leaves the
/// stream without time limits.
///
/// # Errors
/// See [`AuthError`]; the stream is then of no further use.
pub fn accept_side<S: Timed>(
    mut stream: S,
    secret: &Secret,
    purpose: Purpose,
    deadline: Instant,
) -> Result<Vec<u8>, AuthError> {
    let mut opening = [0; OPENING];
    read_prefix(&mut stream, &mut opening, CONNECT_MAGIC, deadline)?;
    let answer = answer(purpose)?;
    if let Err(mismatch) = check_prefix(&opening, purpose) {
        // The peer learns from the answer what we are. Reading what it has sent first keeps the
        // system from throwing that answer away when the connection ends; another version may
        // send less, so not for long.
        let soon = deadline.min(Instant::now() + Duration::from_millis(100));
        let _ = read_exact_by(&mut stream, &mut opening[PREFIX..], soon);
        write_all_by(&mut stream, &answer, deadline)?;
        return Err(mismatch);
    }
    read_exact_by(&mut stream, &mut opening[PREFIX..], deadline)?;
    write_all_by(&mut stream, &answer, deadline)?;

    let mut theirs = [0; MAC];
    read_exact_by(&mut stream, &mut theirs, deadline)?;
    if mac(&theirs) != proof(secret, Side::Connect, &opening, &answer) {
        let mut denial = [0; 1 + MAC];
        denial[0] = DENIED;
        write_all_by(&mut stream, &denial, deadline)?;
        return Err(AuthError::WrongSecret);
    }
    let mut verdict = [0; 1 + MAC];
    verdict[0] = ACCEPTED;
    verdict[1..].copy_from_slice(proof(secret, Side::Accept, &opening, &answer).as_bytes());
    write_all_by(&mut stream, &verdict, deadline)?;
    stream.set_timeout(None).map_err(StreamError::Io)?;

    let context = &opening[PREFIX + NONCE..];
    let length = usize::from(context[0]).min(MAX_CONTEXT);
    Ok(context[1..=length].to_vec())
}

#[derive(Clone, Copy)]
enum Side {
    Connect,
    Accept,
}

fn proof(
    secret: &Secret,
    side: Side,
    opening: &[u8; OPENING],
    answer: &[u8; ANSWER],
) -> blake3::Hash {
    let label: &[u8; 16] = match side {
        Side::Connect => b"burn-dist connec",
        Side::Accept => b"burn-dist accept",
    };
    // All parts have fixed sizes, so no two sets of parts give the same input.
    let mut hasher = blake3::Hasher::new_keyed(secret.key());
    hasher.update(label).update(opening).update(answer);
    hasher.finalize()
}

fn mac(bytes: &[u8]) -> blake3::Hash {
    let mut mac = [0; MAC];
    mac.copy_from_slice(bytes);
    blake3::Hash::from_bytes(mac)
}

fn opening(purpose: Purpose, context: &[u8]) -> Result<[u8; OPENING], AuthError> {
    if context.len() > MAX_CONTEXT {
        return Err(AuthError::ContextTooLong {
            bytes: context.len(),
        });
    }
    let mut message = [0; OPENING];
    write_prefix(&mut message, CONNECT_MAGIC, purpose)?;
    let tail = &mut message[PREFIX + NONCE..];
    tail[0] = context.len() as u8;
    tail[1..=context.len()].copy_from_slice(context);
    Ok(message)
}

fn answer(purpose: Purpose) -> Result<[u8; ANSWER], AuthError> {
    let mut message = [0; ANSWER];
    write_prefix(&mut message, ACCEPT_MAGIC, purpose)?;
    Ok(message)
}

/// Magic, version, purpose and a new nonce. The first twelve bytes never change their meaning.
fn write_prefix(message: &mut [u8], magic: [u8; 8], purpose: Purpose) -> Result<(), AuthError> {
    message[..8].copy_from_slice(&magic);
    message[8..10].copy_from_slice(&VERSION.to_le_bytes());
    message[10] = purpose as u8;
    getrandom::fill(&mut message[PREFIX..PREFIX + NONCE]).map_err(AuthError::Random)
}

/// Reads the first twelve bytes, giving up at the first that is not ours.
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
    ) -> (Result<(), AuthError>, Result<Vec<u8>, AuthError>) {
        let (a, b) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            // Owned, so that a failing side closes its end as it would in the field.
            let accept = scope.spawn(move || accept_side(b, accepting.0, accepting.1, soon()));
            let connect = connect_side(a, connecting.0, connecting.1, context, soon());
            (connect, accept.join().unwrap())
        })
    }

    #[test]
    fn same_secret_passes_and_context_arrives() {
        let secret = secret("0123456789abcdef");
        let pair = (&secret, Purpose::Data);
        for context in [&b""[..], b"rank 3 of 4", &[7; MAX_CONTEXT]] {
            let (connect, accept) = shake(pair, pair, context);
            connect.unwrap();
            assert_eq!(accept.unwrap(), context);
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
        let mut opening = opening(Purpose::Store, b"").unwrap();
        opening[8..10].copy_from_slice(&7u16.to_le_bytes());
        a.write_all(&opening).unwrap();
        let accept = accept_side(b, &secret("0123456789abcdef"), Purpose::Store, soon());
        let theirs = match accept {
            Err(AuthError::Version { theirs, .. }) => theirs,
            other => panic!("{other:?}"),
        };
        assert_eq!(theirs, 7);
        // The peer still gets our answer, so it can name the versions too.
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
        // An attacker without the secret answers with what the victim itself sent.
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
        start.copy_from_slice(&opening(Purpose::Store, b"").unwrap()[..PREFIX]);
        start
    }
}

//! Authenticates connections to a listener of the run, all at once: a silent caller holds nobody
//! up, and their number is limited.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Secret;
use super::auth::{self, Accepted, AuthError, HANDSHAKE_LIMIT, Purpose};

/// Refusals logged in one [`WINDOW`]; more are counted.
const LOGGED: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);

/// Connections that have not authenticated yet. Dropping it ends them.
pub(crate) struct Strangers {
    secret: Secret,
    purpose: Purpose,
    /// Largest number of connections at the same time; the oldest makes room.
    most: usize,
    waiting: Arc<Mutex<Waiting>>,
    refusals: Refusals,
}

#[derive(Default)]
struct Waiting {
    /// Oldest first.
    streams: VecDeque<(u64, TcpStream)>,
    count: u64,
}

impl Strangers {
    /// Callers must know `secret` and state `purpose`; at most `most` are heard at the same time.
    pub fn new(secret: &Secret, purpose: Purpose, most: usize) -> Self {
        Self {
            secret: secret.clone(),
            purpose,
            most: most.max(1),
            waiting: Arc::default(),
            refusals: Refusals::default(),
        }
    }

    /// The log of refused connections.
    pub fn refusals(&self) -> Refusals {
        self.refusals.clone()
    }

    /// Runs the handshake of `stream` in its own thread, called `thread`. That thread passes to
    /// `then` the stream and the caller's statement, or the reason for a refusal.
    ///
    /// The handshake has `limit`, and never more than [`HANDSHAKE_LIMIT`]. An authenticated
    /// connection makes no room for others any more.
    ///
    /// # Errors
    /// Fails if the system refuses the resources; the connection has then ended.
    pub fn hear(
        &self,
        stream: TcpStream,
        thread: &str,
        limit: Duration,
        then: impl FnOnce(TcpStream, Result<Accepted, AuthError>) + Send + 'static,
    ) -> io::Result<()> {
        // On some systems a connection inherits the listener's mode.
        stream.set_nonblocking(false)?;
        let number = self.waiting.lock().admit(stream.try_clone()?, self.most);
        let deadline = Instant::now() + limit.min(HANDSHAKE_LIMIT);
        let (secret, purpose, waiting) = (self.secret.clone(), self.purpose, self.waiting.clone());
        let spawned = thread::Builder::new().name(thread.into()).spawn(move || {
            let mut taken = false;
            let take = || {
                taken = waiting.lock().forget(number);
                taken
            };
            let proved = auth::accept_side_if(&stream, &secret, purpose, deadline, take);
            let is_kept = taken || waiting.lock().forget(number);
            let proved = match is_kept {
                true => proved,
                false => Err(AuthError::Dropped),
            };
            then(stream, proved);
        });
        spawned.map(drop).inspect_err(|_| {
            self.waiting.lock().forget(number);
        })
    }

    /// Ends all connections that are not authenticated yet.
    pub fn dismiss(&self) {
        for (_, stream) in self.waiting.lock().streams.drain(..) {
            end(&stream);
        }
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.dismiss();
    }
}

impl Waiting {
    /// Adds a connection and returns its number.
    fn admit(&mut self, stream: TcpStream, most: usize) -> u64 {
        // A rank authenticates in milliseconds, so the oldest caller is the least likely one.
        if self.streams.len() >= most
            && let Some((_, oldest)) = self.streams.pop_front()
        {
            end(&oldest);
        }
        self.count += 1;
        self.streams.push_back((self.count, stream));
        self.count
    }

    /// Removes a connection. Returns whether it was still there.
    fn forget(&mut self, number: u64) -> bool {
        let before = self.streams.len();
        self.streams.retain(|(other, _)| *other != number);
        self.streams.len() < before
    }
}

/// Logs refused connections, a few in each [`WINDOW`]: anybody can cause any number of them.
#[derive(Clone, Default)]
pub(crate) struct Refusals(Arc<Mutex<Told>>);

#[derive(Default)]
struct Told {
    window: Option<Instant>,
    logged: usize,
    unsaid: u64,
}

impl Refusals {
    /// Logs that a connection was refused, or counts it.
    pub fn warn(&self, refusal: std::fmt::Arguments<'_>) {
        let unsaid = self.0.lock().note(Instant::now());
        match unsaid {
            None => {}
            Some(0) => tracing::warn!("{refusal}"),
            Some(more) => {
                tracing::warn!("{refusal} (after {more} more refused connections)");
            }
        }
    }
}

impl Told {
    /// Counts a refusal. If it should be logged, returns how many before were not.
    fn note(&mut self, now: Instant) -> Option<u64> {
        let is_over = |begin| now.saturating_duration_since(begin) >= WINDOW;
        if self.window.is_none_or(is_over) {
            self.window = Some(now);
            self.logged = 0;
        }
        if self.logged == LOGGED {
            self.unsaid += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if self.unsaid > 0 {
            tracing::warn!("refused {} more connections", self.unsaid);
        }
    }
}

/// Ends the connection, also for the thread that hears it.
fn end(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(60);

    /// A connection, seen by the caller and by the listener.
    fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        caller.set_read_timeout(Some(LONG)).unwrap();
        (caller, listener.accept().unwrap().0)
    }

    fn secret() -> Secret {
        Secret::from_text("a secret of a test that is long enough").unwrap()
    }

    #[test]
    fn whoever_knows_the_secret_is_heard_beside_those_who_say_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let strangers = Strangers::new(&secret(), Purpose::Data, 8);
        let (told, heard) = channel();
        let silent: Vec<_> = (0..3)
            .map(|_| {
                let (caller, stream) = pair(&listener);
                strangers.hear(stream, "silent", LONG, |_, _| {}).unwrap();
                caller
            })
            .collect();
        let (caller, stream) = pair(&listener);
        let then = move |_, proved| told.send(proved).unwrap();
        strangers.hear(stream, "known", LONG, then).unwrap();
        let soon = Instant::now() + LONG;
        auth::connect_side(&caller, &secret(), Purpose::Data, b"me", soon).unwrap();
        let accepted = heard.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(accepted.context, b"me");
        drop((strangers, silent));
    }

    #[test]
    fn the_oldest_makes_room_and_the_rest_ends_with_the_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let strangers = Strangers::new(&secret(), Purpose::Data, 2);
        let mut callers: Vec<_> = (0..3)
            .map(|_| {
                let (caller, stream) = pair(&listener);
                strangers.hear(stream, "silent", LONG, |_, _| {}).unwrap();
                caller
            })
            .collect();
        let ended = |caller: &mut TcpStream| matches!(caller.read(&mut [0; 1]), Ok(0) | Err(_));
        assert!(ended(&mut callers[0]));
        callers[1].set_nonblocking(true).unwrap();
        let still = callers[1].read(&mut [0; 1]).unwrap_err();
        assert_eq!(still.kind(), io::ErrorKind::WouldBlock);
        callers[1].set_nonblocking(false).unwrap();
        drop(strangers);
        assert!(ended(&mut callers[1]) && ended(&mut callers[2]));
    }

    /// A peer that was told that it is accepted must not lose its place to later callers.
    #[test]
    fn who_has_proved_itself_makes_no_room() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let strangers = Strangers::new(&secret(), Purpose::Data, 1);
        let (told, heard) = channel();
        let (go_on, wait) = channel::<()>();
        let (mut caller, stream) = pair(&listener);
        let then = move |stream: TcpStream, proved: Result<Accepted, AuthError>| {
            wait.recv_timeout(LONG).unwrap();
            told.send((stream, proved.is_ok())).unwrap();
        };
        strangers.hear(stream, "known", LONG, then).unwrap();
        let soon = Instant::now() + LONG;
        auth::connect_side(&caller, &secret(), Purpose::Data, b"me", soon).unwrap();
        let others: Vec<_> = (0..4)
            .map(|_| {
                let (caller, stream) = pair(&listener);
                strangers.hear(stream, "silent", LONG, |_, _| {}).unwrap();
                caller
            })
            .collect();
        go_on.send(()).unwrap();
        let (mut stream, is_in) = heard.recv_timeout(LONG).unwrap();
        assert!(is_in);
        stream.write_all(b"!").unwrap();
        caller.read_exact(&mut [0; 1]).unwrap();
        drop(others);
    }

    #[test]
    fn a_flood_of_refusals_is_a_few_lines() {
        let begin = Instant::now();
        let mut told = Told::default();
        let logged = |told: &mut Told, after: Duration| {
            (0..400)
                .filter_map(|_| told.note(begin + after))
                .collect::<Vec<u64>>()
        };
        assert_eq!(logged(&mut told, Duration::ZERO), [0; LOGGED]);
        assert!(logged(&mut told, WINDOW / 2).is_empty());
        assert_eq!(logged(&mut told, WINDOW), [800 - LOGGED as u64, 0, 0]);
        told.unsaid = 0;
    }
}

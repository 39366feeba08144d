//! Hears whoever connects to a listener of the run, all at once: somebody who says nothing holds up nobody else, and
//! too many of them are not kept.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::auth::{self, AuthError, HANDSHAKE_LIMIT, Purpose};
use crate::world::Secret;

/// The connections that have not proved yet who they are. Dropping it ends them.
pub(crate) struct Strangers {
    secret: Secret,
    purpose: Purpose,
    /// Connections that are heard at the same time; whoever has waited longest makes room.
    most: usize,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    /// Oldest first.
    streams: VecDeque<(u64, TcpStream)>,
    count: u64,
}

impl Strangers {
    /// Nobody yet. Whoever comes has to know the `secret` and come for `purpose`; `most` are heard at the same time.
    pub fn new(secret: &Secret, purpose: Purpose, most: usize) -> Self {
        Self {
            secret: secret.clone(),
            purpose,
            most: most.max(1),
            waiting: Arc::default(),
        }
    }

    /// Hears what `stream` has to say in a thread of its own, called `thread`, and gives both to `then` there: what it
    /// said of itself, or why it is refused. It has `limit`, and never more than [`HANDSHAKE_LIMIT`].
    ///
    /// # Errors
    /// When the system does not give what this takes; the connection has ended then.
    pub fn hear(
        &self,
        stream: TcpStream,
        thread: &str,
        limit: Duration,
        then: impl FnOnce(TcpStream, Result<Vec<u8>, AuthError>) + Send + 'static,
    ) -> io::Result<()> {
        // Some systems hand the listener's mode down.
        stream.set_nonblocking(false)?;
        let number = lock(&self.waiting).admit(stream.try_clone()?, self.most);
        let deadline = Instant::now() + limit.min(HANDSHAKE_LIMIT);
        let (secret, purpose, waiting) = (self.secret.clone(), self.purpose, self.waiting.clone());
        let spawned = thread::Builder::new().name(thread.into()).spawn(move || {
            let proved = auth::accept_side(&stream, &secret, purpose, deadline);
            lock(&waiting).forget(number);
            then(stream, proved);
        });
        spawned
            .map(drop)
            .inspect_err(|_| lock(&self.waiting).forget(number))
    }

    /// Ends the connections of all who are still being heard.
    pub fn dismiss(&self) {
        for (_, stream) in lock(&self.waiting).streams.drain(..) {
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
    /// Takes one more and gives its number.
    fn admit(&mut self, stream: TcpStream, most: usize) -> u64 {
        // A rank proves itself in milliseconds; whoever has waited longest is the least likely one.
        if self.streams.len() >= most
            && let Some((_, oldest)) = self.streams.pop_front()
        {
            end(&oldest);
        }
        self.count += 1;
        self.streams.push_back((self.count, stream));
        self.count
    }

    fn forget(&mut self, number: u64) {
        self.streams.retain(|(other, _)| *other != number);
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the connection for the thread that hears it, too.
fn end(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(60);

    /// A connection, seen from the one who calls and from the one who hears.
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
        assert_eq!(heard.recv_timeout(LONG).unwrap().unwrap(), b"me");
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
}

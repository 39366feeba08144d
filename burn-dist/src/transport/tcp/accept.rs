//! Waits for the previous rank among all who knock. Everybody is heard at once, so that nobody who says nothing holds
//! up the others.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::rendezvous::auth::{self, AuthError, HANDSHAKE_LIMIT, Purpose};
use crate::world::Secret;

/// Pause between two looks at a listener on which nobody has called.
const PAUSE: Duration = Duration::from_millis(5);

/// Connections that may be heard at the same time; whoever has waited longest makes room.
const MOST: usize = 64;

/// Whoever has not proved yet who they are, oldest first.
struct Strangers {
    waiting: VecDeque<(u64, TcpStream)>,
    count: u64,
    heard: (Sender<Heard>, Receiver<Heard>),
}

/// What came of the connection of this number.
type Heard = (u64, Result<Vec<u8>, AuthError>);

/// The first connection that knows the secret and says `who` it is; nothing if it does not come in time.
///
/// # Errors
/// When the system gives no connections.
pub(super) fn accept(
    listener: &TcpListener,
    secret: &Secret,
    who: &[u8],
    deadline: Instant,
) -> io::Result<Option<TcpStream>> {
    let mut strangers = Strangers {
        waiting: VecDeque::new(),
        count: 0,
        heard: channel(),
    };
    while Instant::now() < deadline {
        if let Some(found) = strangers.who_is(who) {
            return Ok(Some(found));
        }
        match listener.accept() {
            Ok((stream, from)) => {
                if let Err(error) = strangers.hear(stream, secret, deadline) {
                    tracing::warn!("a connection from {from} could not be heard: {error}");
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
            // The caller hung up between its knock and our answer.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(strangers.who_is(who))
}

impl Strangers {
    fn hear(&mut self, stream: TcpStream, secret: &Secret, deadline: Instant) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let kept = stream.try_clone()?;
        let number = self.count;
        let (secret, heard) = (secret.clone(), self.heard.0.clone());
        let soon = deadline.min(Instant::now() + HANDSHAKE_LIMIT);
        thread::Builder::new()
            .name("tcp-accept".into())
            .spawn(move || {
                let result = auth::accept_side(&stream, &secret, Purpose::Data, soon);
                // Nobody listens any more once the right one has come.
                let _ = heard.send((number, result));
            })?;
        self.count += 1;
        self.waiting.push_back((number, kept));
        if self.waiting.len() > MOST
            && let Some(oldest) = self.waiting.pop_front()
        {
            end(oldest);
        }
        Ok(())
    }

    /// The connection of the one that is waited for, if it has proved itself.
    fn who_is(&mut self, who: &[u8]) -> Option<TcpStream> {
        while let Ok((number, result)) = self.heard.1.try_recv() {
            let at = self.waiting.iter().position(|(other, _)| *other == number);
            let stream = at.and_then(|at| self.waiting.remove(at));
            // Anybody can knock; only the previous rank comes in.
            match (result, stream) {
                (Ok(context), Some((_, stream))) if context == who => return Some(stream),
                (Ok(_), _) => tracing::warn!("another rank than the previous one has connected"),
                (Err(error), _) => tracing::warn!("a connection was refused: {error}"),
            }
        }
        None
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.waiting.drain(..).for_each(end);
    }
}

/// Ends the connection for the thread that hears it, too.
fn end((_, stream): (u64, TcpStream)) {
    let _ = stream.shutdown(Shutdown::Both);
}

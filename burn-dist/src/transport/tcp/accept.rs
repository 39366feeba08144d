//! Waits for the previous rank among all who knock.

use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::rendezvous::auth::{AuthError, Purpose};
use crate::rendezvous::strangers::Strangers;
use crate::world::Secret;

/// Pause between two looks at a listener on which nobody has called.
const PAUSE: Duration = Duration::from_millis(5);

/// Connections that may be heard at the same time.
const MOST: usize = 64;

/// A connection and who it is, or why it is refused.
type Heard = (TcpStream, Result<Vec<u8>, AuthError>);

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
    let strangers = Strangers::new(secret, Purpose::Data, MOST);
    let (tell, heard) = channel();
    while Instant::now() < deadline {
        if let Some(found) = find(&heard, who) {
            return Ok(Some(found));
        }
        match listener.accept() {
            Ok((stream, from)) => {
                let tell = tell.clone();
                let left = deadline.saturating_duration_since(Instant::now());
                // Nobody listens any more once the right one has come.
                let then = move |stream, proved| drop(tell.send((stream, proved)));
                if let Err(error) = strangers.hear(stream, "tcp-accept", left, then) {
                    tracing::warn!("a connection from {from} could not be heard: {error}");
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
            // The caller hung up between its knock and our answer.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(find(&heard, who))
}

/// The connection of the one that is waited for, if it has proved itself.
fn find(heard: &Receiver<Heard>, who: &[u8]) -> Option<TcpStream> {
    // Anybody can knock; only the previous rank comes in.
    for (stream, proved) in heard.try_iter() {
        match proved {
            Ok(context) if context == who => return Some(stream),
            Ok(_) => tracing::warn!("another rank than the previous one has connected"),
            Err(error) => tracing::warn!("a connection was refused: {error}"),
        }
    }
    None
}

//! Waits for the ranks that send to this one among all who knock.

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

/// For each of the `wanted`, the first connection that knows the secret and says that it is that one; none for those that do
/// not come in time.
///
/// # Errors
/// When the system gives no connections.
pub(super) fn accept(
    listener: &TcpListener,
    secret: &Secret,
    wanted: &[Vec<u8>],
    deadline: Instant,
) -> io::Result<Vec<Option<TcpStream>>> {
    let strangers = Strangers::new(secret, Purpose::Data, MOST);
    let (tell, heard) = channel();
    let mut found: Vec<Option<TcpStream>> = wanted.iter().map(|_| None).collect();
    while Instant::now() < deadline {
        sort(&heard, wanted, &mut found);
        if found.iter().all(Option::is_some) {
            break;
        }
        match listener.accept() {
            Ok((stream, from)) => {
                let tell = tell.clone();
                let left = deadline.saturating_duration_since(Instant::now());
                // Nobody listens any more once all have come.
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
    sort(&heard, wanted, &mut found);
    Ok(found)
}

/// Puts those that have proved who they are in their places.
fn sort(heard: &Receiver<Heard>, wanted: &[Vec<u8>], found: &mut [Option<TcpStream>]) {
    // Anybody can knock; only who is wanted comes in, and once.
    for (stream, proved) in heard.try_iter() {
        let place = match proved {
            Ok(who) => wanted.iter().position(|wanted| *wanted == who),
            Err(error) => {
                tracing::warn!("a connection was refused: {error}");
                continue;
            }
        };
        match place.map(|place| &mut found[place]) {
            Some(free @ None) => *free = Some(stream),
            Some(_) => tracing::warn!("a rank has connected twice"),
            None => tracing::warn!("a rank has connected that does not send to this one"),
        }
    }
}

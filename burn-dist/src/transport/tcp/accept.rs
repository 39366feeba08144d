//! Accepts the connections of ranks that send to this one, among all callers.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::wire::Secret;
use crate::wire::auth::{Accepted, AuthError, Purpose};
use crate::wire::strangers::{Refusals, Strangers};

/// Pause between two looks at an idle listener.
const PAUSE: Duration = Duration::from_millis(5);

/// Largest number of unauthenticated connections at the same time.
const MOST: usize = 64;

/// A connection with its proof, or the reason why it is refused.
type Heard = (TcpStream, SocketAddr, Result<Accepted, AuthError>);

/// For each of `wanted`, the last connection that knows the secret and identifies itself as it.
/// `None` if it does not come in time.
///
/// # Errors
/// Fails if the system returns no connections.
pub(super) fn accept(
    listener: &TcpListener,
    secret: &Secret,
    wanted: &[Vec<u8>],
    deadline: Instant,
) -> io::Result<Vec<Option<TcpStream>>> {
    let strangers = Strangers::new(secret, Purpose::Data, MOST);
    let refusals = strangers.refusals();
    let (tell, heard) = channel();
    let mut found: Vec<Option<TcpStream>> = wanted.iter().map(|_| None).collect();
    while Instant::now() < deadline {
        sort(&heard, wanted, &mut found, &refusals);
        if found.iter().all(Option::is_some) {
            break;
        }
        match listener.accept() {
            Ok((stream, from)) => {
                let tell = tell.clone();
                let left = deadline.saturating_duration_since(Instant::now());
                // No longer needed after all ranks have come.
                let then = move |stream, proved| drop(tell.send((stream, from, proved)));
                if let Err(error) = strangers.hear(stream, "tcp-accept", left, then) {
                    refusals.warn(format_args!(
                        "cannot read from a connection from {from}: {error}"
                    ));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
            // The caller hung up between its call and our answer.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
    sort(&heard, wanted, &mut found, &refusals);
    Ok(found)
}

/// Puts authenticated connections in their places.
fn sort(
    heard: &Receiver<Heard>,
    wanted: &[Vec<u8>],
    found: &mut [Option<TcpStream>],
    refusals: &Refusals,
) {
    // Anybody can connect; only wanted ranks are accepted.
    for (stream, from, proved) in heard.try_iter() {
        let context = match proved {
            Ok(accepted) => accepted.context,
            Err(error) => {
                refusals.warn(format_args!("refused a connection from {from}: {error}"));
                continue;
            }
        };
        match wanted.iter().position(|wanted| *wanted == context) {
            // A rank that comes again has given up its first connection.
            Some(place) => found[place] = Some(stream),
            None => refusals.warn(format_args!(
                "refused a rank from {from} that does not send to this one"
            )),
        }
    }
}

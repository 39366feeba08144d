//! Joins the ranks that are left after a failure, at the store of their world.

use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::client::Store;
use super::connect::Entered;
use super::error::RendezvousError;
use super::protocol::{self, Message};
use super::server::encode_reform;
use crate::deadline;
use crate::wire::auth::{self, HANDSHAKE_LIMIT, Limits, Purpose};

/// Time between two attempts to reach the store.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the store may be unreachable. It listens again as soon as it knows of the failure.
const UNREACHABLE: Duration = Duration::from_secs(5);

/// A rank's place in the world that it has asked to re-form.
pub(super) struct Reformed {
    pub rank: usize,
    pub size: usize,
    pub entered: Entered,
}

/// Waits at the store of `store` for the others that are left, at most `wait` after the first.
pub(super) fn join(store: &Store, wait: Duration) -> Result<Reformed, RendezvousError> {
    let Some(address) = store.address() else {
        return Err(RendezvousError::NoStore { size: store.size() });
    };
    let gone = |reason: String| RendezvousError::CannotReform { address, reason };
    let begin = Instant::now();
    loop {
        let reason = match try_join(store, wait) {
            Ok(joined) => return Ok(joined),
            Err(Attempt::Final(error)) => return Err(error),
            Err(Attempt::Later(reason)) => reason,
        };
        if begin.elapsed() > UNREACHABLE {
            return Err(gone(reason));
        }
        sleep(PAUSE);
    }
}

enum Attempt {
    /// The store may not listen yet.
    Later(String),
    Final(RendezvousError),
}

fn try_join(store: &Store, wait: Duration) -> Result<Reformed, Attempt> {
    let Some(address) = store.address() else {
        return Err(Attempt::Final(RendezvousError::NoStore {
            size: store.size(),
        }));
    };
    let later = |error: std::io::Error| Attempt::Later(error.to_string());
    let mut stream = TcpStream::connect_timeout(&address, HANDSHAKE_LIMIT).map_err(later)?;
    // If nobody listens, a connection within one host can end up at its own start.
    if stream.local_addr().ok() == Some(address) {
        return Err(Attempt::Later("nothing listens there".to_owned()));
    }
    let limit = deadline::after(HANDSHAKE_LIMIT);
    let limits = Limits {
        proof: limit,
        verdict: limit,
    };
    let context = encode_reform((store.rank(), store.size()), store.world_number(), wait);
    let session = auth::connect_side(&stream, store.secret(), Purpose::Store, &context, limits);
    let mut session = session.map_err(|error| Attempt::Later(error.to_string()))?;
    // The store answers once all are there, at the latest after the wait of the first.
    let patience = wait.saturating_add(HANDSHAKE_LIMIT);
    stream.set_read_timeout(Some(patience)).map_err(later)?;
    let mut place = None;
    loop {
        match protocol::read(&mut stream, &mut session.receive) {
            Ok(Message::Reformed { rank, size }) => place = Some((rank, size)),
            Ok(Message::Welcome) => break,
            Ok(Message::Refused(refusal)) => {
                let (rank, size) = (store.rank(), store.size());
                let error = RendezvousError::refused(address, rank, size, refusal);
                return Err(Attempt::Final(error));
            }
            Ok(_) => {
                let reason = "it did not accept this rank".into();
                return Err(Attempt::Final(RendezvousError::NotAStore {
                    address,
                    reason,
                }));
            }
            Err(error) => return Err(Attempt::Later(error.to_string())),
        }
    }
    stream.set_read_timeout(None).map_err(later)?;
    let Some((rank, size)) = place else {
        let reason = "it gave this rank no place".into();
        return Err(Attempt::Final(RendezvousError::NotAStore {
            address,
            reason,
        }));
    };
    Ok(Reformed {
        rank,
        size,
        entered: Entered {
            stream,
            session,
            address,
        },
    })
}

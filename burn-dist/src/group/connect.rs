//! Connects the ranks of a world: over the store they tell each other where they are and choose a
//! transport together.

use std::net::SocketAddr;
use std::sync::Arc;

use super::engine::{Engine, Link, Place};
use super::{Algorithm, GroupOptions, TransportKind, program};
use crate::error::Error;
#[cfg(feature = "mpi")]
use crate::mpi::{Collectives, Communicator, Streams};
use crate::rendezvous::{RendezvousError, Store};
use crate::transport::shm::Offer;
use crate::transport::tcp::Listener;
use crate::transport::{Transport, TransportError};
use crate::world::World;

pub(super) fn connect(world: &World, options: GroupOptions) -> Result<Engine, Error> {
    let store = Arc::new(Store::connect(world, options.connect_timeout)?);
    // Whatever goes wrong here goes wrong for all: a rank that gives up says so.
    if options.same_program {
        program::check(world, &store)?;
    }
    if options.algorithm == Algorithm::Mpi && !has_mpi(world) {
        return Err(no_mpi("the algorithm \"mpi\" is for ranks that MPI has started").into());
    }
    let connected = choose(world, &options, &store);
    let (transport, nodes) = connected.inspect_err(|error| store.abort(&error.to_string()))?;
    let (rank, size) = (world.rank(), world.size());
    let place = Place {
        rank,
        size,
        nodes,
        transport: transport.name(),
    };
    #[cfg(feature = "mpi")]
    let collectives =
        native(world, &options).inspect_err(|error| store.abort(&error.to_string()))?;
    let link = Link {
        #[cfg(feature = "mpi")]
        collectives,
        store,
        transport,
        first_timeout: options.first_timeout.max(options.timeout),
        timeout: options.timeout,
        flight_recorder: options.flight_recorder,
        server: None,
    };
    Ok(Engine::new(place, Some(link)))
}

fn choose(
    world: &World,
    options: &GroupOptions,
    store: &Store,
) -> Result<(Box<dyn Transport>, usize), Error> {
    let hosts = store.all_gather("host", &host_identity())?;
    let mut distinct = hosts.clone();
    distinct.sort();
    distinct.dedup();
    let nodes = distinct.len();
    match preferred(world, options, nodes) {
        TransportKind::Mpi => Ok((messages(world)?, nodes)),
        TransportKind::Tcp => Ok((tcp(world, options, store)?, nodes)),
        TransportKind::Shm if nodes > 1 => {
            let stranger = hosts.iter().position(|host| *host != hosts[world.rank()]);
            Err(TransportError::Peer {
                transport: "shm",
                rank: stranger.unwrap_or_default(),
                reason: "is on another host; use the transport \"auto\" or \"tcp\"".into(),
            }
            .into())
        }
        TransportKind::Shm => Ok((share(world, store)??, nodes)),
        TransportKind::Auto if nodes > 1 => Ok((tcp(world, options, store)?, nodes)),
        TransportKind::Auto => match share(world, store)? {
            Ok(transport) => Ok((transport, nodes)),
            Err(error) => {
                if world.is_main() {
                    tracing::warn!("{error}; using TCP instead");
                }
                Ok((tcp(world, options, store)?, nodes))
            }
        },
    }
}

/// MPI has the better network between nodes, where it runs, and its own collectives ask for it.
fn preferred(world: &World, options: &GroupOptions, nodes: usize) -> TransportKind {
    let is_auto = options.transport == TransportKind::Auto;
    if options.algorithm == Algorithm::Mpi && is_auto {
        return TransportKind::Mpi;
    }
    match is_auto && nodes > 1 && has_mpi(world) {
        true => TransportKind::Mpi,
        false => options.transport,
    }
}

#[cfg(feature = "mpi")]
fn has_mpi(world: &World) -> bool {
    world.link.mpi.is_some()
}

#[cfg(not(feature = "mpi"))]
fn has_mpi(_: &World) -> bool {
    false
}

#[cfg(feature = "mpi")]
fn messages(world: &World) -> Result<Box<dyn Transport>, Error> {
    let streams = Streams::new(communicator(world)?, world.rank(), world.size())?;
    Ok(Box::new(streams))
}

#[cfg(not(feature = "mpi"))]
fn messages(_: &World) -> Result<Box<dyn Transport>, Error> {
    Err(no_mpi("this program was built without the feature `mpi`").into())
}

/// MPI's own collectives, if they are asked for.
#[cfg(feature = "mpi")]
fn native(world: &World, options: &GroupOptions) -> Result<Option<Collectives>, Error> {
    Ok(match options.algorithm {
        Algorithm::Mpi => Some(Collectives::new(communicator(world)?)),
        Algorithm::Auto => None,
    })
}

/// A communicator of all ranks, for one purpose.
#[cfg(feature = "mpi")]
fn communicator(world: &World) -> Result<Communicator, Error> {
    let Some(session) = &world.link.mpi else {
        return Err(
            no_mpi("MPI has not started these ranks: start them with mpirun or srun").into(),
        );
    };
    session.duplicate().map_err(|error| {
        TransportError::Setup {
            transport: "mpi",
            action: "duplicating the communicator".into(),
            source: error.into(),
        }
        .into()
    })
}

fn no_mpi(reason: &str) -> TransportError {
    TransportError::Setup {
        transport: "mpi",
        action: "looking for MPI".into(),
        source: std::io::Error::other(reason),
    }
}

/// Ranks with the same identity can map each other's memory, as far as one can tell beforehand.
fn host_identity() -> Vec<u8> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = |name: &str| {
        let link = std::fs::read_link(format!("/proc/self/ns/{name}"));
        link.map(|path| path.as_os_str().as_encoded_bytes().to_vec())
            .unwrap_or_default()
    };
    let uts = rustix::system::uname();
    let user = rustix::process::geteuid().as_raw().to_le_bytes();
    let parts = [
        boot,
        uts.nodename().to_bytes().to_vec(),
        namespace("pid"),
        namespace("net"),
    ];
    let mut hasher = blake3::Hasher::new();
    for part in parts.iter().map(Vec::as_slice).chain([user.as_slice()]) {
        hasher
            .update(&(part.len() as u64).to_le_bytes())
            .update(part);
    }
    hasher.finalize().as_bytes().to_vec()
}

/// The inner error is one that all ranks come to know of, so that they can fall back together.
fn share(
    world: &World,
    store: &Store,
) -> Result<Result<Box<dyn Transport>, TransportError>, RendezvousError> {
    let offer = Offer::new(world.size());
    let ticket = offer.as_ref().map(Offer::ticket).unwrap_or_default();
    let tickets = store.all_gather("shared memory", &ticket)?;
    let made = offer.map_err(|source| TransportError::Setup {
        transport: "shm",
        action: "making shared memory".into(),
        source,
    });
    let shared = made.and_then(|offer| offer.accept(world.rank(), &tickets));
    let word = shared
        .as_ref()
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    // The file stays open until this exchange has shown that all peers have opened it.
    let words = store.all_gather("shared memory mapped", word.as_bytes())?;
    let failed = words.iter().position(|word| !word.is_empty());
    Ok(match (shared, failed) {
        (Err(error), _) => Err(error),
        (Ok(_), Some(rank)) => {
            let reason = String::from_utf8_lossy(&words[rank]).into_owned();
            Err(TransportError::Peer {
                transport: "shm",
                rank,
                reason,
            })
        }
        (Ok((shared, _file)), None) => Ok(Box::new(shared)),
    })
}

fn tcp(world: &World, options: &GroupOptions, store: &Store) -> Result<Box<dyn Transport>, Error> {
    let listener = Listener::bind(store.local_ip())?;
    let words = store.all_gather("tcp address", listener.address().to_string().as_bytes())?;
    let addresses = words.iter().enumerate().map(|(rank, word)| {
        let address = std::str::from_utf8(word)
            .ok()
            .and_then(|word| word.parse().ok());
        let reason = || "sent a malformed address".to_owned();
        address.ok_or_else(|| TransportError::Peer {
            transport: "tcp",
            rank,
            reason: reason(),
        })
    });
    let addresses = addresses.collect::<Result<Vec<SocketAddr>, _>>()?;
    let timeout = options.connect_timeout;
    Ok(Box::new(listener.connect(
        world.rank(),
        &addresses,
        store.secret(),
        timeout,
    )?))
}

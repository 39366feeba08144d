//! Connects the ranks of a world: over the store they tell each other where they are and choose a
//! transport together.

use std::net::SocketAddr;
use std::sync::Arc;

use super::engine::{Engine, Link, Place};
use super::members::Members;
use super::{Algorithm, GroupOptions, TransportKind, program};
use crate::error::Error;
#[cfg(feature = "mpi")]
use crate::mpi::{Collectives, Communicator, Streams};
use crate::rendezvous::Store;
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
    let joining = Joining {
        rank: world.rank(),
        members: &Members::all(world.size()),
        options: &options,
        store: &store,
        #[cfg(feature = "mpi")]
        mpi: world.link.mpi.as_ref(),
    };
    let joined = joining
        .join(&mut &*store)
        .inspect_err(|error| store.abort(&error.to_string()))?;
    let link = Link {
        #[cfg(feature = "mpi")]
        collectives: joined.collectives,
        #[cfg(feature = "mpi")]
        mpi: world.link.mpi.clone(),
        transport: joined.transport,
        store,
        options,
        server: None,
    };
    Ok(Engine::whole(joined.place, link))
}

#[cfg(feature = "mpi")]
fn has_mpi(world: &World) -> bool {
    world.link.mpi.is_some()
}

#[cfg(not(feature = "mpi"))]
fn has_mpi(_: &World) -> bool {
    false
}

/// How ranks tell each other where they are before they are connected.
pub(super) trait Exchange {
    /// Gives `payload` to all of them and gets theirs, in rank order. They call it in the same order,
    /// at most [`EXCHANGES`] times.
    fn all_gather(&mut self, what: &str, payload: &[u8]) -> Result<Vec<Vec<u8>>, Error>;
}

/// Most exchanges that it takes to connect a group.
pub(super) const EXCHANGES: usize = 4;

impl Exchange for &Store {
    fn all_gather(&mut self, what: &str, payload: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        Ok(Store::all_gather(self, what, payload)?)
    }
}

/// A rank that is about to be connected to the others of its group.
pub(super) struct Joining<'a> {
    pub rank: usize,
    pub members: &'a Members,
    pub options: &'a GroupOptions,
    pub store: &'a Store,
    #[cfg(feature = "mpi")]
    pub mpi: Option<&'a Arc<crate::mpi::Session>>,
}

/// A rank that is connected.
pub(super) struct Joined {
    pub place: Place,
    pub transport: Box<dyn Transport>,
    #[cfg(feature = "mpi")]
    pub collectives: Option<Collectives>,
}

impl Joining<'_> {
    /// Connects this rank to the others, who do the same.
    pub fn join(&self, exchange: &mut dyn Exchange) -> Result<Joined, Error> {
        let hosts = exchange.all_gather("host", &host_identity())?;
        let mut distinct: Vec<&Vec<u8>> = Vec::new();
        for host in &hosts {
            if !distinct.contains(&host) {
                distinct.push(host);
            }
        }
        let mine = hosts.get(self.rank);
        let node = distinct.iter().position(|host| Some(*host) == mine);
        let transport = self.choose(&hosts, distinct.len(), exchange)?;
        let place = Place {
            rank: self.rank,
            size: self.size(),
            node: node.unwrap_or_default(),
            nodes: distinct.len(),
            transport: transport.name(),
        };
        Ok(Joined {
            place,
            transport,
            #[cfg(feature = "mpi")]
            collectives: self.native()?,
        })
    }

    fn size(&self) -> usize {
        self.members.ranks().len()
    }

    fn choose(
        &self,
        hosts: &[Vec<u8>],
        nodes: usize,
        exchange: &mut dyn Exchange,
    ) -> Result<Box<dyn Transport>, Error> {
        match self.preferred(nodes) {
            TransportKind::Mpi => self.messages(),
            TransportKind::Tcp => self.tcp(exchange),
            TransportKind::Shm if nodes > 1 => {
                let mine = hosts.get(self.rank);
                let stranger = hosts.iter().position(|host| Some(host) != mine);
                Err(TransportError::Peer {
                    transport: "shm",
                    rank: stranger.unwrap_or_default(),
                    reason: "is on another host; use the transport \"auto\" or \"tcp\"".into(),
                }
                .into())
            }
            TransportKind::Shm => Ok(self.share(exchange)??),
            TransportKind::Auto if nodes > 1 => self.tcp(exchange),
            TransportKind::Auto => match self.share(exchange)? {
                Ok(transport) => Ok(transport),
                Err(error) => {
                    if self.rank == 0 {
                        let error = self.members.name(error);
                        tracing::warn!("{error}; using TCP instead");
                    }
                    self.tcp(exchange)
                }
            },
        }
    }

    /// MPI has the better network between nodes, where it runs, and its own collectives ask for it.
    fn preferred(&self, nodes: usize) -> TransportKind {
        let is_auto = self.options.transport == TransportKind::Auto;
        if self.options.algorithm == Algorithm::Mpi && is_auto {
            return TransportKind::Mpi;
        }
        match is_auto && nodes > 1 && self.has_mpi() {
            true => TransportKind::Mpi,
            false => self.options.transport,
        }
    }

    #[cfg(feature = "mpi")]
    fn has_mpi(&self) -> bool {
        self.mpi.is_some()
    }

    #[cfg(not(feature = "mpi"))]
    fn has_mpi(&self) -> bool {
        false
    }

    #[cfg(feature = "mpi")]
    fn messages(&self) -> Result<Box<dyn Transport>, Error> {
        let streams = Streams::new(self.communicator()?, self.rank, self.size())?;
        Ok(Box::new(streams))
    }

    #[cfg(not(feature = "mpi"))]
    fn messages(&self) -> Result<Box<dyn Transport>, Error> {
        Err(no_mpi("this program was built without the feature `mpi`").into())
    }

    /// MPI's own collectives, if they are asked for.
    #[cfg(feature = "mpi")]
    fn native(&self) -> Result<Option<Collectives>, Error> {
        Ok(match self.options.algorithm {
            Algorithm::Mpi => Some(Collectives::new(self.communicator()?)),
            Algorithm::Auto => None,
        })
    }

    /// A communicator of the group, for one purpose.
    #[cfg(feature = "mpi")]
    fn communicator(&self) -> Result<Communicator, Error> {
        let Some(session) = self.mpi else {
            return Err(
                no_mpi("MPI has not started these ranks: start them with mpirun or srun").into(),
            );
        };
        let made = match self.members.number() {
            0 => session.duplicate(),
            number => session.subset(self.members.ranks(), number),
        };
        made.map_err(|error| {
            TransportError::Setup {
                transport: "mpi",
                action: "making a communicator".into(),
                source: error.into(),
            }
            .into()
        })
    }

    /// The inner error is one that all ranks come to know of, so that they can fall back together.
    fn share(
        &self,
        exchange: &mut dyn Exchange,
    ) -> Result<Result<Box<dyn Transport>, TransportError>, Error> {
        let offer = Offer::new(self.size());
        let ticket = offer.as_ref().map(Offer::ticket).unwrap_or_default();
        let tickets = exchange.all_gather("shared memory", &ticket)?;
        let made = offer.map_err(|source| TransportError::Setup {
            transport: "shm",
            action: "making shared memory".into(),
            source,
        });
        let shared = made.and_then(|offer| offer.accept(self.rank, &tickets));
        let word = match &shared {
            Err(error) => self.in_words(error),
            Ok(_) => String::new(),
        };
        // The file stays open until this exchange has shown that all peers have opened it.
        let words = exchange.all_gather("shared memory mapped", word.as_bytes())?;
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

    /// An error of shared memory, with the peer's number in the world.
    fn in_words(&self, error: &TransportError) -> String {
        match error {
            TransportError::Peer {
                transport,
                rank,
                reason,
            } => TransportError::Peer {
                transport,
                rank: self.members.in_world(*rank),
                reason: reason.clone(),
            }
            .to_string(),
            other => other.to_string(),
        }
    }

    fn tcp(&self, exchange: &mut dyn Exchange) -> Result<Box<dyn Transport>, Error> {
        let listener = Listener::bind(self.store.local_ip())?;
        let address = listener.address().to_string();
        let words = exchange.all_gather("tcp address", address.as_bytes())?;
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
        let timeout = self.options.connect_timeout;
        Ok(Box::new(listener.connect(
            self.rank,
            &addresses,
            self.store.secret(),
            timeout,
        )?))
    }
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

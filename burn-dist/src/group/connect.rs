//! Connects the ranks of a world: they exchange their locations through the store and choose a
//! transport together.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::engine::{Connection, Engine, Standing};
use super::locality::Locality;
use super::members::Members;
use super::processors::{self, Processors};
use super::{Algorithm, Connecting, GroupOptions, TransportKind, program};
use crate::backend::mpi::{self, Collectives, Session};
use crate::collective::{Layout, Nodes, Order, Wiring};
use crate::error::Error;
use crate::rendezvous::Store;
use crate::transport::shm::{self, Offer, SharedMemory};
use crate::transport::tcp::Listener;
use crate::transport::{Reach, Transport, TransportError};
use crate::world::World;

pub(super) fn connect(world: &World, options: GroupOptions) -> Result<Engine, Error> {
    let store = Arc::new(Store::connect(world, options.connect_timeout)?);
    if let Some(connecting) = options.connecting {
        let store = Arc::downgrade(&store);
        connecting(Connecting { store });
    }
    // An error here is an error for all: a rank that gives up tells the others.
    if options.same_program {
        program::check(world, &store)?;
    }
    let mpi = Session::of(world);
    if options.algorithm == Algorithm::Mpi && mpi.is_none() {
        return Err(no_mpi("the algorithm \"mpi\" needs ranks that MPI started").into());
    }
    through(store, options, mpi)
}

/// Connects the ranks of a store.
pub(super) fn through(
    store: Arc<Store>,
    options: GroupOptions,
    mpi: Option<Arc<Session>>,
) -> Result<Engine, Error> {
    let joining = Joining {
        rank: store.rank(),
        members: &Members::all(store.size()),
        options: &options,
        store: &store,
        has_processor: None,
        mpi: mpi.as_ref(),
        reach: Reach::default(),
    };
    let joined = joining
        .join(&mut &*store)
        .inspect_err(|error| store.abort_because_of(culprit(error), &error.to_string()))?;
    let link = Connection {
        collectives: joined.collectives,
        mpi,
        wiring: joined.wiring,
        store,
        options,
        server: None,
    };
    Ok(Engine::whole(joined.place, link))
}

/// The rank that caused `error`, if the error names one. Errors of shared memory name none: this
/// rank itself may lack the room to map a peer's memory.
fn culprit(error: &Error) -> Option<usize> {
    match error {
        Error::Transport(TransportError::Peer {
            rank,
            transport: "tcp",
            ..
        }) => Some(*rank),
        _ => None,
    }
}

/// Exchanges data between ranks that are not connected yet.
pub(super) trait Exchange {
    /// Sends `payload` to all ranks and returns theirs, in rank order. All ranks make the same
    /// calls in the same order, at most [`EXCHANGES`] of them.
    fn all_gather(&mut self, what: &str, payload: &[u8]) -> Result<Vec<Vec<u8>>, Error>;
}

/// Largest number of exchanges to connect a group.
pub(super) const EXCHANGES: usize = 4;

impl Exchange for &Store {
    fn all_gather(&mut self, what: &str, payload: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        Ok(Store::all_gather(self, what, payload)?)
    }
}

/// A rank that is about to connect to the others of its group.
pub(super) struct Joining<'a> {
    pub rank: usize,
    pub members: &'a Members,
    pub options: &'a GroupOptions,
    pub store: &'a Store,
    /// Whether every rank of this host has a CPU of its own, if known. A subgroup inherits it,
    /// because its ranks share the CPUs with the other ranks of the host.
    pub has_processor: Option<bool>,
    pub mpi: Option<&'a Arc<Session>>,
    /// The ranks that each rank has a stream to. With all of them, the ranks do not form nodes.
    pub reach: Reach,
}

/// A connected rank.
pub(super) struct Joined {
    pub place: Standing,
    pub wiring: Wiring,
    pub collectives: Option<Collectives>,
}

impl Joining<'_> {
    /// Connects this rank to the others. All of them call it.
    pub fn join(&self, exchange: &mut dyn Exchange) -> Result<Joined, Error> {
        let mine = Locality::of_this_process(self.options, self.members.in_world(self.rank));
        let words = exchange.all_gather("locality", &mine.to_bytes())?;
        let all = self.localities(&words)?;
        let has_processor = self.has_processor.unwrap_or_else(|| {
            let beside = all.iter().filter(|other| other.is_beside(&mine));
            let processors: Vec<&Processors> = beside.map(|other| &other.processors).collect();
            processors::are_enough(&processors, &mine.processors)
        });
        let hosts: Vec<Vec<u8>> = all.iter().map(Locality::host).collect();
        let mut distinct: Vec<&Vec<u8>> = Vec::new();
        for host in &hosts {
            if !distinct.contains(&host) {
                distinct.push(host);
            }
        }
        let mine = hosts.get(self.rank);
        let node = distinct.iter().position(|host| Some(*host) == mine);
        let mut wiring = self.choose(&hosts, distinct.len(), exchange)?;
        wiring.set_has_processor(has_processor);
        let place = Standing {
            rank: self.rank,
            size: self.size(),
            node: node.unwrap_or_default(),
            nodes: distinct.len(),
            transport: wiring.name(),
            has_processor,
        };
        Ok(Joined {
            place,
            wiring,
            collectives: self.native()?,
        })
    }

    fn size(&self) -> usize {
        self.members.ranks().len()
    }

    /// The locations that the ranks sent.
    ///
    /// Fails if ranks use different algorithms, because they would misread each other's bytes.
    fn localities(&self, words: &[Vec<u8>]) -> Result<Vec<Locality>, Error> {
        let read = |(rank, word): (usize, &Vec<u8>)| {
            let read = Locality::from_bytes(word);
            let read = read.ok_or_else(|| odd(rank, "sent a malformed locality"))?;
            match read.goes_by(self.options.algorithm) {
                true => Ok(read),
                false => {
                    let reason = "has another algorithm; use the same on all ranks";
                    Err(odd(rank, reason).into())
                }
            }
        };
        words.iter().enumerate().map(read).collect()
    }

    fn choose(
        &self,
        hosts: &[Vec<u8>],
        nodes: usize,
        exchange: &mut dyn Exchange,
    ) -> Result<Wiring, Error> {
        if let Some((layout, order)) = self.by_nodes(hosts) {
            match self.share(layout.mates(), exchange)? {
                Ok(shared) => {
                    let ring = self.streams(&layout.counterparts(), nodes, exchange)?;
                    return Ok(Wiring::Nodes(Box::new(Nodes::new(
                        layout, order, shared, ring,
                    ))));
                }
                Err(error) => self.say_instead(error, "one ring through all ranks"),
            }
        } else if self.options.algorithm == Algorithm::NodeFirst
            && self.reach == Reach::Doubling
            && self.rank == 0
            && nodes > 1
            && nodes < self.size()
        {
            tracing::warn!(
                "cannot reduce within nodes first: this needs the transport \"auto\" and the same \
                 number of ranks on each node, at least two. Using one ring through all ranks"
            );
        } else if self.preferred(nodes) == TransportKind::Auto && nodes == 1 {
            let all: Vec<usize> = (0..self.size()).collect();
            match self.share(&all, exchange)? {
                Ok(shared) => return Ok(Wiring::Flat(Box::new(shared))),
                Err(error) => self.say_instead(error, "TCP"),
            }
        }
        self.flat(hosts, nodes, exchange).map(Wiring::Flat)
    }

    /// The node layout and the order of sums, if ranks share memory within nodes and are connected
    /// between them.
    fn by_nodes(&self, hosts: &[Vec<u8>]) -> Option<(Layout, Order)> {
        let order = match (self.options.transport, self.options.algorithm) {
            (TransportKind::Auto, Algorithm::Auto) => Order::Ring,
            (TransportKind::Auto, Algorithm::NodeFirst) => Order::NodeFirst,
            _ => return None,
        };
        if self.reach == Reach::All {
            return None;
        }
        let layout = Layout::of(hosts, self.rank)?;
        // A ring through all ranks that are not in node order would visit a node several times.
        let fits = order == Order::NodeFirst || layout.is_in_order();
        fits.then_some((layout, order))
    }

    fn say_instead(&self, error: TransportError, instead: &str) {
        if self.rank == 0 {
            let error = self.members.name(error);
            tracing::warn!("{error}; using {instead} instead");
        }
    }

    /// Connects all ranks by one transport.
    fn flat(
        &self,
        hosts: &[Vec<u8>],
        nodes: usize,
        exchange: &mut dyn Exchange,
    ) -> Result<Box<dyn Transport>, Error> {
        let all: Vec<usize> = (0..self.size()).collect();
        match self.preferred(nodes) {
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
            TransportKind::Shm => Ok(Box::new(self.share(&all, exchange)??)),
            TransportKind::Mpi => self.messages(&all),
            TransportKind::Tcp | TransportKind::Auto => self.tcp(&all, nodes, exchange),
        }
    }

    /// Streams among `ranks` in this order. They include this rank.
    fn streams(
        &self,
        ranks: &[usize],
        nodes: usize,
        exchange: &mut dyn Exchange,
    ) -> Result<Box<dyn Transport>, Error> {
        if self.has_mpi() {
            return self.messages(ranks);
        }
        self.tcp(ranks, nodes, exchange)
    }

    /// The transport to use. MPI wins between nodes, where it has the faster network, and if its
    /// own collectives were requested.
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

    fn has_mpi(&self) -> bool {
        self.mpi.is_some()
    }

    fn messages(&self, ranks: &[usize]) -> Result<Box<dyn Transport>, Error> {
        let (session, number) = (self.session()?, self.members.number());
        let place = self.place(ranks);
        let streams = session.streams(&self.in_world(ranks), number, place, self.reach);
        Ok(streams.map_err(|error| error.renamed(|place| ranks[place]))?)
    }

    /// MPI's own collectives, if requested.
    fn native(&self) -> Result<Option<Collectives>, Error> {
        Ok(match self.options.algorithm {
            Algorithm::Mpi if self.reach == Reach::Doubling => {
                let all: Vec<usize> = (0..self.size()).collect();
                let (session, number) = (self.session()?, self.members.number());
                Some(session.collectives(&self.in_world(&all), number)?)
            }
            Algorithm::Auto | Algorithm::NodeFirst | Algorithm::Mpi => None,
        })
    }

    fn session(&self) -> Result<&Arc<Session>, TransportError> {
        self.mpi.ok_or_else(|| match mpi::BUILT {
            true => no_mpi("MPI did not start these ranks; start them with mpirun or srun"),
            false => no_mpi("this program was built without the feature `mpi`"),
        })
    }

    /// Position of this rank in `ranks`.
    fn place(&self, ranks: &[usize]) -> usize {
        let place = ranks.iter().position(|rank| *rank == self.rank);
        place.unwrap_or_default()
    }

    fn in_world(&self, ranks: &[usize]) -> Vec<usize> {
        let in_world = ranks.iter().map(|rank| self.members.in_world(*rank));
        in_world.collect()
    }

    /// Shared memory of `ranks`, which include this rank. The others share theirs at the same time.
    ///
    /// All ranks of the group learn of an inner error, so that they can fall back together.
    fn share(
        &self,
        ranks: &[usize],
        exchange: &mut dyn Exchange,
    ) -> Result<Result<SharedMemory, TransportError>, Error> {
        let offer = Offer::new(ranks.len());
        let ticket = offer.as_ref().map(Offer::ticket).unwrap_or_default();
        let tickets = exchange.all_gather("shared memory", &ticket)?;
        let ticket = |rank: &usize| tickets.get(*rank).cloned().unwrap_or_default();
        let tickets: Vec<Vec<u8>> = ranks.iter().map(ticket).collect();
        let made = offer.map_err(|source| TransportError::Setup {
            transport: "shm",
            action: "creating shared memory".into(),
            source,
        });
        let processes = ranks.iter().zip(&tickets).filter_map(|(rank, ticket)| {
            Some((self.members.in_world(*rank), shm::process_of(ticket)?))
        });
        self.store
            .watch_processes(processes.filter(|(rank, _)| *rank != self.store.rank()));
        let shared = made.and_then(|offer| offer.accept(self.place(ranks), &tickets));
        let shared = shared.map_err(|error| error.renamed(|place| ranks[place]));
        let word = match &shared {
            Err(error) => self.in_words(error),
            Ok(_) => String::new(),
        };
        // The file stays open until this exchange shows that all peers have opened it.
        let words = exchange.all_gather("mapping shared memory", word.as_bytes())?;
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
            (Ok((shared, _file)), None) => Ok(shared),
        })
    }

    /// An error of shared memory, with the peer's rank in the world.
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

    /// TCP connections among `ranks` in this order, which include this rank. The others connect at
    /// the same time. `nodes` is the number of nodes of the group.
    fn tcp(
        &self,
        ranks: &[usize],
        nodes: usize,
        exchange: &mut dyn Exchange,
    ) -> Result<Box<dyn Transport>, Error> {
        let ip = listens_at(self.store.local_ip(), nodes);
        let listener = Listener::bind(ip)?.reaching(self.reach);
        let address = SocketAddr::new(ip, listener.address().port()).to_string();
        let words = exchange.all_gather("tcp address", address.as_bytes())?;
        let addresses = words.iter().enumerate().map(|(rank, word)| {
            let address = std::str::from_utf8(word)
                .ok()
                .and_then(|word| word.parse().ok())
                .map(|address| reached_at(address, self.store.store_ip()));
            let reason = || "sent a malformed address".to_owned();
            address.ok_or_else(|| TransportError::Peer {
                transport: "tcp",
                rank,
                reason: reason(),
            })
        });
        let addresses = addresses.collect::<Result<Vec<SocketAddr>, _>>()?;
        let addresses: Vec<SocketAddr> = ranks.iter().map(|rank| addresses[*rank]).collect();
        let (secret, timeout) = (self.store.secret(), self.options.connect_timeout);
        let connected = listener.connect(self.place(ranks), &addresses, secret, timeout);
        Ok(Box::new(
            connected.map_err(|error| error.renamed(|place| ranks[place]))?,
        ))
    }
}

/// Address on which a rank listens that reaches the store from `local`. A loopback address means
/// that the store is on this host; other nodes then reach both by an address that they know and
/// this rank does not.
fn listens_at(local: IpAddr, nodes: usize) -> IpAddr {
    match nodes > 1 && local.is_loopback() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => local,
    }
}

/// Address of a peer that listens at `address`, for a rank that reaches the store at `store`.
fn reached_at(mut address: SocketAddr, store: IpAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(store);
    }
    address
}

pub(super) fn no_mpi(reason: &str) -> TransportError {
    TransportError::Setup {
        transport: "mpi",
        action: "looking up MPI".into(),
        source: std::io::Error::other(reason),
    }
}

fn odd(rank: usize, reason: &str) -> TransportError {
    TransportError::Peer {
        transport: "group's",
        rank,
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_beside_the_store_is_reached_as_the_store_is() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let listens = listens_at(ip("127.0.0.1"), 2);
        let of_other_node = reached_at((listens, 7000).into(), ip("10.0.0.1"));
        assert_eq!(of_other_node, "10.0.0.1:7000".parse().unwrap());
        let of_same_node = reached_at((listens, 7000).into(), ip("::1"));
        assert_eq!(of_same_node, "[::1]:7000".parse().unwrap());
        // On one node only loopback connections are accepted.
        assert_eq!(listens_at(ip("127.0.0.1"), 1), ip("127.0.0.1"));
        assert_eq!(listens_at(ip("10.0.0.2"), 2), ip("10.0.0.2"));
        let given = "10.0.0.2:7000".parse().unwrap();
        assert_eq!(reached_at(given, ip("10.0.0.1")), given);
    }
}

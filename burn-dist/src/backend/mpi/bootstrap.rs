//! Facts that MPI distributes to the ranks that it started: node layout, address of the store, and
//! the run's secret, which rank 0 makes.
//!
//! The secret is as visible as all MPI traffic. It keeps strangers on the nodes and on the network
//! from joining, but not somebody who can read the traffic between them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

use super::call::MpiError;
use super::guard::within;
use super::session::Session;
use crate::wire::Secret;
use crate::wire::net::{listen_at, working_loopback};
use crate::world::{Companion, Master, Meeting, Topology, World};

/// Characters of a host name that are compared and looked up; no name is longer.
const NAME: usize = 256;

/// Bytes of rank 0's notice to the others.
const NOTICE: usize = 512;

impl Session {
    /// The node layout: ranks that share memory, and nodes numbered by their first ranks. All ranks
    /// call it.
    pub fn topology(&self) -> Topology {
        topology(&SimpleCommunicator::world())
    }
}

impl Companion for Session {
    fn meet(&self, world: &World, limit: Duration) -> Result<Meeting, String> {
        meet(world, limit).map_err(|error| error.to_string())
    }
}

/// Returns the store's address and secret on all ranks, and its listening socket on rank 0.
fn meet(world: &World, limit: Duration) -> Result<Meeting, MpiError> {
    let _guard = within("the address exchange over MPI", limit);
    let all = SimpleCommunicator::world();
    let other_node = name_on_another_node(&all, world.node());
    let prepared = (world.is_main()).then(|| Prepared::new(other_node.as_deref()));
    let notice = match &prepared {
        Some(prepared) => Notice::from(prepared),
        None => Notice::empty(),
    };
    let (address, secret) = notice.handed_out(&all)?;
    let listener = prepared.and_then(Result::ok);
    Ok(Meeting {
        master: Master::new(address.ip().to_string(), address.port()),
        secret,
        listener: listener.map(|prepared| prepared.listener),
    })
}

/// The node layout: ranks that share memory, and nodes numbered by their first ranks.
fn topology(all: &SimpleCommunicator) -> Topology {
    let node = all.split_shared(all.rank());
    let mut leader = [all.rank() as u64];
    node.process_at_rank(0).broadcast_into(&mut leader[..]);
    let mut leaders = vec![0u64; all.size() as usize];
    all.all_gather_into(&leader[..], &mut leaders[..]);
    leaders.sort_unstable();
    leaders.dedup();
    Topology {
        local_rank: node.rank() as usize,
        local_size: node.size() as usize,
        node: leaders.binary_search(&leader[0]).unwrap_or_default(),
        nodes: leaders.len(),
    }
}

/// Host name of a node other than rank 0's, if there is one.
fn name_on_another_node(all: &SimpleCommunicator, node: usize) -> Option<String> {
    let mut mine = [0u8; NAME];
    let name = rustix::system::uname();
    let bytes = name.nodename().to_bytes();
    let length = bytes.len().min(NAME);
    mine[..length].copy_from_slice(&bytes[..length]);
    let node = [node as u64];
    let mut nodes = vec![0u64; all.size() as usize];
    all.all_gather_into(&node[..], &mut nodes[..]);
    let stranger = nodes.iter().position(|other| *other != nodes[0])?;
    all.process_at_rank(stranger as i32)
        .broadcast_into(&mut mine[..]);
    let end = mine.iter().position(|byte| *byte == 0).unwrap_or(NAME);
    Some(String::from_utf8_lossy(&mine[..end]).into_owned())
}

/// Address, secret and socket that rank 0 prepares for the others.
struct Prepared {
    listener: TcpListener,
    address: SocketAddr,
    text: String,
}

impl Prepared {
    fn new(other_node: Option<&str>) -> Result<Self, String> {
        let ip = match other_node {
            None => working_loopback()
                .map_err(|error| format!("rank 0's host has no loopback address: {error}"))?,
            Some(name) => own_address_towards(name)?,
        };
        let listener = listen_at((ip, 0).into())
            .map_err(|error| format!("rank 0 cannot listen at {ip}: {error}"))?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let (text, _) = Secret::generate().map_err(|error| error.to_string())?;
        Ok(Self {
            listener,
            address,
            text,
        })
    }
}

/// The address of the interface that leads from this host to another.
fn own_address_towards(other: &str) -> Result<IpAddr, String> {
    if let Some(host) = std::env::var("MASTER_ADDR")
        .ok()
        .filter(|host| !host.is_empty())
    {
        let found = (Master::new(host.as_str(), 0).host.as_str(), 0)
            .to_socket_addrs()
            .ok();
        let address = found.and_then(|mut addresses| addresses.next());
        return address.map(|address| address.ip()).ok_or(format!(
            "MASTER_ADDR={host} has no address on rank 0's host"
        ));
    }
    let of_other = (other, 9).to_socket_addrs().into_iter().flatten();
    for address in of_other.filter(|address| !address.ip().is_loopback()) {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        // Connecting a datagram socket sends nothing; it only chooses the route.
        let own = UdpSocket::bind(any)
            .and_then(|socket| socket.connect(address).and_then(|()| socket.local_addr()));
        if let Ok(own) = own {
            return Ok(own.ip());
        }
    }
    Err(format!(
        "rank 0's host has no route to the host {other}. Set MASTER_ADDR to rank 0's address on \
         the network between the nodes"
    ))
}

/// The outcome with address and secret, or with the error. Its size is fixed, so that one broadcast
/// suffices.
struct Notice([u8; NOTICE]);

impl From<&Result<Prepared, String>> for Notice {
    fn from(prepared: &Result<Prepared, String>) -> Self {
        let (code, text) = match prepared {
            Ok(prepared) => (1, format!("{} {}", prepared.address, prepared.text)),
            Err(reason) => (2, reason.clone()),
        };
        let mut notice = Self::empty();
        let length = text.len().min(NOTICE - 3);
        notice.0[0] = code;
        notice.0[1..3].copy_from_slice(&(length as u16).to_le_bytes());
        notice.0[3..3 + length].copy_from_slice(&text.as_bytes()[..length]);
        notice
    }
}

impl Notice {
    fn empty() -> Self {
        Self([0; NOTICE])
    }

    /// Broadcasts rank 0's notice to every rank.
    fn handed_out(mut self, all: &SimpleCommunicator) -> Result<(SocketAddr, Secret), MpiError> {
        all.process_at_rank(0).broadcast_into(&mut self.0[..]);
        let length = usize::from(u16::from_le_bytes([self.0[1], self.0[2]])).min(NOTICE - 3);
        let text = String::from_utf8_lossy(&self.0[3..3 + length]);
        let parsed = text.split_once(' ').and_then(|(address, secret)| {
            Some((address.parse().ok()?, Secret::from_text(secret).ok()?))
        });
        let message = match (self.0[0], parsed) {
            (1, Some(parsed)) => return Ok(parsed),
            (2, _) => text.into_owned(),
            _ => "rank 0 sent a malformed message".into(),
        };
        Err(MpiError {
            call: "preparing the store",
            message,
        })
    }
}

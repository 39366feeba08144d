//! Who am I: rank, world size and node of this process, and how it reaches the others.
//!
//! A [`World`] is plain data. [`launch`](crate::launch) makes it from the environment, and nothing
//! is connected yet.

use crate::wire::Secret;
use std::any::Any;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// Largest world size: a limit on what a wrong number can make us allocate.
pub const MAX_WORLD_SIZE: usize = 1 << 16;

/// How this process was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launch {
    /// On its own: the only rank.
    Single,
    /// By [`LocalLauncher`](crate::launch::LocalLauncher), which also hosts the store.
    Local,
    /// By `mpirun`, or another launcher that speaks PMI or PMIx; rank 0 hosts the store.
    Mpi,
    /// By Slurm's `srun`; rank 0 hosts the store.
    Slurm,
    /// By `torchrun` or whatever else sets its variables; rank 0 hosts the store.
    Torchrun,
}

impl std::fmt::Display for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Single => "single",
            Self::Local => "local",
            Self::Mpi => "mpi",
            Self::Slurm => "slurm",
            Self::Torchrun => "torchrun",
        })
    }
}

/// Where the store listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Ports that rank 0 takes in this order where the first is in use by somebody else; the
    /// other ranks look for it at all of them.
    pub fallback: Vec<u16>,
}

impl Master {
    /// One host and port. An address may stand in brackets, also with the interface that it is of
    /// (`[fe80::1%eth0]`).
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        let host = host.trim();
        let is_address = |host: &&str| {
            let address = host.split_once('%').map_or(*host, |(address, _)| address);
            address.parse::<IpAddr>().is_ok()
        };
        let inner = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        Self {
            host: inner.filter(is_address).unwrap_or(host).to_owned(),
            port,
            fallback: Vec::new(),
        }
    }

    /// The address, where no name has to be looked up that other hosts may know by another one.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self.host.eq_ignore_ascii_case("localhost") {
            true => Some(Ipv4Addr::LOCALHOST.into()),
            false => self.host.parse().ok(),
        }
    }

    /// The address, if on every host it is that host itself.
    pub(crate) fn loopback(&self) -> Option<IpAddr> {
        self.ip().filter(|ip| ip.to_canonical().is_loopback())
    }

    /// All ports at which the store may be, the likeliest first.
    pub fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        std::iter::once(self.port).chain(self.fallback.iter().copied())
    }
}

impl std::fmt::Display for Master {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)?;
        } else {
            write!(f, "{}:{}", self.host, self.port)?;
        }
        for port in &self.fallback {
            write!(f, "|{port}")?;
        }
        Ok(())
    }
}

/// What this process is among the ranks of its run.
#[derive(Clone, Debug)]
pub struct World {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) topology: Topology,
    pub(crate) launch: Launch,
    /// Always there when there is more than one rank.
    pub(crate) master: Option<Master>,
    /// Always there when there is more than one rank.
    pub(crate) secret: Option<Secret>,
    /// Why this world was decided on, for [`World::describe`].
    pub(crate) reason: String,
    pub(crate) from_launcher: FromLauncher,
}

/// What a launch leaves open for the group that is connected later.
#[derive(Clone, Debug, Default)]
pub(crate) struct FromLauncher {
    /// Which accelerators the launcher lets this process see: in its words, and how many.
    pub devices: Option<(String, usize)>,
    /// For [`World::advice`].
    pub advice: Option<String>,
    /// For [`World::assumes_local_size`].
    pub assumes_local_size: bool,
    /// What has started the ranks and stays with them: MPI.
    pub companion: Option<Arc<dyn Companion>>,
}

/// What has started the ranks and lives as long as their world and group do.
pub(crate) trait Companion: Any + Debug + Send + Sync {
    /// Where the ranks meet. All ranks call it, the last at most `limit` after the first.
    fn meet(&self, world: &World, limit: Duration) -> Result<Meeting, String>;
}

/// Where the ranks of a run meet.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub master: Master,
    pub secret: Secret,
    /// Where the store is to listen, on rank 0, if it has been decided already.
    pub listener: Option<TcpListener>,
}

/// Where a rank sits: its place on its node and the node's among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Place among the ranks of the node.
    pub local_rank: usize,
    /// Number of ranks on the node.
    pub local_size: usize,
    /// Place of the node.
    pub node: usize,
    /// Number of nodes.
    pub nodes: usize,
}

impl World {
    /// The world of a process that works alone.
    pub fn single() -> Self {
        Self {
            rank: 0,
            size: 1,
            topology: Topology {
                local_rank: 0,
                local_size: 1,
                node: 0,
                nodes: 1,
            },
            launch: Launch::Single,
            master: None,
            secret: None,
            reason: "no launcher has set any variables".into(),
            from_launcher: FromLauncher::default(),
        }
    }

    /// This process's number among all ranks, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// This process's number among the ranks of its node, from 0.
    pub fn local_rank(&self) -> usize {
        self.topology.local_rank
    }

    /// Number of ranks on this node.
    pub fn local_size(&self) -> usize {
        self.topology.local_size
    }

    /// Whether the launcher has not said how many ranks this node has, so that all are taken to be
    /// on it.
    pub fn assumes_local_size(&self) -> bool {
        self.from_launcher.assumes_local_size
    }

    /// This node's number, from 0.
    pub fn node(&self) -> usize {
        self.topology.node
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.topology.nodes
    }

    /// Whether this is rank 0, which speaks to the user.
    pub fn is_main(&self) -> bool {
        self.rank == 0
    }

    /// How this process was started.
    pub fn launch(&self) -> Launch {
        self.launch
    }

    /// Where the store listens; `None` for a single rank, and where MPI tells when a group is
    /// connected.
    pub fn master(&self) -> Option<&Master> {
        self.master.as_ref()
    }

    /// The run's secret; `None` for a single rank, and where MPI hands one out when a group is
    /// connected.
    pub fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    /// Whether this rank hosts the store: rank 0, unless the local launcher does it.
    pub fn hosts_store(&self) -> bool {
        let elsewhere = matches!(self.launch, Launch::Single | Launch::Local);
        self.rank == 0 && self.size > 1 && !elsewhere
    }

    /// Who started this process and how that was found out, in a few words.
    pub fn launched_by(&self) -> String {
        format!("{} ({})", self.launch, self.reason)
    }

    /// One line that says what was decided and why.
    pub fn describe(&self) -> String {
        let Topology {
            local_rank,
            local_size,
            node,
            nodes,
        } = self.topology;
        let store = match &self.master {
            Some(master) if self.hosts_store() => format!("; hosts the store at {master}"),
            Some(master) => format!("; store at {master}"),
            None => String::new(),
        };
        let device = match &self.from_launcher.devices {
            Some((words, count)) => match self.device_index(*count) {
                Some(index) => format!("; device {index} of {words}"),
                None => format!("; no device, {words}"),
            },
            None => String::new(),
        };
        format!(
            "rank {} of {}, local rank {local_rank} of {local_size}, node {node} of {nodes}; \
             launch {} ({}){store}{device}",
            self.rank, self.size, self.launch, self.reason
        )
    }

    /// What the user should know of this world and probably does not: that ranks were asked for
    /// which nobody started, that variables are ignored, that the secret is weak.
    pub fn advice(&self) -> Option<&str> {
        self.from_launcher.advice.as_deref()
    }

    /// Which accelerator of those that this process sees is this rank's, out of `visible`.
    ///
    /// Launchers show a process either all devices of its node, of which each rank takes the next
    /// one, or only its own, so that there is nothing to choose; both come out right here, as does
    /// sharing where there are more ranks than devices.
    pub fn device_index(&self, visible: usize) -> Option<usize> {
        self.topology.local_rank.checked_rem(visible)
    }

    /// Replaces what the environment said of nodes by what the ranks found out together.
    pub fn set_topology(&mut self, topology: Topology) {
        self.topology = topology;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_stand_in_brackets() {
        let host = |text: &str| Master::new(text, 5).host;
        assert_eq!(host("[::1]"), "::1");
        assert_eq!(Master::new("[fe80::1]", 5).to_string(), "[fe80::1]:5");
        assert_eq!(host("[fe80::1%lo]"), "fe80::1%lo");
        assert_eq!(host("[127.0.0.1]"), "127.0.0.1");
        assert_eq!(host(" localhost "), "localhost");
        for other in ["node[1]", "[node]", "[::1", "10.0.0.1"] {
            assert_eq!(host(other), other);
        }
    }

    #[test]
    fn loopback_addresses_are_told_from_names() {
        let loopback = |text: &str| Master::new(text, 5).loopback().is_some();
        for here in ["127.0.0.1", "127.0.1.1", "[::1]", "localhost"] {
            assert!(loopback(here), "{here}");
        }
        for elsewhere in ["10.0.0.1", "node0", "::2"] {
            assert!(!loopback(elsewhere), "{elsewhere}");
        }
        assert!(Master::new("node0", 5).ip().is_none());
    }
}

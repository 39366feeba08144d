//! Rank, world size and node of this process, and the address where the ranks meet.
//!
//! A [`World`] is plain data. [`launch`](crate::launch) makes it from the environment and connects
//! nothing.

use crate::named::named;
use crate::wire::Secret;
use std::any::Any;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// Largest world size. It bounds the memory that a wrong number can make us allocate.
pub const MAX_WORLD_SIZE: usize = 1 << 16;

/// How this process was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launch {
    /// The only rank, started without a launcher.
    Single,
    /// Started by [`LocalLauncher`](crate::launch::LocalLauncher), which also hosts the store.
    Local,
    /// Started by the agent of a [`NodeLauncher`](crate::launch::NodeLauncher). The agent of the
    /// first node hosts the store.
    Agent,
    /// Started by `mpirun` or another launcher that speaks PMI or PMIx. Rank 0 hosts the store.
    Mpi,
    /// Started by Slurm's `srun`. Rank 0 hosts the store.
    Slurm,
    /// Started by `torchrun`, or by any program that sets its variables. Rank 0 hosts the store.
    Torchrun,
}

named! {
    Launch {
        Single = "single", Local = "local", Agent = "agent", Mpi = "mpi", Slurm = "slurm",
        Torchrun = "torchrun",
    }
}

/// Address of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Ports that rank 0 tries in this order if another program uses `port`. The other ranks look
    /// for the store at all of them.
    pub fallback: Vec<u16>,
    /// Port at which rank 0 also listens until all ranks have come.
    ///
    /// Ranks with another secret derive other ports than rank 0, and learn here that they do.
    pub notice: Option<u16>,
}

impl Master {
    /// One host and port. An address may have brackets and an interface (`[fe80::1%eth0]`).
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
            notice: None,
        }
    }

    /// The IP address, if `host` is one. A host name may resolve differently on other hosts.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self.host.eq_ignore_ascii_case("localhost") {
            true => Some(Ipv4Addr::LOCALHOST.into()),
            false => self.host.parse().ok(),
        }
    }

    /// The IP address, if it is a loopback address.
    pub(crate) fn loopback(&self) -> Option<IpAddr> {
        self.ip().filter(|ip| ip.to_canonical().is_loopback())
    }

    /// All ports at which the store may listen, the most likely first.
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

/// Place of this process among the ranks of its run.
#[derive(Clone, Debug)]
pub struct World {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) topology: Topology,
    pub(crate) launch: Launch,
    /// Set if the world has more than one rank.
    pub(crate) master: Option<Master>,
    /// Set if the world has more than one rank.
    pub(crate) secret: Option<Secret>,
    /// Why the launch was recognised, for [`World::describe`].
    pub(crate) reason: String,
    pub(crate) from_launcher: FromLauncher,
}

/// Facts from the launcher for the group that is connected later.
#[derive(Clone, Debug, Default)]
pub(crate) struct FromLauncher {
    /// The variable that names the visible accelerators, and how many it names.
    pub devices: Option<(String, usize)>,
    /// For [`World::advice`].
    pub advice: Option<String>,
    /// For [`World::assumes_local_size`].
    pub assumes_local_size: bool,
    /// MPI, if it started the ranks.
    pub companion: Option<Arc<dyn Companion>>,
}

/// The launcher that started the ranks and lives as long as their world and group.
pub(crate) trait Companion: Any + Debug + Send + Sync {
    /// Agrees on the meeting place. All ranks call it, the last at most `limit` after the first.
    fn meet(&self, world: &World, limit: Duration) -> Result<Meeting, String>;
}

/// Address where the ranks of a run meet.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub master: Master,
    pub secret: Secret,
    /// The store's listener on rank 0, if the address is already decided.
    pub listener: Option<TcpListener>,
}

/// Place of a rank on its node, and of the node among all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Index among the ranks of the node.
    pub local_rank: usize,
    /// Number of ranks on the node.
    pub local_size: usize,
    /// Index of the node.
    pub node: usize,
    /// Number of nodes.
    pub nodes: usize,
}

impl World {
    /// The world of a process without other ranks.
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
            reason: "no launcher variables are set".into(),
            from_launcher: FromLauncher::default(),
        }
    }

    /// Index of this process among all ranks, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Index of this process among the ranks of its node, from 0.
    pub fn local_rank(&self) -> usize {
        self.topology.local_rank
    }

    /// Number of ranks on this node.
    pub fn local_size(&self) -> usize {
        self.topology.local_size
    }

    /// Whether the launcher did not say how many ranks this node has. All ranks then count as ranks
    /// of this node.
    pub fn assumes_local_size(&self) -> bool {
        self.from_launcher.assumes_local_size
    }

    /// Index of this node, from 0.
    pub fn node(&self) -> usize {
        self.topology.node
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.topology.nodes
    }

    /// Whether this is rank 0. Rank 0 speaks to the user.
    pub fn is_main(&self) -> bool {
        self.rank == 0
    }

    /// How this process was started.
    pub fn launch(&self) -> Launch {
        self.launch
    }

    /// Address of the store. `None` for a single rank, and under MPI, which distributes the address
    /// when a group connects.
    pub fn master(&self) -> Option<&Master> {
        self.master.as_ref()
    }

    /// The run's secret. `None` for a single rank, and under MPI, which distributes a secret when a
    /// group connects.
    pub fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    /// Whether one of this crate's launchers started this process. It hosts the store, puts the
    /// rank in front of each line of output, and reports how ranks end.
    pub fn is_of_own_launcher(&self) -> bool {
        matches!(self.launch, Launch::Local | Launch::Agent)
    }

    /// Whether this rank hosts the store. Rank 0 does, except under this crate's launchers.
    pub fn hosts_store(&self) -> bool {
        let elsewhere = self.launch == Launch::Single || self.is_of_own_launcher();
        self.rank == 0 && self.size > 1 && !elsewhere
    }

    /// The launcher of this process for people, such as `Slurm step 4711.0`.
    ///
    /// [`describe`](Self::describe) also says how it was recognised.
    pub fn launched_by(&self) -> String {
        match self.launch {
            Launch::Single => "none".to_owned(),
            Launch::Local => "built-in".to_owned(),
            Launch::Agent => "built-in agents".to_owned(),
            Launch::Slurm => self.reason.clone(),
            Launch::Torchrun => "torchrun or its variables".to_owned(),
            Launch::Mpi => match self.reason.split_once("; ") {
                Some((library, _)) => format!("MPI ({library})"),
                None => "MPI".to_owned(),
            },
        }
    }

    /// The decision and its reason in one line.
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

    /// Facts that the user should know: ranks that were requested but not started, ignored
    /// variables, a weak secret.
    pub fn advice(&self) -> Option<&str> {
        self.from_launcher.advice.as_deref()
    }

    /// Index of this rank's accelerator among the `visible` ones.
    ///
    /// A launcher shows each process either all devices of the node or only its own. In the first
    /// case rank `n` of the node takes device `n`, modulo their number; in the second the only
    /// device. Ranks share devices if the node has more ranks than devices.
    pub fn device_index(&self, visible: usize) -> Option<usize> {
        self.topology.local_rank.checked_rem(visible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_have_their_usual_names() {
        let by = |launch, reason: &str| {
            let world = World {
                launch,
                reason: reason.to_owned(),
                ..World::single()
            };
            world.launched_by()
        };
        let guessed = "node from RANK and LOCAL_WORLD_SIZE";
        assert_eq!(by(Launch::Local, guessed), "built-in");
        assert_eq!(by(Launch::Torchrun, guessed), "torchrun or its variables");
        assert_eq!(by(Launch::Slurm, "Slurm step 7.0"), "Slurm step 7.0");
        let library = "Open MPI v5.0.7; PMIX_RANK is set by mpirun";
        assert_eq!(by(Launch::Mpi, library), "MPI (Open MPI v5.0.7)");
        assert_eq!(by(Launch::Mpi, "PMI_RANK is set by mpiexec"), "MPI");
    }

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

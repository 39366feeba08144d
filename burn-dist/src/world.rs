//! Who am I: rank, world size and node of this process, and how it reaches the others.
//!
//! A [`World`] is only read from the environment here; nothing is connected yet. Each kind of
//! launch has a file of its own under [`launch`] that turns its variables into a
//! `World`.

mod error;

pub use error::WorldError;

use crate::launch;
use crate::wire::Secret;
use std::any::Any;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Largest world size: a limit on what a wrong number can make us allocate.
pub const MAX_WORLD_SIZE: usize = 1 << 16;

/// Text of the run's secret.
pub(crate) const SECRET: &str = "BURN_DIST_SECRET";
/// Name of a file with the run's secret.
pub(crate) const SECRET_FILE: &str = "BURN_DIST_SECRET_FILE";
/// Forces a kind of launch instead of finding it out.
pub(crate) const LAUNCH: &str = "BURN_DIST_LAUNCH";

/// How variables are looked up: the process's environment, or a map in tests.
pub type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

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
    /// One host and port. An address may stand in brackets, also with the interface that it is of (`[fe80::1%eth0]`).
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
    pub(crate) link: Link,
}

/// What a launch leaves open for the group that is connected later.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
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
            link: Link::default(),
        }
    }

    /// Reads the world from this process's environment, in this order: `BURN_DIST_LAUNCH`, the
    /// variables of MPI's launchers, of Slurm's `srun`, of `torchrun`; with none of them this
    /// process is the only rank. [`World::describe`] says what was decided.
    ///
    /// Where MPI started the ranks and the feature `mpi` is on, this starts MPI and is a collective
    /// operation; call it on the main thread, and keep the world or its group until the end.
    ///
    /// # Errors
    /// If the variables contradict each other or one is missing; see [`WorldError`].
    pub fn from_env() -> Result<Self, WorldError> {
        // What is no UTF-8 is reported by whoever parses it, so it must not count as unset.
        let world = Self::from_vars(&|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })?;
        match world.launch {
            Launch::Mpi => launch::ask_mpi(world),
            _ => Ok(world),
        }
    }

    /// The world of a process that was told to start ranks itself, as by `--nproc`: [`World::single`], unless a launcher
    /// has started it as one of several ranks. What MPI or Slurm has left in the environment of a shell does not count, nor
    /// do variables of torchrun of which some are missing; [`World::advice`] names them.
    ///
    /// # Errors
    /// As for [`World::from_env`].
    pub fn from_env_to_launch() -> Result<Self, WorldError> {
        let world = launch::decide_to_launch(&|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })?;
        match world.launch {
            Launch::Single => Ok(world),
            _ => Self::from_env(),
        }
    }

    /// Reads the world from the variables that `vars` gives, as [`World::from_env`] does, but
    /// leaves MPI alone: of ranks that MPI started this is only what their launcher says.
    ///
    /// # Errors
    /// As for [`World::from_env`].
    pub fn from_vars(vars: Vars) -> Result<Self, WorldError> {
        let mut world = launch::decide(vars)?;
        world.link.devices = launch::visible(vars);
        let is_weak = world.secret.as_ref().is_some_and(Secret::is_weak);
        if is_weak && world.size > 1 && world.link.advice.is_none() {
            let advice =
                "the secret of this run is easy to guess: make one with `openssl rand -hex 16`";
            world.link.advice = Some(advice.to_owned());
        }
        Ok(world)
    }

    /// The world of rank `rank` of `size` ranks on this machine whose store listens at `store` already:
    /// for programs that start ranks as threads or processes of their own.
    ///
    /// # Errors
    /// If the rank does not exist in a world of that size.
    pub fn local(
        rank: usize,
        size: usize,
        store: SocketAddr,
        secret: Secret,
    ) -> Result<Self, WorldError> {
        let world = Self {
            rank,
            size,
            topology: Topology {
                local_rank: rank,
                local_size: size,
                node: 0,
                nodes: 1,
            },
            launch: Launch::Local,
            master: Some(Master::new(store.ip().to_string(), store.port())),
            secret: Some(secret),
            reason: "given by the program".into(),
            link: Link::default(),
        };
        world.checked()
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

    /// Whether the launcher has not said how many ranks this node has, so that all are taken to be on it.
    pub fn assumes_local_size(&self) -> bool {
        self.link.assumes_local_size
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

    /// Where the store listens; `None` for a single rank, and where MPI tells when a group is connected.
    pub fn master(&self) -> Option<&Master> {
        self.master.as_ref()
    }

    /// The run's secret; `None` for a single rank, and where MPI hands one out when a group is connected.
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
        let device = match &self.link.devices {
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

    /// What the user should know of this world and probably does not: that ranks were asked for which
    /// nobody started, that variables are ignored, that the secret is weak.
    pub fn advice(&self) -> Option<&str> {
        self.link.advice.as_deref()
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

    /// Checks what must hold in every world, whoever launched it.
    pub(crate) fn checked(self) -> Result<Self, WorldError> {
        let Self { rank, size, .. } = self;
        let Topology {
            local_rank,
            local_size,
            node,
            nodes,
        } = self.topology;
        if size == 0 {
            return Err(WorldError::EmptyWorld);
        }
        if size > MAX_WORLD_SIZE {
            return Err(WorldError::WorldTooLarge { size });
        }
        if rank >= size {
            return Err(WorldError::RankOutOfRange { rank, size });
        }
        if local_size == 0 || local_size > size {
            return Err(WorldError::LocalSizeOutOfRange { local_size, size });
        }
        if local_rank >= local_size {
            return Err(WorldError::LocalRankOutOfRange {
                local_rank,
                local_size,
            });
        }
        if nodes == 0 || node >= nodes {
            return Err(WorldError::NodeOutOfRange {
                node,
                nodes: nodes.max(1),
            });
        }
        // Over MPI the secret is handed out when a group is connected.
        if size > 1 && self.secret.is_none() && self.link.companion.is_none() {
            return Err(WorldError::NoSecret { size });
        }
        Ok(self)
    }
}

/// The secret that the variables name, if they do.
pub(crate) fn secret_from(vars: Vars) -> Result<Option<Secret>, WorldError> {
    let (name, secret) = if let Some(text) = vars(SECRET) {
        (SECRET, Secret::from_text(&text))
    } else if let Some(path) = vars(SECRET_FILE) {
        (SECRET_FILE, Secret::from_file(Path::new(&path)))
    } else {
        return Ok(None);
    };
    secret
        .map(Some)
        .map_err(|source| WorldError::BadSecret { name, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(vars: &[(&str, &str)]) -> Result<World, WorldError> {
        World::from_vars(&|name| {
            let found = vars.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn nothing_set_is_a_single_rank() {
        let world = parse(&[("MASTER_ADDR", "left.over"), ("PATH", "/bin")]).unwrap();
        assert_eq!((world.rank(), world.size()), (0, 1));
        assert_eq!(world.launch(), Launch::Single);
        assert!(world.is_main() && !world.hosts_store());
        assert_eq!(
            world.describe(),
            "rank 0 of 1, local rank 0 of 1, node 0 of 1; launch single \
             (no launcher has set any variables)"
        );
    }

    #[test]
    fn launch_can_be_forced() {
        let world = parse(&[("BURN_DIST_LAUNCH", "single"), ("WORLD_SIZE", "4")]).unwrap();
        assert_eq!(world.launch(), Launch::Single);
        let error = parse(&[("BURN_DIST_LAUNCH", "magic")]).unwrap_err();
        assert!(matches!(error, WorldError::UnknownLaunch { value } if value == "magic"));
        let error = parse(&[("BURN_DIST_LAUNCH", "torchrun")]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("BURN_DIST_LAUNCH is set but WORLD_SIZE is not"),
            "{text}"
        );
    }

    #[test]
    fn local_worlds_are_checked() {
        let secret = Secret::from_text("0123456789abcdef").unwrap();
        let store: SocketAddr = "[::1]:5".parse().unwrap();
        let world = World::local(1, 2, store, secret.clone()).unwrap();
        assert_eq!(world.master().unwrap().to_string(), "[::1]:5");
        let world = World::local(2, 2, store, secret.clone());
        assert!(matches!(
            world,
            Err(WorldError::RankOutOfRange { rank: 2, size: 2 })
        ));
        let world = World::local(0, 0, store, secret);
        assert!(matches!(world, Err(WorldError::EmptyWorld)));
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

    #[test]
    fn topology_can_be_refined() {
        let secret = Secret::from_text("0123456789abcdef").unwrap();
        let store = "127.0.0.1:5".parse().unwrap();
        let mut world = World::local(3, 4, store, secret).unwrap();
        world.set_topology(Topology {
            local_rank: 1,
            local_size: 2,
            node: 1,
            nodes: 2,
        });
        assert_eq!((world.local_rank(), world.local_size()), (1, 2));
        assert_eq!((world.node(), world.nodes()), (1, 2));
    }

    #[test]
    fn debug_hides_the_secret() {
        let text = "0123456789abcdef";
        let secret = Secret::from_text(text).unwrap();
        let world = World::local(0, 2, "127.0.0.1:5".parse().unwrap(), secret).unwrap();
        assert!(format!("{world:?}").contains("Secret(hidden)"));
    }
}

//! Starts ranks on several nodes, restarts them after failures, and lets nodes come and go.
//!
//! One agent runs on every node. The agents meet at the *rendezvous*: the agent on that host
//! listens there and leads the group. It decides when ranks start and stop; it hosts the store of
//! the ranks. Every start is a *generation* with its own ranks, world size and secret. If the
//! leader is gone, the first of the other agents leads.
//!
//! | file | task |
//! |---|---|
//! | `message` | what agents tell each other |
//! | `link` | authenticated connections between agents |
//! | `group` | the decisions of the leader, as a state machine |
//! | `board` | which checkpoint the ranks have completed |
//! | `node` | the ranks of a generation on this node |
//! | `driver` | the agent: its connections, ranks and signals |
//! | `seek` | finds or elects the leader |
//! | `lead` | carries out the decisions of the leader |

mod board;
mod driver;
mod group;
mod lead;
mod link;
mod message;
mod node;
mod seek;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::environment::secret_from;
use super::local::{
    FILES_PER_RANK, Inbox, LaunchError, MAX_LOCAL_RANKS, OWN_THREADS, THREADS_PER_RANK,
};
use super::variables::{FIRST_RANKS, GENERATION, GENERATION_REASON};
use super::{KeyError, Vars, WorldError, user_key};
use crate::open_files;
use crate::thread_limit::{self, NoThreads};
use crate::wire::net::{listen_everywhere, working_loopback};
use crate::wire::{Secret, SecretError};
pub use board::tell_saved;
use driver::Agent;
use group::{Rules, Usable};

/// Largest number of nodes.
pub const MAX_NODES: usize = 1024;

/// Open files for connections of other agents.
const FILES_OF_AGENTS: usize = 4;

/// The reason why an agent cannot take part in a launch on several nodes.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NodesError {
    /// The ranks of this node cannot be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The numbers of nodes make no sense.
    #[error("cannot use {min} to {max} nodes; the numbers must be from 1 to {MAX_NODES}")]
    Nodes {
        /// The fewest.
        min: usize,
        /// The most.
        max: usize,
    },
    /// The rendezvous is no address.
    #[error("the rendezvous `{0}` is not HOST:PORT")]
    Address(String),
    /// No rendezvous was given.
    #[error("agents of several nodes need a rendezvous, HOST:PORT of one of the nodes")]
    NoRendezvous,
    /// The user's key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The secret in the environment cannot be used.
    #[error(transparent)]
    Environment(#[from] WorldError),
    /// No secret could be generated.
    #[error("cannot create a secret for the run: {0}")]
    Secret(#[from] SecretError),
    /// Another agent, or another program, does not let this one in.
    #[error("{0}")]
    Refused(String),
    /// No agent was found in time.
    #[error("found no agent at {address} within {seconds} s: {reason}")]
    NotFound {
        /// The rendezvous.
        address: String,
        /// The time.
        seconds: u64,
        /// The last attempt.
        reason: String,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// The attempt, in words.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The store of a generation did not start.
    #[error("cannot host the store: {0}")]
    Store(#[from] crate::rendezvous::RendezvousError),
}

crate::debug_is_display!(NodesError);

impl NodesError {
    fn system(what: &str) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::System {
            what: what.to_owned(),
            source,
        }
    }
}

/// How a launch on several nodes ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodesOutcome {
    pub(super) code: u8,
    pub(super) reason: String,
}

impl NodesOutcome {
    /// Exit code for the agent.
    ///
    /// | code | meaning |
    /// |---|---|
    /// | 0 | all ranks are done |
    /// | of the rank | the rank that failed, after the last restart |
    /// | 1 | a signal killed that rank, or too few nodes came |
    /// | 75 | the ranks stopped early with a checkpoint |
    /// | 130, 143 | a signal to the agent ended the ranks without a checkpoint |
    pub fn exit_code(&self) -> u8 {
        self.code
    }

    /// The reason, in words.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for NodesOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// The generation that an agent started this process in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Its number, from 1.
    pub number: u32,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of ranks of the first generation, if known.
    pub first_ranks: Option<usize>,
    /// Reason why it began, in words.
    pub reason: String,
}

impl Generation {
    /// The generation of this process. `None` if no agent started it.
    pub fn of_this_process() -> Option<Self> {
        Self::from_vars(&|name| std::env::var(name).ok())
    }

    /// The generation that `vars` tell.
    pub fn from_vars(vars: Vars) -> Option<Self> {
        Some(Self {
            number: vars(GENERATION)?.parse().ok()?,
            nodes: vars("GROUP_WORLD_SIZE")?.parse().ok()?,
            first_ranks: vars(FIRST_RANKS).and_then(|ranks| ranks.parse().ok()),
            reason: vars(GENERATION_REASON).unwrap_or_default(),
        })
    }
}

/// A number of things, in words.
fn counted(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

/// Longest name of a host, as DNS has it.
const MOST_OF_HOST: usize = 253;
/// Most bytes of options that agents compare.
const MOST_OPTIONS: usize = 64 << 10;

/// Starts ranks of one program on this node, together with the launchers of other nodes.
///
/// Each rank gets the variables that [`World::from_env`](crate::world::World::from_env) reads.
/// Output is passed on as by [`LocalLauncher`](crate::launch::LocalLauncher).
#[derive(Clone)]
pub struct NodeLauncher {
    nproc: usize,
    min: usize,
    max: usize,
    rendezvous: Option<String>,
    program: Option<PathBuf>,
    args: Vec<OsString>,
    agreed: Vec<String>,
    local_args: Vec<OsString>,
    resume_args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
    join_wait: Duration,
    join_after: Duration,
    join_timeout: Duration,
    max_restarts: u32,
    usable: Usable,
    keeps_memory: bool,
}

impl fmt::Debug for NodeLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLauncher")
            .field("nproc", &self.nproc)
            .field("nodes", &(self.min..=self.max))
            .field("rendezvous", &self.rendezvous)
            .finish_non_exhaustive()
    }
}

impl NodeLauncher {
    /// Starts `nproc` ranks of this program on this node, which is the only one.
    pub fn new(nproc: usize) -> Self {
        Self {
            nproc,
            min: 1,
            max: 1,
            rendezvous: None,
            program: None,
            args: Vec::new(),
            agreed: Vec::new(),
            local_args: Vec::new(),
            resume_args: Vec::new(),
            envs: Vec::new(),
            join_wait: Duration::from_secs(10),
            join_after: Duration::from_secs(30),
            join_timeout: Duration::from_secs(600),
            max_restarts: 3,
            usable: Arc::new(|_, _| Ok(())),
            keeps_memory: false,
        }
    }

    /// Sets the fewest and the most nodes, and the address `HOST:PORT` where their agents meet.
    ///
    /// The agent on that host listens there.
    pub fn nodes(mut self, min: usize, max: usize, rendezvous: impl Into<String>) -> Self {
        (self.min, self.max) = (min, max);
        self.rendezvous = Some(rendezvous.into());
        self
    }

    /// Starts another program.
    pub fn program_at(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Sets the arguments of the ranks.
    pub fn args<I: IntoIterator<Item: Into<OsString>>>(mut self, args: I) -> Self {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Sets arguments that ranks get behind the others from the second generation on, for example
    /// to resume.
    pub fn resume_args<I: IntoIterator<Item: Into<OsString>>>(mut self, args: I) -> Self {
        self.resume_args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Sets a variable for all ranks.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.envs.push((name.into(), value.into()));
        self
    }

    /// Adds words that all agents must have alike, for example the settings in a file.
    pub fn agreed(mut self, words: impl IntoIterator<Item = String>) -> Self {
        self.agreed.extend(words);
        self
    }

    /// Adds an argument of the ranks of this node, which other nodes need not have.
    pub fn local_arg(mut self, arg: impl Into<OsString>) -> Self {
        self.local_args.push(arg.into());
        self
    }

    /// Sets how long the first generation waits for more nodes after the last one came (default
    /// 10 s).
    pub fn join_wait(mut self, wait: Duration) -> Self {
        self.join_wait = wait;
        self
    }

    /// Sets how long a node that comes later waits until the ranks restart with it (default 30 s).
    ///
    /// They do so at once after a checkpoint that a rank tells of with [`tell_saved`].
    pub fn join_after(mut self, wait: Duration) -> Self {
        self.join_after = wait;
        self
    }

    /// Sets how long too few nodes wait for more, and how long an agent looks for the others
    /// (default 600 s).
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = timeout;
        self
    }

    /// Sets the most restarts after failures of ranks (default 3).
    ///
    /// A change of the nodes does not count.
    pub fn max_restarts(mut self, restarts: u32) -> Self {
        self.max_restarts = restarts;
        self
    }

    /// Sets which numbers of ranks can work.
    ///
    /// `usable` gets the number of ranks of the first generation, 0 to begin it, and the number in
    /// question. Its error says in words why that many cannot work. The leader starts as many
    /// nodes as can. Calls must be quick.
    pub fn usable(
        mut self,
        usable: impl Fn(usize, usize) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.usable = Arc::new(usable);
        self
    }

    /// Sets whether this process keeps memory for copies of the ranks' state (default no).
    ///
    /// Ranks find it by [`NodeMemory::of_agent`]. It takes room only once they write to it.
    ///
    /// [`NodeMemory::of_agent`]: crate::checkpoint::NodeMemory::of_agent
    pub fn keep_memory(mut self, keeps: bool) -> Self {
        self.keeps_memory = keeps;
        self
    }

    /// The options that all agents must share, in words: numbers of nodes, arguments of the ranks,
    /// and what else they [agree on](Self::agreed). Very long ones are cut, but have a checksum.
    fn shared_options(&self) -> Vec<String> {
        let mut checksum = blake3::Hasher::new();
        let args = self.args.iter().map(OsString::as_os_str);
        let agreed = self.agreed.iter().map(OsStr::new);
        let mut options = vec![format!("--nnodes {}:{}", self.min, self.max)];
        let mut room = MOST_OPTIONS;
        for option in args.chain(agreed) {
            checksum.update(&option.len().to_le_bytes());
            checksum.update(option.as_encoded_bytes());
            let mut text = option.to_string_lossy().into_owned();
            text.truncate(text.floor_char_boundary(room.min(text.len())));
            // Each takes a few bytes more in the message.
            room = room.saturating_sub(text.len() + 8);
            if room > 0 {
                options.push(text);
            }
        }
        let checksum = checksum.finalize().to_hex();
        options.push(format!("options with checksum {checksum:.16}"));
        options
    }

    /// Takes part in the launch until it ends. `say` gets messages for the user.
    ///
    /// SIGINT, SIGTERM, SIGUSR1 and SIGXCPU are passed to the ranks of this node. The agent then
    /// leaves, and the other nodes go on without it if they are enough.
    ///
    /// # Errors
    /// Fails if the ranks of this node cannot be started, if the agents do not find each other in
    /// time, or if another agent refuses this one. A rank that fails is an outcome, not an error.
    pub fn run(self, say: &mut dyn FnMut(&str)) -> Result<NodesOutcome, NodesError> {
        let Self { min, max, .. } = self;
        if min == 0 || min > max || max > MAX_NODES {
            return Err(NodesError::Nodes { min, max });
        }
        if self.nproc == 0 {
            return Err(LaunchError::NoRanks.into());
        }
        if self.nproc > MAX_LOCAL_RANKS {
            return Err(LaunchError::TooManyRanks { nproc: self.nproc }.into());
        }
        self.program()?;
        let ranks = self.nproc * max;
        open_files::make_room(ranks.min(1 << 12), FILES_PER_RANK).map_err(LaunchError::from)?;
        open_files::make_room(max, FILES_OF_AGENTS).map_err(LaunchError::from)?;
        let threads = OWN_THREADS + THREADS_PER_RANK * self.nproc + max;
        thread_limit::make_room(threads).map_err(LaunchError::from)?;
        let rendezvous = match &self.rendezvous {
            Some(text) => Rendezvous::parse(text)?,
            None if max == 1 => Rendezvous::standalone()?,
            None => return Err(NodesError::NoRendezvous),
        };
        let secret = match rendezvous.is_standalone() {
            true => Secret::generate()?.1,
            false => secret()?.derive(format!("agents at port {}", rendezvous.port).as_bytes()),
        };
        let inbox = Inbox::open().map_err(|error| match NoThreads::of(&error) {
            Some(limit) => LaunchError::Threads(limit),
            None => LaunchError::Signals(error),
        })?;
        Agent::new(&self, rendezvous, secret, inbox, say)?.run()
    }

    fn program(&self) -> Result<PathBuf, LaunchError> {
        match &self.program {
            Some(program) => Ok(program.clone()),
            None => std::env::current_exe().map_err(LaunchError::Program),
        }
    }

    fn rules(&self) -> Rules {
        Rules {
            min: self.min,
            max: self.max,
            join_wait: self.join_wait,
            join_after: self.join_after,
            join_timeout: self.join_timeout,
            max_restarts: self.max_restarts,
            usable: Arc::clone(&self.usable),
        }
    }
}

/// The secret of the environment, else the user's key.
fn secret() -> Result<Secret, NodesError> {
    let vars: Vars = &|name| std::env::var(name).ok();
    match secret_from(vars)? {
        Some(secret) => Ok(secret),
        None => Ok(user_key::load(vars)?),
    }
}

/// The meeting place of agents.
#[derive(Clone, Debug)]
struct Rendezvous {
    host: String,
    port: u16,
}

impl Rendezvous {
    fn parse(text: &str) -> Result<Self, NodesError> {
        let wrong = || {
            let shown: String = text.chars().take(80).collect();
            NodesError::Address(shown.escape_debug().to_string())
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port > 0);
        let inner = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = inner.unwrap_or(host);
        let is_odd = inner.is_none() && host.contains(':');
        let ip: Option<IpAddr> = host.parse().ok();
        let of_no_host =
            |ip: IpAddr| ip.is_unspecified() || ip.is_multicast() || ip == Ipv4Addr::BROADCAST;
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._:%".contains(c);
        let is_host = (1..=MOST_OF_HOST).contains(&host.len()) && host.chars().all(is_name);
        if !is_host || is_odd || ip.is_some_and(of_no_host) {
            return Err(wrong());
        }
        Ok(Self {
            host: host.to_owned(),
            port: port.ok_or_else(wrong)?,
        })
    }

    /// This process alone, at a free port of the loopback interface.
    fn standalone() -> Result<Self, NodesError> {
        let loopback = working_loopback().map_err(LaunchError::Loopback)?;
        Ok(Self {
            host: loopback.to_string(),
            port: 0,
        })
    }

    fn is_standalone(&self) -> bool {
        self.port == 0
    }

    fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        Ok((self.host.as_str(), self.port).to_socket_addrs()?.collect())
    }

    /// Listens there, if this is that host and nobody else does.
    fn listen(&self, addresses: &[SocketAddr]) -> Option<TcpListener> {
        let is_name =
            self.host.parse::<IpAddr>().is_err() && !self.host.eq_ignore_ascii_case("localhost");
        addresses.iter().find_map(|address| {
            // Debian resolves the own name to 127.0.1.1; other hosts know a better address.
            match is_name && address.ip().is_loopback() {
                true => listen_everywhere(self.port).ok(),
                false => match TcpListener::bind(address) {
                    Ok(listener) => Some(listener),
                    Err(error) if error.kind() == ErrorKind::AddrNotAvailable => None,
                    Err(_) => None,
                },
            }
        })
    }
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_rendezvous_are_checked() {
        for (text, host, port) in [
            ("node1:29500", "node1", 29500),
            ("10.0.0.1:1", "10.0.0.1", 1),
            ("[::1]:29500", "::1", 29500),
        ] {
            let parsed = Rendezvous::parse(text).unwrap();
            assert_eq!((&*parsed.host, parsed.port), (host, port));
            assert_eq!(parsed.to_string(), text);
        }
        for wrong in [
            "node1",
            "node1:",
            ":29500",
            "node1:0",
            "node1:x",
            "::1:5",
            "0.0.0.0:5",
            "224.0.0.1:5",
            "255.255.255.255:5",
        ] {
            let error = Rendezvous::parse(wrong).unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{wrong}` is not HOST:PORT")),
                "{error}"
            );
        }
    }

    #[test]
    fn impossible_numbers_are_refused() {
        for (min, max) in [(0, 1), (2, 1), (1, MAX_NODES + 1)] {
            let launcher = NodeLauncher::new(1).nodes(min, max, "127.0.0.1:1");
            let error = launcher.run(&mut |_| {}).unwrap_err();
            assert!(matches!(error, NodesError::Nodes { .. }), "{error}");
        }
        let none = NodeLauncher::new(0).run(&mut |_| {});
        assert!(matches!(
            none,
            Err(NodesError::Launch(LaunchError::NoRanks))
        ));
    }

    #[test]
    fn the_generation_is_read() {
        let vars = |name: &str| match name {
            GENERATION => Some("3".to_owned()),
            "GROUP_WORLD_SIZE" => Some("2".to_owned()),
            FIRST_RANKS => Some("6".to_owned()),
            GENERATION_REASON => Some("node a is gone".to_owned()),
            _ => None,
        };
        let expected = Generation {
            number: 3,
            nodes: 2,
            first_ranks: Some(6),
            reason: "node a is gone".to_owned(),
        };
        assert_eq!(Generation::from_vars(&vars), Some(expected));
        assert_eq!(Generation::from_vars(&|_| None), None);
    }
}

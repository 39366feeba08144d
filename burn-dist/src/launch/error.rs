//! Why a process cannot tell which rank it is.

use super::variables::{LAUNCH, SECRET, SECRET_FILE};
use super::{HostlistError, KeyError};
use crate::wire::SecretError;
use crate::world::MAX_WORLD_SIZE;

/// Why the environment does not describe a world.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// A variable holds something else than a number.
    #[error("{name} must be a whole number, not `{value}`")]
    NotANumber {
        /// The variable.
        name: &'static str,
        /// What it holds.
        value: String,
    },
    /// One variable makes another necessary.
    #[error("{because} is set but {name} is not: set {name} ({meaning}) for every rank")]
    Missing {
        /// The variable that is missing.
        name: &'static str,
        /// The variable that asks for it.
        because: &'static str,
        /// What it says.
        meaning: &'static str,
    },
    /// A world needs a rank.
    #[error("world size 0: WORLD_SIZE must be at least 1")]
    EmptyWorld,
    /// Beyond every sensible size.
    #[error("world size {size} is more than the {MAX_WORLD_SIZE} that are possible")]
    WorldTooLarge {
        /// What was asked for.
        size: usize,
    },
    /// Ranks count from 0.
    #[error("rank {rank} does not exist in a world of size {size}: ranks are 0 to {last}", last = size - 1)]
    RankOutOfRange {
        /// The rank.
        rank: usize,
        /// The world size.
        size: usize,
    },
    /// Local ranks count from 0 on each node.
    #[error(
        "local rank {local_rank} does not exist on a node with {local_size} ranks: \
         local ranks are 0 to {last}",
        last = local_size - 1
    )]
    LocalRankOutOfRange {
        /// The local rank.
        local_rank: usize,
        /// Ranks on this node.
        local_size: usize,
    },
    /// A node has at least one rank and at most all of them.
    #[error("LOCAL_WORLD_SIZE is {local_size}, but must be between 1 and the world size {size}")]
    LocalSizeOutOfRange {
        /// Ranks on this node.
        local_size: usize,
        /// The world size.
        size: usize,
    },
    /// Nodes count from 0.
    #[error("node {node} does not exist among {nodes} nodes: nodes are 0 to {last}", last = nodes - 1)]
    NodeOutOfRange {
        /// The node.
        node: usize,
        /// How many there are.
        nodes: usize,
    },
    /// No port, or one that nobody can listen on.
    #[error("MASTER_PORT must be a port from 1 to 65535, not `{value}`")]
    BadPort {
        /// What it holds.
        value: String,
    },
    /// Ranks without a secret could be joined by anybody.
    #[error(
        "a run with {size} ranks needs a secret that only they know. Set the same for all ranks, \
         for example {SECRET}=\"$(openssl rand -hex 16)\" before they are started, or name a file \
         that only you can read in {SECRET_FILE}"
    )]
    NoSecret {
        /// The world size.
        size: usize,
    },
    /// The secret does not serve.
    #[error("{name} does not hold a secret: {source}")]
    BadSecret {
        /// The variable.
        name: &'static str,
        /// What is wrong.
        source: SecretError,
    },
    /// A kind of launch that is not known.
    #[error("{LAUNCH} must be `single`, `local`, `mpi`, `slurm` or `torchrun`, not `{value}`")]
    UnknownLaunch {
        /// What it holds.
        value: String,
    },
    /// A list of hosts that is none.
    #[error("{name} is not a list of hosts as Slurm writes it: {source}")]
    Hosts {
        /// The variable.
        name: &'static str,
        /// What is wrong with it.
        source: HostlistError,
    },
    /// Something else than Slurm's `2(x3),1`.
    #[error("{name} must hold the numbers of tasks on each node, as in `2(x3),1`, not `{value}`")]
    TasksPerNode {
        /// The variable.
        name: &'static str,
        /// What it holds.
        value: String,
    },
    /// Two sources disagree on who this rank is.
    #[error("{one}, but {other}: {advice}")]
    Contradiction {
        /// What one source says.
        one: String,
        /// What the other says.
        other: String,
        /// What is probably wrong, and what to do.
        advice: String,
    },
    /// An MPI launcher started this process, and this program knows no MPI.
    #[error(
        "{launcher} started this process as one of {size} ranks, but this program was built without \
         MPI. Build it with `--features mpi`, or start it with srun or torchrun, or set MASTER_ADDR, \
         MASTER_PORT and {SECRET} for all ranks. If it is to train alone, set {LAUNCH}=single"
    )]
    NoMpi {
        /// Who started it.
        launcher: String,
        /// How many ranks there are.
        size: usize,
    },
    /// The same, and only MPI knows how many ranks there are.
    #[error(
        "{launcher} started this process as one of several ranks, of how many only MPI knows, and this program was \
         built without it. Build it with `--features mpi`, or start it with srun or torchrun, or set {LAUNCH}=single \
         for a process that is to train alone"
    )]
    UnknownSize {
        /// Who started it.
        launcher: String,
    },
    /// MPI itself failed.
    #[error("MPI failed in {action}: {reason}")]
    Mpi {
        /// What was tried.
        action: &'static str,
        /// What the library said.
        reason: String,
    },
    /// The secret of a Slurm step could not be derived.
    #[error(
        "no secret for this run: {source}. Set {SECRET} for all ranks, for example \
         {SECRET}=\"$(openssl rand -hex 16)\" before srun or torchrun"
    )]
    Key {
        /// What is wrong with the user's key.
        source: KeyError,
    },
}

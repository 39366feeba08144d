//! Errors in finding out which rank this process is.

use super::variables::{LAUNCH, SECRET, SECRET_FILE};
use super::{HostlistError, KeyError};
use crate::wire::SecretError;
use crate::world::MAX_WORLD_SIZE;

/// The reason why the environment does not describe a world.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// A variable is not a number.
    #[error("{name} must be a whole number, not `{value}`")]
    NotANumber {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// One variable requires another.
    #[error("{because} is set but {name} is not: set {name} ({meaning}) for every rank")]
    Missing {
        /// The missing variable.
        name: &'static str,
        /// The variable that requires it.
        because: &'static str,
        /// Meaning of the missing variable.
        meaning: &'static str,
    },
    /// A world needs at least one rank.
    #[error("world size 0: WORLD_SIZE must be at least 1")]
    EmptyWorld,
    /// The world size is too large.
    #[error("world size {size} is too large; the maximum is {MAX_WORLD_SIZE}")]
    WorldTooLarge {
        /// The requested size.
        size: usize,
    },
    /// The rank does not exist.
    #[error("rank {rank} does not exist in a world of size {size}: ranks are 0 to {last}", last = size - 1)]
    RankOutOfRange {
        /// The rank.
        rank: usize,
        /// The world size.
        size: usize,
    },
    /// The local rank does not exist.
    #[error(
        "local rank {local_rank} does not exist on a node with {local_size} ranks: \
         local ranks are 0 to {last}",
        last = local_size - 1
    )]
    LocalRankOutOfRange {
        /// The local rank.
        local_rank: usize,
        /// Number of ranks on this node.
        local_size: usize,
    },
    /// The number of ranks on this node is 0 or larger than the world.
    #[error("LOCAL_WORLD_SIZE is {local_size}; it must be between 1 and the world size {size}")]
    LocalSizeOutOfRange {
        /// Number of ranks on this node.
        local_size: usize,
        /// The world size.
        size: usize,
    },
    /// The node does not exist.
    #[error("node {node} does not exist among {nodes} nodes: nodes are 0 to {last}", last = nodes - 1)]
    NodeOutOfRange {
        /// The node.
        node: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// The port is not a valid number.
    #[error("MASTER_PORT is `{value}`; it must be a port from 1 to 65535")]
    BadPort {
        /// The value.
        value: String,
    },
    /// Several ranks without a secret, which anybody could join.
    #[error(
        "a run with {size} ranks needs a secret. Set the same for all ranks before you start them, \
         for example {SECRET}=\"$(openssl rand -hex 16)\". Or name a file that only you can read \
         in {SECRET_FILE}"
    )]
    NoSecret {
        /// The world size.
        size: usize,
    },
    /// The secret is unusable.
    #[error("{name} is not a valid secret: {source}")]
    BadSecret {
        /// The variable.
        name: &'static str,
        /// The error.
        source: SecretError,
    },
    /// The kind of launch is unknown.
    #[error("{LAUNCH} is `{value}`; it must be `single`, `local`, `mpi`, `slurm` or `torchrun`")]
    UnknownLaunch {
        /// The value.
        value: String,
    },
    /// The list of hosts is malformed.
    #[error("{name} is not a Slurm host list: {source}")]
    Hosts {
        /// The variable.
        name: &'static str,
        /// The error.
        source: HostlistError,
    },
    /// The numbers of tasks are not in Slurm's form, such as `2(x3),1`.
    #[error("{name} is `{value}`; it must list the tasks of each node, for example `2(x3),1`")]
    TasksPerNode {
        /// The variable.
        name: &'static str,
        /// The value.
        value: String,
    },
    /// Two sources disagree about this rank.
    #[error("{one}, but {other}: {advice}")]
    Contradiction {
        /// Statement of one source.
        one: String,
        /// Statement of the other source.
        other: String,
        /// The probable cause, and what to do.
        advice: String,
    },
    /// An MPI launcher started this process, and this build lacks MPI.
    #[error(
        "{launcher} started this process as one of {size} ranks, but this program was built \
         without MPI. Build it with `--features mpi`, start it with srun or torchrun, or set \
         MASTER_ADDR, MASTER_PORT and {SECRET} for all ranks. To train on a single rank, set \
         {LAUNCH}=single"
    )]
    NoMpi {
        /// The launcher.
        launcher: String,
        /// Number of ranks.
        size: usize,
    },
    /// An MPI launcher started this process, only MPI knows the number of ranks, and this build
    /// lacks it.
    #[error(
        "{launcher} started this process as one of several ranks, but this program was built \
         without MPI, which alone knows their number. Build it with `--features mpi`, or start it \
         with srun or torchrun. To train on a single rank, set {LAUNCH}=single"
    )]
    UnknownSize {
        /// The launcher.
        launcher: String,
    },
    /// MPI failed.
    #[error("MPI failed in {action}: {reason}")]
    Mpi {
        /// The operation.
        action: &'static str,
        /// The library's message.
        reason: String,
    },
    /// The secret of a Slurm step could not be derived.
    #[error(
        "no secret for this run: {source}. Set {SECRET} for all ranks, for example \
         {SECRET}=\"$(openssl rand -hex 16)\" before srun or torchrun"
    )]
    Key {
        /// The error of the user's key.
        source: KeyError,
    },
}

crate::debug_is_display!(WorldError);

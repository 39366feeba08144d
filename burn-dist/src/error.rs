//! Everything that can go wrong in this crate, by topic.

use crate::buffer::WrongType;
use crate::collective::{Descriptor, MOST_GATHERED};
use crate::element::DType;
use crate::launch::{LaunchError, WorldError};
use crate::rendezvous::RendezvousError;
use crate::thread_limit::NoThreads;
use crate::transport::TransportError;
use crate::wire::SecretError;

/// Any error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This process cannot tell which rank it is.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A secret could not be made.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The ranks could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The ranks did not find each other.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The ranks found each other but could not be connected.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The thread that ends a process whose run has failed could not be started.
    #[error("can't start the thread that ends this process when its run has failed: {0}")]
    Watchdog(std::io::Error),
    /// A collective failed; see there what becomes of the group.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// NCCL cannot be used, or failed.
    #[error(transparent)]
    Nccl(#[from] crate::backend::cuda::nccl::NcclError),
    /// A device did not give what the ranks were to exchange.
    #[error("the device did not give what the ranks were to exchange: {reason}")]
    Device {
        /// What it said.
        reason: String,
    },
    /// A buffer was asked for elements of another type.
    #[error(transparent)]
    WrongType(#[from] WrongType),
}

impl Error {
    /// The collective's own error, if it is one.
    pub fn collective(&self) -> Option<&CollectiveError> {
        match self {
            Self::Collective(error) => Some(error),
            _ => None,
        }
    }
}

/// Why a collective failed, with the rank that saw it.
///
/// The group is unusable from then on, and its other ranks are told or find out; but for
/// [`MeanOfIntegers`](Self::MeanOfIntegers), [`NoSuchRoot`](Self::NoSuchRoot) and
/// [`Cuts`](Self::Cuts), which are seen before anything is sent, by the arguments of this rank
/// alone: where others have passed other arguments, they wait for this rank until the time-out; and
/// for [`TooLarge`](Self::TooLarge), which all ranks see alike.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// Two ranks called different collectives.
    #[error(
        "the ranks disagree: rank {rank} called {mine}, rank {peer} called {}; every rank must \
         call the same collectives in the same order, with the same lengths and types",
        theirs.map_or("something this version does not know".into(), |theirs| theirs.to_string())
    )]
    Mismatch {
        /// This rank.
        rank: usize,
        /// What this rank called.
        mine: Descriptor,
        /// The other rank.
        peer: usize,
        /// What the other rank called.
        theirs: Option<Descriptor>,
    },
    /// A rank did not come, or stopped in the middle.
    #[error("rank {rank} waited {seconds} s for rank {peer} in {what}; {verdict}")]
    TimedOut {
        /// This rank.
        rank: usize,
        /// What it called.
        what: Descriptor,
        /// The rank it waited for, which may itself have waited for another.
        peer: usize,
        /// The time-out, in seconds.
        seconds: u64,
        /// Which ranks hold the others up, as far as the control connections tell.
        verdict: String,
    },
    /// A rank died or gave up.
    #[error("rank {rank} gave up {what}: {reason}")]
    PeerFailed {
        /// This rank.
        rank: usize,
        /// What it called.
        what: Descriptor,
        /// The rank of the run that failed; `None` where that is the launcher, or rank 0 as the
        /// host of the store.
        failed: Option<usize>,
        /// Who failed, and why.
        reason: String,
    },
    /// Moving bytes failed.
    #[error("rank {rank} failed in {what}: {source}")]
    Transport {
        /// This rank.
        rank: usize,
        /// What it called.
        what: Descriptor,
        /// What happened.
        source: TransportError,
    },
    /// The group failed before.
    #[error("the group is unusable since an earlier collective failed: {first}")]
    Unusable {
        /// The first error.
        first: String,
    },
    /// A mean of integers.
    #[error("a mean of {dtype} is not an {dtype}: use a sum, or a floating-point type")]
    MeanOfIntegers {
        /// The element type.
        dtype: DType,
    },
    /// The root does not exist.
    #[error("there is no rank {root} in a group of {size}")]
    NoSuchRoot {
        /// The root asked for.
        root: usize,
        /// The world size.
        size: usize,
    },
    /// A buffer that is not cut into as many shards as there are ranks.
    #[error(
        "a buffer of {len} elements is not cut into shards of {size} ranks: give one end per rank, \
         ascending, the last {len}"
    )]
    Cuts {
        /// Elements of the buffer.
        len: usize,
        /// The world size.
        size: usize,
    },
    /// All ranks' bytes together are more than a gather of bytes is for.
    #[error(
        "{bytes} bytes are too many for a gather of bytes, which takes {MOST_GATHERED} over all ranks; use an all-gather"
    )]
    TooLarge {
        /// What all ranks together brought.
        bytes: u64,
    },
    /// The thread that carries collectives out could not be started.
    #[error(transparent)]
    Threads(#[from] NoThreads),
    /// The thread that carries collectives out is gone.
    #[error("the group's progress thread ended")]
    NoProgress,
}

//! The errors of this crate, by topic.

use crate::buffer::WrongType;
use crate::collective::{Descriptor, MOST_GATHERED};
use crate::element::DType;
use crate::launch::{LaunchError, WorldError};
use crate::rendezvous::RendezvousError;
use crate::thread_limit::NoThreads;
use crate::transport::TransportError;
use crate::wire::{Fault, SecretError};

/// Any error of this crate.
#[derive(thiserror::Error)]
pub enum Error {
    /// The rank of this process is unknown.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A secret could not be generated or read.
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
    /// The watchdog thread could not be started.
    #[error("cannot start the watchdog thread, which ends this process after a failed run: {0}")]
    Watchdog(std::io::Error),
    /// A collective failed; [`CollectiveError`] says whether the group stays usable.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// NCCL failed or cannot be used.
    #[error(transparent)]
    Nccl(#[from] crate::backend::cuda::nccl::NcclError),
    /// A device did not return data that ranks exchange.
    #[error("the device returned a wrong buffer for a collective: {reason}")]
    Device {
        /// The device's message.
        reason: String,
    },
    /// A buffer was read as another element type.
    #[error(transparent)]
    WrongType(#[from] WrongType),
}

crate::debug_is_display!(Error);

impl Error {
    /// The collective's error, if it is one.
    pub fn collective(&self) -> Option<&CollectiveError> {
        match self {
            Self::Collective(error) => Some(error),
            _ => None,
        }
    }
}

/// The error of a collective, with the rank that saw it.
///
/// The group is unusable afterwards. Its other ranks receive the fault or detect it. Exceptions:
///
/// - [`MeanOfIntegers`](Self::MeanOfIntegers), [`NoSuchRoot`](Self::NoSuchRoot),
///   [`Cuts`](Self::Cuts) and [`VirtualRanks`](Self::VirtualRanks) depend on this rank's arguments
///   and are found before anything is sent. Ranks with other arguments wait for this rank until the
///   timeout.
/// - All ranks see [`TooLarge`](Self::TooLarge) alike.
#[derive(thiserror::Error)]
pub enum CollectiveError {
    /// Two ranks called different collectives.
    #[error(
        "the ranks disagree: rank {rank} called {mine}, rank {peer} called {}. Every rank must \
         call the same collectives in the same order, with the same lengths and types. If ranks \
         have different numbers of batches, use `Parallel::join`",
        theirs.map_or("an unknown collective".into(), |theirs| theirs.to_string())
    )]
    Mismatch {
        /// This rank.
        rank: usize,
        /// Call of this rank.
        mine: Descriptor,
        /// The other rank.
        peer: usize,
        /// Call of the other rank.
        theirs: Option<Descriptor>,
    },
    /// A rank did not reach the collective in time, or stopped in the middle.
    #[error("rank {rank} waited {seconds} s for rank {peer} in {what}; {verdict}")]
    TimedOut {
        /// This rank.
        rank: usize,
        /// The collective.
        what: Descriptor,
        /// The rank it waited for, which may have waited for another one.
        peer: usize,
        /// The timeout, in seconds.
        seconds: u64,
        /// The late ranks, according to the control connections.
        verdict: String,
    },
    /// A rank died or gave up.
    #[error("rank {rank} aborted {what}: {reason}")]
    PeerFailed {
        /// This rank.
        rank: usize,
        /// The collective.
        what: Descriptor,
        /// The rank of the run that failed.
        ///
        /// `None` for the launcher, or for rank 0 as the host of the store.
        failed: Option<usize>,
        /// The failed rank and its reason.
        reason: String,
    },
    /// Bytes could not be moved.
    #[error("rank {rank} failed in {what}: {source}")]
    Transport {
        /// This rank.
        rank: usize,
        /// The collective.
        what: Descriptor,
        /// The error of the transport.
        source: TransportError,
    },
    /// The group had failed before.
    #[error("the group is unusable after a failed collective: {first}")]
    Unusable {
        /// The first error.
        first: String,
        /// The failure of another rank, if that was the first error.
        fault: Option<Fault>,
    },
    /// A mean of integers was requested.
    #[error("the mean of {dtype} is not an {dtype}. Use a sum, or a floating-point type")]
    MeanOfIntegers {
        /// The element type.
        dtype: DType,
    },
    /// The root is not a rank of the group.
    #[error("rank {root} does not exist in a group of {size}")]
    NoSuchRoot {
        /// The requested root.
        root: usize,
        /// The world size.
        size: usize,
    },
    /// A buffer is not cut into one shard for each rank.
    #[error(
        "cannot split a buffer of {len} elements into shards for {size} ranks. Give one end per \
         rank, ascending, the last one {len}"
    )]
    Cuts {
        /// Elements of the buffer.
        len: usize,
        /// The world size.
        size: usize,
    },
    /// Sums of virtual ranks cannot be reduced in this group, or not in this way.
    #[error(
        "cannot reduce sums of the virtual ranks of {ranks} ranks in a group of {size}. Use a sum \
         or a mean, in a group of {ranks} ranks that `ProcessGroup::meshed` made"
    )]
    VirtualRanks {
        /// Number of ranks that the virtual ranks are divided among.
        ranks: usize,
        /// The world size.
        size: usize,
    },
    /// The payloads of a gather of bytes are too large in total.
    #[error(
        "gather_bytes of {bytes} bytes is too large; at most {MOST_GATHERED} over all ranks are \
         allowed. Use an all-gather"
    )]
    TooLarge {
        /// Bytes of all ranks together.
        bytes: u64,
    },
    /// The thread that runs collectives could not be started.
    #[error(transparent)]
    Threads(#[from] NoThreads),
    /// The thread that runs collectives is gone.
    #[error("the progress thread of the group ended")]
    NoProgress,
}

crate::debug_is_display!(CollectiveError);

impl CollectiveError {
    /// The rank of the run whose failure ended this collective, and that rank with its reason in
    /// words, if it was another rank.
    ///
    /// The number is `None` for the launcher, or for rank 0 as the host of the store.
    pub fn of_another_rank(&self) -> Option<(Option<usize>, &str)> {
        match self {
            Self::PeerFailed { failed, reason, .. } => Some((*failed, reason)),
            Self::Unusable {
                fault: Some(fault), ..
            } => Some((fault.rank, &fault.reason)),
            _ => None,
        }
    }
}

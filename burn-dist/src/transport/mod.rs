//! Moves bytes between ranks.
//!
//! A transport is an ordered, non-blocking byte stream to and from some ranks, so that a collective
//! can send and receive at once and reduce in between. On one host [`Transport::shared`] also gives
//! memory that all ranks have mapped; collectives that use it copy nothing.
//!
//! All transports run the same conformance suite (`tests/conformance/`).

#[allow(unsafe_code)]
pub mod shm;
pub mod tcp;
mod watch;

pub(crate) use watch::{Appeal, Meanwhile};
pub use watch::{Interrupt, Watch};

use std::time::Duration;

/// The peers that a rank waits for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interest {
    /// Room to send to this rank.
    pub send_to: Option<usize>,
    /// Bytes from this rank.
    pub recv_from: Option<usize>,
}

/// The members of a ring that a member has streams to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Those 1, 2, 4, 8 and so on ahead: data reaches all members in the fewest rounds.
    #[default]
    Doubling,
    /// All others.
    All,
}

impl Reach {
    /// Distances of a member's streams on a ring of `size`. 1 is the next member.
    pub(crate) fn distances(self, size: usize) -> impl Iterator<Item = usize> {
        let next = move |distance: &usize| match self {
            Self::Doubling => Some(distance * 2),
            Self::All => Some(distance + 1),
        };
        std::iter::successors(Some(1), next).take_while(move |distance| *distance < size)
    }
}

/// Ordered byte streams between this rank and its neighbours on the ring.
///
/// It also has streams to and from the other ranks in its [`Reach`].
pub trait Transport: Send {
    /// The name in configurations and messages.
    fn name(&self) -> &'static str;

    /// Sends the part of `bytes` that fits now and returns its length: 0 if the stream is full.
    ///
    /// # Errors
    /// Fails if the stream to that rank is broken or does not exist.
    fn try_send(&mut self, to: usize, bytes: &[u8]) -> Result<usize, TransportError>;

    /// Receives the bytes that are there and returns their number: 0 if there are none.
    ///
    /// # Errors
    /// Fails if the stream from that rank is broken, closed or does not exist.
    fn try_recv(&mut self, from: usize, bytes: &mut [u8]) -> Result<usize, TransportError>;

    /// Sleeps until one of the interests can probably proceed, at most `limit`.
    ///
    /// # Errors
    /// Fails if the wait itself fails.
    fn wait(&mut self, interest: Interest, limit: Duration) -> Result<(), TransportError>;

    /// Whether sent bytes travel without further calls.
    ///
    /// A collective ends only then: the caller may compute for long before the next one.
    ///
    /// # Errors
    /// Fails if the stream is broken.
    fn is_drained(&mut self) -> Result<bool, TransportError> {
        Ok(true)
    }

    /// Tells whether every rank of this host has a CPU of its own.
    ///
    /// This rank may then spin for a moment: waking up takes longer than most waits.
    #[doc(hidden)]
    fn set_has_processor(&mut self, has_processor: bool) {
        let _ = has_processor;
    }

    /// Work that a rank must do while it waits for something else, so that bytes move.
    ///
    /// `None` if the system does it.
    #[doc(hidden)]
    fn meanwhile(&self) -> Option<Meanwhile> {
        None
    }

    /// Whether this rank has a stream to every other rank.
    fn is_meshed(&self) -> bool {
        false
    }

    /// The memory that all ranks of the group have mapped, if there is any.
    fn shared(&mut self) -> Option<&mut shm::SharedMemory> {
        None
    }
}

/// An error in moving bytes or in setting up a transport.
#[derive(thiserror::Error)]
pub enum TransportError {
    /// The peer closed its side, or its process is gone.
    #[error("rank {peer} closed the {transport} connection")]
    Closed {
        /// The rank at the other end.
        peer: usize,
        /// Name of the transport.
        transport: &'static str,
    },
    /// The system refused an operation on the stream to or from a peer.
    #[error("{transport} stream with rank {peer}: {action} failed: {source}")]
    Stream {
        /// The rank at the other end.
        peer: usize,
        /// Name of the transport.
        transport: &'static str,
        /// The operation.
        action: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// A collective used a stream that the transport does not have.
    #[error("no {transport} stream to rank {peer}")]
    NoStream {
        /// The requested rank.
        peer: usize,
        /// Name of the transport.
        transport: &'static str,
    },
    /// Setting the transport up failed.
    #[error("setting up the {transport} transport: {action}: {source}")]
    Setup {
        /// Name of the transport.
        transport: &'static str,
        /// The operation.
        action: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Setup failed on another rank, or a peer did not follow the protocol.
    #[error("setting up the {transport} transport: rank {rank}: {reason}")]
    Peer {
        /// Name of the transport.
        transport: &'static str,
        /// The rank at fault.
        rank: usize,
        /// The rank's message or mistake.
        reason: String,
    },
}

crate::debug_is_display!(TransportError);

impl TransportError {
    /// The rank that the error names, if it names one.
    pub(crate) fn peer(&self) -> Option<usize> {
        match self {
            Self::Closed { peer, .. } | Self::Stream { peer, .. } | Self::NoStream { peer, .. } => {
                Some(*peer)
            }
            Self::Peer { rank, .. } => Some(*rank),
            Self::Setup { .. } => None,
        }
    }

    /// The error with its ranks renumbered by `name`.
    pub(crate) fn renamed(mut self, name: impl Fn(usize) -> usize) -> Self {
        match &mut self {
            Self::Closed { peer, .. } | Self::Stream { peer, .. } | Self::NoStream { peer, .. } => {
                *peer = name(*peer);
            }
            Self::Peer { rank, .. } => *rank = name(*rank),
            Self::Setup { .. } => {}
        }
        self
    }
}

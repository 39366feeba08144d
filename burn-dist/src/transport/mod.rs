//! How bytes move between two ranks.
//!
//! A transport is an ordered byte stream to and from some ranks, without blocking, so that a
//! collective can send and receive at once and reduce in between. Some transports can do more: on
//! one host [`Transport::shared`] gives memory that all ranks have mapped, and collectives that
//! know it copy nothing.
//!
//! All of them run the same conformance suite (`tests/conformance/`).

#[allow(unsafe_code)]
pub mod shm;
pub mod tcp;
mod watch;

pub(crate) use watch::{Appeal, Meanwhile};
pub use watch::{Interrupt, Watch};

use std::time::Duration;

/// What a rank waits for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interest {
    /// Room to send to this rank.
    pub send_to: Option<usize>,
    /// Bytes from this rank.
    pub recv_from: Option<usize>,
}

/// How far round a ring of `size` members the streams of each reach: 1 is the next one. Of the
/// others it is as many as it takes for what one member has to reach all in the fewest rounds.
pub(crate) fn distances(size: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |distance| Some(distance * 2)).take_while(move |at| *at < size)
}

/// Ordered byte streams between this rank and its neighbours on the ring, and to and from those
/// that are 2, 4, 8 and so on away.
pub trait Transport: Send {
    /// Its name in configurations and messages.
    fn name(&self) -> &'static str;

    /// Sends as many of `bytes` as fit now and says how many: 0 when the stream is full.
    ///
    /// # Errors
    /// When the stream to that rank is broken, or there is none.
    fn try_send(&mut self, to: usize, bytes: &[u8]) -> Result<usize, TransportError>;

    /// Receives what is there now, at most `bytes.len()`, and says how much: 0 when nothing is.
    ///
    /// # Errors
    /// When the stream from that rank is broken or closed, or there is none.
    fn try_recv(&mut self, from: usize, bytes: &mut [u8]) -> Result<usize, TransportError>;

    /// Sleeps until one of the interests can probably go on, at most `limit`.
    ///
    /// # Errors
    /// When waiting itself fails.
    fn wait(&mut self, interest: Interest, limit: Duration) -> Result<(), TransportError>;

    /// Whether what was sent is on its way without further calls. A collective ends when it is: the
    /// caller may compute for long before the next one.
    ///
    /// # Errors
    /// When the stream is broken.
    fn is_drained(&mut self) -> Result<bool, TransportError> {
        Ok(true)
    }

    /// Says whether all ranks of this host have a processor each. This one may keep its own then
    /// while it waits for a moment: to be woken takes longer than most waits.
    #[doc(hidden)]
    fn set_has_processor(&mut self, has_processor: bool) {
        let _ = has_processor;
    }

    /// What a rank that waits for something else has to do meanwhile, so that what it has sent goes
    /// on and what is sent to it arrives; nothing where the system sees to that.
    #[doc(hidden)]
    fn meanwhile(&self) -> Option<Meanwhile> {
        None
    }

    /// The memory that all ranks of the group have mapped, where there is such a thing.
    fn shared(&mut self) -> Option<&mut shm::SharedMemory> {
        None
    }
}

/// What can go wrong while bytes move or a transport is set up.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The peer closed its side, or its process is gone.
    #[error("rank {peer} closed the {transport} connection")]
    Closed {
        /// The rank at the other end.
        peer: usize,
        /// Name of the transport.
        transport: &'static str,
    },
    /// The operating system refused an operation on the stream to or from a peer.
    #[error("{transport} stream with rank {peer}: {action} failed: {source}")]
    Stream {
        /// The rank at the other end.
        peer: usize,
        /// Name of the transport.
        transport: &'static str,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A collective asked for a stream that the transport does not keep.
    #[error("there is no {transport} stream to rank {peer}")]
    NoStream {
        /// The rank asked for.
        peer: usize,
        /// Name of the transport.
        transport: &'static str,
    },
    /// Setting the transport up failed.
    #[error("setting up the {transport} transport: {action}: {source}")]
    Setup {
        /// Name of the transport.
        transport: &'static str,
        /// What was tried.
        action: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Setting the transport up failed on another rank, or a peer did not follow the protocol.
    #[error("setting up the {transport} transport: rank {rank}: {reason}")]
    Peer {
        /// Name of the transport.
        transport: &'static str,
        /// The rank at fault.
        rank: usize,
        /// What it reported or did.
        reason: String,
    },
}

impl TransportError {
    /// The rank that it is about, if it is about one.
    pub(crate) fn peer(&self) -> Option<usize> {
        match self {
            Self::Closed { peer, .. } | Self::Stream { peer, .. } | Self::NoStream { peer, .. } => {
                Some(*peer)
            }
            Self::Peer { rank, .. } => Some(*rank),
            Self::Setup { .. } => None,
        }
    }

    /// The same error with the ranks that it names under other numbers.
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

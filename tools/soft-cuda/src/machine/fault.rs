//! Faults of kernels.

use std::fmt;

/// Kinds of invalid behaviour of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Access to memory that does not belong to the kernel.
    IllegalAddress {
        /// The address.
        address: u64,
        /// Number of bytes.
        bytes: usize,
    },
    /// Access at an address that is no multiple of its size.
    Misaligned {
        /// The address.
        address: u64,
        /// Number of bytes.
        bytes: usize,
    },
    /// Unordered access to memory that another thread accesses, with at least one write. Only
    /// detected on request.
    Race {
        /// The address; in shared memory, the offset.
        address: u64,
        /// The other thread.
        other: Other,
    },
    /// `wgmma` may not see earlier writes to shared memory, because `fence.proxy.async` is missing.
    /// Only detected on request.
    Unfenced,
    /// Unknown description of a matrix or a product.
    Descriptor,
    /// Waiting for lanes that will not come. A GPU would wait until a watchdog ends it.
    Deadlock,
    /// A `trap` instruction.
    Trap,
}

/// The other side of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// A thread of the same block; `None` stands for several.
    Thread {
        /// Warp in the block.
        warp: Option<u8>,
        /// Lane in the warp.
        lane: Option<u8>,
        /// True if it wrote; false if it read.
        wrote: bool,
    },
    /// Another block.
    Block,
}

/// A lane's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Kind of the fault.
    pub kind: FaultKind,
    /// The lane within its warp.
    pub lane: usize,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IllegalAddress { address, bytes } => {
                write!(f, "illegal address {address:#x}, {bytes} bytes")
            }
            Self::Misaligned { address, bytes } => {
                write!(f, "misaligned address {address:#x}, {bytes} bytes")
            }
            Self::Race { address, other } => write!(f, "races at {address:#x} with {other}"),
            Self::Unfenced => f.write_str("reads what no `fence.proxy.async` has made visible"),
            Self::Descriptor => f.write_str("a descriptor or a sign that is not known"),
            Self::Deadlock => f.write_str("waits for lanes that do not come"),
            Self::Trap => f.write_str("trap"),
        }
    }
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Thread { warp, lane, wrote } = self else {
            return f.write_str("another block");
        };
        let number = |number: &Option<u8>| number.map_or("several".to_owned(), |n| n.to_string());
        let did = if *wrote { "wrote" } else { "read" };
        let (warp, lane) = (number(warp), number(lane));
        write!(f, "warp {warp}, lane {lane}, which {did} it")
    }
}

/// A fault and its place in the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Kind of the fault.
    pub kind: FaultKind,
    /// Name of the kernel.
    pub kernel: String,
    /// Block in the grid.
    pub block: [u32; 3],
    /// Warp in the block.
    pub warp: usize,
    /// Lane in the warp.
    pub lane: usize,
    /// The text of the instruction.
    pub instruction: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "kernel `{}`, block {:?}, warp {}, lane {}, `{}`: {}",
            self.kernel, self.block, self.warp, self.lane, self.instruction, self.kind
        )
    }
}

impl std::error::Error for Failure {}

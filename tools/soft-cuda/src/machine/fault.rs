//! How a kernel can fail.

use std::fmt;

/// A forbidden action of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It touched memory that does not exist for it.
    IllegalAddress {
        /// Where.
        address: u64,
        /// Number of bytes.
        bytes: usize,
    },
    /// It touched memory at a misaligned address.
    Misaligned {
        /// Where.
        address: u64,
        /// Number of bytes.
        bytes: usize,
    },
    /// It touched memory that another thread touches at any time, and one of them writes. Checked
    /// only on request.
    Race {
        /// Where: of shared memory, the offset.
        address: u64,
        /// The other participant.
        other: Other,
    },
    /// `wgmma` may not see writes to shared memory: `fence.proxy.async` is missing. Checked only on
    /// request.
    Unfenced,
    /// It describes an unknown matrix or product.
    Descriptor,
    /// It waits for lanes that never come. A GPU would wait until a watchdog ends it.
    Deadlock,
    /// It reached `trap`.
    Trap,
}

/// Whom a lane races with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// A thread of the same block; `None` stands for several.
    Thread {
        /// Its warp in the block.
        warp: Option<u8>,
        /// Its lane in the warp.
        lane: Option<u8>,
        /// Or else it read.
        wrote: bool,
    },
    /// Another block.
    Block,
}

/// A forbidden action, and the lane that did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
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

/// A fault and where in the grid it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of fault.
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

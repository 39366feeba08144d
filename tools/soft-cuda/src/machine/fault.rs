//! How a kernel can fail.

use std::fmt;

/// A forbidden action of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It touched memory that it does not have.
    IllegalAddress {
        /// Where.
        address: u64,
        /// How many bytes.
        bytes: usize,
    },
    /// It touched memory at an address that is no multiple of what it touches.
    Misaligned {
        /// Where.
        address: u64,
        /// How many bytes.
        bytes: usize,
    },
    /// It touched what another thread touches at any time, and one of them writes. Only looked for
    /// where asked.
    Race {
        /// Where: of shared memory, the offset.
        address: u64,
        /// The other participant.
        other: Other,
    },
    /// `wgmma` may not see what was written to shared memory: `fence.proxy.async` is missing. Only
    /// looked for where asked.
    Unfenced,
    /// It describes a matrix, or a product, in a way that is not known.
    Descriptor,
    /// It waits for lanes that will not come. A GPU would wait until a watchdog ends it.
    Deadlock,
    /// It came to `trap`.
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

//! Describes a collective as one rank called it. Ranks that disagree get an error with both sides
//! instead of a hang or a wrong sum.

use std::fmt;

use crate::element::{DType, ReduceOp};
use crate::named::named;

/// Kinds of collectives. The discriminants are the wire codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// All ranks get the reduction of all elements.
    AllReduce = 1,
    /// Every rank gets the reduction of its shard.
    ReduceScatter = 2,
    /// All ranks get all shards.
    AllGather = 3,
    /// All ranks get the root's elements.
    Broadcast = 4,
    /// No rank leaves before all have come.
    Barrier = 5,
    /// All ranks get the bytes of all ranks, of any length.
    GatherBytes = 6,
    /// A bucket is allocated.
    Register = 7,
}

impl Kind {
    /// Whether the borders of shards in the buffer matter.
    pub(crate) fn has_shards(self) -> bool {
        matches!(self, Self::ReduceScatter | Self::AllGather)
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u8 == code)
    }
}

named! {
    Kind {
        AllReduce = "all-reduce", ReduceScatter = "reduce-scatter", AllGather = "all-gather",
        Broadcast = "broadcast", Barrier = "barrier", GatherBytes = "gather of bytes",
        Register = "making of a bucket",
    }
}

/// One collective as one rank called it. Two ranks are in the same collective if these are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Number among the group's collectives, from 1.
    pub sequence: u64,
    /// Kind of collective.
    pub kind: Kind,
    /// Element type.
    pub dtype: DType,
    /// Reduction; `None` without one.
    pub op: Option<ReduceOp>,
    /// The type in which elements travel between ranks without shared memory, if it differs.
    pub wire: Option<DType>,
    /// Root; 0 without one.
    pub root: u16,
    /// Number of virtual ranks whose sums are reduced in the order of their tree; 0 for a reduction
    /// over ranks, and without one.
    pub virtual_ranks: u16,
    /// Number of elements.
    pub len: u64,
    /// Number of the bucket, from 1; 0 for private memory that needs no number.
    pub bucket: u32,
    /// Digest of the borders of shards; 0 if even.
    pub cuts: u32,
}

/// Bits of a bucket's number, below those of its model.
const BUCKET_BITS: u32 = 20;

/// Combines a `bucket`, from 0, and a `model`, from 1, into one number; a model of 0 is not
/// counted.
pub(crate) fn number_of(model: u32, bucket: usize) -> u32 {
    let most = (1 << BUCKET_BITS) - 1;
    let bucket = u32::try_from(bucket).map_or(most, |bucket| bucket.saturating_add(1).min(most));
    model << BUCKET_BITS | bucket
}

impl Descriptor {
    /// Bytes of an encoded descriptor.
    pub const BYTES: usize = 32;

    /// Encodes it as four words.
    pub fn encode(&self) -> [u64; 4] {
        let op = self.op.map_or(0, |op| op as u64);
        let wire = self.wire.map_or(0, |wire| wire as u64);
        let what = u64::from(self.kind as u8)
            | u64::from(self.dtype as u8) << 8
            | op << 16
            | wire << 24
            | u64::from(self.root) << 32
            | u64::from(self.virtual_ranks) << 48;
        let memory = u64::from(self.bucket) | u64::from(self.cuts) << 32;
        [self.sequence, what, self.len, memory]
    }

    /// Decodes four words of a peer; `None` if they are malformed.
    pub fn decode(words: [u64; 4]) -> Option<Self> {
        let [sequence, what, len, memory] = words;
        let [
            kind,
            dtype,
            op,
            wire,
            root_low,
            root_high,
            virtual_ranks @ ..,
        ] = what.to_le_bytes();
        Some(Self {
            sequence,
            kind: Kind::from_code(kind)?,
            dtype: DType::from_code(dtype)?,
            op: if op == 0 {
                None
            } else {
                Some(ReduceOp::from_code(op)?)
            },
            wire: match wire {
                0 => None,
                code => Some(DType::from_code(code)?),
            },
            root: u16::from_le_bytes([root_low, root_high]),
            virtual_ranks: u16::from_le_bytes(virtual_ranks),
            len,
            bucket: memory as u32,
            cuts: (memory >> 32) as u32,
        })
    }

    /// Encodes it as bytes for the wire.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.encode()) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes bytes from the wire.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
            u64::from_le_bytes(word)
        };
        Self::decode([word(0), word(1), word(2), word(3)])
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}", self.sequence, self.kind)?;
        match self.kind {
            Kind::Barrier | Kind::GatherBytes => return Ok(()),
            Kind::Broadcast => write!(f, " from rank {}", self.root)?,
            _ => {}
        }
        if let Some(op) = self.op {
            write!(f, " ({op})")?;
        }
        write!(f, " of {} × {}", self.len, self.dtype)?;
        if self.virtual_ranks > 0 {
            write!(f, " over {} virtual ranks", self.virtual_ranks)?;
        }
        if let Some(wire) = self.wire {
            write!(f, " as {wire}")?;
        }
        match (self.bucket >> BUCKET_BITS, self.bucket % (1 << BUCKET_BITS)) {
            (0, 0) => {}
            // Most programs have one model.
            (0 | 1, bucket) => write!(f, " in bucket {bucket}")?,
            (model, bucket) => write!(f, " in bucket {bucket} of model {model}")?,
        }
        match self.cuts {
            0 => Ok(()),
            cuts => write!(f, ", uneven shards ({cuts:08x})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_words_decode_to_what_encodes_to_them_or_to_nothing(words: [u64; 4]) {
            if let Some(descriptor) = Descriptor::decode(words) {
                prop_assert_eq!(descriptor.encode(), words);
            }
        }

        #[test]
        fn bytes_survive_the_wire(
            sequence: u64,
            len: u64,
            root: u16,
            virtual_ranks: u16,
            bucket: u32,
            cuts: u32,
        ) {
            let descriptor = Descriptor {
                sequence,
                kind: Kind::ReduceScatter,
                dtype: DType::BF16,
                op: Some(ReduceOp::Mean),
                wire: Some(DType::F16),
                root,
                virtual_ranks,
                len,
                bucket,
                cuts,
            };
            prop_assert_eq!(Descriptor::from_bytes(&descriptor.to_bytes()), Some(descriptor));
        }
    }

    #[test]
    fn reads_like_a_sentence() {
        let descriptor = Descriptor {
            sequence: 17,
            kind: Kind::AllReduce,
            dtype: DType::F32,
            op: Some(ReduceOp::Sum),
            wire: None,
            root: 0,
            virtual_ranks: 0,
            len: 1000,
            bucket: 0,
            cuts: 0,
        };
        assert_eq!(descriptor.to_string(), "#17 all-reduce (sum) of 1000 × f32");
        let numbered = |model| Descriptor {
            bucket: number_of(model, 2),
            ..descriptor
        };
        assert_eq!(
            [0, 1, 2].map(|model| numbered(model).to_string()),
            ["3", "3", "3 of model 2"]
                .map(|bucket| format!("#17 all-reduce (sum) of 1000 × f32 in bucket {bucket}"))
        );
        let of_tree = Descriptor {
            virtual_ranks: 12,
            ..descriptor
        };
        assert_eq!(
            of_tree.to_string(),
            "#17 all-reduce (sum) of 1000 × f32 over 12 virtual ranks"
        );
        let compressed = Descriptor {
            wire: Some(DType::BF16),
            ..descriptor
        };
        assert_eq!(
            compressed.to_string(),
            "#17 all-reduce (sum) of 1000 × f32 as bf16"
        );
    }
}

//! Compression of numbers that travel between ranks, for networks slower than the arithmetic.

use crate::element::{DType, ReduceOp};
use crate::named::named;

/// Number format in which sums and means of `f32` travel between ranks without shared memory.
///
/// Numbers are added in `f32`. A sum is rounded when it is sent on: by every rank of a ring, or by
/// every node whose ranks share memory. All ranks get the same bits. PyTorch's communication hooks
/// do the same, <https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html>.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compression {
    /// Uncompressed.
    #[default]
    None,
    /// bfloat16: half the bytes, the range of `f32`, 8 of its 24 mantissa bits.
    Bf16,
    /// IEEE half precision: half the bytes, 11 mantissa bits.
    ///
    /// Values above 65,504 become infinite, values below 6e-8 become zero.
    F16,
}

impl Compression {
    /// The type in which elements of `dtype` travel, if it differs.
    pub const fn travels_as(self, dtype: DType) -> Option<DType> {
        match (self, dtype) {
            (Self::Bf16, DType::F32) => Some(DType::BF16),
            (Self::F16, DType::F32) => Some(DType::F16),
            _ => None,
        }
    }

    /// The same for a reduction with `op`.
    pub(crate) fn of_reduction(self, dtype: DType, op: Option<ReduceOp>) -> Option<DType> {
        let adds = matches!(op, Some(ReduceOp::Sum | ReduceOp::Mean));
        self.travels_as(dtype).filter(|_| adds)
    }
}

named! {
    Compression { None = "none", Bf16 = "bf16", F16 = "f16", }
    parsed as "compression"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressions_are_known_by_name() {
        for compression in Compression::ALL {
            assert_eq!(compression.to_string().parse(), Ok(compression));
        }
        let error = "fp8".parse::<Compression>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown compression `fp8`; choose one of none, bf16, f16"
        );
    }

    #[test]
    fn only_sums_of_f32_are_compressed() {
        let of = |dtype, op| Compression::Bf16.of_reduction(dtype, op);
        assert_eq!(of(DType::F32, Some(ReduceOp::Mean)), Some(DType::BF16));
        assert_eq!(of(DType::F32, Some(ReduceOp::Max)), None);
        assert_eq!(of(DType::F32, None), None);
        assert_eq!(of(DType::F64, Some(ReduceOp::Sum)), None);
    }
}

//! Checks that the state of a training fits a device, before anything is allocated.

use burn::tensor::Device;

use crate::backend::{self, is_host};

/// The state of a training exceeds the memory of its device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "out of memory: parameters, gradients and optimizer state need {needed_mib} MiB; the device \
     has {total_mib} MiB, {share_mib} MiB for each rank on it. A model of up to {fits} parameters \
     fits with this strategy and optimizer. Otherwise shard over more ranks (zero-1 to zero-3) or \
     keep the optimizer state in host memory (offload_optimizer)"
)]
pub struct MemoryShortage {
    /// MiB needed on this rank.
    pub needed_mib: u64,
    /// MiB of the device.
    pub total_mib: u64,
    /// MiB of it for this rank.
    pub share_mib: u64,
    /// Number of parameters that would fit, without activations.
    pub fits: u64,
}

impl MemoryShortage {
    /// Compares the state's size with the memory of a device.
    ///
    /// `needed` is the size in bytes for a model of `parameters` elements; `ranks` share the
    /// device's `total` bytes.
    ///
    /// # Errors
    /// Fails if it does not fit.
    pub fn check(needed: u64, parameters: u64, total: u64, ranks: usize) -> Result<(), Self> {
        let share = total / ranks.max(1) as u64;
        if needed <= share {
            return Ok(());
        }
        const MIB: u64 = 1 << 20;
        let fits = u128::from(parameters) * u128::from(share) / u128::from(needed.max(1));
        Err(Self {
            needed_mib: needed.div_ceil(MIB),
            total_mib: total / MIB,
            share_mib: share / MIB,
            fits: u64::try_from(fits).unwrap_or(u64::MAX),
        })
    }
}

/// Bytes of memory of a CUDA device, by its index in this process's visible devices.
///
/// `None` if the device does not exist or the build has no CUDA.
pub fn device_memory(cuda: usize) -> Option<u64> {
    backend::cuda::memory(cuda)
}

/// Bytes that `device` has taken from its driver, if known.
///
/// A value that does not grow shows that no memory leaks.
pub fn reserved(device: &Device) -> Option<u64> {
    let usage = device.memory_pool_usage().filter(|_| !is_host(device));
    usage.map(|usage| usage.bytes_reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_says_what_would_fit() {
        const GIB: u64 = 1 << 30;
        assert_eq!(MemoryShortage::check(GIB, 1, GIB, 1), Ok(()));
        let shortage = MemoryShortage::check(GIB, 1000, GIB, 2).unwrap_err();
        assert_eq!(
            (shortage.needed_mib, shortage.share_mib, shortage.fits),
            (1024, 512, 500)
        );
        assert!(shortage.to_string().contains("up to 500 parameters"));
        assert!(MemoryShortage::check(1, 1, 0, 0).is_err());
    }

    #[test]
    fn the_processor_reserves_nothing() {
        assert_eq!(reserved(&Device::flex()), None);
    }
}

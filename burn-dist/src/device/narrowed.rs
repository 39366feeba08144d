//! Adds compression to a device's own collectives: converts on the device before and after.

use burn::tensor::{FloatDType, Tensor};

use crate::bucket::{DeviceCollectives, DeviceHandle, gradient_dtype};
use crate::{Compression, Cuts, DType, Error};

/// The same collectives, with `f32` gradients rounded.
pub(super) struct Narrowed<C> {
    inner: C,
    compression: Compression,
}

impl<C: DeviceCollectives> Narrowed<C> {
    pub(super) fn new(inner: C, compression: Compression) -> Self {
        Self { inner, compression }
    }

    /// Calls `start` with the rounded elements.
    fn start(
        &self,
        flat: Tensor<1>,
        start: impl FnOnce(Tensor<1>) -> Box<dyn DeviceHandle>,
    ) -> Box<dyn DeviceHandle> {
        let dtype = gradient_dtype(flat.dtype());
        let wire = dtype.and_then(|dtype| self.compression.travels_as(dtype));
        match wire {
            None => start(flat),
            Some(DType::F16) => Box::new(Widening(start(flat.cast(FloatDType::F16)))),
            Some(_) => Box::new(Widening(start(flat.cast(FloatDType::BF16)))),
        }
    }
}

impl<C: DeviceCollectives> DeviceCollectives for Narrowed<C> {
    fn start_mean(&self, flat: Tensor<1>) -> Box<dyn DeviceHandle> {
        self.start(flat, |flat| self.inner.start_mean(flat))
    }

    fn start_mean_of_shard(&self, flat: Tensor<1>, cuts: &Cuts) -> Box<dyn DeviceHandle> {
        self.start(flat, |flat| self.inner.start_mean_of_shard(flat, cuts))
    }

    fn start_gather(&self, flat: Tensor<1>, number: u32, cuts: &Cuts) -> Box<dyn DeviceHandle> {
        self.inner.start_gather(flat, number, cuts)
    }
}

/// Converts the result to `f32`.
struct Widening(Box<dyn DeviceHandle>);

impl DeviceHandle for Widening {
    fn wait(self: Box<Self>) -> Result<Tensor<1>, Error> {
        Ok(self.0.wait()?.cast(FloatDType::F32))
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType as BurnDType, Device};

    use super::*;
    use crate::bucket::Alone;

    #[test]
    fn means_are_rounded_and_gathered_parameters_are_not() {
        let third = || Tensor::<1>::from_floats([1.0 / 3.0, 1.0], &Device::flex());
        let values = |handle: Box<dyn DeviceHandle>| -> Vec<f32> {
            let tensor = handle.wait().unwrap();
            assert_eq!(tensor.dtype(), BurnDType::F32);
            tensor.into_data().try_to_vec().unwrap()
        };
        for (compression, bits) in [(Compression::Bf16, 8), (Compression::F16, 11)] {
            let narrowed = Narrowed::new(Alone, compression);
            let cuts = Cuts::Even;
            for mean in [
                narrowed.start_mean(third()),
                narrowed.start_mean_of_shard(third(), &cuts),
            ] {
                let found = values(mean);
                let error = (found[0] * 3.0 - 1.0).abs();
                assert!(error > 0.0 && error < 2f32.powi(-bits), "{error}");
                assert_eq!(found[1], 1.0);
            }
            assert_eq!(
                values(narrowed.start_gather(third(), 1, &cuts))[0],
                1.0 / 3.0
            );
        }
    }
}

//! Stochastic depth: in training, samples skip a branch at random (Huang et al. 2016,
//! <https://arxiv.org/abs/1603.09382>).

use burn::module::Module;
use burn::tensor::{Distribution, Tensor};

/// Zeroes whole samples with probability `rate` and scales the others by `1 / (1 - rate)`, on an
/// autodiff device only.
#[derive(Module, Debug)]
pub(crate) struct DropPath {
    rate: f64,
}

impl DropPath {
    pub(crate) fn new(rate: f64) -> Self {
        Self { rate }
    }

    /// Probability that a sample is zeroed.
    #[cfg(test)]
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    /// Whether samples of `x` are dropped.
    pub(crate) fn is_active<const D: usize>(&self, x: &Tensor<D>) -> bool {
        self.rate > 0.0 && x.device().is_autodiff()
    }

    /// Maps \[batch, …\] to the same shape.
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if !self.is_active(&x) {
            return x;
        }
        let device = x.device();
        let keep = 1.0 - self.rate;
        let (batch, dtype) = (x.dims()[0], x.dtype());
        let mut shape = [1; D];
        shape[0] = batch;
        let kept = Tensor::<D>::random(shape, Distribution::Bernoulli(keep), &device);
        x * (kept * (1.0 / keep)).cast(dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn whole_samples_are_dropped_and_the_mean_is_kept() {
        let device = Device::flex().autodiff();
        device.seed(3);
        let out = DropPath::new(0.25).forward(Tensor::<3>::ones([4000, 1, 2], &device));
        let values: Vec<f32> = out.into_data().try_to_vec().unwrap();
        let kept = values.chunks_exact(2).filter(|pair| pair[0] > 0.0).count();
        assert!(values.chunks_exact(2).all(|pair| pair[0] == pair[1]));
        assert!((2850..3150).contains(&kept), "{kept}");
        assert!(
            values
                .iter()
                .all(|v| *v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6)
        );
    }
}

//! Dropout that does not keep its mask, but draws it again in backward.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Distribution, Tensor, TensorData};

use super::operation::{Operation, Saved, To, apply, exactly};
use super::tensor::{filled, numbers};
use crate::KernelError;
use crate::cpu::Kernels;

/// Sets each number to zero with the probability `rate` and divides the others by `1 − rate`
/// (Srivastava et al. 2014, <https://jmlr.org/papers/v15/srivastava14a.html>).
///
/// The mask depends on one draw of the device's generator, not on the number of threads.
pub fn dropout<const D: usize>(x: Tensor<D>, rate: f64) -> Tensor<D> {
    if rate <= 0.0 {
        return x;
    }
    let drawn = Distribution::Uniform(0.0, 1.0);
    let drawn = Tensor::<1>::random([3], drawn, &x.device().inner()).into_data();
    let operation = Dropout {
        seed: seed(&drawn),
        rate,
    };
    apply(operation, x.into_dispatch(), vec![])
}

/// Combines the leading 22 bits of each draw into one number.
fn seed(drawn: &TensorData) -> u64 {
    let bits = |value: f32| (value * (1 << 22) as f32) as u64;
    let values = drawn.iter::<f32>();
    values.fold(0, |seed, value| (seed << 22) ^ bits(value))
}

#[derive(Debug)]
struct Dropout {
    seed: u64,
    rate: f64,
}

impl Operation for Dropout {
    fn forward(&self, kernels: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [x] = exactly(inputs)?;
        filled(x.layout().shape().clone(), |out| {
            kernels.dropout(self.rate, self.seed, numbers(x)?, out)
        })
    }

    fn backward(&self, _: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError> {
        let kernels = to.kernels;
        to.fill(0, dy.layout().shape().clone(), |dx| {
            kernels.dropout(self.rate, self.seed, numbers(&dy)?, dx)
        })
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

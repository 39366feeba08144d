//! Dropout whose mask is not kept, but drawn again in backward.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Distribution, Tensor, TensorData};
use rayon::prelude::*;

use super::operation::{Operation, Saved, To, apply};
use super::tensor::{filled, numbers};
use crate::{KernelError, Kernels};

/// Elements that a task draws.
const PIECE: usize = 1 << 14;

/// Sets each number to zero with the probability `rate` and divides the others by `1 − rate`
/// (Srivastava et al. 2014, <https://jmlr.org/papers/v15/srivastava14a.html>).
///
/// The mask follows from one draw of the device's generator, whatever the number of threads.
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

/// A number made of the leading 22 bits of each draw.
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

/// A hash of 32 bits: the finalizer of MurmurHash3 by Austin Appleby.
fn mix(mut bits: u32) -> u32 {
    bits ^= bits >> 16;
    bits = bits.wrapping_mul(0x85eb_ca6b);
    bits ^= bits >> 13;
    bits = bits.wrapping_mul(0xc2b2_ae35);
    bits ^ (bits >> 16)
}

impl Dropout {
    fn masked(&self, from: &[f32], to: &mut [f32]) {
        let factor = (1.0 / (1.0 - self.rate)) as f32;
        let threshold = (self.rate * 2f64.powi(32)) as u32;
        let pieces = to.par_chunks_mut(PIECE).zip(from.par_chunks(PIECE));
        pieces.enumerate().for_each(|(piece, (to, from))| {
            let key = self.seed ^ (piece as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let (first, second) = (mix(key as u32), (key >> 32) as u32);
            for (index, (to, from)) in (0u32..).zip(to.iter_mut().zip(from)) {
                let drawn = mix(mix(index ^ first).wrapping_add(second));
                *to = if drawn < threshold {
                    0.0
                } else {
                    from * factor
                };
            }
        });
    }
}

impl Operation for Dropout {
    fn forward(&self, _: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [x] = inputs else {
            return Err(KernelError::Storage);
        };
        filled(x.layout().shape().clone(), |out| {
            self.masked(numbers(x)?, out);
            Ok(())
        })
    }

    fn backward(
        &self,
        _: &Kernels,
        _: Saved,
        gradient: FlexTensor,
        to: &mut To<'_>,
    ) -> Result<(), KernelError> {
        let dx = filled(gradient.layout().shape().clone(), |dx| {
            self.masked(numbers(&gradient)?, dx);
            Ok(())
        });
        to.give(0, dx?);
        Ok(())
    }

    fn reads(&self, _index: usize) -> bool {
        false
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

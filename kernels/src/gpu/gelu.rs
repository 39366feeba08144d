//! GELU with the exact normal distribution (Hendrycks & Gimpel 2016,
//! <https://arxiv.org/abs/1606.08415>).

use std::sync::Arc;

use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::matrix::{Matrix, of_each_vector};
use super::operation::{BackwardInput, Operation, apply};

/// Computes `x · Φ(x)` in `f32` and returns it in the type of `x`.
///
/// Requires a device for which [`super::is_gpu`] is true, and at least one value.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    apply(Arc::new(Gelu), x)
}

#[derive(Debug)]
struct Gelu;

impl Operation<1> for Gelu {
    fn forward(&self, [x]: [CubeTensor; 1]) -> CubeTensor {
        let x = Matrix::new(x);
        // SAFETY: every unit writes its own vector, if it exists.
        let out = unsafe { of_each_vector!(gelu_of_each(x)) };
        out.into_tensor()
    }

    fn backward(&self, BackwardInput { x, dy, .. }: BackwardInput) -> [Option<CubeTensor>; 1] {
        let Some(x) = x else {
            return [None];
        };
        let (x, dy) = (Matrix::new(x), Matrix::new(dy));
        // SAFETY: as in `forward`; `dy` is as large as `x`.
        let out = unsafe { of_each_vector!(gradient_of_each(x, dy)) };
        [Some(out.into_tensor())]
    }

    fn reads_input(&self) -> bool {
        true
    }
}

/// Returns Φ of each value.
#[cube]
fn share_below<N: Size>(value: Vector<f32, N>) -> Vector<f32, N> {
    let scaled = value * Vector::<f32, N>::new(std::f32::consts::FRAC_1_SQRT_2);
    (scaled.erf() + Vector::<f32, N>::new(1.0f32)) * Vector::<f32, N>::new(0.5f32)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gelu_of_each<F: Float, N: Size>(
    x: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let value = Vector::<f32, N>::cast_from(x[at]);
        out[at] = Vector::<F, N>::cast_from(value * share_below::<N>(value));
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gradient_of_each<F: Float, N: Size>(
    x: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let value = Vector::<f32, N>::cast_from(x[at]);
        // 1 / √(2π)
        let peak = Vector::<f32, N>::new(0.398_942_3f32);
        let density = (value * value * Vector::<f32, N>::new(-0.5f32)).exp() * peak;
        let slope = share_below::<N>(value) + value * density;
        out[at] = Vector::<F, N>::cast_from(Vector::<f32, N>::cast_from(dy[at]) * slope);
    }
}

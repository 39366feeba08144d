//! ReLU, alone or of a sum. Burn compares and fills in two kernels each way, with a mask in memory,
//! and one number at a time if channels are last. Here the result is the mask.

use std::sync::{Arc, OnceLock};

use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::matrix::{Matrix, of_each_vector};
use super::operation::{BackwardInput, Operation, apply, apply_to_both};

/// Replaces negative values by zero; NaN stays NaN. The gradient is that of the result if the
/// result is above zero. For a device that [`super::is_gpu`], and at least one value.
pub fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    apply(Arc::new(Rectify::default()), x)
}

/// [`relu`] of `x + y`, which are of the same shape and type.
///
/// # Panics
/// If they are not, as Burn's own operations do.
pub fn add_relu<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    let fits = x.dims() == y.dims() && x.dtype() == y.dtype();
    assert!(
        fits,
        "a sum of {:?} in {:?} and {:?} in {:?}",
        x.dims(),
        x.dtype(),
        y.dims(),
        y.dtype()
    );
    apply_to_both(Arc::new(Rectify::default()), x, y)
}

#[derive(Debug, Default)]
struct Rectify {
    result: OnceLock<CubeTensor>,
}

impl Rectify {
    /// Keeps the result for backward.
    fn kept(&self, out: Matrix) -> CubeTensor {
        let out = out.into_values();
        self.result.get_or_init(|| out.clone());
        out
    }

    /// Returns the gradient before ReLU.
    fn gradient(&self, dy: CubeTensor) -> Option<CubeTensor> {
        let result = Matrix::of_values(self.result.get()?.clone());
        let dy = Matrix::of_values(dy);
        // SAFETY: every unit writes its own vector, if it exists; the result is as large as its
        // gradient.
        let out = unsafe { of_each_vector!(where_above_zero(result, dy)) };
        Some(out.into_values())
    }
}

impl Operation<1> for Rectify {
    fn forward(&self, [x]: [CubeTensor; 1]) -> CubeTensor {
        let x = Matrix::of_values(x);
        // SAFETY: every unit writes its own vector, if it exists.
        self.kept(unsafe { of_each_vector!(rectify(x)) })
    }

    fn backward(&self, BackwardInput { dy, .. }: BackwardInput) -> [Option<CubeTensor>; 1] {
        [self.gradient(dy)]
    }
}

impl Operation<2> for Rectify {
    fn forward(&self, inputs: [CubeTensor; 2]) -> CubeTensor {
        let [x, y] = inputs.map(Matrix::of_values);
        // SAFETY: every unit writes its own vector, if it exists; `add_relu` has checked that both
        // inputs have it.
        self.kept(unsafe { of_each_vector!(rectify_sum(x, y)) })
    }

    fn backward(&self, BackwardInput { dy, .. }: BackwardInput) -> [Option<CubeTensor>; 2] {
        let gradient = self.gradient(dy);
        [gradient.clone(), gradient]
    }
}

#[cube]
fn not_below_zero<N: Size>(value: Vector<f32, N>) -> Vector<f32, N> {
    let zero = Vector::<f32, N>::new(0.0f32);
    select_many(value.less_than(&zero), zero, value)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn rectify<F: Float, N: Size>(
    x: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let value = Vector::<f32, N>::cast_from(x[at]);
        out[at] = Vector::<F, N>::cast_from(not_below_zero::<N>(value));
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn rectify_sum<F: Float, N: Size>(
    x: &[Vector<F, N>],
    y: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let sum = Vector::<f32, N>::cast_from(x[at]) + Vector::<f32, N>::cast_from(y[at]);
        out[at] = Vector::<F, N>::cast_from(not_below_zero::<N>(sum));
    }
}

/// `dy` if the result is above zero or NaN, else zero.
#[cube(launch_unchecked, address_type = "dynamic")]
fn where_above_zero<F: Float, N: Size>(
    result: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let zero = Vector::<f32, N>::new(0.0f32);
        let result = Vector::<f32, N>::cast_from(result[at]);
        let gradient = Vector::<f32, N>::cast_from(dy[at]);
        let gradient = select_many(result.less_equal(&zero), zero, gradient);
        out[at] = Vector::<F, N>::cast_from(gradient);
    }
}

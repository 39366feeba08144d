//! Steps of SGD and Adam in one kernel each: every value is read and written once, in place where
//! nobody else holds the memory. Burn's own optimizers launch a kernel for every operation.

use burn::backend::Cube;
use burn::tensor::Tensor;
use burn_cubecl::kernel::into_contiguous;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::matrix::{Matrix, primitive};
use super::sums::cube;

/// The numbers of one step of SGD with momentum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SgdStep {
    /// What gradients are multiplied by.
    pub scale: f32,
    /// Added to a gradient times its parameter.
    pub penalty: f32,
    /// What is kept of the velocity.
    pub keep: f32,
    /// How much of a gradient goes into the velocity.
    pub intake: f32,
    /// Weight of the velocity in what a parameter moves by.
    pub of_velocity: f32,
    /// Weight of the gradient in it, with Nesterov's momentum.
    pub of_gradient: f32,
    /// Learning rate.
    pub rate: f32,
}

/// The numbers of one step of Adam, with decoupled weight decay of AdamW.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdamStep {
    /// What gradients are multiplied by.
    pub scale: f32,
    /// Added to a gradient times its parameter.
    pub penalty: f32,
    /// Of the two moments.
    pub betas: [f32; 2],
    /// What the moments are divided by, because they began at zero.
    pub corrections: [f32; 2],
    /// Added to the deviation.
    pub epsilon: f32,
    /// What parameters are multiplied by.
    pub decay: f32,
    /// Learning rate.
    pub rate: f32,
}

/// `values` without `rate` times their gradients, which are scaled and penalised as `step` says.
///
/// # Panics
/// All tensors here are flat, `f32`, equally long, and on one device that [`super::computes_on`].
pub fn sgd(step: &SgdStep, values: Tensor<1>, gradients: Tensor<1>) -> Tensor<1> {
    let (values, gradients) = (changeable(values), readable(gradients));
    assert_alike(&values, [&gradients]);
    let vectors = values.rows() * values.row_vectors();
    if vectors > 0 {
        // SAFETY: every unit changes a vector of its own, if there is one, and all are as long.
        unsafe {
            sgd_plain::launch_unchecked(
                values.client(),
                calculate_cube_count_elemwise(values.client(), vectors, cube()),
                cube(),
                values.address(),
                values.vector(),
                values.arg(),
                gradients.arg(),
                vectors,
                step.scale,
                step.penalty,
                step.rate,
            );
        }
    }
    tensor(values)
}

/// The same with momentum: the new values, and the new velocity.
///
/// # Panics
/// As [`sgd`].
pub fn sgd_momentum(
    step: &SgdStep,
    values: Tensor<1>,
    gradients: Tensor<1>,
    velocity: Tensor<1>,
) -> (Tensor<1>, Tensor<1>) {
    let (values, gradients) = (changeable(values), readable(gradients));
    let velocity = changeable(velocity);
    assert_alike(&values, [&gradients, &velocity]);
    let vectors = values.rows() * values.row_vectors();
    if vectors > 0 {
        // SAFETY: as in `sgd`.
        unsafe {
            sgd_with_velocity::launch_unchecked(
                values.client(),
                calculate_cube_count_elemwise(values.client(), vectors, cube()),
                cube(),
                values.address(),
                values.vector(),
                values.arg(),
                gradients.arg(),
                velocity.arg(),
                vectors,
                step.scale,
                step.penalty,
                step.keep,
                step.intake,
                step.of_velocity,
                step.of_gradient,
                step.rate,
            );
        }
    }
    (tensor(values), tensor(velocity))
}

/// A step of Adam (Kingma & Ba 2015, <https://arxiv.org/abs/1412.6980>) or AdamW (Loshchilov & Hutter
/// 2019, <https://arxiv.org/abs/1711.05101>): the new values, and the new moments.
///
/// # Panics
/// As [`sgd`].
pub fn adam(
    step: &AdamStep,
    values: Tensor<1>,
    gradients: Tensor<1>,
    [first, second]: [Tensor<1>; 2],
) -> (Tensor<1>, [Tensor<1>; 2]) {
    let (values, gradients) = (changeable(values), readable(gradients));
    let (first, second) = (changeable(first), changeable(second));
    assert_alike(&values, [&gradients, &first, &second]);
    let vectors = values.rows() * values.row_vectors();
    if vectors > 0 {
        // SAFETY: as in `sgd`.
        unsafe {
            adam_with_moments::launch_unchecked(
                values.client(),
                calculate_cube_count_elemwise(values.client(), vectors, cube()),
                cube(),
                values.address(),
                values.vector(),
                values.arg(),
                gradients.arg(),
                first.arg(),
                second.arg(),
                vectors,
                step.scale,
                step.penalty,
                step.betas[0],
                step.betas[1],
                step.corrections[0],
                step.corrections[1],
                step.epsilon,
                step.decay,
                step.rate,
            );
        }
    }
    (tensor(values), [tensor(first), tensor(second)])
}

fn readable(tensor: Tensor<1>) -> Matrix {
    Matrix::new(primitive(tensor))
}

/// Memory that nobody else sees change.
fn changeable(tensor: Tensor<1>) -> Matrix {
    let tensor = into_contiguous(primitive(tensor));
    Matrix::new(match tensor.can_mut() {
        true => tensor,
        false => tensor.copy(),
    })
}

/// Kernels check no bounds but those of `values`.
fn assert_alike<const N: usize>(values: &Matrix, others: [&Matrix; N]) {
    let like = |other: &&Matrix| other.columns() == values.columns() && other.is_f32();
    assert!(values.is_f32() && others.iter().all(like));
}

fn tensor(matrix: Matrix) -> Tensor<1> {
    Tensor::from_primitive::<Cube>(matrix.into_tensor())
}

/// `value + other × by`, rounded once. Left to itself a compiler puts a product and a sum together or
/// not, and NVRTC does so for vectors of some lengths only: the shard of a parameter would be stepped in
/// other bits than the whole.
#[cube]
fn scaled_add<N: Size>(value: Vector<f32, N>, other: Vector<f32, N>, by: f32) -> Vector<f32, N> {
    fma(other, Vector::<f32, N>::new(by), value)
}

/// `value × of_value + other × of_other`, with the first product rounded.
#[cube]
fn scaled<N: Size>(
    value: Vector<f32, N>,
    of_value: f32,
    other: Vector<f32, N>,
    of_other: f32,
) -> Vector<f32, N> {
    scaled_add(value * Vector::<f32, N>::new(of_value), other, of_other)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn sgd_plain<N: Size>(
    values: &mut [Vector<f32, N>],
    gradients: &[Vector<f32, N>],
    vectors: usize,
    scale: f32,
    penalty: f32,
    rate: f32,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let value = values[at];
        let gradient = scaled(gradients[at], scale, value, penalty);
        values[at] = scaled_add(value, gradient, -rate);
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn sgd_with_velocity<N: Size>(
    values: &mut [Vector<f32, N>],
    gradients: &[Vector<f32, N>],
    velocity: &mut [Vector<f32, N>],
    vectors: usize,
    scale: f32,
    penalty: f32,
    keep: f32,
    intake: f32,
    of_velocity: f32,
    of_gradient: f32,
    rate: f32,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let value = values[at];
        let gradient = scaled(gradients[at], scale, value, penalty);
        let speed = scaled(velocity[at], keep, gradient, intake);
        velocity[at] = speed;
        let delta = scaled(speed, of_velocity, gradient, of_gradient);
        values[at] = scaled_add(value, delta, -rate);
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn adam_with_moments<N: Size>(
    values: &mut [Vector<f32, N>],
    gradients: &[Vector<f32, N>],
    first: &mut [Vector<f32, N>],
    second: &mut [Vector<f32, N>],
    vectors: usize,
    scale: f32,
    penalty: f32,
    beta_1: f32,
    beta_2: f32,
    correct_1: f32,
    correct_2: f32,
    epsilon: f32,
    decay: f32,
    rate: f32,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let value = values[at];
        let gradient = scaled(gradients[at], scale, value, penalty);
        let mean = scaled(first[at], beta_1, gradient, 1.0f32 - beta_1);
        let square = scaled(second[at], beta_2, gradient * gradient, 1.0f32 - beta_2);
        first[at] = mean;
        second[at] = square;
        let deviation = (square / Vector::<f32, N>::new(correct_2)).sqrt();
        let delta =
            mean / Vector::<f32, N>::new(correct_1) / (deviation + Vector::<f32, N>::new(epsilon));
        values[at] = scaled(value, decay, delta, -rate);
    }
}

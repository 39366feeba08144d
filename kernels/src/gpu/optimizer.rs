//! Steps of SGD and Adam for several parameters in one kernel. Every value is read and written
//! once, in place if nobody else owns the memory. Burn's own optimizers launch a kernel for every
//! operation and parameter.

use burn::backend::Cube;
use burn::tensor::Tensor;
use cubecl::prelude::*;

use super::matrix::{Matrix, changeable, primitive};
use super::multi_tensor::{Place, batches, places};
use super::sums::cube;

/// Coefficients of one step of SGD with momentum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SgdStep {
    /// Factor of the gradients.
    pub scale: f32,
    /// Multiple of the parameter that is added to its gradient (weight decay).
    pub penalty: f32,
    /// Share of the velocity that is kept.
    pub keep: f32,
    /// Share of the gradient that is added to the velocity.
    pub intake: f32,
    /// Weight of the velocity in a parameter's update.
    pub of_velocity: f32,
    /// Weight of the gradient in the update, for Nesterov's momentum.
    pub of_gradient: f32,
    /// Learning rate.
    pub rate: f32,
}

/// Coefficients of one step of Adam, with decoupled weight decay for AdamW.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdamStep {
    /// Factor of the gradients.
    pub scale: f32,
    /// Multiple of the parameter that is added to its gradient (weight decay).
    pub penalty: f32,
    /// Decay rates of the two moments.
    pub betas: [f32; 2],
    /// Divisors of the moments, which correct for their start at zero.
    pub corrections: [f32; 2],
    /// Added to the deviation.
    pub epsilon: f32,
    /// Factor of the parameters (decoupled weight decay).
    pub decay: f32,
    /// Learning rate.
    pub rate: f32,
}

/// Launches a kernel on the tensors at these places of all parameters, with these numbers.
macro_rules! launch {
    ($kernel:ident of $parameters:ident [$($place:literal),+] with $($number:expr),+) => {
        for batch in batches(&$parameters, |of| $parameters[of][0].vector()) {
            let units = batch.units();
            // SAFETY: every unit changes a vector of its own, if there is one, and all of a
            // parameter are as long.
            unsafe {
                $kernel::launch_unchecked(
                    batch.client(),
                    batch.cubes(&units),
                    cube(),
                    batch.address,
                    batch.vector,
                    $(batch.args($place).collect(),)+
                    places(&units),
                    $($number),+
                );
            }
        }
    };
}

/// Returns the parameters after a step of plain SGD.
///
/// `parameters` are values and gradients. Subtracts `rate` times the gradient, scaled and penalised
/// by `step`.
///
/// # Panics
///
/// Panics unless all tensors are flat, in `f32`, as long as the others of their parameter, and on
/// one device for which [`super::is_gpu`] is true.
pub fn sgd(step: &SgdStep, parameters: Vec<[Tensor<1>; 2]>) -> Vec<Tensor<1>> {
    let parameters = matrices(parameters, [0]);
    launch!(sgd_plain of parameters [0, 1] with step.scale, step.penalty, step.rate);
    let values = parameters.into_iter().map(|[values, _]| tensor(values));
    values.collect()
}

/// Returns the parameters and velocities after a step of SGD with momentum.
///
/// `parameters` are values, gradients and velocities.
///
/// # Panics
///
/// Panics in the same cases as [`sgd`].
pub fn sgd_momentum(step: &SgdStep, parameters: Vec<[Tensor<1>; 3]>) -> Vec<[Tensor<1>; 2]> {
    let parameters = matrices(parameters, [0, 2]);
    launch!(
        sgd_with_velocity of parameters [0, 1, 2] with
        step.scale, step.penalty,
        step.keep, step.intake, step.of_velocity, step.of_gradient,
        step.rate
    );
    let changed = parameters.into_iter();
    let changed = changed.map(|[values, _, velocity]| [values, velocity].map(tensor));
    changed.collect()
}

/// Returns the parameters and both moments after a step of Adam or AdamW.
///
/// Adam: Kingma & Ba 2015, <https://arxiv.org/abs/1412.6980>; AdamW: Loshchilov & Hutter 2019,
/// <https://arxiv.org/abs/1711.05101>. `parameters` are values, gradients and both moments.
///
/// # Panics
///
/// Panics in the same cases as [`sgd`].
pub fn adam(step: &AdamStep, parameters: Vec<[Tensor<1>; 4]>) -> Vec<[Tensor<1>; 3]> {
    let parameters = matrices(parameters, [0, 2, 3]);
    launch!(
        adam_with_moments of parameters [0, 1, 2, 3] with
        step.scale, step.penalty,
        step.betas[0], step.betas[1], step.corrections[0], step.corrections[1],
        step.epsilon, step.decay, step.rate
    );
    let changed = parameters.into_iter();
    let changed = changed.map(|[values, _, first, second]| [values, first, second].map(tensor));
    changed.collect()
}

/// Moves averages towards values by `weight` times the distance. `parameters` are averages and
/// values.
///
/// # Panics
///
/// Panics in the same cases as [`sgd`].
pub fn blend(weight: f32, parameters: Vec<[Tensor<1>; 2]>) -> Vec<Tensor<1>> {
    let parameters = matrices(parameters, [0]);
    launch!(move_towards of parameters [0, 1] with weight);
    let averages = parameters.into_iter().map(|[average, _]| tensor(average));
    averages.collect()
}

/// Converts tensors to matrices for a kernel that writes at the positions in `changed`, whose
/// memory nobody else owns. Kernels check no bounds except those of the first tensor.
fn matrices<const N: usize, const C: usize>(
    parameters: Vec<[Tensor<1>; N]>,
    changed: [usize; C],
) -> Vec<[Matrix; N]> {
    let matrices = |tensors: [Tensor<1>; N]| {
        let mut place = 0..;
        let tensors = tensors.map(|tensor| match place.next() {
            Some(place) if changed.contains(&place) => changeable(tensor),
            _ => Matrix::new(primitive(tensor)),
        });
        let like = |other: &Matrix| other.columns() == tensors[0].columns() && other.is_f32();
        assert!(tensors.iter().all(like));
        tensors
    };
    parameters.into_iter().map(matrices).collect()
}

fn tensor(matrix: Matrix) -> Tensor<1> {
    Tensor::from_primitive::<Cube>(matrix.into_tensor())
}

/// Computes `value + other × by`, rounded once. By default the compiler decides whether to fuse a
/// product and a sum, and NVRTC does so only for some vector lengths: a shard of a parameter would
/// then get other bits than the whole.
#[cube]
fn scaled_add<N: Size>(value: Vector<f32, N>, other: Vector<f32, N>, by: f32) -> Vector<f32, N> {
    fma(other, Vector::<f32, N>::new(by), value)
}

/// Computes `value × of_value + other × of_other`, with the first product rounded.
#[cube]
fn scaled<N: Size>(
    value: Vector<f32, N>,
    of_value: f32,
    other: Vector<f32, N>,
    of_other: f32,
) -> Vector<f32, N> {
    scaled_add(value * Vector::<f32, N>::new(of_value), other, of_other)
}

/// Tensors of a kernel at the same position of their sets.
type Tensors<N> = Sequence<Box<[Vector<f32, N>]>>;

#[cube(launch_unchecked, address_type = "dynamic")]
fn sgd_plain<N: Size>(
    values: &mut Tensors<N>,
    gradients: &Tensors<N>,
    places: &Sequence<Place>,
    scale: f32,
    penalty: f32,
    rate: f32,
) {
    #[unroll]
    for set in 0..places.len() {
        let place = places.index(set);
        if place.has(ABSOLUTE_POS) {
            let at = place.vector(ABSOLUTE_POS);
            let value = values.index(set)[at];
            let gradient = scaled(gradients.index(set)[at], scale, value, penalty);
            values.index_mut(set)[at] = scaled_add(value, gradient, -rate);
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn sgd_with_velocity<N: Size>(
    values: &mut Tensors<N>,
    gradients: &Tensors<N>,
    velocities: &mut Tensors<N>,
    places: &Sequence<Place>,
    scale: f32,
    penalty: f32,
    keep: f32,
    intake: f32,
    of_velocity: f32,
    of_gradient: f32,
    rate: f32,
) {
    #[unroll]
    for set in 0..places.len() {
        let place = places.index(set);
        if place.has(ABSOLUTE_POS) {
            let at = place.vector(ABSOLUTE_POS);
            let value = values.index(set)[at];
            let gradient = scaled(gradients.index(set)[at], scale, value, penalty);
            let speed = scaled(velocities.index(set)[at], keep, gradient, intake);
            velocities.index_mut(set)[at] = speed;
            let delta = scaled(speed, of_velocity, gradient, of_gradient);
            values.index_mut(set)[at] = scaled_add(value, delta, -rate);
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn adam_with_moments<N: Size>(
    values: &mut Tensors<N>,
    gradients: &Tensors<N>,
    first: &mut Tensors<N>,
    second: &mut Tensors<N>,
    places: &Sequence<Place>,
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
    #[unroll]
    for set in 0..places.len() {
        let place = places.index(set);
        if place.has(ABSOLUTE_POS) {
            let at = place.vector(ABSOLUTE_POS);
            let value = values.index(set)[at];
            let gradient = scaled(gradients.index(set)[at], scale, value, penalty);
            let mean = scaled(first.index(set)[at], beta_1, gradient, 1.0f32 - beta_1);
            let square = gradient * gradient;
            let square = scaled(second.index(set)[at], beta_2, square, 1.0f32 - beta_2);
            first.index_mut(set)[at] = mean;
            second.index_mut(set)[at] = square;
            let deviation = (square / Vector::<f32, N>::new(correct_2)).sqrt();
            let mean = mean / Vector::<f32, N>::new(correct_1);
            let delta = mean / (deviation + Vector::<f32, N>::new(epsilon));
            values.index_mut(set)[at] = scaled(value, decay, delta, -rate);
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn move_towards<N: Size>(
    averages: &mut Tensors<N>,
    values: &Tensors<N>,
    places: &Sequence<Place>,
    weight: f32,
) {
    #[unroll]
    for set in 0..places.len() {
        let place = places.index(set);
        if place.has(ABSOLUTE_POS) {
            let at = place.vector(ABSOLUTE_POS);
            let average = averages.index(set)[at];
            let distance = values.index(set)[at] - average;
            averages.index_mut(set)[at] = scaled_add(average, distance, weight);
        }
    }
}

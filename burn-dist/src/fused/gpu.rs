//! The same steps on a GPU, for several parameters in one kernel.

use burn::tensor::Tensor;

use super::{Adam, AdamNumbers, Fused, FusedState, Sgd};
use crate::backend::gpu::{AdamStep, Kernels, SgdStep};

/// A parameter to step on a device: flat, in `f32`.
pub(crate) struct OnDevice {
    pub fused: Fused,
    pub learning_rate: f64,
    pub values: Tensor<1>,
    pub gradients: Tensor<1>,
    /// `None` before the first step.
    pub state: Option<FusedState>,
}

/// The settings of a step. Parameters with equal settings are stepped together.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Sgd(SgdStep),
    Momentum(SgdStep),
    Adam {
        step: AdamStep,
        /// Number of this step, from 1.
        time: u64,
    },
}

/// Steps all parameters with their gradients times `factor`; returns new values and states. Values
/// without another owner are changed in place.
pub(crate) fn step_on_device(
    kernels: Kernels,
    parameters: Vec<OnDevice>,
    factor: Option<f32>,
) -> Vec<(Tensor<1>, Option<FusedState>)> {
    let scale = factor.unwrap_or(1.0);
    let mut alike: Vec<(Step, Vec<(usize, OnDevice)>)> = Vec::new();
    let mut stepped: Vec<_> = parameters.iter().map(|_| None).collect();
    for (place, parameter) in parameters.into_iter().enumerate() {
        let step = parameter.step(scale);
        match alike.iter_mut().find(|(other, _)| *other == step) {
            Some((_, parameters)) => parameters.push((place, parameter)),
            None => alike.push((step, vec![(place, parameter)])),
        }
    }
    for (step, parameters) in alike {
        let (places, parameters): (Vec<_>, Vec<_>) = parameters.into_iter().unzip();
        for (place, result) in places.into_iter().zip(step.of(kernels, parameters)) {
            stepped[place] = Some(result);
        }
    }
    stepped.into_iter().flatten().collect()
}

impl OnDevice {
    fn step(&self, scale: f32) -> Step {
        match &self.fused {
            Fused::Adam(own) => own.numbers_on_device(self.learning_rate, scale, &self.state),
            Fused::Sgd(own) => own.numbers_on_device(self.learning_rate as f32, scale, &self.state),
        }
    }
}

impl Step {
    /// The new values and states.
    fn of(
        self,
        kernels: Kernels,
        parameters: Vec<OnDevice>,
    ) -> Vec<(Tensor<1>, Option<FusedState>)> {
        let parameters = parameters.into_iter();
        match self {
            Self::Sgd(step) => {
                let tensors = parameters.map(|p| [p.values, p.gradients]).collect();
                let state = FusedState::Sgd { velocity: None };
                let stepped = kernels.sgd(&step, tensors).into_iter();
                stepped.map(|v| (v, Some(state.clone()))).collect()
            }
            Self::Momentum(step) => {
                let tensors = parameters.map(|p| {
                    let velocity = match p.state {
                        Some(FusedState::Sgd { velocity }) => velocity,
                        _ => None,
                    };
                    let velocity = velocity.unwrap_or_else(|| p.values.zeros_like());
                    [p.values, p.gradients, velocity]
                });
                let stepped = kernels.sgd_momentum(&step, tensors.collect()).into_iter();
                let stepped = stepped.map(|[values, velocity]| {
                    let velocity = Some(velocity);
                    (values, Some(FusedState::Sgd { velocity }))
                });
                stepped.collect()
            }
            Self::Adam { step, time } => {
                let tensors = parameters.map(|p| {
                    let [first, second] = match p.state {
                        Some(FusedState::Adam { moments, .. }) => moments,
                        _ => [(); 2].map(|()| p.values.zeros_like()),
                    };
                    [p.values, p.gradients, first, second]
                });
                let stepped = kernels.adam(&step, tensors.collect()).into_iter();
                let stepped = stepped.map(|[values, first, second]| {
                    let moments = [first, second];
                    (values, Some(FusedState::Adam { time, moments }))
                });
                stepped.collect()
            }
        }
    }
}

impl Adam {
    fn numbers_on_device(
        &self,
        learning_rate: f64,
        scale: f32,
        state: &Option<FusedState>,
    ) -> Step {
        let time = match state {
            Some(FusedState::Adam { time, .. }) => time + 1,
            _ => 1,
        };
        let AdamNumbers {
            corrections,
            keep,
            rate,
        } = self.numbers(learning_rate, time);
        let step = AdamStep {
            scale,
            penalty: self.penalty.unwrap_or(0.0),
            betas: [self.beta_1, self.beta_2],
            corrections,
            epsilon: self.epsilon,
            decay: keep,
            rate,
        };
        Step::Adam { step, time }
    }
}

impl Sgd {
    fn numbers_on_device(&self, rate: f32, scale: f32, state: &Option<FusedState>) -> Step {
        let mut step = SgdStep {
            scale,
            penalty: self.penalty.unwrap_or(0.0),
            rate,
            ..SgdStep::default()
        };
        let Some(momentum) = self.momentum else {
            return Step::Sgd(step);
        };
        let has_velocity = matches!(state, Some(FusedState::Sgd { velocity: Some(_) }));
        (step.keep, step.intake) = momentum.keep_and_intake(has_velocity);
        (step.of_velocity, step.of_gradient) = match momentum.nesterov {
            true => (momentum.momentum, 1.0),
            false => (1.0, 0.0),
        };
        Step::Momentum(step)
    }
}

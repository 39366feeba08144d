//! The same steps on a GPU, one kernel each.

use burn::tensor::Tensor;

use super::{Fused, FusedState};

/// Whether there are kernels for `device`.
#[cfg(not(own_gpu))]
pub(crate) fn steps_on(_device: &burn::tensor::Device) -> bool {
    false
}

#[cfg(not(own_gpu))]
impl Fused {
    /// Not called where [`steps_on`] says no.
    pub(crate) fn step_on_device(
        &self,
        _learning_rate: f64,
        values: Tensor<1>,
        _gradients: Tensor<1>,
        _factor: Option<f32>,
        _state: &mut Option<FusedState>,
    ) -> Tensor<1> {
        values
    }
}

#[cfg(own_gpu)]
pub(crate) use kernels::gpu::computes_on as steps_on;

#[cfg(own_gpu)]
mod kernel {
    use kernels::gpu::{AdamStep, SgdStep, adam, sgd, sgd_momentum};

    use super::super::{Adam, AdamNumbers, Sgd};
    use super::*;
    use crate::values::Values;

    impl Fused {
        /// [`step`](Fused::step) on a device that [`steps_on`] says yes to; gives the new values, in the
        /// same memory if nobody else holds it.
        pub(crate) fn step_on_device(
            &self,
            learning_rate: f64,
            values: Tensor<1>,
            gradients: Tensor<1>,
            factor: Option<f32>,
            state: &mut Option<FusedState>,
        ) -> Tensor<1> {
            let scale = factor.unwrap_or(1.0);
            match self {
                Self::Adam(own) => own.on_device(learning_rate, values, gradients, scale, state),
                Self::Sgd(own) => {
                    own.on_device(learning_rate as f32, values, gradients, scale, state)
                }
            }
        }
    }

    impl Adam {
        fn on_device(
            &self,
            learning_rate: f64,
            values: Tensor<1>,
            gradients: Tensor<1>,
            scale: f32,
            state: &mut Option<FusedState>,
        ) -> Tensor<1> {
            let device = values.device();
            let (time, moments) = match state.take() {
                Some(FusedState::Adam { time, moments }) => {
                    (time + 1, moments.map(|moment| moment.into_tensor(&device)))
                }
                _ => (1, [(); 2].map(|()| values.zeros_like())),
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
            let (values, moments) = adam(&step, values, gradients, moments);
            let moments = moments.map(Values::on_device);
            *state = Some(FusedState::Adam { time, moments });
            values
        }
    }

    impl Sgd {
        fn on_device(
            &self,
            rate: f32,
            values: Tensor<1>,
            gradients: Tensor<1>,
            scale: f32,
            state: &mut Option<FusedState>,
        ) -> Tensor<1> {
            let mut step = SgdStep {
                scale,
                penalty: self.penalty.unwrap_or(0.0),
                rate,
                ..SgdStep::default()
            };
            let Some(momentum) = self.momentum else {
                *state = Some(FusedState::Sgd { velocity: None });
                return sgd(&step, values, gradients);
            };
            let before = match state.take() {
                Some(FusedState::Sgd { velocity }) => velocity,
                _ => None,
            };
            (step.keep, step.intake) = momentum.keep_and_intake(before.is_some());
            (step.of_velocity, step.of_gradient) = match momentum.nesterov {
                true => (momentum.momentum, 1.0),
                false => (1.0, 0.0),
            };
            let velocity = match before {
                Some(velocity) => velocity.into_tensor(&values.device()),
                None => values.zeros_like(),
            };
            let (values, velocity) = sgd_momentum(&step, values, gradients, velocity);
            *state = Some(FusedState::Sgd {
                velocity: Some(Values::on_device(velocity)),
            });
            values
        }
    }
}

//! Adadelta, which Burn lacks.

use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};
use burn_dist::parallel::ParameterOptimizer;

use super::{AnyOptimizer, rates};
use crate::config::error::Fault;
use crate::config::section::keys;
use crate::config::validate::{fraction, positive};

keys! {
    /// `adadelta`: Adadelta.
    AdadeltaConfig {
        /// Learning rate. Default 1.
        lr: f64 = 1.0,
        /// Decay of the averages of squared gradients and squared updates, in [0, 1). Default 0.9.
        rho: f64 = 0.9,
        /// Added under both square roots. Default 1e-6.
        eps: f64 = 1e-6,
        /// Multiple of the parameter that is added to its gradient. Default 0.
        weight_decay: f64 = 0.0,
    }
}

impl AnyOptimizer for AdadeltaConfig {
    rates!();

    fn check(&self) -> Result<(), Fault> {
        fraction("optimizer.rho", self.rho)?;
        positive("optimizer.eps", self.eps)
    }

    fn build(&self) -> ParameterOptimizer {
        ParameterOptimizer::new(Adadelta::new(self)).element_wise()
    }
}

/// Adadelta: scales gradients by the root mean squares of past steps and gradients.
///
/// It needs no tuned learning rate.
///
/// `v ← ρv + (1-ρ)g²`, `Δ = √(u+ε)/√(v+ε) · g`, `u ← ρu + (1-ρ)Δ²`, `x ← x - lr·Δ`; weight decay
/// adds `decay·x` to `g` first. Zeiler, <https://arxiv.org/abs/1212.5701>, as in PyTorch.
#[derive(Clone, Debug)]
struct Adadelta {
    rho: f64,
    eps: f64,
    weight_decay: f64,
}

impl Adadelta {
    /// Makes the optimizer of `config`. Each step gets its learning rate.
    fn new(config: &AdadeltaConfig) -> Self {
        Self {
            rho: config.rho,
            eps: config.eps,
            weight_decay: config.weight_decay,
        }
    }
}

/// State of [`Adadelta`] for one parameter.
#[derive(Clone, Debug)]
struct AdadeltaState<const D: usize> {
    /// Running average of squared gradients, `v`.
    squared_gradient: Tensor<D>,
    /// Running average of squared steps, `u`.
    squared_step: Tensor<D>,
}

impl Optimizer for Adadelta {
    type State<const D: usize> = AdadeltaState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let grad = if self.weight_decay == 0.0 {
            grad
        } else {
            grad + tensor.clone().mul_scalar(self.weight_decay)
        };
        let rest = 1.0 - self.rho;
        let new_gradient = grad.clone().square().mul_scalar(rest);
        let (squared_gradient, old_step) = match state {
            Some(state) => (
                state.squared_gradient.mul_scalar(self.rho) + new_gradient,
                state.squared_step,
            ),
            None => {
                let zeros = Tensor::zeros_like(&grad);
                (new_gradient, zeros)
            }
        };
        // One root of the quotient instead of a quotient of two roots saves a pass.
        let ratio =
            old_step.clone().add_scalar(self.eps) / squared_gradient.clone().add_scalar(self.eps);
        let delta = ratio.sqrt() * grad;
        let squared_step = old_step.mul_scalar(self.rho) + delta.clone().square().mul_scalar(rest);
        let state = AdadeltaState {
            squared_gradient,
            squared_step,
        };
        (tensor - delta.mul_scalar(lr), Some(state))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        AdadeltaState {
            squared_gradient: state.squared_gradient.to_device(device),
            squared_step: state.squared_step.to_device(device),
        }
    }
}

const SQUARED_GRADIENT: &str = "squared_gradient";
const SQUARED_STEP: &str = "squared_step";

// Written by hand: the trait's derive macro refers to Burn's own crates.
impl<const D: usize> RecordState for AdadeltaState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        let data = self.squared_gradient.clone().into_data();
        out.push_tensor(prefix, SQUARED_GRADIENT, data);
        let data = self.squared_step.clone().into_data();
        out.push_tensor(prefix, SQUARED_STEP, data);
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let squared_gradient = src.take_tensor(prefix, SQUARED_GRADIENT)?;
        let squared_step = src.take_tensor(prefix, SQUARED_STEP)?;
        Some(Self {
            squared_gradient: Tensor::from_data(squared_gradient, device),
            squared_step: Tensor::from_data(squared_step, device),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adadelta(weight_decay: f64) -> Adadelta {
        Adadelta::new(&AdadeltaConfig {
            weight_decay,
            ..AdadeltaConfig::default()
        })
    }

    fn tensor(values: &[f32]) -> Tensor<1> {
        Tensor::from_floats(values, &Device::flex())
    }

    /// The formulas for one number, in double precision.
    fn reference(mut x: f64, gradients: &[f64], lr: f64, weight_decay: f64) -> f64 {
        let (mut v, mut u) = (0.0, 0.0);
        for gradient in gradients {
            let g = gradient + weight_decay * x;
            v = 0.9 * v + 0.1 * g * g;
            let delta = ((u + 1e-6f64) / (v + 1e-6)).sqrt() * g;
            u = 0.9 * u + 0.1 * delta * delta;
            x -= lr * delta;
        }
        x
    }

    #[test]
    fn follows_the_formulas() {
        for weight_decay in [0.0, 0.1] {
            let optimizer = adadelta(weight_decay);
            let start = [0.5f32, -2.0, 0.0];
            let gradients = [[0.1f32, -3.0, 0.0], [-0.2, 1.0, 1e-3], [0.3, 2.0, -1e-3]];
            let mut x = tensor(&start);
            let mut state = None;
            for gradient in &gradients {
                (x, state) = optimizer.step(0.7, x, tensor(gradient), state);
            }
            let result: Vec<f32> = x.into_data().try_to_vec().unwrap();
            for (i, value) in result.iter().enumerate() {
                let gradients = gradients.map(|gradient| f64::from(gradient[i]));
                let wanted = reference(f64::from(start[i]), &gradients, 0.7, weight_decay);
                let difference = (f64::from(*value) - wanted).abs();
                assert!(difference <= 1e-6, "{value} is not {wanted}");
            }
        }
    }

    #[test]
    fn state_survives_being_recorded() {
        let optimizer = adadelta(0.0);
        let (x, state) = optimizer.step(1.0, tensor(&[1.0, 2.0]), tensor(&[0.3, -0.4]), None);
        let state = state.unwrap();
        let mut sink = StateSink::default();
        state.state_flatten("p", &mut sink);
        let mut source = StateSource::new(sink.scalars.into_iter().collect());
        for (name, data) in sink.tensors {
            source.insert_tensor(name, data);
        }
        let device = Device::flex();
        let restored = AdadeltaState::state_unflatten("p", &mut source, &device).unwrap();
        assert!(AdadeltaState::<1>::state_unflatten("p", &mut source, &device).is_none());

        let gradient = tensor(&[-0.1, 0.2]);
        let (expected, _) = optimizer.step(1.0, x.clone(), gradient.clone(), Some(state));
        let (actual, _) = optimizer.step(1.0, x, gradient, Some(restored));
        assert_eq!(expected.into_data(), actual.into_data());
    }
}

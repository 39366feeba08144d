//! RMSprop (Hinton 2012), with PyTorch's formulas.

use burn::optim;
use burn_dist::parallel::{ParameterOptimizer, ParameterSpec};

use super::{AnyOptimizer, rates, weight_decay};
use crate::config::error::Fault;
use crate::config::section::keys;
use crate::config::validate::{fraction, positive};

keys! {
    /// `rmsprop`: gradients divided by the root of the average of their squares.
    RmsPropConfig {
        /// Learning rate. Default 0.01.
        lr: f64 = 0.01,
        /// Decay of the average of squared gradients, in [0, 1). Default 0.99.
        alpha: f64 = 0.99,
        /// Added to the denominator. Default 1e-8.
        eps: f64 = 1e-8,
        /// Momentum, in [0, 1). Default 0: no momentum.
        momentum: f64 = 0.0,
        /// Whether gradients are divided by an estimate of their standard deviation instead of
        /// their root mean square. Default false.
        centered: bool = false,
        /// Multiple of the parameter that is added to its gradient. Default 0.
        weight_decay: f64 = 0.0,
    }
}

impl AnyOptimizer for RmsPropConfig {
    rates!();

    fn momentum(&mut self) -> Option<&mut f64> {
        Some(&mut self.momentum)
    }

    fn check(&self) -> Result<(), Fault> {
        fraction("optimizer.alpha", self.alpha)?;
        positive("optimizer.eps", self.eps)?;
        fraction("optimizer.momentum", self.momentum)
    }

    /// Burn keeps the average of squares, and the divisor.
    fn keeps(&self, parameter: &ParameterSpec) -> u64 {
        let values = 2 + u64::from(self.centered) + u64::from(self.momentum > 0.0);
        values * parameter.num_elements() as u64
    }

    fn build(&self) -> ParameterOptimizer {
        self.burn().into()
    }
}

impl RmsPropConfig {
    fn burn(&self) -> optim::RmsPropConfig {
        optim::RmsPropConfig::new()
            .with_alpha(self.alpha as f32)
            .with_epsilon(self.eps as f32)
            .with_momentum(self.momentum as f32)
            .with_centered(self.centered)
            .with_weight_decay(weight_decay(self.weight_decay))
    }
}

#[cfg(test)]
mod tests {
    use burn::optim::Optimizer;
    use burn::tensor::{Device, Tensor};

    use super::*;

    /// `torch.optim.RMSprop` for one number, in double precision.
    fn reference(config: &RmsPropConfig, mut x: f64, gradients: &[f64], lr: f64) -> f64 {
        let (mut squares, mut mean, mut buffer) = (0.0, 0.0, 0.0);
        for gradient in gradients {
            let gradient = gradient + config.weight_decay * x;
            squares = config.alpha * squares + (1.0 - config.alpha) * gradient * gradient;
            let mut average: f64 = squares;
            if config.centered {
                mean += (gradient - mean) * (1.0 - config.alpha);
                average -= mean * mean;
            }
            let step = gradient / (average.sqrt() + config.eps);
            buffer = config.momentum * buffer + step;
            x -= lr * buffer;
        }
        x
    }

    #[test]
    fn follows_pytorchs_formulas() {
        let device = Device::flex();
        let start = [0.5f32, -2.0, 3.0];
        let gradients = [
            [0.1f32, -3.0, 0.5],
            [-0.2, 1.0, 1e-3],
            [0.3, 2.0, -0.7],
            [0.0, -1.5, 0.2],
        ];
        for (momentum, centered, weight_decay) in [
            (0.0, false, 0.0),
            (0.9, false, 0.1),
            (0.0, true, 0.1),
            (0.9, true, 0.0),
        ] {
            let config = RmsPropConfig {
                alpha: 0.9,
                momentum,
                centered,
                weight_decay,
                ..RmsPropConfig::default()
            };
            let optimizer = config.burn().build();
            let mut x = Tensor::<1>::from_floats(start, &device);
            let mut state = None;
            for gradient in gradients {
                let gradient = Tensor::from_floats(gradient, &device);
                (x, state) = optimizer.step(0.05, x, gradient, state);
            }
            let result: Vec<f32> = x.into_data().try_to_vec().unwrap();
            for (i, value) in result.iter().enumerate() {
                let gradients = gradients.map(|gradient| f64::from(gradient[i]));
                let wanted = reference(&config, f64::from(start[i]), &gradients, 0.05);
                let difference = (f64::from(*value) - wanted).abs();
                assert!(difference <= 2e-6, "{config:?}: {value} is not {wanted}");
            }
        }
    }
}

//! Muon with the rate that its authors give matrices of different shapes.

use burn::optim::momentum::MomentumConfig;
use burn::optim::{self, AdjustLrFn, LearningRate, MuonState, Optimizer};
use burn::tensor::{Device, Tensor};

use crate::config::MuonConfig;

/// Muon whose rate is √max(1, out/in) times that of the configuration (Jordan 2024,
/// <https://kellerjordan.github.io/posts/muon/>, as in PyTorch). Burn's takes the factor of a matrix's rows and columns,
/// which are those of PyTorch's weights the other way round.
#[derive(Clone)]
pub struct Muon {
    burn: optim::Muon,
    weight_decay: f64,
}

impl Muon {
    /// The optimizer that `config` describes; its learning rate is given at each step.
    pub fn new(config: &MuonConfig) -> Self {
        Self {
            burn: burn(config).build(),
            weight_decay: config.weight_decay,
        }
    }
}

/// Burn's, without weight decay, and with the factor of its own rows and columns.
pub(super) fn burn(config: &MuonConfig) -> optim::MuonConfig {
    optim::MuonConfig::new()
        .with_momentum(MomentumConfig {
            momentum: config.momentum,
            dampening: 0.0,
            nesterov: config.nesterov,
        })
        .with_ns_steps(usize::try_from(config.ns_steps).unwrap_or(usize::MAX))
        .with_epsilon(config.eps as f32)
        .with_adjust_lr_fn(AdjustLrFn::Original)
}

impl Optimizer for Muon {
    type State<const D: usize> = MuonState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        // That of a linear layer lies as [in, out]: √max(1, out/in) is this times Burn's √max(1, in/out).
        let factor = match tensor.dims().as_slice() {
            [inputs, outputs] => (*outputs as f64 / *inputs as f64).sqrt(),
            _ => 1.0,
        };
        let tensor = match self.weight_decay {
            0.0 => tensor,
            decay => tensor.mul_scalar(1.0 - lr * decay),
        };
        self.burn.step(lr * factor, tensor, grad, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        optim::Muon::to_device(state, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far a step without momentum goes, as a root of the mean of squares.
    fn step_of([inputs, outputs]: [usize; 2], weight_decay: f64) -> f64 {
        let muon = Muon::new(&MuonConfig {
            momentum: 0.0,
            nesterov: false,
            weight_decay,
            ..MuonConfig::default()
        });
        let device = Device::flex();
        device.seed(1);
        let gradient = Tensor::<2>::random(
            [inputs, outputs],
            burn::tensor::Distribution::Normal(0.0, 1.0),
            &device,
        );
        let ones = Tensor::ones([inputs, outputs], &device);
        let (stepped, _) = muon.step(0.1, ones.clone(), gradient, None);
        let squares = (stepped - ones).square().mean();
        f64::from(squares.into_scalar::<f32>()).sqrt()
    }

    #[test]
    fn a_layer_with_more_outputs_than_inputs_takes_larger_steps() {
        // An orthogonal matrix of 16 × 64 has a root of the mean of squares of √(1/64).
        let orthogonal = 0.1 / 64f64.sqrt();
        for (shape, factor) in [([16, 64], 2.0), ([64, 16], 1.0), ([64, 64], 1.0)] {
            let ratio = step_of(shape, 0.0) / (factor * orthogonal);
            // The iteration ends before the values of all directions are 1.
            assert!((0.75..1.2).contains(&ratio), "{shape:?}: {ratio}");
        }
    }

    #[test]
    fn weight_decay_goes_by_the_rate_alone() {
        let muon = Muon::new(&MuonConfig {
            weight_decay: 0.5,
            ..MuonConfig::default()
        });
        let device = Device::flex();
        let (ones, zeros) = (
            Tensor::<2>::ones([2, 8], &device),
            Tensor::<2>::zeros([2, 8], &device),
        );
        let (stepped, _) = muon.step(0.1, ones, zeros, None);
        let mean = stepped.mean().into_scalar::<f32>();
        assert!((mean - 0.95).abs() < 1e-6, "{mean}");
    }
}

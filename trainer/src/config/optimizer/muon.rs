//! Muon with its authors' learning rates for matrices of different shapes, and AdamW for other
//! parameters.

use burn::optim::momentum::MomentumConfig;
use burn::optim::{self, AdjustLrFn, LearningRate, MuonState, Optimizer};
use burn::tensor::{Device, Tensor};
use burn_dist::parallel::{ParameterGroup, ParameterOptimizer, ParameterSpec, path_matches};

use super::{AnyOptimizer, rates, weight_decay};
use crate::config::error::Fault;
use crate::config::section::{exactly, keys, names};
use crate::config::validate::{fraction, in_range, positive};

names! {
    /// `[optimizer] adjust_lr` of Muon.
    AdjustLr {
        /// Larger for layers with more outputs than inputs: × √max(1, outputs / inputs), as in
        /// PyTorch.
        #[default]
        Original = "original",
        /// As large as AdamW's updates, so that its `lr` and `weight_decay` fit: × 0.2 ·
        /// √max(inputs, outputs).
        MatchRmsAdamW = "match-rms-adamw",
    }
}

keys! {
    /// `muon`: orthogonal updates for matrices, that is parameters with exactly two dimensions.
    /// AdamW updates all others (biases, normalizations, tokens, convolution filters).
    MuonConfig {
        /// Learning rate. Default 0.001.
        lr: f64 = 1e-3,
        /// Momentum, in [0, 1). Default 0.95.
        momentum: f64 = 0.95,
        /// Whether to use Nesterov momentum. Default true.
        nesterov: bool = true,
        /// Iterations that orthogonalize an update, 1 to 100. Default 5.
        ns_steps: u64 = 5,
        /// Minimum of an update's norm. Default 1e-7.
        eps: f64 = 1e-7,
        /// How the learning rate depends on the shape of a matrix: `original` or `match-rms-adamw`.
        /// Default `original`.
        adjust_lr: AdjustLr = AdjustLr::Original,
        /// Weight decay: each step subtracts this share of the parameter, times the learning rate.
        /// AdamW's parameters too. Default 0.1.
        weight_decay: f64 = 0.1,
        /// Patterns for paths of matrices that AdamW updates too, usually the first and the last
        /// layer, such as `["head.*"]`. Each must match a parameter. Default none.
        adamw_match: Vec<String> = Vec::new(),
        /// Learning rate of AdamW, on the same schedule. Default: `lr`.
        adamw_lr: Option<f64> = None,
        /// AdamW's decay of the averages of the gradient and its square, in [0, 1). Default
        /// `[0.9, 0.999]`.
        #[serde(deserialize_with = "exactly")]
        adamw_betas: [f64; 2] = [0.9, 0.999],
        /// Added to AdamW's denominator. Default 1e-8.
        adamw_eps: f64 = 1e-8,
    }
}

impl AnyOptimizer for MuonConfig {
    rates!();

    fn check(&self) -> Result<(), Fault> {
        fraction("optimizer.momentum", self.momentum)?;
        in_range("optimizer.ns_steps", self.ns_steps, 1, 100)?;
        positive("optimizer.eps", self.eps)?;
        positive("optimizer.adamw_lr", self.adamw_lr())?;
        for beta in self.adamw_betas {
            fraction("optimizer.adamw_betas", beta)?;
        }
        positive("optimizer.adamw_eps", self.adamw_eps)
    }

    fn keeps(&self, parameter: &ParameterSpec) -> u64 {
        let elements = parameter.num_elements() as u64;
        match self.whole(parameter) {
            true => elements,
            false => 2 * elements,
        }
    }

    fn whole(&self, parameter: &ParameterSpec) -> bool {
        let matches = |pattern: &String| path_matches(pattern, &parameter.path);
        parameter.shape.len() == 2 && !self.adamw_match.iter().any(matches)
    }

    fn build(&self) -> ParameterOptimizer {
        match self.adjust_lr {
            // Ranks do not compare the settings of this optimizer, but they have compared their
            // configurations.
            AdjustLr::Original => ParameterOptimizer::new(Muon::new(self)),
            AdjustLr::MatchRmsAdamW => burn(self)
                .with_adjust_lr_fn(optim::AdjustLrFn::MatchRmsAdamW)
                .with_weight_decay(weight_decay(self.weight_decay))
                .into(),
        }
    }

    fn others(&self) -> Vec<ParameterGroup> {
        let adamw = optim::AdamWConfig::new()
            .with_beta_1(self.adamw_betas[0] as f32)
            .with_beta_2(self.adamw_betas[1] as f32)
            .with_epsilon(self.adamw_eps as f32)
            .with_weight_decay(self.weight_decay as f32);
        let rate = self.adamw_lr() / self.lr;
        let named = |pattern: &String| {
            let (name, pattern) = (pattern.clone(), pattern.clone());
            let select = move |parameter: &ParameterSpec| path_matches(&pattern, &parameter.path);
            ParameterGroup::new(name, select, adamw.clone()).with_lr_factor(rate)
        };
        let mut all: Vec<_> = self.adamw_match.iter().map(named).collect();
        let no_matrix = |parameter: &ParameterSpec| parameter.shape.len() != 2;
        let no_matrices =
            ParameterGroup::new("parameters that are not matrices", no_matrix, adamw.clone());
        all.push(no_matrices.with_lr_factor(rate).or_empty());
        all
    }

    fn key_of(&self, group: &str) -> Option<&'static str> {
        let named = self.adamw_match.iter().any(|pattern| pattern == group);
        named.then_some("optimizer.adamw_match")
    }
}

impl MuonConfig {
    fn adamw_lr(&self) -> f64 {
        self.adamw_lr.unwrap_or(self.lr)
    }
}

/// Muon with a learning rate of √max(1, out/in) times the configured one, as in PyTorch.
///
/// Jordan 2024, <https://kellerjordan.github.io/posts/muon/>.
///
/// Burn's factor uses rows and columns, which are swapped in PyTorch's weights.
#[derive(Clone)]
struct Muon {
    burn: optim::Muon,
    weight_decay: f64,
}

impl Muon {
    /// Makes the optimizer of `config`. Each step gets its learning rate.
    fn new(config: &MuonConfig) -> Self {
        Self {
            burn: burn(config).build(),
            weight_decay: config.weight_decay,
        }
    }
}

/// Burn's optimizer without weight decay. Its factor uses its own rows and columns.
fn burn(config: &MuonConfig) -> optim::MuonConfig {
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
        // A linear layer's weight is [in, out]: √max(1, out/in) is this factor times Burn's √max(1,
        // in/out).
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

    /// Root mean square of a step without momentum.
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
        // An orthogonal 16 × 64 matrix has a root mean square of √(1/64).
        let orthogonal = 0.1 / 64f64.sqrt();
        for (shape, factor) in [([16, 64], 2.0), ([64, 16], 1.0), ([64, 64], 1.0)] {
            let ratio = step_of(shape, 0.0) / (factor * orthogonal);
            // The iteration ends before all singular values are 1.
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

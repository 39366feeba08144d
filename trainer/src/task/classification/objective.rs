//! The training loss of a classifier: cross-entropy or binary cross-entropy, with label smoothing,
//! mixed labels and weights of classes.

use burn::tensor::activation::{log_sigmoid, log_softmax};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use datasets::Mixed;
use kernels::ops;

use crate::config::{LossName, TrainConfig};
use crate::data::batch::{Mix, Targets};
use crate::task::Loss;

/// The configured loss.
///
/// A fraction `smoothing` (0 to 1) of each label is spread evenly over all classes (Szegedy et al.
/// 2016, <https://arxiv.org/abs/1512.00567>), as in PyTorch's `label_smoothing`. A mixed image
/// counts for both its classes by their weights (Zhang et al. 2018,
/// <https://arxiv.org/abs/1710.09412>).
#[derive(Clone, Debug)]
pub struct Objective {
    smoothing: f64,
    kind: LossName,
    /// Labels above it become 1 and others 0, for binary cross-entropy.
    threshold: Option<f64>,
    /// The weight of each class.
    weights: Option<Vec<f32>>,
}

impl Objective {
    /// The loss of `config` with these weights of the classes.
    pub fn new(config: &TrainConfig, weights: Option<&[f64]>) -> Self {
        let floats = |weights: &[f64]| weights.iter().map(|weight| *weight as f32).collect();
        Self {
            smoothing: config.label_smoothing,
            kind: config.loss,
            threshold: config.bce_threshold,
            weights: weights.map(floats),
        }
    }

    /// Whether samples have weights, so that losses are sums.
    pub fn is_weighted(&self) -> bool {
        self.weights.is_some()
    }

    /// The loss of a micro-batch: a mean, or the sum over the weight of `targets`.
    ///
    /// `logits` is \[samples, classes\] of any float type. The loss is computed in `f32` and has
    /// one element.
    pub fn of(&self, logits: Tensor<2>, targets: Targets) -> Loss {
        let weights = self.weights.as_ref();
        if weights.is_none() && self.kind == LossName::CrossEntropy {
            let other = targets.mix.map(|mix| (mix.labels, mix.weights));
            let value = ops::cross_entropy(logits, targets.labels, other, self.smoothing);
            return Loss::mean(value);
        }
        let weights = weights.map(|weights| on_device(weights, &logits.device()));
        let logits = logits.cast(FloatDType::F32);
        let rows = match self.kind {
            LossName::CrossEntropy => self.cross_entropy(logits, &targets, weights),
            LossName::Bce => self.binary(logits, &targets, weights),
        };
        // In a fixed order: `Tensor::sum` adds atomically on CUDA.
        match self.is_weighted() {
            true => Loss {
                value: rows.sum_dim(0),
                weight: targets.weight.unwrap_or_default(),
            },
            false => Loss::mean(rows.mean_dim(0)),
        }
    }

    /// Cross-entropy of each sample. Weights multiply the term of each class, as in PyTorch's
    /// `CrossEntropyLoss(weight=...)`.
    fn cross_entropy(
        &self,
        logits: Tensor<2>,
        targets: &Targets,
        weights: Option<Tensor<1>>,
    ) -> Tensor<1> {
        let [_, classes] = logits.dims();
        let mut terms = log_softmax(logits, 1).neg();
        if let Some(weights) = weights {
            terms = terms * weights.unsqueeze::<2>();
        }
        let picked = |labels: Tensor<1, Int>| {
            let picked = terms.clone().gather(1, labels.unsqueeze_dim::<2>(1));
            picked.squeeze_dim::<1>(1)
        };
        let own = mixed(targets, picked);
        match self.smoothing {
            0.0 => own,
            share => {
                let all = terms.clone().sum_dim(1).squeeze_dim::<1>(1);
                own * (1.0 - share) + all * (share / classes as f64)
            }
        }
    }

    /// Mean over the classes of the binary cross-entropy of each sample (Wightman et al. 2021,
    /// <https://arxiv.org/abs/2110.00476>), as timm's `BinaryCrossEntropy`. The weight of a sample
    /// is that of its class.
    fn binary(
        &self,
        logits: Tensor<2>,
        targets: &Targets,
        weights: Option<Tensor<1>>,
    ) -> Tensor<1> {
        let ([_, classes], device) = (logits.dims(), logits.device());
        let class = Tensor::<1, Int>::arange(0..classes as i64, &device).unsqueeze::<2>();
        let is_class = |labels: Tensor<1, Int>| {
            let labels = labels.unsqueeze_dim::<2>(1);
            labels.equal(class.clone()).float().cast(FloatDType::F32)
        };
        let mut labels = is_class(targets.labels.clone());
        if let Some(Mix {
            labels: other,
            weights,
        }) = &targets.mix
        {
            let other = is_class(other.clone());
            labels = other.clone() + (labels - other) * weights.clone().unsqueeze_dim::<2>(1);
        }
        if self.smoothing > 0.0 {
            labels = labels * (1.0 - self.smoothing) + self.smoothing / classes as f64;
        }
        if let Some(threshold) = self.threshold {
            labels = labels.greater_elem(threshold).float().cast(FloatDType::F32);
        }
        // -log σ(-x) - t x, which never overflows.
        let terms = log_sigmoid(logits.clone().neg()).neg() - labels * logits;
        let rows = terms.mean_dim(1).squeeze_dim::<1>(1);
        match weights {
            Some(weights) => rows * mixed(targets, |labels| weights.clone().select(0, labels)),
            None => rows,
        }
    }
}

/// A value of each sample's class; of a mixed sample, the mean of both by their weights.
fn mixed(targets: &Targets, of: impl Fn(Tensor<1, Int>) -> Tensor<1>) -> Tensor<1> {
    let own = of(targets.labels.clone());
    match &targets.mix {
        Some(mix) => {
            let other = of(mix.labels.clone());
            other.clone() + (own - other) * mix.weights.clone()
        }
        None => own,
    }
}

fn on_device(weights: &[f32], device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(weights.to_vec(), [weights.len()]), device)
}

/// Sum over samples of the weights of their classes.
pub(crate) fn weight(weights: &[f64], labels: &[i32], mixed: Option<&Mixed>) -> f64 {
    let of = |label: &i32| {
        let class = usize::try_from(*label).ok();
        class
            .and_then(|class| weights.get(class))
            .copied()
            .unwrap_or_default()
    };
    let own = labels.iter().map(of);
    match mixed {
        None => own.sum(),
        Some(mixed) => {
            let others = mixed.labels.iter().map(of).zip(&mixed.weights);
            let both = own.zip(others);
            both.map(|(own, (other, share))| other + (own - other) * f64::from(*share))
                .sum()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Int};

    const LOGITS: [[f32; 3]; 2] = [[0.5, -1.0, 2.0], [1.0, 0.0, 0.25]];

    fn labels(values: [i32; 2]) -> Tensor<1, Int> {
        Tensor::from_ints(values, &Device::flex())
    }

    fn targets(values: [i32; 2], mix: Option<Mix>) -> Targets {
        Targets {
            labels: labels(values),
            mix,
            weight: None,
        }
    }

    fn mix() -> Option<Mix> {
        Some(Mix {
            labels: labels([1, 0]),
            weights: Tensor::from_floats([0.75, 0.4], &Device::flex()),
        })
    }

    fn plain(smoothing: f64) -> Objective {
        let config = TrainConfig {
            label_smoothing: smoothing,
            ..TrainConfig::default()
        };
        Objective::new(&config, None)
    }

    fn value(objective: &Objective, targets: Targets) -> f64 {
        let loss = objective.of(Tensor::from_floats(LOGITS, &Device::flex()), targets);
        f64::from(loss.value.into_scalar::<f32>())
    }

    #[track_caller]
    fn assert_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }

    /// The mean over samples of `-sum(target * log softmax)`, in double precision.
    fn expected(targets: [[f64; 3]; 2]) -> f64 {
        let sample = |(logits, target): (&[f32; 3], &[f64; 3])| {
            let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
            let log_probability = |x: &f32| f64::from(*x) - sum.ln();
            -logits
                .iter()
                .zip(target)
                .map(|(x, t)| t * log_probability(x))
                .sum::<f64>()
        };
        LOGITS.iter().zip(&targets).map(sample).sum::<f64>() / 2.0
    }

    #[track_caller]
    fn assert_loss(targets: Targets, smoothing: f64, wanted: [[f64; 3]; 2]) {
        assert_near(value(&plain(smoothing), targets), expected(wanted));
    }

    #[test]
    fn one_class_each() {
        assert_loss(
            targets([2, 0], None),
            0.0,
            [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]],
        );
    }

    #[test]
    fn smoothing_spreads_a_share_evenly() {
        let (most, rest) = (0.7 + 0.1, 0.1);
        assert_loss(
            targets([2, 0], None),
            0.3,
            [[rest, rest, most], [most, rest, rest]],
        );
    }

    #[test]
    fn a_mixed_image_counts_for_both_classes() {
        let unsmoothed = [[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]];
        assert_loss(targets([2, 0], mix()), 0.0, unsmoothed);
        let smoothed = unsmoothed.map(|row| row.map(|share| 0.9 * share + 0.1 / 3.0));
        assert_loss(targets([2, 0], mix()), 0.1, smoothed);
    }

    /// Results of `torch.nn.functional.cross_entropy` with `weight`, PyTorch 2.0.
    #[test]
    fn weights_of_classes_are_pytorchs() {
        let weights = [0.5, 2.0, 3.0];
        for (smoothing, pytorch) in [(0.0, 0.293_966_719), (0.2, 0.533_871_624)] {
            let config = TrainConfig {
                label_smoothing: smoothing,
                ..TrainConfig::default()
            };
            let objective = Objective::new(&config, Some(&weights));
            let mut targets = targets([2, 0], None);
            targets.weight = Some(weight(&weights, &[2, 0], None));
            let weight = targets.weight.unwrap();
            assert_near(value(&objective, targets) / weight, pytorch);
        }
    }

    #[test]
    fn equal_weights_change_nothing_but_the_scale() {
        for (smoothing, mixed) in [(0.0, false), (0.1, true)] {
            let config = TrainConfig {
                label_smoothing: smoothing,
                ..TrainConfig::default()
            };
            let doubled = Objective::new(&config, Some(&[2.0; 3]));
            let of = |objective| value(objective, targets([2, 0], mix().filter(|_| mixed)));
            assert_near(of(&doubled) / 4.0, of(&plain(smoothing)));
        }
    }

    fn bce(smoothing: f64, threshold: Option<f64>) -> Objective {
        let config = TrainConfig {
            label_smoothing: smoothing,
            loss: LossName::Bce,
            bce_threshold: threshold,
            ..TrainConfig::default()
        };
        Objective::new(&config, None)
    }

    /// Results of timm's `BinaryCrossEntropy`.
    #[test]
    fn binary_cross_entropy_is_timms() {
        assert_near(value(&bce(0.0, None), targets([2, 0], None)), 0.541_102_495);
        assert_near(value(&bce(0.1, None), targets([2, 0], None)), 0.575_824_717);
        assert_near(
            value(&bce(0.0, None), targets([2, 0], mix())),
            0.666_102_495,
        );
        assert_near(
            value(&bce(0.0, Some(0.2)), targets([2, 0], mix())),
            0.707_769_162,
        );
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let logits = Tensor::<2>::from_floats([[500.0, -500.0, 0.0]], &Device::flex());
        let targets = Targets {
            labels: Tensor::from_ints([1], &Device::flex()),
            mix: None,
            weight: None,
        };
        let loss = bce(0.0, None)
            .of(logits, targets)
            .value
            .into_scalar::<f32>();
        assert!((loss - (1000.0 + 2f32.ln()) / 3.0).abs() < 1e-3, "{loss}");
    }

    #[test]
    fn mixed_samples_weigh_by_their_shares() {
        let mixed = Mixed {
            labels: vec![1, 0],
            weights: vec![0.75, 1.0],
        };
        let found = weight(&[1.0, 5.0, 3.0], &[2, 0], Some(&mixed));
        assert_near(found, 0.75 * 3.0 + 0.25 * 5.0 + 1.0);
    }
}

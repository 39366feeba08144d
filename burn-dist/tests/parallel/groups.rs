//! Parameter groups compared with the formulas, and with the optimizers that they consist of.

use burn::module::{Module, Param};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_dist::ProcessGroup;
use burn_dist::parallel::{
    Parallel, ParallelError, ParameterGroup, ParameterOptimizer, Strategy, is_norm_or_bias,
    path_matches,
};

use crate::models::value_at;

const RATE: f64 = 0.1;
const STEPS: usize = 4;

/// Two parameters with known gradients: those of `weight · 3 + bias · -2 + head · t`.
#[derive(Module, Debug)]
struct Line {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
    head: Param<Tensor<2>>,
}

const GRADIENTS: [f64; 3] = [3.0, -2.0, 0.5];
const START: f64 = 0.75;

fn train(optimizer: ParameterOptimizer) -> Result<[f32; 3], ParallelError> {
    let device = Device::flex().autodiff();
    let line = Line {
        weight: Param::from_tensor(Tensor::full([1, 1], START, &device)),
        bias: Param::from_tensor(Tensor::full([1], START, &device)),
        head: Param::from_tensor(Tensor::full([1, 1], START, &device)),
    };
    let mut parallel = Parallel::new(line, optimizer, Strategy::Ddp, &ProcessGroup::single())?;
    for _ in 0..STEPS {
        let line = parallel.model();
        let loss = line.weight.val().reshape([1]) * GRADIENTS[0]
            + line.bias.val() * GRADIENTS[1]
            + line.head.val().reshape([1]) * GRADIENTS[2];
        parallel.backward(loss)?;
        parallel.step(RATE)?;
    }
    let line = parallel.valid()?;
    Ok(["weight", "bias", "head"].map(|path| value_at(&line, path)[0]))
}

fn glob(pattern: &'static str, optimizer: impl Into<ParameterOptimizer>) -> ParameterGroup {
    let select = move |spec: &burn_dist::parallel::ParameterSpec| path_matches(pattern, &spec.path);
    ParameterGroup::new(pattern, select, optimizer)
}

#[track_caller]
fn assert_near(found: [f32; 3], expected: [f64; 3]) {
    for (found, expected) in found.into_iter().zip(expected) {
        let difference = (f64::from(found) - expected).abs();
        // `1 - 0.999^t` has few digits in `f32`.
        assert!(difference < 1e-5, "{found} {expected}");
    }
}

/// PyTorch's SGD on one number.
fn sgd_by_hand(gradient: f64, lr: f64, decay: f64, momentum: f64) -> f64 {
    let (mut x, mut buffer) = (START, None);
    for _ in 0..STEPS {
        let gradient = gradient + decay * x;
        let moved = buffer.map_or(gradient, |buffer: f64| momentum * buffer + gradient);
        buffer = Some(moved);
        x -= lr * moved;
    }
    x
}

/// PyTorch's AdamW on one number.
fn adamw_by_hand(gradient: f64, lr: f64, decay: f64) -> f64 {
    let (mut x, mut first, mut second) = (START, 0.0, 0.0);
    for step in 1..=STEPS as i32 {
        x -= lr * decay * x;
        first = 0.9 * first + 0.1 * gradient;
        second = 0.999 * second + 0.001 * gradient * gradient;
        let corrected = second / (1.0 - 0.999f64.powi(step));
        x -= lr * first / (1.0 - 0.9f64.powi(step)) / (corrected.sqrt() + 1e-8);
    }
    x
}

fn sgd(decay: f32, momentum: f64) -> SgdConfig {
    SgdConfig::new()
        .with_weight_decay((decay > 0.0).then(|| WeightDecayConfig::new(decay)))
        .with_momentum(Some(MomentumConfig {
            momentum,
            dampening: 0.0,
            nesterov: false,
        }))
}

fn adamw(decay: f32) -> AdamWConfig {
    AdamWConfig::new()
        .with_epsilon(1e-8)
        .with_weight_decay(decay)
}

#[test]
fn sgd_groups_follow_pytorch() {
    let optimizer = ParameterOptimizer::from(sgd(0.25, 0.9))
        .with_group(glob("head", sgd(0.5, 0.5)).with_lr_factor(0.1))
        .with_group(ParameterGroup::new(
            "spared",
            is_norm_or_bias,
            sgd(0.0, 0.9),
        ));
    let [weight, bias, head] = GRADIENTS;
    assert_near(
        train(optimizer).unwrap(),
        [
            sgd_by_hand(weight, RATE, 0.25, 0.9),
            sgd_by_hand(bias, RATE, 0.0, 0.9),
            sgd_by_hand(head, 0.1 * RATE, 0.5, 0.5),
        ],
    );
}

#[test]
fn adamw_groups_follow_pytorch() {
    let optimizer = ParameterOptimizer::from(adamw(0.2))
        .with_group(glob("h*d", adamw(0.4)).with_lr_factor(2.0))
        .with_group(ParameterGroup::new("spared", is_norm_or_bias, adamw(0.0)));
    let [weight, bias, head] = GRADIENTS;
    assert_near(
        train(optimizer).unwrap(),
        [
            adamw_by_hand(weight, RATE, 0.2),
            adamw_by_hand(bias, RATE, 0.0),
            adamw_by_hand(head, 2.0 * RATE, 0.4),
        ],
    );
}

#[test]
fn every_group_is_bit_by_bit_its_own_optimizer() {
    let grouped = ParameterOptimizer::from(adamw(0.2))
        .with_group(glob("head", adamw(0.4)))
        .with_group(ParameterGroup::new("spared", is_norm_or_bias, adamw(0.0)));
    let alone = |decay| train(adamw(decay).into()).unwrap();
    let expected = [alone(0.2)[0], alone(0.0)[1], alone(0.4)[2]];
    assert_eq!(train(grouped).unwrap(), expected);
}

#[test]
fn a_group_without_parameters_is_refused() {
    let optimizer = ParameterOptimizer::from(adamw(0.2)).with_group(glob("heads.*", adamw(0.0)));
    let error = train(optimizer).unwrap_err().to_string();
    assert!(
        error.contains("`heads.*`") && error.contains("weight, bias, head"),
        "{error}"
    );
}

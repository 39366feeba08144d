//! Sums over ranks in the middle of a model.

use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_dist::TransportKind;
use burn_dist::autograd::{sum_over_ranks, sums_over_ranks};
use burn_dist::parallel::{Parallel, ParallelOptions, Strategy};

use crate::device;
use crate::models::{on_ranks, scalar, value_at};

/// `loss = weight · (x + Σ x²)`, where the sum is over all ranks' `weight · input`.
#[derive(Module, Debug)]
struct Summing {
    weight: Param<Tensor<1>>,
}

impl Summing {
    fn new() -> Self {
        Self::on(&device().autodiff())
    }

    fn on(device: &Device) -> Self {
        let value = Tensor::from_floats([0.5], device);
        Self {
            weight: Param::from_tensor(value),
        }
    }

    fn loss(&self, input: f32) -> Tensor<1> {
        let x = self.weight.val() * input;
        x.clone() + sum_over_ranks(x.square())
    }
}

fn options(sync_batch_norm: bool) -> ParallelOptions {
    ParallelOptions {
        sync_batch_norm,
        ..ParallelOptions::from(Strategy::Ddp)
    }
}

#[test]
fn gradients_are_those_of_the_mean_loss() {
    let sizes = [1, 2, 3].into_iter();
    // In stage 3 cheap operations are recomputed in backward.
    let strategies = [Strategy::Ddp, Strategy::Zero3];
    for (size, strategy) in sizes.flat_map(|size| strategies.map(|strategy| (size, strategy))) {
        let inputs = |rank: usize| 1.0 + rank as f32;
        let ranks = on_ranks(size, TransportKind::Auto, move |group| {
            let device = match strategy {
                Strategy::Zero3 => device().autodiff().gradient_checkpointing(),
                _ => device().autodiff(),
            };
            let options = ParallelOptions {
                strategy,
                ..options(true)
            };
            let model = Summing::on(&device);
            let mut parallel = Parallel::new(model, SgdConfig::new(), options, &group).unwrap();
            let loss = parallel.model().loss(inputs(group.rank()));
            let value = scalar(&loss);
            parallel.backward(loss).unwrap();
            assert!(!sums_over_ranks());
            parallel.step(0.1).unwrap();
            (value, value_at(&parallel.valid().unwrap(), "weight")[0])
        });
        let all = || (0..size).map(inputs);
        let squares: f32 = all().map(|input| (0.5 * input).powi(2)).sum();
        let mean: f32 = all().sum::<f32>() / size as f32;
        let slope: f32 = mean + all().map(|input| 2.0 * 0.5 * input * input).sum::<f32>();
        for (rank, (loss, weight)) in ranks.iter().enumerate() {
            let expected = 0.5 * inputs(rank) + squares;
            assert!((loss - expected).abs() < 1e-5, "{loss} {expected}");
            let expected = 0.5 - 0.1 * slope;
            assert!((weight - expected).abs() < 1e-5, "{weight} {expected}");
        }
    }
}

#[test]
fn nothing_is_added_up_unless_asked_for() {
    let losses = on_ranks(2, TransportKind::Auto, |group| {
        let parallel =
            Parallel::new(Summing::new(), SgdConfig::new(), options(false), &group).unwrap();
        scalar(&parallel.model().loss(1.0))
    });
    assert_eq!(losses, [0.75, 0.75]);
}

/// As for a discriminator, while the generator is about to be used.
#[test]
fn a_backward_of_one_model_leaves_the_sums_of_another() {
    let losses = on_ranks(2, TransportKind::Auto, |group| {
        let [own, mut other] = [options(true), options(false)].map(|options| {
            Parallel::new(Summing::new(), SgdConfig::new(), options, &group).unwrap()
        });
        let loss = other.model().loss(1.0);
        let model = own.model();
        other.backward(loss).unwrap();
        scalar(&model.loss(1.0))
    });
    assert_eq!(losses, [1.0, 1.0]);
}

/// An evaluation is not part of the training of all ranks.
#[test]
fn a_rank_may_evaluate_alone_between_forward_and_backward() {
    let losses = on_ranks(2, TransportKind::Auto, |group| {
        let mut parallel =
            Parallel::new(Summing::new(), SgdConfig::new(), options(true), &group).unwrap();
        let loss = parallel.model().loss(1.0);
        let (trained, mut evaluated) = (scalar(&loss), None);
        if group.rank() == 0 {
            let copy = parallel.valid().unwrap();
            evaluated = Some(scalar(&copy.loss(1.0)));
        }
        parallel.backward(loss).unwrap();
        parallel.step(0.1).unwrap();
        (trained, evaluated)
    });
    assert_eq!(losses, [(1.0, Some(0.75)), (1.0, None)]);
}

#[test]
fn a_sum_that_fails_is_told_by_backward() {
    let errors = on_ranks(2, TransportKind::Auto, |group| {
        let mut parallel =
            Parallel::new(Summing::new(), SgdConfig::new(), options(true), &group).unwrap();
        if group.rank() == 1 {
            group.abort("no more images");
            return String::new();
        }
        let loss = parallel.model().loss(1.0);
        parallel.backward(loss).unwrap_err().to_string()
    });
    assert!(errors[0].contains("no more images"), "{}", errors[0]);
}

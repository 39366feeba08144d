//! `Parallel` in one process, compared with Burn's own training.

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Lora, Module};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::Tensor;
use burn_dist::ProcessGroup;
use burn_dist::parallel::{Parallel, ParallelError, ParallelOptions, ParameterOptimizer, Strategy};

use crate::models::{Net, assert_close, batch, noise, scalar, value_at, values};

const RATE: f64 = 0.05;

fn adamw() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.1)
}

fn momentum() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_nesterov(true)))
}

fn parallel(optimizer: impl Into<ParameterOptimizer>) -> Parallel<Net> {
    with_options(optimizer, Strategy::Ddp)
}

fn with_options(
    optimizer: impl Into<ParameterOptimizer>,
    options: impl Into<ParallelOptions>,
) -> Parallel<Net> {
    Parallel::new(Net::new(1), optimizer, options, &ProcessGroup::single()).unwrap()
}

/// Burn's own training loop.
fn burn_loop(
    mut optimizer: ModuleOptimizer,
    steps: u64,
    loss: impl Fn(&Net, u64) -> Tensor<1>,
) -> Net {
    let mut model = Net::new(1);
    for step in 0..steps {
        let gradients = GradientsParams::from_grads(loss(&model, step).backward(), &model);
        model = optimizer.step(RATE, model, gradients);
    }
    model
}

fn parallel_loop(parallel: &mut Parallel<Net>, steps: u64, loss: impl Fn(&Net, u64) -> Tensor<1>) {
    for step in 0..steps {
        let loss = loss(parallel.model(), step);
        parallel.backward(loss).unwrap();
        parallel.step(RATE).unwrap();
    }
}

fn plain_loss(model: &Net, step: u64) -> Tensor<1> {
    model.loss(batch(step, 0..6))
}

#[test]
fn one_rank_trains_bit_by_bit_like_burn() {
    let cases: [(ModuleOptimizer, ParameterOptimizer); 3] = [
        (adamw().init(), adamw().into()),
        (momentum().init(), momentum().into()),
        (
            AdamConfig::new().init(),
            ParameterOptimizer::new(AdamConfig::new().build()),
        ),
    ];
    for (burn, ours) in cases {
        let expected = burn_loop(burn, 5, plain_loss);
        let mut parallel = parallel(ours);
        parallel_loop(&mut parallel, 5, plain_loss);
        assert_eq!(values(&parallel.valid().unwrap()), values(&expected));
    }
}

#[test]
fn tied_weights_train_like_burn() {
    let loss = |model: &Net, step: u64| {
        let (inputs, targets) = batch(step, 0..6);
        let features = model.features(inputs);
        // The second block again, with another boundary in between.
        let again = model.blocks[1].forward(burn_dist::autograd::boundary(features));
        (model.out.forward(again) - targets).square().mean()
    };
    let expected = burn_loop(momentum().init(), 4, loss);
    let mut parallel = parallel(momentum());
    parallel_loop(&mut parallel, 4, loss);
    // The parts of a tied gradient are summed in another order than Burn's.
    assert_close(&parallel.valid().unwrap(), &expected, 1e-6);
}

#[test]
fn a_parameter_without_gradient_is_left_alone() {
    let before = Net::new(1);
    let mut parallel = parallel(adamw());
    parallel_loop(&mut parallel, 3, plain_loss);
    let after = parallel.valid().unwrap();
    // Weight decay would have changed it.
    for path in ["extra.weight", "extra.bias"] {
        assert_eq!(value_at(&after, path), value_at(&before, path));
    }
    assert_ne!(
        value_at(&after, "out.weight"),
        value_at(&before, "out.weight")
    );
}

#[test]
fn a_parameter_used_only_in_some_steps_trains_like_burn() {
    let loss = |model: &Net, step: u64| {
        let (inputs, targets) = batch(step, 0..6);
        let features = model.features(inputs);
        let head = if step.is_multiple_of(2) {
            &model.out
        } else {
            &model.extra
        };
        (head.forward(features) - targets).square().mean()
    };
    let expected = burn_loop(adamw().init(), 4, loss);
    let mut parallel = parallel(adamw());
    parallel_loop(&mut parallel, 4, loss);
    assert_eq!(values(&parallel.valid().unwrap()), values(&expected));
}

#[test]
fn accumulating_micro_batches_equals_one_large_batch() {
    let mut large = parallel(adamw());
    parallel_loop(&mut large, 5, |model, step| model.loss(batch(step, 0..12)));
    let options = ParallelOptions {
        accumulate: 3,
        ..ParallelOptions::default()
    };
    let mut small = with_options(adamw(), options);
    for step in 0..5 {
        for micro_batch in 0..3 {
            let rows = 4 * micro_batch..4 * (micro_batch + 1);
            let loss = small.model().loss(batch(step, rows));
            small.backward(loss).unwrap();
        }
        small.step(RATE).unwrap();
    }
    // Adam divides by the root of tiny second moments, so the last bits of a gradient matter.
    assert_close(&small.valid().unwrap(), &large.valid().unwrap(), 1e-5);

    let mut sgd = parallel(SgdConfig::new());
    parallel_loop(&mut sgd, 1, |model, _| model.loss(batch(0, 0..12)));
    let mut sgd_small = parallel(SgdConfig::new());
    sgd_small.set_accumulate(3).unwrap();
    for rows in [0..4, 4..8, 8..12] {
        let loss = sgd_small.model().loss(batch(0, rows));
        sgd_small.backward(loss).unwrap();
    }
    sgd_small.step(RATE).unwrap();
    assert_close(&sgd_small.valid().unwrap(), &sgd.valid().unwrap(), 1e-6);
}

#[test]
fn losses_may_be_computed_before_any_backward() {
    let mut in_turn = parallel(momentum());
    in_turn.set_accumulate(2).unwrap();
    let mut ahead = parallel(momentum());
    ahead.set_accumulate(2).unwrap();
    for step in 0..3 {
        for rows in [0..3, 3..6] {
            let loss = in_turn.model().loss(batch(step, rows));
            in_turn.backward(loss).unwrap();
        }
        in_turn.step(RATE).unwrap();

        let first = ahead.model().loss(batch(step, 0..3));
        let second = ahead.model().loss(batch(step, 3..6));
        ahead.backward(first).unwrap();
        ahead.backward(second).unwrap();
        ahead.step(RATE).unwrap();
    }
    assert_eq!(
        values(&ahead.valid().unwrap()),
        values(&in_turn.valid().unwrap())
    );
}

#[test]
fn forward_passes_without_backward_change_nothing() {
    let mut expected = parallel(adamw());
    parallel_loop(&mut expected, 4, plain_loss);
    let mut parallel = parallel(adamw());
    let mut kept = Vec::new();
    for step in 0..4 {
        drop(parallel.model().loss(batch(step + 10, 0..6)));
        let loss = plain_loss(parallel.model(), step);
        // Still alive during the other one's backward.
        kept.push(parallel.model().loss(batch(step + 20, 0..6)));
        parallel.backward(loss).unwrap();
        scalar(&parallel.valid().unwrap().loss(batch(step, 0..6)));
        parallel.step(RATE).unwrap();
    }
    assert_eq!(
        values(&parallel.valid().unwrap()),
        values(&expected.valid().unwrap())
    );
    assert_eq!(kept.len(), 4);
}

#[test]
fn two_models_in_one_process_do_not_mix() {
    let alone = |seed: u64| {
        let group = ProcessGroup::single();
        let mut parallel = Parallel::new(Net::new(seed), adamw(), Strategy::Ddp, &group).unwrap();
        parallel_loop(&mut parallel, 3, plain_loss);
        values(&parallel.valid().unwrap())
    };
    let group = ProcessGroup::single();
    let mut first = Parallel::new(Net::new(1), adamw(), Strategy::Ddp, &group).unwrap();
    let mut second = Parallel::new(Net::new(2), adamw(), Strategy::Ddp, &group).unwrap();
    for step in 0..3 {
        let first_loss = plain_loss(first.model(), step);
        let second_loss = plain_loss(second.model(), step);
        first.backward(first_loss).unwrap();
        second.backward(second_loss).unwrap();
        second.step(RATE).unwrap();
        first.step(RATE).unwrap();
    }
    assert_eq!(values(&first.valid().unwrap()), alone(1));
    assert_eq!(values(&second.valid().unwrap()), alone(2));
}

#[test]
fn a_loss_over_two_models_reaches_only_the_one_that_asked() {
    // As with a generator and a discriminator: the loss of one passes through the other.
    let group = ProcessGroup::single();
    let mut lower = Parallel::new(Net::new(1), adamw(), Strategy::Ddp, &group).unwrap();
    let upper = Parallel::new(Net::new(2), adamw(), Strategy::Ddp, &group).unwrap();
    let before = values(&upper.valid().unwrap());
    let (inputs, _) = batch(0, 0..6);
    let low = lower.model().forward(inputs);
    let wide = low.repeat_dim(1, crate::models::FEATURES);
    let loss = upper.model().forward(wide).square().mean();
    lower.backward(loss).unwrap();
    lower.step(RATE).unwrap();
    assert_ne!(values(&lower.valid().unwrap()), values(&Net::new(1)));
    assert_eq!(values(&upper.valid().unwrap()), before);
}

#[test]
fn clipping_scales_all_gradients_together() {
    let rows = 0..6;
    let loss = |model: &Net| model.loss(batch(0, rows.clone())) * 50.0;
    let model = Net::new(1);
    let gradients = GradientsParams::from_grads(loss(&model).backward(), &model);
    let squares = |linear: &burn::nn::Linear| {
        let square = |tensor: Tensor<1>| f64::from(scalar(&tensor.square().sum()));
        let bias = linear.bias.as_ref().unwrap();
        square(gradients.get::<2>(linear.weight.id).unwrap().flatten(0, 1))
            + square(gradients.get::<1>(bias.id).unwrap())
    };
    let norm = (squares(&model.blocks[0]) + squares(&model.blocks[1]) + squares(&model.out)).sqrt();

    let step = |clip_norm: f64| {
        let options = ParallelOptions {
            clip_norm: Some(clip_norm),
            ..ParallelOptions::default()
        };
        let mut parallel = with_options(SgdConfig::new(), options);
        let loss = loss(parallel.model());
        parallel.backward(loss).unwrap();
        let report = parallel.step(RATE).unwrap();
        assert!((report.gradient_norm.unwrap() / norm - 1.0).abs() < 1e-5);
        assert!(report.applied);
        (
            report.clipped,
            value_at(&parallel.valid().unwrap(), "out.weight"),
        )
    };
    let (clipped, free) = step(f64::INFINITY);
    assert!(!clipped);
    let (clipped, tight) = step(norm / 4.0);
    assert!(clipped);
    let start = value_at(&model, "out.weight");
    for ((start, free), tight) in start.iter().zip(free).zip(tight) {
        assert!(((free - start) / 4.0 - (tight - start)).abs() < 1e-5);
    }
}

#[test]
fn a_step_with_infinite_gradients_is_not_applied() {
    let options = ParallelOptions {
        clip_norm: Some(1.0),
        ..ParallelOptions::default()
    };
    let mut parallel = with_options(adamw(), options);
    let loss = parallel.model().loss(batch(0, 0..6)) * f32::INFINITY;
    parallel.backward(loss).unwrap();
    let report = parallel.step(RATE).unwrap();
    assert!(!report.applied && !report.clipped);
    assert!(!report.gradient_norm.unwrap().is_finite());
    assert_eq!(values(&parallel.valid().unwrap()), values(&Net::new(1)));
    // Training continues.
    parallel_loop(&mut parallel, 1, plain_loss);
    assert_ne!(values(&parallel.valid().unwrap()), values(&Net::new(1)));
}

#[test]
fn the_copies_for_evaluation_and_export_are_plain() {
    let mut parallel = parallel(adamw());
    parallel_loop(&mut parallel, 2, plain_loss);
    let valid = parallel.valid().unwrap();
    let paths = |model: &Net| values(model).into_iter().map(|(path, _)| path);
    assert!(paths(&valid).eq(paths(&Net::new(1))));
    assert!(!valid.forward(batch(0, 0..2).0).is_autodiff());
    assert_eq!(parallel.num_parameters(), Net::new(1).num_params());
    let inner = values(&valid);
    let checksum = parallel.checksum().unwrap();

    // The model itself can still be trained outside.
    let model = parallel.into_model().unwrap();
    assert_eq!(values(&model), inner);
    let loss = plain_loss(&model, 7);
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    assert_eq!(gradients.len(), 6);
    let model = adamw().init().step(RATE, model, gradients);
    let group = ProcessGroup::single();
    let again = Parallel::new(model, adamw(), Strategy::Ddp, &group).unwrap();
    assert_ne!(again.checksum().unwrap(), checksum);
}

#[test]
fn calls_out_of_order_are_refused() {
    let mut parallel = parallel(adamw());
    let message = |error: ParallelError| error.to_string();
    let error = message(parallel.step(RATE).unwrap_err());
    assert!(
        error.starts_with("step was called before backward"),
        "{error}"
    );

    parallel.set_accumulate(2).unwrap();
    let loss = |parallel: &Parallel<Net>| plain_loss(parallel.model(), 0);
    let first = loss(&parallel);
    parallel.backward(first).unwrap();
    let error = message(parallel.step(RATE).unwrap_err());
    assert!(
        error.starts_with("step was called before backward"),
        "{error}"
    );
    let error = message(parallel.set_accumulate(1).unwrap_err());
    assert!(error.contains("1 of 2 micro-batches"), "{error}");
    let second = loss(&parallel);
    parallel.backward(second).unwrap();
    let third = loss(&parallel);
    let error = message(parallel.backward(third).unwrap_err());
    assert!(error.ends_with("call step first"), "{error}");
    // None of these calls affected the step.
    parallel.step(RATE).unwrap();
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let group = ProcessGroup::single();
    let new = |model: Net, optimizer: ParameterOptimizer| {
        Parallel::new(model, optimizer, Strategy::Ddp, &group)
            .map(|_| ())
            .unwrap_err()
    };
    let error = new(Net::new(1).valid(), adamw().into());
    assert!(matches!(error, ParallelError::NothingToTrain), "{error}");
    let clipping = adamw().with_grad_clipping(Some(GradientClippingConfig::Norm(1.0)));
    let error = new(Net::new(1), clipping.into());
    assert!(
        matches!(error, ParallelError::ClipsEachParameter),
        "{error}"
    );

    // Adapters on frozen weights train like any other parameter; trainable weights have no room for
    // a hook.
    let adapted = Net::new(1).apply_lora(Lora::new(2, 4.0));
    assert!(Parallel::new(adapted.clone(), adamw(), Strategy::Ddp, &group).is_ok());
    let error = new(adapted.set_require_grad(true), adamw().into()).to_string();
    assert!(error.contains("`blocks.0.weight`"), "{error}");

    let mut parallel = parallel(adamw());
    let plain = Tensor::<1>::from_data([1.0f32], &burn::tensor::Device::flex());
    let error = parallel.backward(plain).unwrap_err();
    assert!(matches!(error, ParallelError::UntrackedLoss), "{error}");
}

#[test]
fn noise_depends_on_the_seed() {
    assert_eq!(noise(3, 4), noise(3, 4));
    assert_ne!(noise(3, 4), noise(4, 4));
}

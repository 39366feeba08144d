//! The stages of ZeRO compared with plain data parallelism.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, LionConfig, SgdConfig};
use burn_dist::parallel::{
    BucketSizes, EmaOptions, Parallel, ParallelError, ParallelOptions, ParameterGroup,
    ParameterOptimizer, Precision, StepReport, Strategy, is_norm_or_bias,
};
use burn_dist::{ProcessGroup, TransportKind};

use crate::STEPS;
use crate::models::{FEATURES, Net, Values, assert_close, batch, on_ranks, scalar, values};

pub const STAGES: [Strategy; 3] = [Strategy::Zero1, Strategy::Zero2, Strategy::Zero3];

fn sgd() -> ParameterOptimizer {
    let momentum = MomentumConfig::new().with_nesterov(true);
    SgdConfig::new().with_momentum(Some(momentum)).into()
}

/// With a group that crosses the borders of shards.
pub fn adamw() -> ParameterOptimizer {
    let adamw = AdamWConfig::new().with_weight_decay(0.1);
    let plain = adamw.clone().with_weight_decay(0.0);
    let spared = ParameterGroup::new("norms and biases", is_norm_or_bias, plain);
    ParameterOptimizer::from(adamw).with_group(spared.with_lr_factor(0.5))
}

/// An optimizer without a fused step.
fn lion() -> ParameterOptimizer {
    LionConfig::new().into()
}

pub struct Outcome {
    pub losses: Vec<f32>,
    pub model: Net,
    averages: Option<Values>,
    reports: Vec<StepReport>,
}

/// Trains on this rank's rows and checks that all ranks have the same parameters.
pub fn train(
    group: &ProcessGroup,
    optimizer: ParameterOptimizer,
    options: ParallelOptions,
) -> Outcome {
    let model = Net::new(1 + group.rank() as u64);
    let accumulate = options.accumulate;
    let mut parallel = Parallel::new(model, optimizer, options, group).unwrap();
    let (mut losses, mut reports) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        for micro_batch in 0..accumulate {
            let start = (group.rank() * accumulate + micro_batch) * 3;
            let loss = parallel.model().loss(batch(step, start..start + 3));
            losses.push(scalar(&loss));
            parallel.backward(loss).unwrap();
        }
        reports.push(parallel.step(0.02).unwrap());
    }
    parallel.verify_replicas().unwrap();
    Outcome {
        losses,
        averages: parallel.valid_ema().unwrap().as_ref().map(values),
        model: parallel.valid().unwrap(),
        reports,
    }
}

pub fn with(strategy: Strategy, change: impl Fn(&mut ParallelOptions)) -> ParallelOptions {
    let mut options = ParallelOptions {
        strategy,
        // Some parameters share a bucket, some buckets hold a single one.
        buckets: BucketSizes {
            first: 200,
            others: 300,
        },
        ..ParallelOptions::default()
    };
    change(&mut options);
    options
}

/// How the stages must follow plain data parallelism.
#[derive(Clone, Copy, PartialEq)]
pub enum Follow {
    BitForBit,
    /// In stage 1 bit for bit.
    AfterSums,
    Closely,
}

pub fn assert_follows(
    size: usize,
    optimizer: fn() -> ParameterOptimizer,
    change: fn(&mut ParallelOptions),
    follow: Follow,
) {
    let run = move |strategy| {
        on_ranks(size, TransportKind::Auto, move |group| {
            train(&group, optimizer(), with(strategy, change))
        })
    };
    let expected = run(Strategy::Ddp);
    for strategy in STAGES {
        for (own, expected) in run(strategy).iter().zip(&expected) {
            let in_stage_1 = follow == Follow::AfterSums && strategy == Strategy::Zero1;
            if follow == Follow::BitForBit || in_stage_1 {
                assert_eq!(own.losses, expected.losses, "{strategy}");
                assert_eq!(values(&own.model), values(&expected.model), "{strategy}");
                assert_eq!(own.averages, expected.averages, "{strategy}");
            }
            for (loss, expected) in own.losses.iter().zip(&expected.losses) {
                let difference = (loss / expected - 1.0).abs();
                assert!(
                    difference <= crate::rounding(),
                    "{strategy}: {loss} {expected}"
                );
            }
            assert_close(&own.model, &expected.model, crate::rounding());
            assert_eq!(own.averages.is_some(), expected.averages.is_some());
            for (own, expected) in own.reports.iter().zip(&expected.reports) {
                let applied = |report: &StepReport| (report.applied, report.clipped);
                assert_eq!(applied(own), applied(expected));
                let norms = own.gradient_norm.zip(expected.gradient_norm);
                assert!(
                    norms.is_none_or(|(a, b)| (a / b - 1.0).abs() < f64::from(crate::rounding()))
                );
            }
        }
    }
}

#[test]
fn any_number_of_ranks_follows_bit_for_bit() {
    for size in [2, 3, 4] {
        for optimizer in [adamw, sgd, lion] {
            assert_follows(size, optimizer, |_| (), Follow::BitForBit);
        }
    }
}

#[test]
fn clipped_steps_follow_bit_for_bit() {
    for size in [2, 3, 4] {
        let clip = |options: &mut ParallelOptions| options.clip_norm = Some(0.2);
        assert_follows(size, adamw, clip, Follow::BitForBit);
    }
}

#[test]
fn two_ranks_keep_the_same_averages() {
    let ema = |options: &mut ParallelOptions| {
        options.ema = Some(EmaOptions {
            decay: 0.8,
            warmup: true,
        });
    };
    assert_follows(2, adamw, ema, Follow::BitForBit);
}

/// Has no effect if the model is on the CPU.
#[test]
fn offloaded_steps_follow_bit_for_bit_and_are_those_of_the_device() {
    let offload = |options: &mut ParallelOptions| options.offload_optimizer = true;
    for optimizer in [adamw, lion] {
        assert_follows(2, optimizer, offload, Follow::BitForBit);
        let run = move |change: fn(&mut ParallelOptions)| {
            on_ranks(2, TransportKind::Auto, move |group| {
                train(&group, optimizer(), with(Strategy::Zero1, change))
            })
        };
        let (there, offloaded) = (run(|_| ()), run(offload));
        for (there, offloaded) in there.iter().zip(&offloaded) {
            assert_close(&there.model, &offloaded.model, crate::rounding());
        }
    }
}

#[test]
fn a_single_rank_follows_bit_for_bit() {
    assert_follows(1, adamw, |_| (), Follow::BitForBit);
}

#[test]
fn ranks_that_accumulate_and_clip_follow_closely() {
    let change = |options: &mut ParallelOptions| {
        options.accumulate = 2;
        options.clip_norm = Some(0.2);
    };
    for size in [2, 3, 4] {
        // With sharded gradients, every micro-batch is reduced before it is added. AdamW would turn
        // the noise of a gradient near zero into a step.
        assert_follows(size, sgd, change, Follow::AfterSums);
    }
}

#[test]
fn nothing_or_much_may_be_gathered_ahead() {
    assert_follows(2, adamw, |options| options.prefetch = 0, Follow::BitForBit);
    assert_follows(2, adamw, |options| options.prefetch = 5, Follow::BitForBit);
    let all = |options: &mut ParallelOptions| options.prefetch = usize::MAX;
    assert_follows(2, adamw, all, Follow::BitForBit);
}

#[test]
fn overflows_skip_the_step_on_all_ranks() {
    for strategy in STAGES {
        let ranks = on_ranks(2, TransportKind::Auto, move |group| {
            let options = with(strategy, |options| options.precision = Precision::F16);
            let mut parallel = Parallel::new(Net::new(1), adamw(), options, &group).unwrap();
            let mut step = |overflows: bool| {
                let (inputs, targets) = batch(1, 0..4);
                let factor = if overflows { f32::INFINITY } else { 1.0 };
                let inputs = (inputs * factor).cast(parallel.compute_dtype());
                let out = parallel.model().forward(inputs);
                let out = out.cast(burn::tensor::FloatDType::F32);
                parallel
                    .backward((out - targets).square().mean() * 1e-3)
                    .unwrap();
                let applied = parallel.step(0.1).unwrap().applied;
                (applied, values(&parallel.valid().unwrap()))
            };
            // Only one rank sees the overflow.
            (step(false), step(group.rank() == 1), step(false))
        });
        for (first, second, third) in &ranks {
            assert!(first.0 && !second.0 && third.0, "{strategy}");
            assert_eq!(first.1, second.1, "{strategy}");
            assert_ne!(second.1, third.1, "{strategy}");
            assert_eq!(third.1, ranks[0].2.1, "{strategy}");
        }
    }
}

#[test]
fn stage_3_needs_no_values_before_it_shards() {
    let device = crate::device().autodiff();
    let group = ProcessGroup::single();
    let frozen = LinearConfig::new(3, 4).init(&device).no_grad();
    let refused = Parallel::new(frozen, sgd(), Strategy::Zero3, &group);
    assert!(matches!(refused.err(), Some(ParallelError::NothingToTrain)));
    let linear = LinearConfig::new(3, 4).init(&device);
    let parallel = Parallel::new(linear.clone(), sgd(), Strategy::Zero3, &group).unwrap();
    assert_eq!(
        parallel.valid().unwrap().weight.val().into_data(),
        linear.weight.val().inner().into_data()
    );
}

#[test]
fn the_model_comes_back_whole_and_trainable() {
    for strategy in STAGES {
        let ranks = on_ranks(2, TransportKind::Auto, move |group| {
            let mut parallel = Parallel::new(Net::new(1), sgd(), strategy, &group).unwrap();
            assert_eq!(
                Module::num_params(parallel.model()),
                Net::new(1).num_params()
            );
            let loss = parallel.model().loss(batch(0, 0..4));
            parallel.backward(loss).unwrap();
            parallel.step(0.1).unwrap();
            let plain = values(&parallel.valid().unwrap());
            let model = parallel.into_model().unwrap();
            assert_eq!(values(&model), plain);
            let single = ProcessGroup::single();
            let mut again = Parallel::new(model, sgd(), Strategy::Ddp, &single).unwrap();
            let loss = again.model().loss(batch(1, 0..4));
            again.backward(loss).unwrap();
            again.step(0.1).unwrap();
            plain != values(&again.valid().unwrap())
        });
        assert_eq!(ranks, [true, true]);
    }
}

#[derive(Module, Debug)]
struct Branches {
    first: Linear,
    second: Linear,
}

/// Layers of equal shape that ranks read in a different order would be mixed with each other.
#[test]
fn stage_3_notices_another_order_of_layers() {
    let ranks = on_ranks(2, TransportKind::Auto, |group| {
        let device = crate::device().autodiff().gradient_checkpointing();
        let linear = || {
            LinearConfig::new(FEATURES, 16)
                .with_bias(false)
                .init(&device)
        };
        let model = Branches {
            first: linear(),
            second: linear(),
        };
        let options = with(Strategy::Zero3, |options| options.prefetch = 0);
        let mut training = Parallel::new(model, sgd(), options, &group).unwrap();
        let (inputs, _) = batch(0, 0..8);
        let model = training.model();
        let forward = |layer: &Linear| layer.forward(inputs.clone());
        let (a, b) = match group.rank() {
            0 => (forward(&model.first), forward(&model.second)),
            _ => {
                let b = forward(&model.second);
                (forward(&model.first), b)
            }
        };
        let loss = (a - b * 0.5).square().mean();
        training.backward(loss).err().map(|error| error.to_string())
    });
    let disagree = |error: &Option<String>| error.as_ref().is_some_and(|e| e.contains("in bucket"));
    assert!(ranks.iter().any(disagree), "{ranks:?}");
}

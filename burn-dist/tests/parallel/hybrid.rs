//! Several sets of shards that replicate each other, compared with one set and with plain data
//! parallelism.

use std::num::NonZeroUsize;

use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, LambConfig, SgdConfig};
use burn_dist::parallel::{
    BucketSizes, EmaOptions, Parallel, ParallelError, ParallelOptions, ParameterOptimizer,
    Precision, ShardWithin, Strategy,
};
use burn_dist::{ProcessGroup, TransportKind};

use crate::STEPS;
use crate::models::{Net, Values, assert_close, batch, on_ranks, scalar, sums_vary, values};

const STAGES: [Strategy; 3] = [Strategy::Zero1, Strategy::Zero2, Strategy::Zero3];

fn within(ranks: usize) -> ShardWithin {
    ShardWithin::Ranks(NonZeroUsize::new(ranks).unwrap())
}

fn adamw() -> ParameterOptimizer {
    AdamWConfig::new().with_weight_decay(0.1).into()
}

fn sgd() -> ParameterOptimizer {
    let momentum = MomentumConfig::new();
    SgdConfig::new().with_momentum(Some(momentum)).into()
}

fn options(strategy: Strategy, shard_within: ShardWithin) -> ParallelOptions {
    ParallelOptions {
        strategy,
        shard_within,
        // Many buckets, so that both directions are in flight at the same time.
        buckets: BucketSizes {
            first: 60,
            others: 120,
        },
        ..ParallelOptions::default()
    }
}

#[derive(Debug)]
struct Outcome {
    /// Means over all ranks, step by step.
    losses: Vec<f32>,
    norms: Vec<Option<f64>>,
    model: Net,
    averages: Option<Values>,
}

/// Trains on this rank's rows, and checks that all ranks have the same parameters.
fn train(group: &ProcessGroup, optimizer: ParameterOptimizer, options: ParallelOptions) -> Outcome {
    let accumulate = options.accumulate;
    let model = Net::new(1 + group.rank() as u64);
    let mut parallel = Parallel::new(model, optimizer, options, group).unwrap();
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let mut mean = [0.0f32];
        for micro_batch in 0..accumulate {
            let start = (group.rank() * accumulate + micro_batch) * 3;
            let loss = parallel.model().loss(batch(step, start..start + 3));
            mean[0] += scalar(&loss) / accumulate as f32;
            parallel.backward(loss).unwrap();
        }
        norms.push(parallel.step(0.02).unwrap().gradient_norm);
        group
            .all_reduce(&mut mean, burn_dist::ReduceOp::Mean)
            .unwrap();
        losses.extend(mean);
    }
    parallel.verify_replicas().unwrap();
    let evaluated = parallel.evaluate_with(|model| {
        let (inputs, _) = batch(0, 0..4);
        let out = model.forward(inputs).into_data();
        out.try_to_vec::<f32>().unwrap()
    });
    let plain = parallel.for_evaluation().unwrap().forward(batch(0, 0..4).0);
    let plain = plain.into_data().try_to_vec::<f32>().unwrap();
    assert_eq!(evaluated.unwrap(), plain);
    Outcome {
        losses,
        norms,
        averages: parallel.valid_ema().unwrap().as_ref().map(values),
        model: parallel.valid().unwrap(),
    }
}

fn on_all(
    size: usize,
    transport: TransportKind,
    optimizer: fn() -> ParameterOptimizer,
    options: ParallelOptions,
) -> Vec<Outcome> {
    let ranks = on_ranks(size, transport, move |group| {
        train(&group, optimizer(), options.clone())
    });
    for rank in &ranks {
        assert_eq!(rank.losses, ranks[0].losses);
        assert_eq!(rank.norms, ranks[0].norms);
        assert_eq!(values(&rank.model), values(&ranks[0].model));
        assert_eq!(rank.averages, ranks[0].averages);
    }
    ranks
}

fn assert_follows(own: &Outcome, expected: &Outcome, what: &str) {
    for (loss, expected) in own.losses.iter().zip(&expected.losses) {
        assert!(
            (loss / expected - 1.0).abs() <= 1e-6,
            "{what}: {loss} {expected}"
        );
    }
    for (norm, expected) in own.norms.iter().zip(&expected.norms) {
        let pair = norm.zip(*expected);
        assert!(
            pair.is_none_or(|(a, b)| (a / b - 1.0).abs() < 1e-5),
            "{what}"
        );
        assert_eq!(norm.is_some(), expected.is_some());
    }
    assert_close(&own.model, &expected.model, 1e-5);
    assert_eq!(own.averages.is_some(), expected.averages.is_some());
}

#[test]
fn two_sets_of_two_ranks_follow_plain_data_parallelism() {
    for transport in [TransportKind::Auto, TransportKind::Tcp] {
        for optimizer in [adamw, sgd] {
            let plain = options(Strategy::Ddp, ShardWithin::All);
            let expected = on_all(4, transport, optimizer, plain);
            for strategy in STAGES {
                let own = on_all(4, transport, optimizer, options(strategy, within(2)));
                assert_follows(&own[0], &expected[0], strategy.name());
            }
        }
    }
}

#[test]
fn sets_of_any_size_accumulate_clip_and_average() {
    for (size, ranks) in [(4, 2), (6, 3), (6, 2), (3, 1)] {
        let change = |options: ParallelOptions| ParallelOptions {
            accumulate: 2,
            clip_norm: Some(0.2),
            ema: Some(EmaOptions {
                decay: 0.8,
                warmup: true,
            }),
            ..options
        };
        let auto = TransportKind::Auto;
        let plain = change(options(Strategy::Ddp, ShardWithin::All));
        let expected = on_all(size, auto, sgd, plain);
        for strategy in STAGES {
            let own = on_all(size, auto, sgd, change(options(strategy, within(ranks))));
            let what = format!("{strategy} within {ranks} of {size}");
            assert_follows(&own[0], &expected[0], &what);
        }
    }
}

/// Whole parameters have one owner within each set.
#[test]
fn sets_step_whole_parameters() {
    let lamb = || LambConfig::new().into();
    for (size, ranks) in [(4, 2), (6, 3), (3, 1)] {
        let auto = TransportKind::Auto;
        let expected = on_all(size, auto, lamb, options(Strategy::Ddp, ShardWithin::All));
        for strategy in STAGES {
            let own = on_all(size, auto, lamb, options(strategy, within(ranks)));
            let what = format!("{strategy} within {ranks} of {size}");
            assert_follows(&own[0], &expected[0], &what);
        }
    }
}

/// A mean of two is the same in every order.
#[test]
fn two_ranks_follow_bit_for_bit_however_they_shard() {
    let auto = TransportKind::Auto;
    let expected = on_all(2, auto, adamw, options(Strategy::Ddp, ShardWithin::All));
    for shard_within in [within(1), within(2), ShardWithin::Node] {
        for strategy in STAGES {
            let own = on_all(2, auto, adamw, options(strategy, shard_within));
            assert_eq!(own[0].losses, expected[0].losses, "{strategy}");
            let (own, expected) = (values(&own[0].model), values(&expected[0].model));
            assert_eq!(own, expected, "{strategy} within {shard_within}");
        }
    }
}

#[test]
fn an_overflow_in_one_set_skips_the_step_in_all_of_them() {
    for strategy in STAGES {
        let ranks = on_ranks(4, TransportKind::Auto, move |group| {
            let options = ParallelOptions {
                precision: Precision::F16,
                ..options(strategy, within(2))
            };
            let mut parallel = Parallel::new(Net::new(1), adamw(), options, &group).unwrap();
            let mut step = |overflows: bool| {
                let (inputs, targets) = batch(1, 0..4);
                let factor = if overflows { f32::INFINITY } else { 1.0 };
                let inputs = (inputs * factor).cast(parallel.compute_dtype());
                let out = parallel.model().forward(inputs);
                let out = out.cast(burn::tensor::FloatDType::F32);
                let loss = (out - targets).square().mean() * 1e-3;
                parallel.backward(loss).unwrap();
                parallel.step(0.1).unwrap().applied
            };
            let applied = [step(false), step(group.rank() == 3), step(false)];
            (applied, parallel.verify_replicas().unwrap())
        });
        for (applied, checksum) in &ranks {
            assert_eq!(*applied, [true, false, true], "{strategy}");
            assert_eq!(*checksum, ranks[0].1);
        }
    }
}

#[test]
fn what_cannot_be_divided_is_refused_on_all_ranks() {
    let errors = on_ranks(4, TransportKind::Auto, |group| {
        let options = options(Strategy::Zero3, within(3));
        let error = Parallel::new(Net::new(1), adamw(), options, &group).err();
        assert!(matches!(error, Some(ParallelError::ShardWithin { .. })));
        error.unwrap().to_string()
    });
    for error in errors {
        for part in ["3 ranks", "world size is 4", "divisor", "`node`", "`all`"] {
            assert!(error.contains(part), "{error}");
        }
    }
    let plain = options(Strategy::Ddp, within(2));
    let group = ProcessGroup::single();
    let error = Parallel::new(Net::new(1), adamw(), plain, &group).err();
    let error = error.unwrap().to_string();
    assert!(
        error.contains("shard_within is 2") && error.contains("ddp"),
        "{error}"
    );
}

#[test]
fn a_rank_that_gives_up_ends_the_step_in_all_sets() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let errors = on_ranks(4, transport, |group| {
            let options = options(Strategy::Zero3, within(2));
            let mut parallel = Parallel::new(Net::new(1), sgd(), options, &group).unwrap();
            let step = |parallel: &mut Parallel<Net>| -> Result<(), ParallelError> {
                let loss = parallel.model().loss(batch(0, 0..4));
                parallel.backward(loss)?;
                parallel.step(0.1)?;
                Ok(())
            };
            // A rank may still be in its first step when the abort arrives.
            let first = step(&mut parallel);
            if group.rank() == 3 {
                group.abort("the disk is full");
            }
            let error = first.and_then(|()| step(&mut parallel)).unwrap_err();
            error.to_string()
        });
        for error in &errors {
            assert!(error.contains("the disk is full"), "{errors:?}");
        }
        for error in &errors[..3] {
            assert!(error.contains("rank 3"), "{errors:?}");
        }
    }
}

/// If the order of sums varies, two owners of a parameter, one in each set, would compute different
/// values.
#[test]
fn whole_parameters_have_one_owner_where_sums_vary() {
    let expected = match sums_vary() {
        true => ShardWithin::All,
        false => within(2),
    };
    on_ranks(4, TransportKind::Auto, move |group| {
        let options = options(Strategy::Zero1, within(2));
        let lamb = LambConfig::new();
        let parallel = Parallel::new(Net::new(1), lamb, options.clone(), &group).unwrap();
        assert_eq!(parallel.options().shard_within, expected);
        let parallel = Parallel::new(Net::new(1), adamw(), options, &group).unwrap();
        assert_eq!(parallel.options().shard_within, within(2));
    });
}

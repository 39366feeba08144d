//! Several ranks compared with one process on the same global batches.

use std::ops::Range;

use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::Tensor;
use burn_dist::autograd::boundary;
use burn_dist::parallel::{
    BucketSizes, Checksum, Parallel, ParallelOptions, ParameterOptimizer, Strategy,
};
use burn_dist::{ProcessGroup, ReduceOp, TransportKind};

use crate::models::{Net, assert_close, batch, on_ranks, scalar, value_at, values};

const STEPS: u64 = 20;
const GLOBAL_BATCH: usize = 24;
const RATE: f64 = 0.05;

fn sgd() -> ParameterOptimizer {
    let momentum = MomentumConfig::new().with_dampening(0.0);
    SgdConfig::new().with_momentum(Some(momentum)).into()
}

fn adamw() -> ParameterOptimizer {
    AdamWConfig::new().with_weight_decay(0.1).into()
}

/// Returns the rows of this rank's `micro_batch`-th of `accumulate` micro-batches.
fn rows(group: &ProcessGroup, micro_batch: usize, accumulate: usize) -> Range<usize> {
    let len = GLOBAL_BATCH / group.size() / accumulate;
    let start = (group.rank() * accumulate + micro_batch) * len;
    start..start + len
}

/// Trains and returns the global loss of every step, the model and its checksum.
fn train(
    group: &ProcessGroup,
    optimizer: ParameterOptimizer,
    options: ParallelOptions,
) -> (Vec<f32>, Net, Checksum) {
    // Only rank 0's values may matter.
    let model = Net::new(1 + group.rank() as u64);
    let accumulate = options.accumulate;
    let mut parallel = Parallel::new(model, optimizer, options, group).unwrap();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let mut mean = [0.0f32];
        for micro_batch in 0..accumulate {
            let loss = parallel
                .model()
                .loss(batch(step, rows(group, micro_batch, accumulate)));
            mean[0] += scalar(&loss) / accumulate as f32;
            parallel.backward(loss).unwrap();
        }
        parallel.step(RATE).unwrap();
        group.all_reduce(&mut mean, ReduceOp::Mean).unwrap();
        losses.extend(mean);
    }
    let checksum = parallel.verify_replicas().unwrap();
    (losses, parallel.valid().unwrap(), checksum)
}

fn assert_same_training(
    size: usize,
    transport: TransportKind,
    optimizer: fn() -> ParameterOptimizer,
    options: ParallelOptions,
) {
    let single = ParallelOptions {
        accumulate: 1,
        ..options.clone()
    };
    let (expected_losses, expected, _) = train(&ProcessGroup::single(), optimizer(), single);
    let ranks = on_ranks(size, transport, move |group| {
        train(&group, optimizer(), options.clone())
    });
    for (losses, model, checksum) in &ranks {
        assert_eq!(*checksum, ranks[0].2);
        assert_eq!(values(model), values(&ranks[0].1));
        assert_close(model, &expected, crate::rounding());
        for (loss, expected) in losses.iter().zip(&expected_losses) {
            assert!(
                (loss / expected - 1.0).abs() <= crate::rounding(),
                "{loss} {expected}"
            );
        }
        assert!(losses.len() == STEPS as usize);
    }
}

/// Returns options with buckets so small that every parameter has its own.
fn many_buckets() -> ParallelOptions {
    ParallelOptions {
        buckets: BucketSizes {
            first: 1,
            others: 1,
        },
        ..ParallelOptions::default()
    }
}

#[test]
fn two_ranks_follow_one() {
    let options = ParallelOptions::default();
    assert_same_training(2, TransportKind::Auto, adamw, options);
}

#[test]
fn two_ranks_over_tcp_follow_one() {
    assert_same_training(2, TransportKind::Tcp, sgd, many_buckets());
}

#[test]
fn three_ranks_follow_one() {
    assert_same_training(3, TransportKind::Auto, sgd, many_buckets());
}

#[test]
fn four_ranks_that_accumulate_and_clip_follow_one() {
    let options = ParallelOptions {
        accumulate: 2,
        clip_norm: Some(0.2),
        ..many_buckets()
    };
    assert_same_training(4, TransportKind::Auto, sgd, options);
}

#[test]
fn tied_weights_are_sent_when_their_last_part_is_there() {
    let loss = |model: &Net, rows: Range<usize>| {
        let (inputs, targets) = batch(1, rows);
        let features = boundary(model.features(inputs));
        let again = model.blocks[1].forward(features);
        (model.out.forward(boundary(again)) - targets)
            .square()
            .mean()
    };
    let step = move |group: &ProcessGroup| {
        let mut parallel = Parallel::new(Net::new(1), sgd(), many_buckets(), group).unwrap();
        for _ in 0..3 {
            let loss = loss(parallel.model(), rows(group, 0, 1));
            parallel.backward(loss).unwrap();
            parallel.step(RATE).unwrap();
        }
        parallel.valid().unwrap()
    };
    let expected = step(&ProcessGroup::single());
    let ranks = on_ranks(2, TransportKind::Auto, move |group| step(&group));
    assert_eq!(values(&ranks[0]), values(&ranks[1]));
    assert_close(&ranks[0], &expected, crate::rounding());
}

/// Returns a loss that reads the parameters in another order, or more of them, on odd ranks.
fn uneven_loss(model: &Net, rank: usize) -> Tensor<1> {
    let (inputs, targets) = batch(3, 4 * rank..4 * (rank + 1));
    let features = model.features(inputs);
    let out = |features| model.out.forward(features);
    let prediction = if rank.is_multiple_of(2) {
        out(features)
    } else {
        model.extra.forward(features.clone()) + out(features)
    };
    (prediction - targets).square().mean()
}

#[test]
fn ranks_may_use_different_parts_of_the_model() {
    let ranks = on_ranks(2, TransportKind::Auto, |group| {
        let mut parallel = Parallel::new(Net::new(1), adamw(), many_buckets(), &group).unwrap();
        for _ in 0..3 {
            let loss = uneven_loss(parallel.model(), group.rank());
            parallel.backward(loss).unwrap();
            parallel.step(RATE).unwrap();
        }
        parallel.verify_replicas().unwrap();
        parallel.valid().unwrap()
    });
    assert_eq!(values(&ranks[0]), values(&ranks[1]));

    // The rank without a gradient counts as zero: half of the other one's.
    let mut single =
        Parallel::new(Net::new(1), adamw(), Strategy::Ddp, &ProcessGroup::single()).unwrap();
    for _ in 0..3 {
        let model = single.model();
        let loss = (uneven_loss(model, 0) + uneven_loss(model, 1)) / 2.0;
        single.backward(loss).unwrap();
        single.step(RATE).unwrap();
    }
    assert_close(&ranks[0], &single.valid().unwrap(), crate::rounding());
    let extra = |model: &Net| value_at(model, "extra.weight");
    assert_ne!(extra(&ranks[0]), extra(&Net::new(1)));
}

#[test]
fn inner_micro_batches_do_not_communicate() {
    // Rank 1 is two backward passes ahead before rank 0 begins, because they need not synchronize.
    let (tell, told) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    on_ranks(2, TransportKind::Auto, move |group| {
        let options = ParallelOptions {
            accumulate: 3,
            ..many_buckets()
        };
        let mut parallel = Parallel::new(Net::new(1), sgd(), options, &group).unwrap();
        let mut backward = |micro_batch| {
            let rows = rows(&group, micro_batch, 3);
            let loss = parallel.model().loss(batch(0, rows));
            parallel.backward(loss).unwrap();
        };
        if group.rank() == 0 {
            told.lock().unwrap().recv().unwrap();
        }
        backward(0);
        backward(1);
        if group.rank() == 1 {
            tell.send(()).unwrap();
        }
        backward(2);
        parallel.step(RATE).unwrap();
    });
}

#[test]
fn another_number_of_micro_batches_than_the_other_ranks_is_refused() {
    on_ranks(2, TransportKind::Auto, |group| {
        let strategy = Strategy::Ddp;
        let mut parallel = Parallel::new(Net::new(1), sgd(), strategy, &group).unwrap();
        parallel.set_accumulate(2).unwrap();
        let error = parallel.set_accumulate(1 + group.rank()).unwrap_err();
        let told =
            "rank 0 called accumulate = 1 after 0 micro-batches, but rank 1 called accumulate = 2";
        assert!(error.to_string().contains(told), "{error}");
        assert_eq!(parallel.options().accumulate, 2);
    });
}

/// The end of data of unknown length: two of four micro-batches make a step of two.
#[test]
fn a_step_may_be_made_early_or_left_out() {
    for (strategy, clip_norm) in Strategy::ALL
        .into_iter()
        .flat_map(|strategy| [None, Some(0.05)].map(|clip_norm| (strategy, clip_norm)))
    {
        let trained = on_ranks(2, TransportKind::Auto, move |group| {
            let options = |accumulate| ParallelOptions {
                strategy,
                clip_norm,
                accumulate,
                ..many_buckets()
            };
            let start =
                |accumulate| Parallel::new(Net::new(1), adamw(), options(accumulate), &group);
            let [mut early, mut whole] = [4, 2].map(|accumulate| start(accumulate).unwrap());
            let backward = |parallel: &mut Parallel<Net>, step| {
                for micro_batch in 0..2 {
                    let loss = parallel
                        .model()
                        .loss(batch(step, rows(&group, micro_batch, 2)));
                    parallel.backward(loss).unwrap();
                }
            };
            for step in 0..3 {
                backward(&mut early, 7);
                early.discard().unwrap();
                backward(&mut early, step);
                backward(&mut whole, step);
                let [early, whole] = [early.step_early(RATE).unwrap(), whole.step(RATE).unwrap()];
                let norms = early.gradient_norm.zip(whole.gradient_norm);
                assert_eq!(norms.is_some(), clip_norm.is_some());
                if let Some((early, whole)) = norms {
                    assert!((early / whole - 1.0).abs() < 1e-5, "{early} {whole}");
                }
                assert_eq!(early.clipped, whole.clipped);
            }
            // Between steps nothing can be stepped or discarded.
            assert!(early.step_early(RATE).is_err());
            early.discard().unwrap();
            early.set_accumulate(2).unwrap();
            backward(&mut early, 4);
            early.discard().unwrap();
            (early.valid().unwrap(), whole.valid().unwrap())
        });
        for (early, whole) in &trained {
            assert_close(early, whole, crate::rounding());
        }
    }
}

#[test]
fn ranks_that_leave_out_other_micro_batches_are_told() {
    on_ranks(2, TransportKind::Auto, |group| {
        let options = ParallelOptions {
            accumulate: 4,
            ..many_buckets()
        };
        let mut parallel = Parallel::new(Net::new(1), sgd(), options, &group).unwrap();
        for _ in 0..=group.rank() {
            let loss = parallel.model().loss(batch(0, rows(&group, 0, 4)));
            parallel.backward(loss).unwrap();
        }
        let error = parallel.discard().unwrap_err().to_string();
        assert!(
            error.contains("rank 0 called discard after 1 micro-batches, but rank 1"),
            "{error}"
        );
    });
}

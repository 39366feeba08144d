//! Micro-batches of unequal weight, and ranks with unequal numbers of batches.

use std::ops::Range;
use std::time::Duration;

use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use burn_dist::checkpoint::{Job, Source, Writer, newest_good};
use burn_dist::parallel::{
    LossScaleOptions, Parallel, ParallelError, ParallelOptions, Precision, Strategy,
};
use burn_dist::{ProcessGroup, ReduceOp, TransportKind};

use crate::models::{Net, batch, on_ranks, scalar, values};

const ALL: [Strategy; 4] = [
    Strategy::Ddp,
    Strategy::Zero1,
    Strategy::Zero2,
    Strategy::Zero3,
];
const STEPS: u64 = 50;
/// Rows of a global batch.
const ROWS: usize = 24;
const RATE: f64 = 0.01;

fn parallel(group: &ProcessGroup, options: ParallelOptions) -> Parallel<Net> {
    let optimizer = AdamWConfig::new().with_weight_decay(0.1);
    Parallel::new(Net::new(1), optimizer, options, group).unwrap()
}

/// The sum of the losses of some rows.
fn loss_of(net: &Net, step: u64, rows: Range<usize>, options: &ParallelOptions) -> Tensor<1> {
    let dtype = options.precision.compute_dtype();
    let (inputs, targets) = batch(step, rows);
    let output = net
        .forward(inputs.cast(dtype))
        .cast(burn::tensor::FloatDType::F32);
    (output - targets).square().sum()
}

/// The rows of a micro-batch: the first ones are small, the last has the rest.
fn share(index: usize, of: usize) -> Range<usize> {
    let start = |index: usize| index * (index + 3) / 2;
    match index + 1 == of {
        true => start(index)..ROWS,
        false => start(index)..start(index + 1),
    }
}

/// Trains, and returns the mean loss of each global batch with the values at the end.
fn train(group: &ProcessGroup, options: ParallelOptions) -> (Vec<f64>, Vec<(String, Vec<f32>)>) {
    let mut parallel = parallel(group, options.clone());
    let (accumulate, rank) = (options.accumulate, group.rank());
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let mut sum = [0.0f64];
        for micro_batch in 0..accumulate {
            let rows = share(rank * accumulate + micro_batch, group.size() * accumulate);
            let weight = rows.len() as f64;
            let loss = loss_of(parallel.model(), step, rows, &options);
            sum[0] += f64::from(scalar(&loss));
            parallel.backward_weighted(loss, weight).unwrap();
        }
        let report = parallel.step(RATE).unwrap();
        assert!(report.applied);
        assert_eq!(report.weight, Some(ROWS as f64));
        group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        losses.push(sum[0] / ROWS as f64);
    }
    parallel.verify_replicas().unwrap();
    (losses, values(&parallel.valid().unwrap()))
}

fn with(strategy: Strategy, accumulate: usize, precision: Precision) -> ParallelOptions {
    ParallelOptions {
        accumulate,
        precision,
        loss_scale: LossScaleOptions {
            initial: 256.0,
            ..LossScaleOptions::default()
        },
        ..strategy.into()
    }
}

#[test]
fn unequal_shares_train_as_one_rank_with_the_global_batch() {
    let one = with(Strategy::Ddp, 1, Precision::F32);
    let (expected, _) = train(&ProcessGroup::single(), one);
    for (strategy, ranks, accumulate) in ALL
        .into_iter()
        .flat_map(|strategy| [(strategy, 2, 1), (strategy, 3, 1), (strategy, 2, 2)])
    {
        let options = with(strategy, accumulate, Precision::F32);
        let found = on_ranks(ranks, TransportKind::Auto, move |group| {
            train(&group, options.clone())
        });
        for (losses, _) in &found {
            for (step, (found, expected)) in losses.iter().zip(&expected).enumerate() {
                let error = (found - expected).abs() / expected;
                let what = format!("{strategy}, {ranks} × {accumulate}, step {step}");
                assert!(error < 1e-6, "{what}: {found} and not {expected}");
            }
        }
    }
}

#[test]
fn unequal_shares_train_in_half_precision() {
    let one = with(Strategy::Ddp, 1, Precision::F32);
    let (expected, _) = train(&ProcessGroup::single(), one);
    for precision in [Precision::Bf16, Precision::F16] {
        let options = with(Strategy::Zero2, 1, precision);
        let found = on_ranks(2, TransportKind::Auto, move |group| {
            train(&group, options.clone())
        });
        let (last, expected) = (found[0].0[STEPS as usize - 1], expected[STEPS as usize - 1]);
        assert!(
            (last - expected).abs() < 0.05 * expected,
            "{precision}: {last} {expected}"
        );
    }
}

#[test]
fn weights_that_are_equal_change_nothing_but_rounding() {
    let means = |group: &ProcessGroup| {
        let mut parallel = parallel(group, Strategy::Ddp.into());
        for step in 0..5 {
            let rows = 12 * group.rank()..12 * group.rank() + 12;
            let loss = parallel.model().loss(batch(step, rows));
            parallel.backward(loss).unwrap();
            assert_eq!(parallel.step(RATE).unwrap().weight, None);
        }
        values(&parallel.valid().unwrap())
    };
    let sums = |group: &ProcessGroup| {
        let mut parallel = parallel(group, Strategy::Ddp.into());
        for step in 0..5 {
            let rows = 12 * group.rank()..12 * group.rank() + 12;
            let loss = loss_of(parallel.model(), step, rows, &Strategy::Ddp.into());
            parallel.backward_weighted(loss, 12.0).unwrap();
            parallel.step(RATE).unwrap();
        }
        values(&parallel.valid().unwrap())
    };
    let both = on_ranks(2, TransportKind::Auto, move |group| {
        (means(&group), sums(&group))
    });
    for (means, sums) in both {
        for ((path, means), (_, sums)) in means.iter().zip(&sums) {
            for (mean, sum) in means.iter().zip(sums) {
                assert!((mean - sum).abs() < 1e-5, "{path}: {mean} {sum}");
            }
        }
    }
}

#[test]
fn ranks_that_run_out_of_batches_wait_for_the_others() {
    // One rank over the union of the batches, in the order in which the ranks take them.
    let union = {
        let group = ProcessGroup::single();
        let mut parallel = parallel(&group, Strategy::Ddp.into());
        for turn in 0..10u64 {
            let losses = [(0, 10), (1, 7)]
                .into_iter()
                .filter(|(_, batches)| turn < *batches)
                .map(|(rank, _)| batch_loss(parallel.model(), rank, turn));
            let (loss, weight) = losses.reduce(|(a, m), (b, n)| (a + b, m + n)).unwrap();
            parallel.backward_weighted(loss, weight).unwrap();
            parallel.step(RATE).unwrap();
        }
        values(&parallel.valid().unwrap())
    };
    for strategy in ALL {
        let found = on_ranks(2, TransportKind::Auto, move |group| {
            let mut parallel = parallel(&group, strategy.into());
            let batches = [10u64, 7][group.rank()];
            let mut turns = 0;
            for turn in parallel.join(0..batches) {
                let turn = turn.unwrap();
                let (loss, weight) = batch_loss(parallel.model(), group.rank(), turn.batch);
                let loss = loss.mul_scalar(turn.factor());
                parallel
                    .backward_weighted(loss, turn.weight(weight))
                    .unwrap();
                parallel.step(RATE).unwrap();
                turns += 1;
            }
            assert_eq!(turns, 10);
            values(&parallel.valid().unwrap())
        });
        for ((path, found), (_, expected)) in found[1].iter().zip(&union) {
            for (found, expected) in found.iter().zip(expected) {
                let error = (found - expected).abs();
                assert!(
                    error < 1e-6,
                    "{strategy} {path}: {found} and not {expected}"
                );
            }
        }
    }
}

/// Loss and weight of a rank's batch of its own.
fn batch_loss(net: &Net, rank: usize, batch: u64) -> (Tensor<1>, f64) {
    let rows = 3 + 2 * rank;
    let step = 100 * rank as u64 + batch;
    (
        loss_of(net, step, 0..rows, &Strategy::Ddp.into()),
        rows as f64,
    )
}

#[test]
fn misuse_is_an_error_on_every_rank() {
    type Misuse = fn(&mut Parallel<Net>) -> Result<(), ParallelError>;
    let cases: [(&str, Misuse); 4] = [
        ("add up to 0", |parallel| {
            let loss = loss_of(parallel.model(), 0, 0..2, &Strategy::Ddp.into());
            parallel.backward_weighted(loss, 0.0)?;
            parallel.step(RATE).map(drop)
        }),
        ("the weight of a micro-batch is", |parallel| {
            let loss = loss_of(parallel.model(), 0, 0..2, &Strategy::Ddp.into());
            parallel.backward_weighted(loss, f64::NAN)
        }),
        ("has no batch at all", |parallel| {
            let batches = if parallel.group().rank() == 0 {
                vec![1]
            } else {
                Vec::new()
            };
            parallel.join(batches).try_for_each(|turn| {
                let rows = turn?.batch;
                let loss = loss_of(parallel.model(), 0, 0..rows, &Strategy::Ddp.into());
                parallel.backward_weighted(loss, 1.0)?;
                parallel.step(RATE).map(drop)
            })
        }),
        ("one step", |parallel| {
            parallel.set_accumulate(2)?;
            let loss = loss_of(parallel.model(), 0, 0..2, &Strategy::Ddp.into());
            parallel.backward_weighted(loss, 2.0)?;
            let loss = loss_of(parallel.model(), 0, 0..2, &Strategy::Ddp.into());
            parallel.backward(loss)
        }),
    ];
    for (told, misuse) in cases {
        let found = on_ranks(2, TransportKind::Auto, move |group| {
            let mut parallel = parallel(&group, Strategy::Ddp.into());
            misuse(&mut parallel).unwrap_err().to_string()
        });
        assert!(found.iter().all(|error| error.contains(told)), "{found:?}");
    }
}

#[test]
fn one_rank_with_weights_and_one_without_is_an_error_that_names_both() {
    let found = on_ranks(2, TransportKind::Auto, |group| {
        let mut parallel = parallel(&group, Strategy::Ddp.into());
        let loss = loss_of(parallel.model(), 0, 0..2, &Strategy::Ddp.into());
        let begun = match group.rank() {
            0 => parallel.backward(loss),
            _ => parallel.backward_weighted(loss, 2.0),
        };
        begun
            .and_then(|()| parallel.step(RATE).map(drop))
            .unwrap_err()
            .to_string()
    });
    assert!(
        found
            .iter()
            .all(|error| error.contains("rank 0") || error.contains("rank 1")),
        "{found:?}"
    );
}

#[test]
fn a_resumed_step_has_the_bits_of_one_that_went_on() {
    let options = with(Strategy::Ddp, 1, Precision::F16);
    let go = |parallel: &mut Parallel<Net>, steps: Range<u64>, options: &ParallelOptions| {
        for step in steps {
            let rows = 0..2 + step as usize % 5;
            let weight = rows.len() as f64;
            let loss = loss_of(parallel.model(), step, rows, options);
            parallel.backward_weighted(loss, weight).unwrap();
            parallel.step(RATE).unwrap();
        }
    };
    let group = ProcessGroup::single();
    let mut whole = parallel(&group, options.clone());
    go(&mut whole, 0..6, &options);
    let mut first = parallel(&group, options.clone());
    go(&mut first, 0..3, &options);
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::start(folder.path(), &group, Duration::from_secs(20)).unwrap();
    let job = Job {
        step: 3,
        state: first.state().unwrap(),
        meta: serde_json::Value::Null,
        keep: 1,
        best: Vec::new(),
    };
    assert!(writer.submit(job).is_none());
    writer.wait().unwrap().unwrap();
    let (saved, _) = newest_good(folder.path()).unwrap();
    let mut second = parallel(&group, options.clone());
    second
        .restore(&Source::open(&saved.unwrap().path).unwrap())
        .unwrap();
    go(&mut second, 3..6, &options);
    assert_eq!(whole.checksum().unwrap(), second.checksum().unwrap());
}

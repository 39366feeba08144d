//! Backward passes and optimizers that run outside of `Parallel`.

use std::ops::Range;

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use burn_dist::parallel::{
    BucketSizes, Parallel, ParallelError, ParallelOptions, Precision, Strategy,
};
use burn_dist::{ProcessGroup, TransportKind};

use crate::models::{Net, Values, assert_close, batch, on_ranks, values};

const ALL: [Strategy; 4] = [
    Strategy::Ddp,
    Strategy::Zero1,
    Strategy::Zero2,
    Strategy::Zero3,
];
const STEPS: u64 = 10;
const ROWS: usize = 24;
const RATE: f64 = 0.01;

fn adamw() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.1)
}

fn parallel(group: &ProcessGroup, options: impl Into<ParallelOptions>) -> Parallel<Net> {
    Parallel::new(Net::new(1), adamw(), options, group).unwrap()
}

/// The code of somebody else: forward and backward in one.
fn gradients(net: &Net, step: u64, rows: Range<usize>) -> GradientsParams {
    let loss = net.loss(batch(step, rows));
    GradientsParams::from_grads(loss.backward(), net)
}

/// Rows of a micro-batch; the shares are equal or differ by `more` rows.
fn share(index: usize, of: usize, more: usize) -> Range<usize> {
    let end = |index: usize| match index {
        0 => 0,
        index if index == of => ROWS,
        index => index * (ROWS / of) - more,
    };
    end(index)..end(index + 1)
}

fn trained(
    group: &ProcessGroup,
    options: ParallelOptions,
    micro_batch: impl Fn(&mut Parallel<Net>, u64, Range<usize>),
    more: usize,
) -> Values {
    let accumulate = options.accumulate;
    let mut parallel = parallel(group, options);
    for step in 0..STEPS {
        for index in 0..accumulate {
            let index = group.rank() * accumulate + index;
            let rows = share(index, group.size() * accumulate, more);
            micro_batch(&mut parallel, step, rows);
        }
        parallel.step(RATE).unwrap();
    }
    parallel.verify_replicas().unwrap();
    values(&parallel.valid().unwrap())
}

fn by_parallel(parallel: &mut Parallel<Net>, step: u64, rows: Range<usize>) {
    let loss = parallel.model().loss(batch(step, rows));
    parallel.backward(loss).unwrap();
}

fn by_others(parallel: &mut Parallel<Net>, step: u64, rows: Range<usize>) {
    let weight = rows.len() as f64;
    let run = |net: &Net| (gradients(net, step, rows), weight);
    assert_eq!(parallel.backward_by(weight, run).unwrap(), weight);
}

#[test]
fn equal_shares_have_the_bits_of_backward() {
    for strategy in ALL {
        for others in [1, 1 << 20] {
            let options = ParallelOptions {
                buckets: BucketSizes { first: 1, others },
                ..strategy.into()
            };
            let both = on_ranks(2, TransportKind::Auto, move |group| {
                let train = |micro_batch: fn(&mut Parallel<Net>, u64, Range<usize>)| {
                    trained(&group, options.clone(), micro_batch, 0)
                };
                (train(by_parallel), train(by_others))
            });
            for (expected, found) in both {
                assert_eq!(found, expected, "{strategy}");
            }
        }
    }
}

#[test]
fn unequal_shares_train_as_one_rank_with_the_global_batch() {
    let group = ProcessGroup::single();
    let expected = trained(&group, Strategy::Ddp.into(), by_others, 0);
    for (strategy, accumulate) in ALL.into_iter().flat_map(|of| [(of, 1), (of, 2)]) {
        let options = ParallelOptions {
            accumulate,
            ..strategy.into()
        };
        let found = on_ranks(2, TransportKind::Auto, move |group| {
            trained(&group, options.clone(), by_others, 3)
        });
        for ((path, found), (_, expected)) in found[1].iter().zip(&expected) {
            for (found, expected) in found.iter().zip(expected) {
                let error = (found - expected).abs();
                assert!(
                    error < 1e-5,
                    "{strategy} × {accumulate}, {path}: {found} {expected}"
                );
            }
        }
    }
}

#[test]
fn a_rank_without_a_batch_takes_part_with_nothing() {
    let group = ProcessGroup::single();
    let expected = trained(&group, Strategy::Ddp.into(), by_others, 0);
    for strategy in [Strategy::Ddp, Strategy::Zero1, Strategy::Zero2] {
        let found = on_ranks(2, TransportKind::Auto, move |group| {
            let mut parallel = parallel(&group, strategy);
            for step in 0..STEPS {
                match group.rank() {
                    0 => by_others(&mut parallel, step, 0..ROWS),
                    _ => parallel
                        .backward_by(0.0, |_| (GradientsParams::new(), ()))
                        .unwrap(),
                }
                assert_eq!(parallel.step(RATE).unwrap().weight, Some(ROWS as f64));
            }
            values(&parallel.valid().unwrap())
        });
        for ((path, found), (_, expected)) in found[1].iter().zip(&expected) {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{strategy}, {path}");
            }
        }
    }
}

/// Adds a loss on the unused head that bypasses its hook.
fn bypassing(net: &Net, step: u64, rows: Range<usize>, bypasses: bool) -> GradientsParams {
    let weight = match bypasses {
        true => (*net.extra.weight).clone(),
        false => net.extra.weight.val(),
    };
    let loss = net.loss(batch(step, rows)) + weight.square().mean();
    GradientsParams::from_grads(loss.backward(), net)
}

#[test]
fn gradients_that_bypass_the_hooks_are_averaged_too() {
    for strategy in [Strategy::Ddp, Strategy::Zero2] {
        let both = on_ranks(2, TransportKind::Auto, move |group| {
            [true, false].map(|bypasses| {
                let micro_batch = |parallel: &mut Parallel<Net>, step, rows: Range<usize>| {
                    let weight = rows.len() as f64;
                    let run = |net: &Net| (bypassing(net, step, rows, bypasses), ());
                    parallel.backward_by(weight, run).unwrap();
                };
                trained(&group, strategy.into(), micro_batch, 0)
            })
        });
        for [bypassed, hooked] in both {
            assert_eq!(bypassed, hooked, "{strategy}");
        }
    }
}

#[test]
fn an_optimizer_of_burn_steps_as_that_of_parallel() {
    for accumulate in [1, 2] {
        let options = ParallelOptions {
            accumulate,
            clip_norm: Some(0.05),
            ..ParallelOptions::default()
        };
        let both = on_ranks(2, TransportKind::Auto, move |group| {
            let expected = trained(&group, options.clone(), by_others, 3);
            let mut net = Net::new(1);
            let mut optimizer: ModuleOptimizer = adamw().init();
            let mut parallel =
                Parallel::new(net.clone(), adamw(), options.clone(), &group).unwrap();
            for step in 0..STEPS {
                for index in 0..accumulate {
                    let index = group.rank() * accumulate + index;
                    by_others(&mut parallel, step, share(index, 2 * accumulate, 3));
                }
                let report = parallel.step_by(RATE, |gradients| {
                    net = optimizer.step(RATE, net.clone(), gradients);
                    net.clone()
                });
                assert!(report.unwrap().clipped);
            }
            parallel.verify_replicas().unwrap();
            assert_eq!(values(&parallel.valid().unwrap()), values(&net.valid()));
            (expected, parallel.valid().unwrap())
        });
        for (expected, found) in both {
            for ((path, found), (_, expected)) in values(&found).iter().zip(&expected) {
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-6, "{path}");
                }
            }
        }
    }
}

#[test]
fn a_step_with_fewer_micro_batches_is_one_over_those() {
    let found = on_ranks(2, TransportKind::Auto, |group| {
        [1, 3].map(|accumulate| {
            let options = ParallelOptions {
                accumulate,
                ..ParallelOptions::default()
            };
            let net = Net::new(1);
            let mut optimizer: ModuleOptimizer = adamw().init();
            let mut parallel = Parallel::new(net.clone(), adamw(), options, &group).unwrap();
            by_others(&mut parallel, 0, share(group.rank(), 2, 0));
            let step = |gradients| optimizer.step(RATE, net.clone(), gradients);
            let stepped = parallel.step_by(RATE, step);
            assert!(stepped.unwrap().applied);
            assert_ne!(values(&parallel.valid().unwrap()), values(&net.valid()));
            parallel.valid().unwrap()
        })
    });
    for [one, early] in found {
        assert_close(&early, &one, 0.0);
    }
}

#[test]
fn misuse_is_an_error_on_every_rank() {
    type Misuse = fn(&mut Parallel<Net>) -> Result<(), ParallelError>;
    let cases: [(&str, ParallelOptions, Misuse); 4] = [
        ("cannot shard it", Strategy::Zero1.into(), |parallel| {
            by_others(parallel, 0, 0..2);
            parallel.step_by(RATE, |_| Net::new(1)).map(drop)
        }),
        (
            "f16 needs a scaled loss",
            ParallelOptions {
                precision: Precision::F16,
                ..ParallelOptions::default()
            },
            |parallel| parallel.backward_by(1.0, |net| (gradients(net, 0, 0..2), ())),
        ),
        ("another model", Strategy::Ddp.into(), |parallel| {
            by_others(parallel, 0, 0..2);
            let other = |_| Net::with_hidden(1, 9);
            parallel.step_by(RATE, other).map(drop)
        }),
        (
            "the weight of a micro-batch is",
            Strategy::Ddp.into(),
            |parallel| parallel.backward_by(-1.0, |net| (gradients(net, 0, 0..2), ())),
        ),
    ];
    for (told, options, misuse) in cases {
        let found = on_ranks(2, TransportKind::Auto, move |group| {
            let mut parallel = parallel(&group, options.clone());
            misuse(&mut parallel).unwrap_err().to_string()
        });
        assert!(found.iter().all(|error| error.contains(told)), "{found:?}");
    }
}

/// A model with both a hooked and a bypassing use of a parameter cannot be reduced once.
#[test]
fn a_parameter_that_is_read_both_ways_is_an_error() {
    let found = on_ranks(2, TransportKind::Auto, |group| {
        let options = ParallelOptions {
            buckets: BucketSizes {
                first: 1,
                others: 1,
            },
            ..ParallelOptions::default()
        };
        let mut parallel = parallel(&group, options);
        let run = |net: &Net| {
            let bypassing: Tensor<2> = (*net.out.weight).clone();
            let (inputs, _) = batch(0, 0..2);
            // With all parameters in use, buckets are sent while backward runs.
            let extra = net.extra.forward(net.features(inputs)).mean();
            let loss = net.loss(batch(0, 0..2)) + extra + bypassing.square().mean();
            (GradientsParams::from_grads(loss.backward(), net), ())
        };
        parallel.backward_by(2.0, run).unwrap_err().to_string()
    });
    for error in found {
        assert!(error.contains("out.weight"), "{error}");
    }
}

//! Gradients that are inspected and changed between the ranks' mean and the optimizer.

use std::ops::Range;

use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use burn_dist::parallel::{
    Gradients, Parallel, ParallelError, ParallelOptions, ParameterSpec, Precision, StepReport,
    Strategy,
};
use burn_dist::{ProcessGroup, TransportKind};

use crate::models::{Net, batch, on_ranks, sums_vary, value_at, values};
use crate::zero::with;

const STRATEGIES: [Strategy; 4] = [
    Strategy::Ddp,
    Strategy::Zero1,
    Strategy::Zero2,
    Strategy::Zero3,
];

/// Rows of the global batch.
const ROWS: usize = 8;

fn parallel(group: &ProcessGroup, options: ParallelOptions) -> Parallel<Net> {
    Parallel::new(Net::new(1), SgdConfig::new(), options, group).unwrap()
}

/// Does the backward passes of a step over this rank's rows.
fn backward(parallel: &mut Parallel<Net>, group: &ProcessGroup) {
    let accumulate = parallel.options().accumulate;
    let rows = ROWS / group.size() / accumulate;
    for micro_batch in 0..accumulate {
        let start = (group.rank() * accumulate + micro_batch) * rows;
        let dtype = parallel.compute_dtype();
        let (inputs, targets) = batch(0, start..start + rows);
        let loss = parallel
            .model()
            .loss((inputs.cast(dtype), targets.cast(dtype)));
        parallel.backward(loss).unwrap();
    }
}

type Change = fn(&mut Gradients<'_>) -> Result<(), ParallelError>;

/// Does a step with the learning rate.
fn step(
    group: &ProcessGroup,
    options: ParallelOptions,
    learning_rate: f64,
    change: Change,
) -> (Net, StepReport) {
    let mut parallel = parallel(group, options);
    backward(&mut parallel, group);
    let report = parallel.step_with(learning_rate, change).unwrap();
    parallel.verify_replicas().unwrap();
    (parallel.valid().unwrap(), report)
}

fn norms_of(
    group: &ProcessGroup,
    options: ParallelOptions,
) -> (Vec<String>, Vec<Option<f64>>, StepReport) {
    let mut parallel = parallel(group, options);
    backward(&mut parallel, group);
    let mut norms = Vec::new();
    let report = parallel.step_with(0.1, |gradients| {
        norms = gradients.norms()?;
        Ok(())
    });
    let paths = parallel.parameters().iter().map(|p| p.path.clone());
    (paths.collect(), norms, report.unwrap())
}

fn close(left: f64, right: f64, tolerance: f64) -> bool {
    (left - right).abs() <= tolerance * left.abs().max(right.abs())
}

/// The global norm is computed, too.
fn watched(options: &mut ParallelOptions) {
    options.clip_norm = Some(f64::INFINITY);
}

#[test]
fn norms_are_those_of_one_rank_whatever_a_rank_keeps() {
    let tolerance = f64::from(crate::rounding()).max(1e-5);
    let (_, expected, _) = norms_of(&ProcessGroup::single(), with(Strategy::Ddp, watched));
    for strategy in STRATEGIES {
        for ranks in [1, 2, 4] {
            let found = on_ranks(ranks, TransportKind::Auto, move |group| {
                norms_of(&group, with(strategy, watched))
            });
            let (paths, norms, report) = &found[0];
            for (path, (norm, expected)) in paths.iter().zip(norms.iter().zip(&expected)) {
                let what = format!("{strategy}, {ranks} ranks, {path}: {norm:?} {expected:?}");
                assert_eq!(norm.is_none(), path.starts_with("extra"), "{what}");
                if let (Some(norm), Some(expected)) = (norm, expected) {
                    assert!(close(*norm, *expected, tolerance), "{what}");
                }
            }
            let all: f64 = norms.iter().flatten().map(|norm| norm * norm).sum();
            let whole = report.gradient_norm.unwrap();
            assert!(close(all.sqrt(), whole, 1e-5), "{strategy}: {all} {whole}");
            for (_, others, _) in &found {
                assert_eq!(others, norms, "{strategy}");
            }
        }
    }
}

#[test]
fn sets_of_shards_have_the_norms_of_all_ranks() {
    let norms = |strategy, within: fn(&mut ParallelOptions)| {
        let found = on_ranks(4, TransportKind::Auto, move |group| {
            norms_of(&group, with(strategy, within)).1
        });
        assert!(found.iter().all(|norms| *norms == found[0]));
        found.into_iter().next().unwrap()
    };
    let expected = norms(Strategy::Ddp, watched);
    for strategy in [Strategy::Zero1, Strategy::Zero2, Strategy::Zero3] {
        let found = norms(strategy, |options| {
            options.shard_within = burn_dist::parallel::ShardWithin::Ranks(2.try_into().unwrap());
        });
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!(close(
                *found,
                *expected,
                1e-5_f64.max(crate::rounding().into())
            ));
        }
    }
}

#[test]
fn gradients_of_a_scaled_loss_are_seen_unscaled() {
    for strategy in [Strategy::Ddp, Strategy::Zero2] {
        let f16 = |options: &mut ParallelOptions| {
            options.precision = Precision::F16;
            options.loss_scale.initial = 1024.0;
        };
        let found = on_ranks(2, TransportKind::Auto, move |group| {
            let mut parallel = parallel(&group, with(strategy, f16));
            backward(&mut parallel, &group);
            let (mut norms, mut squares) = (Vec::new(), 0.0);
            let report = parallel.step_with(0.1, |gradients| {
                norms = gradients.norms()?;
                gradients.for_each(|_, _, gradient| {
                    let square = gradient.clone().mul(gradient).sum();
                    squares += f64::from(square.into_scalar::<f32>());
                })
            });
            (norms, squares, report.unwrap())
        });
        let all: f64 = found[0].0.iter().flatten().map(|norm| norm * norm).sum();
        let seen: f64 = match strategy {
            Strategy::Ddp => found[0].1,
            _ => found.iter().map(|(_, squares, _)| squares).sum(),
        };
        let report = &found[0].2;
        assert!(report.loss_scale.unwrap() > 1.0 && report.applied);
        let norm = report.gradient_norm.unwrap();
        assert!(norm > 0.0 && norm < 10.0, "{norm}");
        for norm_of_parts in [all.sqrt(), seen.sqrt()] {
            assert!(close(norm_of_parts, norm, 1e-4), "{norm_of_parts} {norm}");
        }
    }
}

#[test]
fn twice_the_gradient_is_twice_the_learning_rate() {
    let twice: Change = |gradients| gradients.map(|_, _, gradient| gradient.mul_scalar(2.0));
    for strategy in STRATEGIES {
        for (ranks, accumulate) in [(1, 1), (2, 2), (4, 1)] {
            let options = move || with(strategy, |options| options.accumulate = accumulate);
            let found = on_ranks(ranks, TransportKind::Auto, move |group| {
                let (changed, _) = step(&group, options(), 0.05, twice);
                let (expected, _) = step(&group, options(), 0.1, |_| Ok(()));
                (values(&changed), values(&expected), values(&Net::new(1)))
            });
            for (changed, expected, before) in found {
                if !sums_vary() {
                    assert_eq!(changed, expected, "{strategy}, {ranks} ranks");
                }
                assert_ne!(changed, before, "{strategy}, {ranks} ranks");
            }
        }
    }
}

#[test]
fn the_norm_is_that_of_the_changed_gradients() {
    let none: Change = |gradients| gradients.map(|_, _, gradient| gradient.mul_scalar(0.0));
    for strategy in STRATEGIES {
        for ranks in [1, 2] {
            let found = on_ranks(ranks, TransportKind::Auto, move |group| {
                step(&group, with(strategy, watched), 0.1, none)
            });
            for (model, report) in found {
                assert_eq!(report.gradient_norm, Some(0.0), "{strategy}");
                assert_eq!(values(&model), values(&Net::new(1)), "{strategy}");
            }
        }
    }
}

#[test]
fn some_parameters_can_be_left_alone() {
    let spare: Change = |gradients| {
        gradients.map(|parameter, _, gradient| match parameter.path.as_str() {
            "out.weight" => gradient.zeros_like(),
            _ => gradient,
        })
    };
    for strategy in STRATEGIES {
        let found = on_ranks(3, TransportKind::Auto, move |group| {
            step(&group, with(strategy, |_| {}), 0.1, spare).0
        });
        let before = Net::new(1);
        for model in found {
            for path in ["out.weight", "out.bias"] {
                let stayed = value_at(&model, path) == value_at(&before, path);
                assert_eq!(stayed, path == "out.weight", "{strategy}: {path}");
            }
        }
    }
}

#[test]
fn every_element_is_seen_by_each_rank_or_by_one() {
    type Seen = Vec<(ParameterSpec, Range<usize>, usize)>;
    for strategy in STRATEGIES {
        let found = on_ranks(3, TransportKind::Auto, move |group| {
            let mut parallel = parallel(&group, with(strategy, |_| {}));
            backward(&mut parallel, &group);
            let mut seen = Seen::new();
            let report = parallel.step_with(0.1, |gradients| {
                gradients.for_each(|parameter, elements, gradient: Tensor<1>| {
                    seen.push((parameter.clone(), elements, gradient.shape().num_elements()));
                })
            });
            report.unwrap();
            (parallel.parameters().to_vec(), seen)
        });
        for parameter in &found[0].0 {
            let mut times = vec![0; parameter.num_elements()];
            for (of, elements, len) in found.iter().flat_map(|(_, seen)| seen) {
                if of.path == parameter.path {
                    assert_eq!(elements.len(), *len);
                    times[elements.clone()].iter_mut().for_each(|n| *n += 1);
                }
            }
            let expected = match (parameter.path.starts_with("extra"), strategy) {
                (true, _) => 0,
                (_, Strategy::Ddp) => 3,
                _ => 1,
            };
            assert!(
                times.iter().all(|n| *n == expected),
                "{strategy}: {} {times:?}",
                parameter.path
            );
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_on_all_ranks() {
    for strategy in [Strategy::Ddp, Strategy::Zero3] {
        let found = on_ranks(2, TransportKind::Auto, move |group| {
            let mut parallel = parallel(&group, with(strategy, |_| {}));
            backward(&mut parallel, &group);
            let me = group.rank();
            let outcome = parallel.step_with(0.1, |gradients| {
                gradients.map(|_, _, gradient| match me {
                    1 => Tensor::cat(vec![gradient.clone(), gradient], 0),
                    _ => gradient,
                })
            });
            // Under plain data parallelism nothing after it needs the others.
            let outcome = outcome.map(drop).and_then(|()| {
                group.barrier()?;
                Ok(())
            });
            outcome.unwrap_err().to_string()
        });
        assert!(
            found[1].contains("the gradient of `") && found[1].contains("elements of F32"),
            "{}",
            found[1]
        );
        assert!(found[0].contains("rank 1"), "{strategy}: {}", found[0]);
    }
}

//! Ranks with different settings, and ranks that fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{AdamWConfig, Optimizer, SgdConfig, SgdState};
use burn::tensor::{Device, FloatDType, Tensor};
use burn_dist::parallel::{
    EmaOptions, Parallel, ParallelError, ParallelOptions, ParameterGroup, ParameterOptimizer,
    ParameterSpec, Strategy, path_matches,
};
use burn_dist::{
    Buffer, CollectiveError, DType, GroupOptions, ProcessGroup, ReduceOp, TransportKind,
};

use crate::models::{Net, Normed, batch, on_ranks, on_ranks_with, patient, values};

/// Returns the errors of ranks for the models that `build` creates.
fn set_up(size: usize, build: impl Fn(usize) -> Net + Send + Sync + 'static) -> Vec<String> {
    on_ranks(size, TransportKind::Auto, move |group| {
        let model = build(group.rank());
        match Parallel::new(model, AdamWConfig::new(), Strategy::Ddp, &group) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    })
}

fn assert_all_say(errors: &[String], parts: &[&str]) {
    for error in errors {
        for part in parts {
            assert!(error.contains(part), "{error:?} does not say {part:?}");
        }
    }
}

#[test]
fn another_shape_is_named_on_every_rank() {
    let errors = set_up(3, |rank| {
        Net::with_hidden(1, if rank == 2 { 16 } else { 8 })
    });
    assert_all_say(
        &errors,
        &[
            "rank 0 and rank 2 differ at `blocks.0.weight`",
            "rank 0 has parameter `blocks.0.weight` [5, 8] F32",
            "rank 2 has parameter `blocks.0.weight` [5, 16] F32",
        ],
    );
}

#[test]
fn a_missing_layer_is_named() {
    let errors = set_up(2, |rank| {
        let mut net = Net::new(1);
        if rank == 0 {
            net.extra.bias = None;
        }
        net
    });
    assert_all_say(
        &errors,
        &[
            "differ at `extra.bias`",
            "rank 0 has nothing",
            "rank 1 has parameter `extra.bias` [1] F32",
        ],
    );
}

#[test]
fn a_frozen_parameter_and_another_type_are_differences() {
    let errors = set_up(2, |rank| {
        let mut net = Net::new(1);
        if rank == 1 {
            net.out = net.out.no_grad();
        }
        net
    });
    assert_all_say(&errors, &["parameter `out.weight`", "buffer `out.weight`"]);

    let errors = set_up(2, |rank| {
        let mut net = Net::new(1);
        if rank == 1 {
            let wide = |weight: Tensor<2>| {
                weight
                    .inner()
                    .cast(FloatDType::F64)
                    .autodiff()
                    .require_grad()
            };
            net.out.weight = net.out.weight.map(wide);
        }
        net
    });
    assert_all_say(&errors, &["`out.weight` [8, 1] F32", "[8, 1] F64"]);
}

#[test]
fn a_layer_that_trains_on_one_rank_alone_is_a_difference() {
    let errors = on_ranks(2, TransportKind::Auto, |group| {
        let mut model = Normed::new(1);
        let trains = model.norm.training.clone();
        model.norm.training = trains.with_value(group.rank() == 0);
        let outcome = Parallel::new(model, SgdConfig::new(), Strategy::Ddp, &group);
        outcome.err().unwrap().to_string()
    });
    assert_all_say(
        &errors,
        &[
            "`norm.training` [] flag enabled",
            "`norm.training` [] flag disabled",
        ],
    );
}

#[test]
fn different_options_are_named() {
    let errors = on_ranks(2, TransportKind::Auto, |group| {
        let options = ParallelOptions {
            accumulate: 1 + group.rank(),
            ..ParallelOptions::default()
        };
        let outcome = Parallel::new(Net::new(1), SgdConfig::new(), options, &group);
        outcome.err().unwrap().to_string()
    });
    assert_all_say(&errors, &["accumulate 1", "accumulate 2", "rank 1"]);
}

#[test]
fn an_error_on_one_rank_before_the_start_reaches_the_others() {
    let begin = Instant::now();
    let errors = set_up(2, |rank| {
        let net = Net::new(1);
        if rank == 1 { net.valid() } else { net }
    });
    assert_all_say(&errors[..1], &["no parameter that requires gradients"]);
    assert_all_say(&errors[1..], &["no parameter that requires gradients"]);
    assert!(begin.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_rank_that_gives_up_ends_the_step_of_the_others() {
    let errors = on_ranks(3, TransportKind::Auto, |group| {
        let mut parallel =
            Parallel::new(Net::new(1), SgdConfig::new(), Strategy::Ddp, &group).unwrap();
        let begin = Instant::now();
        let step = |parallel: &mut Parallel<Net>| -> Result<(), ParallelError> {
            let loss = parallel.model().loss(batch(0, 0..4));
            parallel.backward(loss)?;
            parallel.step(0.1)?;
            Ok(())
        };
        // A rank may still be in its first step when the abort arrives.
        let first = step(&mut parallel);
        if group.rank() == 1 {
            group.abort("the disk is full");
        }
        let error = first.and_then(|()| step(&mut parallel)).unwrap_err();
        if group.rank() != 1 {
            let told = error.collective();
            let by_rank_1 = matches!(
                told,
                Some(CollectiveError::PeerFailed {
                    failed: Some(1),
                    ..
                })
            );
            assert!(by_rank_1, "{told:?}");
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
        // The failure is permanent.
        assert!(step(&mut parallel).is_err());
        error.to_string()
    });
    assert_all_say(&errors, &["the disk is full"]);
}

#[test]
fn a_rank_that_changes_its_parameters_is_found() {
    let errors = on_ranks(3, TransportKind::Auto, |group| {
        // Settings that cannot be inspected.
        let penalty = if group.rank() == 1 { 0.5 } else { 0.0 };
        let decay = WeightDecayConfig::new(penalty);
        let sgd = SgdConfig::new().with_weight_decay(Some(decay)).build();
        let sgd = ParameterOptimizer::new(sgd);
        let mut parallel = Parallel::new(Net::new(1), sgd, Strategy::Ddp, &group).unwrap();
        parallel.verify_replicas().unwrap();
        let loss = parallel.model().loss(batch(0, 0..4));
        parallel.backward(loss).unwrap();
        parallel.step(0.1).unwrap();
        parallel.verify_replicas().unwrap_err().to_string()
    });
    assert_all_say(&errors, &["rank(s) 1 differ from those of rank 0"]);
}

/// With a sharded state, each rank would step its own part in its own way, and all would receive
/// the result.
#[test]
fn other_settings_of_the_optimizer_are_named() {
    let adamw = |decay: f32| AdamWConfig::new().with_weight_decay(decay);
    let group = move |select: &'static str, lr_factor, decay| {
        let select = move |spec: &ParameterSpec| path_matches(select, &spec.path);
        ParameterGroup::new("some", select, adamw(decay)).with_lr_factor(lr_factor)
    };
    type Build = Box<dyn Fn(usize) -> ParameterOptimizer + Send + Sync>;
    let with = move |group: ParameterGroup| ParameterOptimizer::from(adamw(0.0)).with_group(group);
    let builds: [(Build, &[&str]); 4] = [
        (
            Box::new(move |rank| adamw([0.0, 0.5][rank]).into()),
            &["`blocks.0.weight` updated by AdamW", "\"weight_decay\":0.5"],
        ),
        (
            Box::new(move |rank| with(group("out.*", [1.0, 0.5][rank], 0.0))),
            &["`out.weight` updated by", "lr × 0.5"],
        ),
        (
            Box::new(move |rank| with(group("out.*", 1.0, [0.0, 0.25][rank]))),
            &["`out.weight` updated by", "\"weight_decay\":0.25"],
        ),
        (
            Box::new(move |rank| with(group(["out.*", "*.bias"][rank], 1.0, 0.25))),
            &["`blocks.0.bias` updated by", "\"weight_decay\":0.25"],
        ),
    ];
    for (build, words) in builds {
        let errors = on_ranks(2, TransportKind::Auto, move |group| {
            let optimizer = build(group.rank());
            let outcome = Parallel::new(Net::new(1), optimizer, Strategy::Zero1, &group);
            outcome.err().unwrap().to_string()
        });
        assert_all_say(&errors, words);
    }
}

#[test]
fn other_learning_rates_are_named_and_no_step_is_made() {
    for strategy in Strategy::ALL {
        let errors = on_ranks(3, TransportKind::Auto, move |group| {
            let mut parallel = trainer(strategy, &group);
            backward(&mut parallel);
            let rate = if group.rank() == 1 { 0.2 } else { 0.1 };
            let error = parallel.step(rate).unwrap_err().to_string();
            // The failure is permanent.
            let loss = parallel.model().loss(batch(0, 0..4));
            assert!(parallel.backward(loss).is_err());
            error
        });
        assert_all_say(&errors, &["0.1 on rank(s) 0, 2; 0.2 on rank(s) 1"]);
    }
}

#[test]
fn a_learning_rate_that_is_no_number_ends_the_step_of_all() {
    let errors = on_ranks(2, TransportKind::Auto, |group| {
        let mut parallel = trainer(Strategy::Zero1, &group);
        backward(&mut parallel);
        let rate = if group.rank() == 1 { f64::NAN } else { 0.1 };
        parallel.step(rate).unwrap_err().to_string()
    });
    assert_all_say(&errors, &["the learning rate is NaN"]);
}

#[test]
fn a_loss_of_several_numbers_is_refused() {
    let errors = on_ranks(2, TransportKind::Auto, |group| {
        let mut parallel = trainer(Strategy::Ddp, &group);
        let (inputs, targets) = batch(0, 0..6);
        let off = (parallel.model().forward(inputs) - targets).square();
        let loss = match group.rank() {
            0 => off.mean(),
            _ => off.squeeze_dim::<1>(1),
        };
        let backward = parallel.backward(loss);
        let step = backward.and_then(|()| parallel.step(0.1));
        step.unwrap_err().to_string()
    });
    assert_all_say(&errors, &["got a tensor of 6 elements"]);
}

/// Also if the rank continues, as one that only logs the error.
#[test]
fn a_call_out_of_order_on_one_rank_is_told_to_the_others() {
    let begin = Instant::now();
    let errors = on_ranks(2, TransportKind::Auto, |group| {
        let mut parallel = trainer(Strategy::Ddp, &group);
        parallel.set_accumulate(2).unwrap();
        backward(&mut parallel);
        if group.rank() == 0 {
            backward(&mut parallel);
        }
        let error = parallel.step(0.1).unwrap_err().to_string();
        (error, parallel)
    });
    assert!(begin.elapsed() < Duration::from_secs(60));
    let errors: Vec<String> = errors.into_iter().map(|(error, _)| error).collect();
    assert_all_say(&errors, &["step was called before backward"]);
}

#[test]
fn normalizations_that_cannot_go_by_all_ranks_are_refused() {
    let group = ProcessGroup::single();
    let options = ParallelOptions {
        sync_batch_norm: true,
        ..ParallelOptions::default()
    };
    let outcome = Parallel::new(Normed::new(1), SgdConfig::new(), options, &group);
    let error = outcome.err().unwrap().to_string();
    assert!(error.contains("`norm` is Burn's BatchNorm"), "{error}");
}

fn trainer(strategy: Strategy, group: &ProcessGroup) -> Parallel<Net> {
    Parallel::new(Net::new(1), SgdConfig::new(), strategy, group).unwrap()
}

fn backward(parallel: &mut Parallel<Net>) {
    let loss = parallel.model().loss(batch(0, 0..4));
    parallel.backward(loss).unwrap();
}

/// Doubles the length of every parameter and leaves its hook in place.
struct Lengthen;

impl ModuleMapper for Lengthen {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let longer = value.inner().repeat_dim(0, 2);
            longer.autodiff().require_grad()
        })
    }
}

#[test]
fn a_gradient_that_does_not_fit_is_an_error() {
    let group = ProcessGroup::single();
    let mut parallel = Parallel::new(Net::new(1), SgdConfig::new(), Strategy::Ddp, &group).unwrap();
    let changed = parallel.model().clone().map(&mut Lengthen);
    let loss = changed.out.weight.val().sum();
    let error = parallel.backward(loss).unwrap_err().to_string();
    assert_eq!(
        error,
        "the gradient of `out.weight` has 16 elements of F32, but its parameter has 8 of f32"
    );
    let error = parallel.step(0.1).unwrap_err().to_string();
    assert!(error.starts_with("training cannot continue"), "{error}");
}

#[test]
fn a_copy_that_cannot_be_gathered_is_an_error() {
    for strategy in [Strategy::Zero1, Strategy::Zero3] {
        let errors = on_ranks(2, TransportKind::Auto, move |group| {
            let options = ParallelOptions {
                strategy,
                ema: Some(EmaOptions {
                    decay: 0.9,
                    warmup: true,
                }),
                ..ParallelOptions::default()
            };
            let mut parallel =
                Parallel::new(Net::new(1), SgdConfig::new(), options, &group).unwrap();
            let loss = parallel.model().loss(batch(0, 0..4));
            parallel.backward(loss).unwrap();
            parallel.step(0.1).unwrap();
            if group.rank() == 1 {
                group.abort("the disk is full");
                return Vec::new();
            }
            let begin = Instant::now();
            let gathers = strategy == Strategy::Zero3;
            let mut errors = vec![
                parallel.valid_ema().err(),
                parallel.for_evaluation().err(),
                parallel
                    .evaluate_with(|model| model.loss(batch(0, 0..4)))
                    .err(),
            ];
            assert_eq!(parallel.valid().is_err(), gathers);
            errors.push(match gathers {
                true => parallel.into_model().err(),
                false => parallel.valid_ema().err(),
            });
            assert!(begin.elapsed() < Duration::from_secs(20));
            let text = |error: Option<ParallelError>| error.unwrap().to_string();
            errors.into_iter().map(text).collect()
        });
        assert_eq!(errors[0].len(), 4);
        assert_all_say(&errors[0], &["the disk is full"]);
    }
}

#[test]
fn a_loss_without_gradients_on_one_rank_reaches_the_others_at_once() {
    let errors = on_ranks(3, TransportKind::Auto, |group| {
        let mut parallel =
            Parallel::new(Net::new(1), SgdConfig::new(), Strategy::Ddp, &group).unwrap();
        let begin = Instant::now();
        let loss = match group.rank() {
            1 => parallel.valid().unwrap().loss(batch(0, 0..4)),
            _ => parallel.model().loss(batch(0, 0..4)),
        };
        let backward = parallel.backward(loss);
        let outcome = backward.and_then(|()| parallel.step(0.1).map(|_| ()));
        assert!(begin.elapsed() < Duration::from_secs(20));
        outcome.unwrap_err().to_string()
    });
    assert_all_say(&errors, &["does not depend on trainable parameters"]);
}

/// Kernels are compiled and data is loaded before the first gradients. No earlier collective may
/// end the longer timeout that ranks have until then.
#[test]
fn ranks_wait_long_for_the_first_gradients_and_not_for_others() {
    const SHORT: Duration = Duration::from_millis(500);
    const LATE: Duration = Duration::from_secs(2);
    for strategy in [
        Strategy::Ddp,
        Strategy::Zero1,
        Strategy::Zero2,
        Strategy::Zero3,
    ] {
        let options = GroupOptions {
            timeout: SHORT,
            ..patient()
        };
        let errors = on_ranks_with(options, 2, move |group| {
            let late = || {
                if group.rank() == 1 {
                    std::thread::sleep(LATE);
                }
            };
            let options = ParallelOptions {
                strategy,
                clip_norm: Some(1.0),
                ema: Some(EmaOptions {
                    decay: 0.9,
                    warmup: false,
                }),
                ..ParallelOptions::default()
            };
            let model = Net::new(1);
            let mut parallel = Parallel::new(model, AdamWConfig::new(), options, &group).unwrap();
            let mut step = || {
                let loss = parallel.model().loss(batch(0, 0..4));
                parallel.backward(loss)?;
                parallel.step(0.1)
            };
            late();
            step().unwrap();
            late();
            step().err().map(|error| error.to_string())
        });
        let error = errors[0].as_ref().unwrap();
        assert!(error.contains("rank 1"), "{strategy}: {error}");
    }
}

/// Burn keeps the graph of a forward pass until the next backward.
#[test]
fn a_forward_pass_without_backward_keeps_no_rank_in_the_run() {
    for strategy in [Strategy::Ddp, Strategy::Zero3] {
        for sync_batch_norm in [false, true] {
            let errors = on_ranks(2, TransportKind::Auto, move |group| {
                let options = ParallelOptions {
                    strategy,
                    sync_batch_norm,
                    ..ParallelOptions::default()
                };
                let parallel =
                    Parallel::new(Net::new(1), AdamWConfig::new(), options, &group).unwrap();
                // Under ZeRO 3 all ranks gather in it.
                drop(parallel.model().loss(batch(0, 0..4)));
                match group.rank() {
                    0 => group.barrier().unwrap_err().to_string(),
                    _ => String::new(),
                }
            });
            let told = errors[0].contains("it finished and left");
            assert!(told, "{strategy}: {}", errors[0]);
        }
    }
}

/// An error that follows from another is not the cause.
#[test]
fn who_left_early_is_named_by_all_and_on_every_transport() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        for _ in 0..5 {
            let culprits = on_ranks(4, transport, |group| {
                if group.rank() == 1 {
                    return None;
                }
                let failed = std::iter::repeat_with(|| {
                    group.all_reduce(&mut vec![1.0f32; 20_000], ReduceOp::Sum)
                });
                let error = failed.take(3).find_map(Result::err).unwrap();
                match error.collective() {
                    Some(CollectiveError::PeerFailed { failed, .. }) => *failed,
                    other => panic!("{other:?}"),
                }
            });
            assert_eq!(culprits, [Some(1), None, Some(1), Some(1)], "{transport:?}");
        }
    }
}

#[test]
fn models_in_another_order_are_told_apart() {
    for (strategy, transport) in [
        (Strategy::Ddp, TransportKind::Shm),
        (Strategy::Ddp, TransportKind::Tcp),
        (Strategy::Zero1, TransportKind::Tcp),
        (Strategy::Zero3, TransportKind::Tcp),
    ] {
        let errors = on_ranks(2, transport, move |group| {
            let new = || Parallel::new(Net::new(1), SgdConfig::new(), strategy, &group).unwrap();
            let mut models = [new(), new()];
            if group.rank() == 1 {
                models.reverse();
            }
            let step = |model: &mut Parallel<Net>| -> Result<(), ParallelError> {
                let loss = model.model().loss(batch(0, 0..4));
                model.backward(loss)?;
                model.step(0.1).map(drop)
            };
            let error = models.iter_mut().find_map(|model| step(model).err());
            error.unwrap().to_string()
        });
        for error in errors {
            assert!(
                error.contains("bucket"),
                "{strategy} {transport:?}: {error}"
            );
        }
    }
}

/// Steps like SGD, but with results of another type or shape.
#[derive(Clone)]
struct Odd {
    shape: bool,
}

impl Optimizer for Odd {
    type State<const D: usize> = SgdState<D>;

    fn step<const D: usize>(
        &self,
        rate: f64,
        value: Tensor<D>,
        gradient: Tensor<D>,
        _state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let stepped = value - gradient * rate;
        match self.shape {
            true => (Tensor::cat(vec![stepped.clone(), stepped], 0), None),
            false => (stepped.cast(FloatDType::F64), None),
        }
    }

    fn to_device<const D: usize>(state: Self::State<D>, _device: &Device) -> Self::State<D> {
        state
    }
}

#[test]
fn what_an_optimizer_makes_becomes_the_parameters_type_again() {
    for strategy in Strategy::ALL {
        let trained = |odd: bool| {
            on_ranks(2, TransportKind::Auto, move |group| {
                let optimizer = match odd {
                    true => ParameterOptimizer::new(Odd { shape: false }).element_wise(),
                    false => SgdConfig::new().into(),
                };
                let mut parallel = Parallel::new(Net::new(1), optimizer, strategy, &group).unwrap();
                for step in 0..2 {
                    let loss = parallel.model().loss(batch(step, 0..4));
                    parallel.backward(loss).unwrap();
                    parallel.step(0.1).unwrap();
                }
                values(&parallel.valid().unwrap())
            })
        };
        assert_eq!(trained(true), trained(false), "{strategy}");
    }
}

#[test]
fn an_optimizer_that_makes_another_shape_is_refused() {
    for strategy in Strategy::ALL {
        let errors = on_ranks(2, TransportKind::Auto, move |group| {
            let optimizer = ParameterOptimizer::new(Odd { shape: true });
            let mut parallel = Parallel::new(Net::new(1), optimizer, strategy, &group).unwrap();
            let loss = parallel.model().loss(batch(0, 0..4));
            parallel.backward(loss).unwrap();
            parallel.step(0.1).unwrap_err().to_string()
        });
        let told = errors
            .iter()
            .any(|error| error.contains("the optimizer returned"));
        assert!(told, "{strategy}: {errors:?}");
    }
}

#[test]
fn a_group_whose_learning_rate_is_no_number_is_refused() {
    let group = ParameterGroup::new(
        "biases",
        |spec| spec.path.ends_with("bias"),
        SgdConfig::new(),
    );
    let optimizer =
        ParameterOptimizer::from(SgdConfig::new()).with_group(group.with_lr_factor(f64::NAN));
    let single = ProcessGroup::single();
    let error = Parallel::new(Net::new(1), optimizer, Strategy::Ddp, &single).err();
    let error = error.unwrap().to_string();
    assert!(
        error.contains("lr_factor") && error.contains("biases"),
        "{error}"
    );
}

/// If the progress thread is busy, it is the one that reports.
#[test]
fn a_panic_is_told_as_one_whatever_is_under_way() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let errors = on_ranks(2, transport, |group| {
            if group.rank() == 0 {
                std::thread::sleep(Duration::from_millis(100));
                let waits = std::iter::repeat_with(|| {
                    group.all_reduce(&mut vec![1.0f32; 100_000], ReduceOp::Sum)
                });
                return waits.take(2).find_map(Result::err).unwrap().to_string();
            }
            let group = AssertUnwindSafe(group);
            let panicked = catch_unwind(move || {
                let group = group;
                let buffer = Buffer::zeroed(DType::F32, 100_000);
                let _handle = group.start_all_reduce(buffer, ReduceOp::Sum);
                panic!("of the user");
            });
            assert!(panicked.is_err());
            String::new()
        });
        let error = &errors[0];
        assert!(error.contains("it panicked"), "{transport:?}: {error}");
    }
}

/// The model is so small that all its parameters stay in memory: no collective shows the mistake.
#[test]
fn unequal_evaluations_of_a_sharded_model_are_found_at_any_size() {
    let errors = on_ranks(2, TransportKind::Auto, |group| {
        let mut parallel =
            Parallel::new(Net::new(1), SgdConfig::new(), Strategy::Zero3, &group).unwrap();
        let evaluate = |parallel: &Parallel<Net>, passes: usize| {
            let evaluated = parallel.evaluate_with(|model| {
                for _ in 0..passes {
                    drop(model.loss(batch(0, 0..4)));
                }
            });
            evaluated.unwrap();
        };
        let step = |parallel: &mut Parallel<Net>| {
            let loss = parallel.model().loss(batch(0, 0..4));
            parallel.backward(loss)?;
            parallel.step(0.1).map(drop)
        };
        evaluate(&parallel, 2);
        step(&mut parallel).unwrap();
        evaluate(&parallel, 1 + group.rank());
        step(&mut parallel).unwrap_err().to_string()
    });
    assert_all_say(&errors, &["different numbers of parameters in evaluations"]);
}

//! The average of the parameters over the steps.

use std::time::Duration;

use burn::module::Module;
use burn::optim::SgdConfig;
use burn_dist::checkpoint::{Job, Source, Writer, newest_good};
use burn_dist::parallel::{EmaOptions, Parallel, ParallelOptions, Precision, Strategy, SwaOptions};
use burn_dist::{ProcessGroup, TransportKind};

use crate::models::{Net, Normed, Values, batch, on_ranks, values};

const STEPS: u64 = 6;

fn options(ema: Option<EmaOptions>) -> ParallelOptions {
    ParallelOptions {
        ema,
        ..ParallelOptions::default()
    }
}

/// Trains; returns the parameters at the start and after every step, and the averages at the end.
fn train(group: &ProcessGroup, ema: Option<EmaOptions>) -> (Vec<Values>, Option<Values>) {
    let mut parallel = Parallel::new(Net::new(1), SgdConfig::new(), options(ema), group).unwrap();
    let mut all = vec![values(&parallel.valid().unwrap())];
    let rows = 4 * group.rank()..4 * (group.rank() + 1);
    for step in 0..STEPS {
        let loss = parallel.model().loss(batch(step, rows.clone()));
        parallel.backward(loss).unwrap();
        parallel.step(0.1).unwrap();
        all.push(values(&parallel.valid().unwrap()));
    }
    (all, parallel.valid_ema().unwrap().as_ref().map(values))
}

#[test]
fn averages_follow_the_formula_and_change_nothing_else() {
    let (plain, none) = train(&ProcessGroup::single(), None);
    assert!(none.is_none());
    for warmup in [false, true] {
        let ema = EmaOptions { decay: 0.3, warmup };
        let (parameters, averages) = train(&ProcessGroup::single(), Some(ema));
        assert_eq!(parameters, plain);
        for (tensor, (path, average)) in averages.unwrap().iter().enumerate() {
            for (element, average) in average.iter().enumerate() {
                let value = |step: usize| f64::from(parameters[step][tensor].1[element]);
                let mut expected = value(0);
                for step in 1..=STEPS as usize {
                    let done = (step - 1) as f64;
                    let ramp = (1.0 + done) / (10.0 + done);
                    let decay = if warmup { ramp.min(0.3) } else { 0.3 };
                    expected = decay * expected + (1.0 - decay) * value(step);
                }
                let difference = (f64::from(*average) - expected).abs();
                assert!(difference < 1e-6, "{path}: {average} {expected}");
            }
        }
    }
}

#[test]
fn a_mean_of_the_last_steps_is_the_same_on_all_ranks_and_under_every_strategy() {
    for strategy in [Strategy::Ddp, Strategy::Zero1, Strategy::Zero3] {
        let ranks = on_ranks(2, TransportKind::Auto, move |group| {
            let options = ParallelOptions {
                strategy,
                swa: Some(SwaOptions { start: 4, every: 2 }),
                ..ParallelOptions::default()
            };
            let mut parallel =
                Parallel::new(Net::new(1), SgdConfig::new(), options, &group).unwrap();
            let rows = 4 * group.rank()..4 * (group.rank() + 1);
            let mut all = Vec::new();
            for step in 0..STEPS {
                let loss = parallel.model().loss(batch(step, rows.clone()));
                parallel.backward(loss).unwrap();
                parallel.step(0.1).unwrap();
                all.push(values(&parallel.valid().unwrap()));
            }
            (all, values(&parallel.valid_ema().unwrap().unwrap()))
        });
        assert_eq!(ranks[0], ranks[1], "{strategy}");
        let (steps, mean) = &ranks[0];
        // Steps 4 and 6 count.
        for (tensor, (path, mean)) in mean.iter().enumerate() {
            for (element, mean) in mean.iter().enumerate() {
                let expected = (steps[3][tensor].1[element] + steps[5][tensor].1[element]) / 2.0;
                assert!((mean - expected).abs() < 1e-6, "{path}: {mean} {expected}");
            }
        }
    }
}

#[test]
fn a_model_has_one_average() {
    let both = ParallelOptions {
        ema: Some(EmaOptions {
            decay: 0.5,
            warmup: false,
        }),
        swa: Some(SwaOptions { start: 1, every: 1 }),
        ..ParallelOptions::default()
    };
    let group = ProcessGroup::single();
    let refused = Parallel::new(Net::new(1), SgdConfig::new(), both, &group).err();
    assert!(refused.unwrap().to_string().contains("swa"));
}

#[test]
fn all_ranks_have_the_same_average() {
    let ema = EmaOptions {
        decay: 0.9,
        warmup: true,
    };
    let ranks = on_ranks(2, TransportKind::Auto, move |group| {
        train(&group, Some(ema))
    });
    assert!(ranks[0].1.is_some());
    assert_eq!(ranks[0], ranks[1]);
}

#[test]
fn skipped_steps_leave_the_average_and_buffers_are_those_of_the_model() {
    let ema = EmaOptions {
        decay: 0.5,
        warmup: false,
    };
    let options = ParallelOptions {
        precision: Precision::F16,
        ..options(Some(ema))
    };
    let group = ProcessGroup::single();
    let mut parallel = Parallel::new(Normed::new(1), SgdConfig::new(), options, &group).unwrap();
    let mut step = |factor: f32| {
        let (inputs, targets) = batch(1, 0..8);
        let inputs = (inputs * factor).cast(parallel.compute_dtype());
        let model = parallel.model();
        let x = model.norm.forward(model.first.forward(inputs));
        let x = model.last.forward(x).cast(burn::tensor::FloatDType::F32);
        let loss = (x - targets).square().mean() * 1e-3;
        parallel.backward(loss).unwrap();
        let applied = parallel.step(1.0).unwrap().applied;
        let averages = values(&parallel.for_evaluation().unwrap());
        (applied, averages, values(&parallel.valid().unwrap()))
    };
    let (applied, first, plain) = step(1.0);
    assert!(applied);
    assert_ne!(first, plain);
    for ((path, average), (_, plain)) in first.iter().zip(&plain) {
        assert_eq!(path.contains("running"), average == plain, "{path}");
    }
    let (applied, second, _) = step(f32::INFINITY);
    assert!(!applied);
    let trained = |all: &Values| -> Values {
        let all = all.iter().filter(|(path, _)| !path.contains("running"));
        all.cloned().collect()
    };
    assert_eq!(trained(&second), trained(&first));
}

/// First the head alone, then everything: a frozen parameter has its value as its average.
#[test]
fn what_was_frozen_has_its_value_as_its_average() {
    let group = ProcessGroup::single();
    let folder = tempfile::tempdir().unwrap();
    let options = ParallelOptions {
        ema: Some(EmaOptions {
            decay: 0.5,
            warmup: false,
        }),
        ..ParallelOptions::default()
    };
    let mut frozen = Net::new(1);
    frozen.blocks = frozen.blocks.into_iter().map(Module::no_grad).collect();
    let mut first = Parallel::new(frozen, SgdConfig::new(), options.clone(), &group).unwrap();
    let loss = first.model().loss(batch(1, 0..8));
    first.backward(loss).unwrap();
    first.step(0.1).unwrap();
    let mut writer = Writer::start(folder.path(), &group, Duration::from_secs(20)).unwrap();
    let _ = writer.submit(Job {
        step: 1,
        state: first.state().unwrap(),
        meta: serde_json::Value::Null,
        keep: 3,
        best: Vec::new(),
    });
    writer.wait().unwrap().unwrap();
    writer.close(&group).unwrap();
    let found = newest_good(folder.path()).unwrap().0.unwrap();
    let source = Source::open(&found.path).unwrap();
    let mut second = Parallel::new(Net::new(2), SgdConfig::new(), options, &group).unwrap();
    second.restore(&source).unwrap();
    let averages = |parallel: &Parallel<Net>| values(&parallel.valid_ema().unwrap().unwrap());
    assert_eq!(averages(&second), averages(&first));
}

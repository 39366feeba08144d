//! Models with their own reparameterizations: LoRA adapters on frozen weights.

use burn::module::{Lora, Module};
use burn::optim::SgdConfig;
use burn::tensor::{FloatDType, Tensor};
use burn_dist::parallel::{
    EmaOptions, LossScaleOptions, Parallel, ParallelOptions, Precision, Strategy,
};
use burn_dist::{ProcessGroup, TransportKind};

use crate::models::{Net, Values, batch, noise, on_ranks, scalar, values};

const STRATEGIES: [Strategy; 4] = [
    Strategy::Ddp,
    Strategy::Zero1,
    Strategy::Zero2,
    Strategy::Zero3,
];

/// Creates adapters without random numbers, because the whole process shares Burn's generator.
fn adapted(seed: u64) -> Net {
    use burn::module::{ModuleMapper, Param};
    use burn::tensor::{Tensor, TensorData};
    struct FillTrained(u64);
    impl ModuleMapper for FillTrained {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if !param.is_require_grad() {
                return param;
            }
            self.0 += 1;
            let seed = self.0;
            param.map(|value| {
                let shape = value.shape();
                let data = TensorData::new(noise(seed, shape.num_elements()), shape);
                Tensor::from_data(data, &value.device()).require_grad()
            })
        }
    }
    let net = Net::new(seed).apply_lora(Lora::new(2, 4.0));
    net.map(&mut FillTrained(100 * seed))
}

fn trained(values: &Values) -> Values {
    let values = values.iter().filter(|(path, _)| path.contains("lora"));
    values.cloned().collect()
}

struct Outcome {
    plain: Net,
    averaged: Net,
    evaluated: f32,
    model: Net,
    history: Vec<Values>,
}

fn train(group: &ProcessGroup, strategy: Strategy) -> Outcome {
    let options = ParallelOptions {
        strategy,
        ema: Some(EmaOptions {
            decay: 0.5,
            warmup: false,
        }),
        ..ParallelOptions::default()
    };
    let model = adapted(1 + group.rank() as u64);
    let mut parallel = Parallel::new(model, SgdConfig::new(), options, group).unwrap();
    let mut history = vec![values(&parallel.valid().unwrap())];
    for step in 0..3 {
        let start = 4 * group.rank();
        let loss = parallel.model().loss(batch(step, start..start + 4));
        parallel.backward(loss).unwrap();
        parallel.step(0.1).unwrap();
        history.push(values(&parallel.valid().unwrap()));
    }
    let evaluated = parallel.evaluate_with(|model| scalar(&model.loss(batch(9, 0..4))));
    Outcome {
        plain: parallel.valid().unwrap(),
        averaged: parallel.for_evaluation().unwrap(),
        evaluated: evaluated.unwrap(),
        model: parallel.into_model().unwrap(),
        history,
    }
}

#[test]
fn copies_keep_the_adapters_and_averages_are_those_of_the_adapters() {
    for strategy in STRATEGIES {
        let ranks = on_ranks(2, TransportKind::Auto, move |group| {
            let outcome = train(&group, strategy);
            let paths = |model: &Net| -> Vec<String> {
                values(model).into_iter().map(|(path, _)| path).collect()
            };
            let start = adapted(1);
            assert!(paths(&start).iter().any(|path| path.ends_with("lora.a")));
            for model in [&outcome.plain, &outcome.averaged, &outcome.model] {
                assert_eq!(paths(model), paths(&start), "{strategy}");
                let frozen = values(model);
                let moved = frozen.iter().zip(values(&start)).filter(|(a, b)| **a != *b);
                assert!(moved.clone().count() > 0, "{strategy}");
                assert!(moved.clone().all(|((path, _), _)| path.contains("lora")));
            }
            let steps: Vec<Values> = outcome.history.iter().map(trained).collect();
            for (tensor, (path, average)) in trained(&values(&outcome.averaged)).iter().enumerate()
            {
                for (element, average) in average.iter().enumerate() {
                    let mut expected = f64::from(steps[0][tensor].1[element]);
                    for step in &steps[1..] {
                        expected = 0.5 * expected + 0.5 * f64::from(step[tensor].1[element]);
                    }
                    let difference = (f64::from(*average) - expected).abs();
                    assert!(difference < 1e-6, "{strategy} {path}: {average} {expected}");
                }
            }
            let averaged = scalar(&outcome.averaged.loss(batch(9, 0..4)));
            assert!(
                (outcome.evaluated / averaged - 1.0).abs() < 1e-6,
                "{strategy}"
            );
            assert_ne!(averaged, scalar(&outcome.plain.loss(batch(9, 0..4))));
            // Merged into the weights they compute the same.
            let folded = outcome.averaged.materialize();
            assert_eq!(values(&folded).len(), values(&Net::new(1)).len());
            let folded = scalar(&folded.loss(batch(9, 0..4)));
            assert!((folded / averaged - 1.0).abs() < 1e-5, "{strategy}");

            // Trainable parameters continue from the state, and frozen ones stay.
            let single = ProcessGroup::single();
            let frozen = outcome.model.blocks[0].weight.base().into_data();
            let mut again =
                Parallel::new(outcome.model, SgdConfig::new(), Strategy::Ddp, &single).unwrap();
            let loss = again.model().loss(batch(5, 0..4));
            again.backward(loss).unwrap();
            again.step(0.1).unwrap();
            let after = again.valid().unwrap();
            assert_eq!(after.blocks[0].weight.base().into_data(), frozen);
            assert_ne!(trained(&values(&after)), trained(&values(&outcome.plain)));
            values(&after)
        });
        assert_eq!(ranks[0], ranks[1], "{strategy}");
    }
}

#[test]
fn adapters_train_in_low_precision() {
    let train = |group: &ProcessGroup, strategy, precision| {
        let options = ParallelOptions {
            strategy,
            precision,
            loss_scale: LossScaleOptions {
                initial: 256.0,
                ..LossScaleOptions::default()
            },
            ..ParallelOptions::default()
        };
        let mut parallel = Parallel::new(adapted(1), SgdConfig::new(), options, group).unwrap();
        let predict = |model: &Net, inputs: Tensor<2>| {
            let output = model.forward(inputs.cast(precision.compute_dtype()));
            assert_eq!(output.dtype(), precision.compute_dtype().into());
            output.cast(FloatDType::F32)
        };
        for step in 0..3 {
            let start = 4 * group.rank();
            let (inputs, targets) = batch(step, start..start + 4);
            let output = predict(parallel.model(), inputs);
            parallel
                .backward((output - targets).square().mean())
                .unwrap();
            assert!(parallel.step(0.02).unwrap().applied);
        }
        parallel.verify_replicas().unwrap();
        let (inputs, _) = batch(9, 0..4);
        let cast = parallel.evaluate_autocast(|model| predict(model, inputs.inner()));
        let cast: Vec<f32> = cast.unwrap().into_data().iter().collect();
        (values(&parallel.into_model().unwrap()), cast)
    };
    for (strategy, precision) in STRATEGIES
        .into_iter()
        .flat_map(|strategy| [(strategy, Precision::Bf16), (strategy, Precision::F16)])
    {
        let ranks = on_ranks(2, TransportKind::Auto, move |group| {
            (
                train(&group, strategy, Precision::F32),
                train(&group, strategy, precision),
            )
        });
        let ((expected, full), (found, cast)) = &ranks[1];
        for ((path, expected), (_, found)) in expected.iter().zip(found) {
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 0.05;
            let what = format!("{strategy} {precision} {path}");
            assert!(expected.iter().zip(found).all(close), "{what}");
            if !path.contains("lora") {
                assert_eq!(expected, found, "{what}");
            }
        }
        assert_ne!(trained(expected), trained(&values(&adapted(1))));
        for (cast, full) in cast.iter().zip(full) {
            assert!((cast - full).abs() < 0.05, "{cast} {full}");
        }
    }
}

/// A model whose adapters were just attached has lazy parameters that are frozen.
#[test]
fn fresh_adapters_train_under_every_strategy() {
    for strategy in STRATEGIES {
        on_ranks(2, TransportKind::Auto, move |group| {
            let device = crate::device().autodiff();
            let layer = burn::nn::LinearConfig::new(3, 4).init(&device);
            let layer = layer.apply_lora(Lora::new(2, 4.0));
            let bias = layer.bias.clone().unwrap();
            assert!(!bias.is_initialized());
            let mut parallel = Parallel::new(layer, SgdConfig::new(), strategy, &group).unwrap();
            let paths = parallel.parameters().iter().map(|spec| spec.path.as_str());
            assert_eq!(
                paths.collect::<Vec<_>>(),
                ["weight.lora.a", "weight.lora.b"]
            );
            let loss = parallel.model().forward(Tensor::<2>::ones([2, 3], &device));
            parallel.backward(loss.square().mean()).unwrap();
            parallel.step(0.1).unwrap();
            let layer = parallel.into_model().unwrap();
            assert!(!layer.bias.unwrap().is_require_grad());
        });
    }
}

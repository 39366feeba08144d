//! Parameters of other types than `f32`.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig, LionConfig,
    MuonConfig, RmsPropConfig, SgdConfig,
};
use burn::tensor::activation::tanh;
use burn::tensor::{FloatDType, Tensor};
use burn_dist::checkpoint::{Job, Source, Writer, newest_good};
use burn_dist::parallel::{
    Checksum, Parallel, ParallelError, ParallelOptions, ParameterGroup, ParameterOptimizer,
    ParameterSpec, Precision, Strategy,
};
use burn_dist::{ProcessGroup, TransportKind};

use crate::models::{FEATURES, Fill, batch, on_ranks};

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    second: Linear,
}

impl Net {
    fn new(dtype: FloatDType) -> Self {
        let device = crate::device().autodiff();
        let net = Self {
            first: LinearConfig::new(FEATURES, 6).init(&device),
            second: LinearConfig::new(6, 1).init(&device),
        };
        net.map(&mut Fill { seed: 1 }).map(&mut Cast(dtype))
    }

    fn loss(&self, step: u64, rank: usize) -> Tensor<1> {
        let (inputs, targets) = batch(step, 4 * rank..4 * (rank + 1));
        let dtype = FloatDType::from(self.first.weight.dtype());
        let x = tanh(self.first.forward(inputs.cast(dtype)));
        let x = self.second.forward(x).cast(FloatDType::F32);
        (x - targets).square().mean()
    }
}

struct Cast(FloatDType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| value.inner().cast(self.0).autodiff().require_grad())
    }
}

/// All of Burn's optimizers, with all their optional state.
const OPTIMIZERS: [fn() -> ParameterOptimizer; 10] = [
    || AdaGradConfig::new().into(),
    || AdafactorConfig::new().into(),
    || AdamConfig::new().with_amsgrad(true).into(),
    || AdamWConfig::new().with_weight_decay(0.1).into(),
    || AdanConfig::new().into(),
    || LambConfig::new().with_weight_decay(0.1).into(),
    || LionConfig::new().into(),
    || {
        let is_matrix = |spec: &ParameterSpec| spec.shape.len() == 2;
        let matrices = ParameterGroup::new("matrices", is_matrix, MuonConfig::new());
        ParameterOptimizer::from(AdamWConfig::new()).with_group(matrices)
    },
    || {
        let centered = RmsPropConfig::new().with_centered(true);
        centered.with_momentum(0.9).into()
    },
    || {
        let momentum = MomentumConfig::new().with_nesterov(true);
        let sgd = SgdConfig::new().with_momentum(Some(momentum));
        sgd.with_weight_decay(Some(WeightDecayConfig::new(0.1)))
            .into()
    },
];

fn train(parallel: &mut Parallel<Net>, steps: std::ops::Range<u64>) -> Checksum {
    for step in steps {
        let loss = parallel.model().loss(step, parallel.group().rank());
        parallel.backward(loss).unwrap();
        parallel.step(0.01).unwrap();
    }
    parallel.verify_replicas().unwrap()
}

/// Saves a training after two steps and continues both it and another one from the saved state.
fn continued(
    group: &ProcessGroup,
    folder: &std::path::Path,
    dtype: FloatDType,
    optimizer: fn() -> ParameterOptimizer,
) -> Result<(), ParallelError> {
    let start = || Parallel::new(Net::new(dtype), optimizer(), Strategy::Ddp, group);
    let mut whole = start()?;
    let begin = train(&mut whole, 0..2);
    let mut writer = Writer::start(folder, group, std::time::Duration::from_secs(20))?;
    let _ = writer.submit(Job {
        step: 2,
        state: whole.state().unwrap(),
        meta: serde_json::Value::Null,
        keep: 1,
        best: Vec::new(),
    });
    writer.wait().unwrap().unwrap();
    writer.close(group)?;
    let expected = train(&mut whole, 2..5);
    assert_ne!(begin, expected);

    let path = newest_good(folder).unwrap().0.unwrap().path;
    let mut resumed = start()?;
    resumed.restore(&Source::open(&path).unwrap())?;
    assert_eq!(train(&mut resumed, 2..5), expected);
    Ok(())
}

#[test]
fn every_type_and_optimizer_continues_bit_for_bit() {
    for dtype in [FloatDType::F64, FloatDType::BF16, FloatDType::F16] {
        for (index, optimizer) in OPTIMIZERS.into_iter().enumerate() {
            let size = 1 + index % 2;
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().to_owned();
            on_ranks(size, TransportKind::Auto, move |group| {
                let outcome = continued(&group, &path, dtype, optimizer);
                outcome.unwrap_or_else(|error| panic!("{dtype:?} {index}: {error}"));
            });
        }
    }
}

#[test]
fn state_that_loses_digits_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let optimizer = || ParameterOptimizer::new(AdamWConfig::new().build());
    let group = ProcessGroup::single();
    let error = continued(&group, folder.path(), FloatDType::F64, optimizer).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("`first.weight`") && message.contains("reads its state as f32"),
        "{message}"
    );
    let folder = tempfile::tempdir().unwrap();
    continued(&group, folder.path(), FloatDType::BF16, optimizer).unwrap();
}

/// Gradients that half precision only represents while they are scaled: the step removes the scale
/// in f32.
#[test]
fn small_gradients_of_f16_parameters_are_stepped_by() {
    let group = ProcessGroup::single();
    let options = ParallelOptions {
        precision: Precision::F16,
        ..ParallelOptions::default()
    };
    let net = Net::new(FloatDType::F16);
    let mut parallel = Parallel::new(net, SgdConfig::new(), options, &group).unwrap();
    let values = |parallel: &Parallel<Net>| {
        let weight = parallel.valid().unwrap().first.weight.val();
        let data = weight.cast(FloatDType::F32).into_data();
        data.try_to_vec::<f32>().unwrap()
    };
    let before = values(&parallel);
    // In f16 this is zero.
    let gradient = 2e-8;
    let weight = parallel.model().first.weight.val();
    let loss = weight.cast(FloatDType::F32).sum().mul_scalar(gradient);
    parallel.backward(loss).unwrap();
    assert!(parallel.step(5e6).unwrap().applied);
    for (before, after) in before.iter().zip(values(&parallel)) {
        assert!((before - after - 0.1).abs() < 2e-3, "{before} {after}");
    }
}

/// With a normalization, whose running statistics are not trained, and frozen parameters.
#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

struct ToDouble;

impl ModuleMapper for ToDouble {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let trains = value.is_require_grad();
            let value = value.inner().cast(FloatDType::F64).autodiff();
            value.set_require_grad(trains)
        })
    }
}

#[test]
fn running_statistics_in_f64_are_saved_to_the_last_bit() {
    let group = ProcessGroup::single();
    let build = || {
        let device = crate::device().autodiff();
        let linear = LinearConfig::new(FEATURES, 3).init(&device);
        let net = Normed {
            linear: linear.map(&mut Fill { seed: 1 }),
            norm: BatchNormConfig::new(3).init(&device),
        };
        let net = net.map(&mut ToDouble);
        Parallel::new(net, SgdConfig::new(), Strategy::Ddp, &group).unwrap()
    };
    let mut trained = build();
    let inputs = batch(1, 0..8).0.cast(FloatDType::F64);
    let model = trained.model();
    let out = model.norm.forward(model.linear.forward(inputs.clone()));
    trained.backward(out.powi_scalar(2).mean()).unwrap();
    trained.step(0.01).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let limit = std::time::Duration::from_secs(20);
    let mut writer = Writer::start(folder.path(), &group, limit).unwrap();
    let _ = writer.submit(Job {
        step: 1,
        state: trained.state().unwrap(),
        meta: serde_json::Value::Null,
        keep: 1,
        best: Vec::new(),
    });
    let path = writer.wait().unwrap().unwrap().path;
    let mut restored = build();
    restored.restore(&Source::open(&path).unwrap()).unwrap();
    let output = |parallel: &Parallel<Normed>| {
        let model = parallel.valid().unwrap();
        let out = model
            .norm
            .forward(model.linear.forward(inputs.clone().inner()));
        out.into_data().try_to_vec::<f64>().unwrap()
    };
    assert_eq!(output(&trained), output(&restored));
}

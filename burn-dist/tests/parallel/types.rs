//! Parameters of other types than `f32`.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
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
    Checksum, Parallel, ParallelError, ParameterGroup, ParameterOptimizer, ParameterSpec, Strategy,
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

/// All of Burn's optimizers, with all that they may keep.
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

/// Saves a training after two steps and goes on with it, and with another one from what was saved.
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
    writer.submit(Job {
        step: 2,
        state: whole.state(),
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

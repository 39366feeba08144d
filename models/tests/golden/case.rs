//! One golden file.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use burn::optim;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::parallel::ParameterOptimizer;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

pub struct Case {
    pub name: String,
    pub model: String,
    pub sizes: serde_json::Map<String, Value>,
    optimizers: Value,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    target: Vec<i64>,
}

impl Case {
    pub fn open(path: &Path) -> Self {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().clone().expect("metadata");
        let mut config: Value = serde_json::from_str(&metadata["config"]).unwrap();
        let mut case = Self {
            model: config["model"].as_str().expect("`model`").to_owned(),
            sizes: config["sizes"].as_object().expect("`sizes`").clone(),
            optimizers: config["optimizers"].take(),
            name,
            tensors: BTreeMap::new(),
            target: Vec::new(),
        };
        for (key, view) in file.tensors() {
            if key == "target" {
                case.target = numbers(&view, i64::from_le_bytes);
            } else if view.dtype() == Dtype::F32 {
                let values = numbers(&view, f32::from_le_bytes);
                case.tensors.insert(key, (view.shape().to_vec(), values));
            } else {
                assert!(key.ends_with("num_batches_tracked"), "{key} is not f32");
            }
        }
        case
    }

    /// Returns the values of tensor `key`.
    pub fn tensor(&self, key: &str) -> &[f32] {
        let found = self.tensors.get(key);
        &found.unwrap_or_else(|| panic!("{}: no {key}", self.name)).1
    }

    /// Returns names and values of the tensors whose names begin with `prefix/`.
    pub fn under(&self, prefix: &str) -> impl Iterator<Item = (&str, &[f32])> {
        self.tensors.iter().filter_map(move |(key, (_, values))| {
            let key = key.strip_prefix(prefix)?.strip_prefix('/')?;
            Some((key, values.as_slice()))
        })
    }

    pub fn images(&self, device: &Device) -> Tensor<4> {
        let (shape, values) = &self.tensors["input"];
        Tensor::from_data(TensorData::new(values.clone(), shape.clone()), device)
    }

    pub fn target(&self, device: &Device) -> Tensor<1, Int> {
        let target = TensorData::new(self.target.clone(), [self.target.len()]);
        Tensor::from_data(target, device)
    }

    /// Writes the tensors whose names begin with `prefix/` as a state dict.
    pub fn write_state(&self, prefix: &str, path: &Path) {
        let bytes: BTreeMap<&str, (&[usize], Vec<u8>)> = self
            .tensors
            .iter()
            .filter_map(|(key, (shape, values))| {
                let key = key.strip_prefix(prefix)?.strip_prefix('/')?;
                let bytes = values.iter().flat_map(|value| value.to_le_bytes());
                Some((key, (shape.as_slice(), bytes.collect())))
            })
            .collect();
        let views = bytes.iter().map(|(key, (shape, bytes))| {
            let view = TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap();
            (*key, view)
        });
        let none: Option<HashMap<String, String>> = None;
        std::fs::write(path, safetensors::serialize(views, none).unwrap()).unwrap();
    }

    /// Returns names, learning rates and optimizers, built as in the trainer.
    pub fn optimizers(&self) -> Vec<(&'static str, f64, ParameterOptimizer)> {
        let number = |value: &Value| value.as_f64().expect("a number");
        let sgd = &self.optimizers["sgd"];
        let momentum = MomentumConfig {
            momentum: number(&sgd["momentum"]),
            dampening: 0.0,
            nesterov: sgd["nesterov"].as_bool().expect("`nesterov`"),
        };
        let decay = WeightDecayConfig::new(number(&sgd["weight_decay"]) as f32);
        let sgd_optimizer = optim::SgdConfig::new()
            .with_momentum(Some(momentum))
            .with_weight_decay(Some(decay));
        let adamw = &self.optimizers["adamw"];
        let adamw_optimizer = optim::AdamWConfig::new()
            .with_beta_1(number(&adamw["betas"][0]) as f32)
            .with_beta_2(number(&adamw["betas"][1]) as f32)
            .with_epsilon(number(&adamw["eps"]) as f32)
            .with_weight_decay(number(&adamw["weight_decay"]) as f32);
        vec![
            ("sgd", number(&sgd["lr"]), sgd_optimizer.into()),
            ("adamw", number(&adamw["lr"]), adamw_optimizer.into()),
        ]
    }
}

fn numbers<const N: usize, T>(view: &TensorView, value: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (elements, rest) = view.data().as_chunks::<N>();
    assert!(rest.is_empty());
    elements.iter().map(|raw| value(*raw)).collect()
}

//! Every model compared with PyTorch: logits, loss, gradients, running statistics, and parameters
//! after steps of SGD and AdamW; with Burn's operations and with those of `kernels`.
//!
//! `golden/README.md` describes the golden files, their format and the tolerances.

#[path = "golden/case.rs"]
mod case;
#[path = "golden/compare.rs"]
mod compare;
#[path = "golden/zoo.rs"]
mod zoo;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use burn_dist::ProcessGroup;
use burn_dist::parallel::{Parallel, ParameterOptimizer, Strategy};
use kernels::policy::{Choice, scoped};
use models::ImageClassifier;
use models::weights::{self, PyTorchKeys};

use case::Case;
use compare::{Table, Tolerances};

/// A folder of additional golden files.
const FOLDER: &str = "BURN_DIST_GOLDEN";

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn golden_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("no golden files in {}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|name| name == "safetensors"));
    files.sort();
    assert!(!files.is_empty(), "no golden files in {}", folder.display());
    files
}

#[test]
fn every_model_computes_what_pytorch_does() {
    let mut files = golden_files(&committed());
    for model in zoo::MODELS {
        let named = |path: &PathBuf| Case::open(path).model == model;
        assert!(files.iter().any(named), "no golden file of {model}");
    }
    if let Some(folder) = std::env::var_os(FOLDER) {
        files.extend(golden_files(Path::new(&folder)));
    }
    let mut tables = Vec::new();
    for choice in [Choice::Burn, Choice::Auto, Choice::Exact] {
        for path in &files {
            let mut case = Case::open(path);
            case.name = format!("{} ({})", case.name, choice.name());
            tables.push(scoped(choice, || zoo::check(&case)));
        }
    }
    for table in &tables {
        println!("{}", table.summary());
    }
    let failures: Vec<String> = tables.iter().filter_map(Table::failures).collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn a_pickled_state_dict_gives_the_same_weights() {
    let case = Case::open(&committed().join("csc_cnn.safetensors"));
    let config = models::CscCnnConfig::new()
        .with_channels(3)
        .with_height(12)
        .with_width(9)
        .with_classes(5)
        .with_filters([4, 6]);
    let model = config.init(&Device::flex()).unwrap();
    let keys = model.key_map();
    let model = weights::load(model, committed().join("csc_cnn.pt"), &keys).unwrap();
    let loaded = weights::state_dict(&model, &keys).unwrap();
    assert!(loaded.len() > 10);
    for (key, data) in loaded {
        if !key.ends_with("num_batches_tracked") {
            let expected = case.tensor(&format!("param/{key}"));
            assert_eq!(data.try_to_vec::<f32>().unwrap(), expected, "{key}");
        }
    }
}

/// torchvision names the parts of a ConvNeXt otherwise and has scales of shape \[channels, 1, 1\].
#[test]
fn a_convnext_of_torchvision_gives_the_same_weights() {
    let case = Case::open(&committed().join("convnext.safetensors"));
    let config = models::ConvNextConfig::new([1, 1, 2, 1], [4, 6, 8, 10], 5).with_patch(2);
    let model = config.init(&Device::flex()).unwrap();
    let (own, keys) = (model.key_map(), weights::KeyMap::torchvision_convnext());
    let model = weights::load(model, committed().join("convnext_torchvision.pt"), &keys).unwrap();
    let loaded = values(weights::state_dict(&model, &own).unwrap());
    assert!(loaded.len() > 30);
    for (key, found) in loaded {
        assert_eq!(found, case.tensor(&format!("param/{key}")), "{key}");
    }
}

/// Repeats the golden file's computation with the model that `build` creates.
fn check<M>(case: &Case, build: impl Fn(&Device) -> M) -> Table
where
    M: ImageClassifier + PyTorchKeys,
{
    let device = Device::flex().autodiff();
    let mut table = Table::new(&case.name);
    let tolerances = Tolerances::of(case);
    let temporary = tempfile::tempdir().unwrap();
    // The weights are loaded like a user's file.
    let import = |prefix: &str, device: &Device| {
        let path = temporary.path().join("state.safetensors");
        case.write_state(prefix, &path);
        let model = build(device);
        let keys = model.key_map();
        weights::load(model, &path, &keys).unwrap_or_else(|error| panic!("{}: {error}", case.name))
    };
    let model = import("param", &device);
    let keys = model.key_map();
    let state = |model: &M| values(weights::state_dict(model, &keys).unwrap());
    tolerances.same(&mut table, "param", &state(&model));

    let logits = model.forward(case.images(&device));
    tolerances.outputs(&mut table, "logits", 1e-5, &floats(logits.clone()));
    let loss = cross_entropy(logits, case.target(&device));
    tolerances.outputs(&mut table, "loss", 1e-5, &floats(loss.clone()));
    let gradients = loss.backward();
    tolerances.gradients(&mut table, &state(&of_gradients(model, &gradients)));

    for (name, learning_rate, optimizer) in case.optimizers() {
        let model = import("param", &device);
        let trained = train(model, optimizer, learning_rate, case, |step, model| {
            let kind = format!("{name}{step}");
            tolerances.after_steps(&mut table, &kind, learning_rate, step, &state(model));
        });
        if name == "sgd" {
            let plain = Device::flex();
            let logits = trained.forward(case.images(&plain));
            tolerances.outputs(&mut table, "eval_logits", 1e-4, &floats(logits));
            let logits = import("sgd3", &plain).forward(case.images(&plain));
            tolerances.outputs(&mut table, "eval_logits", 1e-5, &floats(logits));
        }
    }
    table
}

/// Does three steps on the batch of the file, like the trainer; `look` sees the model after the
/// first and the last.
fn train<M: ImageClassifier>(
    model: M,
    optimizer: ParameterOptimizer,
    learning_rate: f64,
    case: &Case,
    mut look: impl FnMut(usize, &M),
) -> M {
    let device = Device::flex().autodiff();
    let group = ProcessGroup::single();
    let mut parallel = Parallel::new(model, optimizer, Strategy::Ddp, &group).unwrap();
    for step in 1..=3 {
        let logits = parallel.model().forward(case.images(&device));
        let loss = cross_entropy(logits, case.target(&device));
        parallel.backward(loss).unwrap();
        parallel.step(learning_rate).unwrap();
        if step != 2 {
            look(step, &parallel.valid().unwrap());
        }
    }
    parallel.valid().unwrap()
}

fn cross_entropy(logits: Tensor<2>, target: Tensor<1, Int>) -> Tensor<1> {
    let picked = log_softmax(logits, 1).gather(1, target.unsqueeze_dim::<2>(1));
    picked.mean().neg()
}

/// Replaces the parameters of `model` by their gradients, so that these have the same names and
/// layouts.
fn of_gradients<M: Module>(model: M, gradients: &Gradients) -> M {
    struct Replace<'a>(&'a Gradients);

    impl ModuleMapper for Replace<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if !param.is_require_grad() {
                return param;
            }
            let gradient = param.val().grad(self.0).expect("a gradient");
            Param::initialized(param.id, Tensor::from_inner(gradient))
        }
    }

    model.map(&mut Replace(gradients))
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

fn values(state: BTreeMap<String, TensorData>) -> BTreeMap<String, Vec<f32>> {
    state
        .into_iter()
        .filter(|(key, _)| !key.ends_with("num_batches_tracked"))
        .map(|(key, data)| (key, data.try_to_vec().unwrap()))
        .collect()
}

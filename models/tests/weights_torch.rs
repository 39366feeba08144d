//! Weights written by PyTorch itself, and PyTorch's reading of ours.
//!
//! Needs a Python with torch and safetensors: the one in `BURN_DIST_PYTHON`, or `python3`.

#[allow(dead_code, reason = "only the weights of the golden files matter here")]
#[path = "golden/case.rs"]
mod case;

use std::path::{Path, PathBuf};
use std::process::Command;

use burn::tensor::{Device, Distribution, Tensor};
use models::weights::{KeyMap, Load, PyTorchKeys, load, save, state_dict};
use models::*;
use safetensors::tensor::{Dtype, TensorView};

use case::Case;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the interpreter; prints a message if there is none.
fn python() -> Option<String> {
    let named = std::env::var("BURN_DIST_PYTHON").ok();
    let python = named.clone().unwrap_or_else(|| "python3".to_owned());
    let found = Command::new(&python)
        .args(["-c", "import torch, safetensors.torch"])
        .output()
        .is_ok_and(|output| output.status.success());
    assert!(
        found || named.is_none(),
        "BURN_DIST_PYTHON={python} has no torch and safetensors"
    );
    if !found {
        eprintln!(
            "SKIPPED: {python} has no torch and safetensors; set BURN_DIST_PYTHON to one that has"
        );
    }
    found.then_some(python)
}

fn interop(python: &str, what: &str, folder: &Path) -> String {
    let script = repository().join("scripts/golden/interop.py");
    let output = Command::new(python)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(script)
        .arg(what)
        .arg(folder)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "interop.py {what}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn golden(case: &str) -> Case {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    Case::open(&folder.join(format!("{case}.safetensors")))
}

fn csc() -> CscCnn {
    CscCnnConfig::new()
        .with_channels(3)
        .with_height(12)
        .with_width(9)
        .with_classes(5)
        .with_filters([4, 6])
        .init(&Device::flex())
        .unwrap()
}

#[test]
fn what_torch_saves_is_loaded() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    interop(&python, "write", folder.path());
    let case = golden("csc_cnn");
    let keys = csc().key_map();
    let mut files = 0;
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let path = file.unwrap().path();
        let model = load(csc(), &path, &keys).unwrap_or_else(|error| panic!("{error}"));
        let half = path.to_string_lossy().contains("half");
        compare(&model, &keys, &case, if half { 1e-2 } else { 0.0 });
        files += 1;
    }
    assert_eq!(files, 10);
    let part = Load::new().part("model_ema");
    let model = part
        .load(csc(), folder.path().join("model.pt"), &keys)
        .unwrap();
    compare(&model, &keys, &case, 0.0);
}

fn compare(model: &CscCnn, keys: &KeyMap, case: &Case, tolerated: f32) {
    for (key, data) in state_dict(model, keys).unwrap() {
        if key.ends_with("num_batches_tracked") {
            continue;
        }
        let expected = case.tensor(&format!("param/{key}"));
        let found = data.try_to_vec::<f32>().unwrap();
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() <= tolerated * expected.abs(),
                "{key}: {found} {expected}"
            );
        }
    }
}

#[test]
fn torch_loads_what_is_saved() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let device = Device::flex();
    macro_rules! export {
        ($case:literal, $config:expr) => {
            let model = $config.init(&device).unwrap();
            let keys = model.key_map();
            let path = folder.path().join(concat!($case, ".safetensors"));
            golden($case).write_state("sgd3", &path);
            let model = load(model, &path, &keys).unwrap();
            save(&model, &path, &keys).unwrap();
            save(&model, path.with_extension("pt"), &keys).unwrap();
        };
    }
    export!(
        "cnn",
        CnnConfig::new()
            .with_channels(3)
            .with_height(12)
            .with_width(10)
            .with_classes(5)
            .with_filters([4, 5])
            .with_hidden(8)
    );
    export!(
        "csc_cnn",
        CscCnnConfig::new()
            .with_channels(3)
            .with_height(12)
            .with_width(9)
            .with_classes(5)
            .with_filters([4, 6])
    );
    export!("wrn_10_2", WideResNetConfig::new(10, 2, 5).with_base(2));
    export!(
        "plain_wide_resnet_pool7",
        PlainWideResNetConfig::olivia(5).with_widths([2, 3, 4, 5])
    );
    export!(
        "resnet_basic_imagenet",
        ResNetConfig::new([2, 1, 1, 1], false, 5).with_width(2)
    );
    export!(
        "resnet_bottleneck_cifar",
        ResNetConfig::new([2, 1, 1, 1], true, 5)
            .with_width(2)
            .with_stem(Stem::Cifar)
    );
    let vit = VitConfig::new(12, 2, 3, 5)
        .with_mlp_ratio(2)
        .with_height(8)
        .with_width(12);
    export!("vit_class_token", vit.clone());
    export!("vit_mean", vit.with_pooling(Pooling::Mean));
    export_for_torchvision(folder.path());
    let output = interop(&python, "read", folder.path());
    assert_eq!(output.matches("loaded strictly").count(), 9, "{output}");
    assert_eq!(output.matches("the same in .pt").count(), 8, "{output}");
    if output.contains("SKIPPED") {
        eprintln!("{output}");
    }
}

/// Writes the same small ViT under torchvision's names and, with images and logits, under timm's.
fn export_for_torchvision(folder: &Path) {
    let device = Device::flex();
    let model = VitConfig::new(12, 2, 3, 5)
        .with_height(8)
        .with_width(8)
        .init(&device)
        .unwrap();
    let images = Tensor::<4>::random([2, 3, 8, 8], Distribution::Normal(0.0, 1.0), &device);
    let logits = model.forward(images.clone());
    save(
        &model,
        folder.join("torchvision.safetensors"),
        &KeyMap::torchvision_vit(),
    )
    .unwrap();
    let mut tensors = state_dict(&model, &KeyMap::same()).unwrap();
    tensors.insert("images".to_owned(), images.into_data());
    tensors.insert("logits".to_owned(), logits.into_data());
    let views = tensors.iter().map(|(key, data)| {
        let shape = data.shape().to_vec();
        (
            key,
            TensorView::new(Dtype::F32, shape, data.as_bytes()).unwrap(),
        )
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    std::fs::write(folder.join("torchvision.ours"), bytes).unwrap();
}

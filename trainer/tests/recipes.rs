//! Recipes in whole runs: fine-tuning from PyTorch, losses with weights of classes, averages.

mod common;

use std::path::Path;

use burn::tensor::Device;
use common::{Finished, LIMIT, Trial};
use models::ConvNextConfig;
use models::weights::{self, KeyMap, PyTorchKeys};

/// Weights of a small ConvNeXt with 5 classes, written by PyTorch with torchvision's names.
const TORCHVISION: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../models/tests/golden/convnext_torchvision.pt"
);

const CONVNEXT: &str = "name = \"convnext\"\ndepths = [1, 1, 2, 1]\nwidths = [4, 6, 8, 10]\n\
                        patch = 2\n";

/// A configuration with this model and training, for images of 3 classes.
fn config(model: &str, data: &str, others: &str) -> String {
    format!(
        "[model]\n{model}\n\
         [data]\nname = \"generated\"\nsize = 16\nclasses = 3\ntrain_samples = 48\n\
         test_samples = 9\n{data}\n{others}"
    )
}

fn train(text: &str, ranks: &str) -> Finished {
    let args = ["--config", "own.toml", "--nproc", ranks, "--run-dir", "run"];
    let finished = Trial::new(&args).file("own.toml", text).start().wait(LIMIT);
    finished.assert_code(0).assert_nobody_left();
    finished
}

fn convnext(classes: usize) -> models::ConvNext {
    ConvNextConfig::new([1, 1, 2, 1], [4, 6, 8, 10], classes)
        .with_patch(2)
        .init(&Device::flex())
        .unwrap()
}

#[test]
fn fine_tuning_from_torchvision_keeps_what_is_frozen() {
    let model = format!(
        "{CONVNEXT}weights = {TORCHVISION:?}\nnew_head = true\n\
         freeze = [\"stem.*\", \"stages.0.*\"]"
    );
    let others = "[optimizer]\nname = \"adamw\"\nlr = 1e-2\nlayer_decay = 0.5\n\
                  [[optimizer.groups]]\nmatch = \"head.fc.*\"\nlr_factor = 2.0\n\
                  [train]\nbatch_size = 8\n";
    let run = train(&config(&model, "", others), "2");
    let run_dir = run.path("run");
    let export = Trial::new(&[
        "export",
        run_dir.to_str().unwrap(),
        "--out",
        "own.safetensors",
    ]);
    let export = export.run();
    export.assert_code(0);

    let start = convnext(5);
    let keys = start.key_map();
    let start = weights::load(
        start,
        Path::new(TORCHVISION),
        &KeyMap::torchvision_convnext(),
    );
    let start = weights::state_dict(&start.unwrap(), &keys).unwrap();
    let end = weights::load(convnext(3), export.path("own.safetensors"), &keys);
    let end = weights::state_dict(&end.unwrap(), &keys).unwrap();
    assert_eq!(start.len(), end.len());
    for (key, value) in &start {
        let is_frozen = key.starts_with("stem.") || key.starts_with("stages.0.");
        assert_eq!(end[key] == *value, is_frozen, "{key}");
    }
}

#[test]
fn patterns_that_freeze_nothing_are_told_with_their_place() {
    let model = format!("{CONVNEXT}freeze = [\"layer1.*\"]");
    let others = "[optimizer]\nname = \"sgd\"\n[train]\nbatch_size = 8\n";
    let text = config(&model, "", others);
    let args = ["--config", "own.toml", "--dry-run"];
    let finished = Trial::new(&args).file("own.toml", text).run();
    finished
        .assert_code(2)
        .assert_stderr(&["`layer1.*`", "stem.conv.weight", "own.toml"]);
}

/// Losses of the steps.
fn losses(run: &Finished) -> Vec<f64> {
    let steps = run.metrics("train");
    let losses = steps.iter().filter_map(|step| step["loss"].as_f64());
    losses.collect()
}

#[test]
fn weighted_losses_are_the_same_on_any_number_of_ranks() {
    let model = "name = \"vit\"\ndim = 12\ndepth = 1\nheads = 3";
    let optimizer = "[optimizer]\nname = \"sgd\"\nlr = 0.05\n";
    for loss in [
        "class_weights = [0.5, 3.0, 1.0]\nlabel_smoothing = 0.1",
        "class_weights = \"balanced\"\nloss = \"bce\"",
    ] {
        let others = format!("{optimizer}[train]\nbatch_size = 8\n{loss}\n");
        let data = "balance = 0.5\naugment = \"mixup:1.0:0.5\"";
        let text = config(model, data, &others);
        let (one, two) = (losses(&train(&text, "1")), losses(&train(&text, "2")));
        assert_eq!(one.len(), 6);
        for (one, two) in one.iter().zip(&two) {
            assert!((one - two).abs() < 1e-4 * one, "{loss}: {one} {two}");
        }
        let plain = text.replace(loss, "");
        assert_ne!(losses(&train(&plain, "1")), one);
    }
}

#[test]
fn the_mean_of_the_last_weights_is_evaluated() {
    let model = "name = \"vit\"\ndim = 12\ndepth = 1\nheads = 3";
    let rest = "[optimizer]\nname = \"sgd\"\nlr = 0.5\n\
                [schedule]\nname = \"wsd\"\nwarmup_steps = 2\ndecay = 0.5\nshape = \"sqrt\"\n\
                [train]\nepochs = 4\nbatch_size = 8\n";
    let data = "augment = \"flip+three-augment+color-jitter:0.3:0.1\"";
    let plain = train(&config(model, data, rest), "2");
    let swa = "[swa]\nstart = 0.25\nevery_steps = 2\n";
    let averaged = train(&config(model, data, &format!("{rest}{swa}")), "2");
    assert_eq!(losses(&plain), losses(&averaged));
    let evaluated = |run: &Finished| -> Vec<f64> {
        let all = run.metrics("eval");
        all.iter()
            .filter_map(|line| line["loss"].as_f64())
            .collect()
    };
    let (plain, averaged) = (evaluated(&plain), evaluated(&averaged));
    assert_eq!(plain.len(), 4);
    // The first epoch is before the start.
    let far = |epoch: usize| (plain[epoch] - averaged[epoch]).abs() / plain[epoch];
    assert!(far(0) < 1e-5, "{plain:?} {averaged:?}");
    assert!(far(3) > 1e-4, "{plain:?} {averaged:?}");
}

#[test]
fn a_preview_names_the_characters_that_no_font_has() {
    let preview = |classes: [&str; 2]| {
        let mut trial = Trial::new(&["preview", "--config", "own.toml"]).file(
            "own.toml",
            "[data]\nname = \"image-folder\"\ndir = \"own\"\nsize = 8\n\
             [model]\nname = \"cnn\"\n[optimizer]\nname = \"sgd\"\n[train]\nbatch_size = 4\n",
        );
        let mut png = std::io::Cursor::new(Vec::new());
        let image = image::RgbImage::from_pixel(8, 8, image::Rgb([200, 0, 0]));
        image.write_to(&mut png, image::ImageFormat::Png).unwrap();
        for class in classes {
            for (part, number) in [("train", 0), ("train", 1), ("train", 2), ("val", 0)] {
                let name = format!("own/{part}/{class}/{number}.png");
                trial = trial.file(&name, png.get_ref());
            }
        }
        let finished = trial.run();
        finished.assert_code(0);
        assert!(finished.path("preview.png").exists());
        finished.stderr
    };
    // U+0378 is no character.
    let warned = preview(["cat", "\u{378}"]);
    assert!(
        warned.contains("no font of this machine has the characters \u{378}"),
        "{warned}"
    );
    let fine = preview(["кошка", "قطة"]);
    assert!(!fine.contains("font"), "{fine}");
}

//! Every model and data set of the configuration in whole runs, and the preview of a batch.

mod common;

use common::{Finished, LIMIT, Trial};

/// A configuration of the model for generated images of `side` pixels.
fn config(model: &str, side: usize) -> String {
    format!(
        "[model]\n{model}\n\
         [data]\nname = \"generated\"\nsize = {side}\nclasses = 3\n\
         train_samples = 24\ntest_samples = 7\nworkers = 1\n\
         augment = \"crop:2:reflect+flip+mixup:0.8:0.5+cutmix:1.0:0.5\"\n\
         [optimizer]\nname = \"adamw\"\nlr = 1e-3\n\
         [schedule]\nname = \"cosine\"\nwarmup_steps = 2\n\
         [train]\nepochs = 2\nbatch_size = 8\nlabel_smoothing = 0.1\n"
    )
}

fn train(model: &str, side: usize) -> Finished {
    let args = ["--config", "zoo.toml", "--nproc", "2", "--run-dir", "run"];
    let finished = Trial::new(&args)
        .file("zoo.toml", config(model, side))
        .start()
        .wait(LIMIT);
    finished.assert_code(0).assert_nobody_left();
    finished
}

#[test]
fn every_model_trains_on_two_ranks() {
    for (model, side) in [
        ("name = \"cnn\"\nfilters = [2, 3]\nhidden = 4", 12),
        ("name = \"csc-cnn\"", 12),
        (
            "name = \"wide-resnet\"\ndepth = 10\nwiden = 1\ndropout = 0.1",
            8,
        ),
        ("name = \"resnet\"", 8),
        (
            "name = \"vit\"\ndim = 12\ndepth = 2\nheads = 3\ndrop_path = 0.1",
            8,
        ),
        (
            "name = \"vit\"\ndim = 12\ndepth = 1\nheads = 3\npooling = \"mean\"",
            8,
        ),
        (
            "name = \"convnext\"\ndepths = [1, 1, 1, 1]\nwidths = [4, 4, 4, 4]\npatch = 1\n\
             drop_path = 0.1",
            8,
        ),
    ] {
        let finished = train(model, side);
        let steps = finished.metrics("train");
        assert_eq!(steps.len(), 6, "{model}");
        let rates: Vec<f64> = steps
            .iter()
            .filter_map(|step| step["lr"].as_f64())
            .collect();
        assert!(rates[0] < rates[1] && rates[5] < rates[2], "{rates:?}");
        for evaluation in finished.metrics("eval") {
            assert_eq!(evaluation["samples"], 7, "{model}");
        }
    }
}

#[test]
fn images_that_a_model_cannot_take_are_an_error_before_training() {
    let vit = "name = \"vit\"\npatch = 5\ndim = 12\ndepth = 1\nheads = 3";
    let finished = Trial::new(&["--config", "zoo.toml", "--run-dir", "run"])
        .file("zoo.toml", config(vit, 8))
        .run();
    finished
        .assert_code(2)
        .assert_stderr(&["patches of 5×5", "of zoo.toml)"])
        .assert_no_files(&["zoo.toml"]);
}

#[test]
fn a_preview_shows_the_batch_that_will_be_trained_on() {
    let preview = |out: &str| {
        let finished = Trial::new(&[
            "preview", "--config", "zoo.toml", "--images", "6", "--epoch", "2", "--out", out,
        ])
        .file("zoo.toml", config("name = \"csc-cnn\"", 12))
        .run();
        finished.assert_code(0);
        std::fs::read(finished.path(out)).unwrap()
    };
    let png = preview("batch.png");
    let picture = image::load_from_memory_with_format(&png, image::ImageFormat::Png).unwrap();
    // Three columns and two rows of images of 12 pixels, enlarged nine times, with two lines each.
    assert_eq!(picture.width(), 6 + 3 * (108 + 6));
    assert_eq!(picture.height(), 6 + 2 * (108 + 6 + 2 * 17));
    assert_eq!(png, preview("again.png"));
}

#[test]
fn a_preview_says_what_is_wrong() {
    let finished = Trial::new(&["preview", "--set", "train.epochs=0"]).run();
    finished.assert_code(2);
    assert!(
        finished.stderr.contains("train.epochs"),
        "{}",
        finished.stderr
    );
    let out = "no/such/folder/preview.png";
    let settings = ["data.train_samples=96", "data.test_samples=1"];
    let mut args = vec!["preview", "--out", out];
    settings.iter().for_each(|set| args.extend(["--set", *set]));
    let finished = Trial::new(&args).run();
    finished.assert_code(2);
    assert!(finished.stderr.contains("--out"), "{}", finished.stderr);
}

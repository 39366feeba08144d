//! Mixed precision, parameter groups and parameter averages in whole runs.

mod common;

use std::path::Path;

use common::{Finished, LIMIT, Trial};
use serde_json::Value;

fn run(nproc: &str, settings: &[&str]) -> Finished {
    let finished = Trial::tiny(&["--nproc", nproc], settings).run();
    finished.assert_code(0).assert_nobody_left();
    finished
}

fn accuracy(finished: &Finished) -> f64 {
    finished.metrics("eval").last().unwrap()["accuracy"]
        .as_f64()
        .unwrap()
}

fn checksum(finished: &Finished) -> &str {
    let at = finished.stdout.find("checksum ").unwrap();
    &finished.stdout[at..at + 25]
}

#[test]
fn low_precision_learns_like_f32_on_one_rank_and_on_two() {
    let f32 = run("1", &["train.epochs=2"]);
    for precision in ["bf16", "f16"] {
        let setting = format!("train.precision={precision}");
        for nproc in ["1", "2"] {
            let low = run(nproc, &["train.epochs=2", &setting]);
            let (first, expected) = (low.losses()[0], f32.losses()[0]);
            assert!((first / expected - 1.0).abs() < 0.02, "{first} {expected}");
            let (last, expected) = (accuracy(&low), accuracy(&f32));
            assert!(last > expected - 0.05, "{precision}: {last} {expected}");
            for step in low.metrics("train") {
                assert_eq!(step["loss_scale"].is_number(), precision == "f16");
                assert_eq!(step["skipped_steps"].is_number(), precision == "f16");
            }
        }
    }
}

#[test]
fn overflows_are_skipped_and_written_down() {
    let scale = format!("loss_scale.initial={:?}", 2f64.powi(26));
    let finished = run("2", &["train.precision=f16", &scale]);
    let steps = finished.metrics("train");
    let skipped = |step: &Value| step["skipped_steps"].as_u64().unwrap();
    let last = steps.last().unwrap();
    assert_eq!(skipped(&steps[0]), 1);
    assert!((3..20).contains(&skipped(last)), "{last}");
    assert!(steps[0]["gradient_norm"].is_null());
    assert!(last["gradient_norm"].is_number());
    assert!(last["loss_scale"].as_f64().unwrap() < 2f64.powi(26));
}

#[test]
fn a_run_that_only_overflows_says_so() {
    let settings = [
        "train.precision=f16",
        "loss_scale.initial=1e20",
        "loss_scale.floor=1e20",
    ];
    let finished = Trial::tiny(&["--nproc", "2"], &settings).run();
    finished
        .assert_code(1)
        .assert_stderr(&["10 steps in a row contain NaN or infinity", "loss scale"])
        .assert_nobody_left();
}

#[test]
fn a_run_that_skips_all_its_steps_fails_with_advice() {
    let settings = [
        "train.precision=f16",
        "loss_scale.initial=1e20",
        "train.max_steps=6",
    ];
    for nproc in ["1", "2"] {
        let finished = Trial::tiny(&["--nproc", nproc], &settings).run();
        finished
            .assert_code(1)
            .assert_stderr(&["error: 6 of 6 steps were skipped", "loss_scale.initial"])
            .assert_nobody_left();
        assert!(
            !finished.stderr.contains("exited with"),
            "{}",
            finished.stderr
        );
        let told = ", 6 of 6 steps skipped";
        assert!(finished.stdout.contains(told), "{}", finished.stdout);
    }
}

#[test]
fn skipped_steps_are_counted_of_those_that_were_done() {
    let scale = format!("loss_scale.initial={:?}", 2f64.powi(22));
    let settings = ["train.precision=f16", &scale, "train.max_steps=12"];
    let finished = run("2", &settings);
    let steps = finished.metrics("train");
    let skipped = steps.last().unwrap()["skipped_steps"].as_u64().unwrap();
    assert!((3..10).contains(&skipped), "{skipped}");
    let told = format!(", {skipped} of 12 steps skipped");
    assert!(finished.stdout.contains(&told), "{}", finished.stdout);
}

#[test]
fn half_precision_and_averages_resume_bit_for_bit() {
    let settings = [
        "train.precision=f16",
        "loss_scale.growth_interval=4",
        "ema.decay=0.9",
        "optimizer.weight_decay=0.1",
        "optimizer.decay_norm_and_bias=false",
        "checkpoint.every_steps=7",
        "checkpoint.keep=9",
    ];
    let whole = run("2", &settings);
    let from = whole.path("run/checkpoints/step-0000000007");
    let again = Trial::tiny(
        &["--nproc", "2", "--resume", from.to_str().unwrap()],
        &settings,
    )
    .run();
    again.assert_code(0);
    assert_eq!(checksum(&again), checksum(&whole));
    let evaluation = |finished: &Finished| finished.metrics("eval").last().unwrap()["loss"].clone();
    assert_eq!(evaluation(&again), evaluation(&whole));
    assert_eq!(again.losses(), whole.losses()[7..]);
}

/// The path decides the order of sums.
#[test]
fn a_resumed_run_computes_products_of_bf16_by_the_path_of_its_checkpoint() {
    let settings = [
        "train.precision=bf16",
        "checkpoint.every_steps=7",
        "checkpoint.keep=9",
    ];
    let whole = Trial::tiny(&["--nproc", "2"], &settings)
        .env("BURN_DIST_KERNELS_BF16", "f32")
        .run();
    whole.assert_code(0);
    let from = whole.path("run/checkpoints/step-0000000007");
    let args = ["--nproc", "2", "--resume", from.to_str().unwrap()];
    let again = Trial::tiny(&args, &settings).run();
    again.assert_code(0);
    for finished in [&whole, &again] {
        assert!(
            finished.stdout.contains("bf16 by f32"),
            "{}",
            finished.stdout
        );
    }
    assert_eq!(checksum(&again), checksum(&whole));
    assert_eq!(again.losses(), whole.losses()[7..]);
}

#[test]
fn an_unknown_path_of_bf16_is_an_error() {
    let finished = Trial::tiny(&["--nproc", "1"], &["train.precision=bf16"])
        .env("BURN_DIST_KERNELS_BF16", "int8")
        .run();
    finished.assert_code(2);
    finished.assert_stderr(&["BURN_DIST_KERNELS_BF16", "int8", "amx"]);
}

#[test]
fn groups_change_what_they_match() {
    let plain = run("1", &["train.max_steps=3", "optimizer.weight_decay=0.5"]);
    let sets: [&[&str]; 2] = [
        &["optimizer.decay_norm_and_bias=false"],
        &["optimizer.groups=[{match=\"fc2.*\", lr_factor=0.0}]"],
    ];
    for set in sets {
        let mut settings = vec!["train.max_steps=3", "optimizer.weight_decay=0.5"];
        settings.extend(set);
        let other = run("1", &settings);
        assert_eq!(other.losses()[0], plain.losses()[0]);
        assert_ne!(checksum(&other), checksum(&plain));
    }
    let set = "optimizer.groups=[{match=\"head.*\"}]";
    let finished = Trial::tiny(&["--nproc", "1"], &[set]).run();
    finished
        .assert_code(2)
        .assert_stderr(&["`head.*`", "fc2.weight"]);
}

#[test]
fn evaluations_go_by_the_average() {
    let plain = run("1", &["train.max_steps=5"]);
    let average = run("1", &["train.max_steps=5", "ema.decay=0.9"]);
    assert_eq!(checksum(&average), checksum(&plain));
    let loss = |finished: &Finished| finished.metrics("eval")[0]["loss"].as_f64().unwrap();
    assert_ne!(loss(&average), loss(&plain));
}

#[test]
fn evaluations_are_in_the_precision_of_the_training_unless_f32_is_wanted() {
    let loss = |finished: &Finished| finished.metrics("eval")[0]["loss"].as_f64().unwrap();
    for precision in ["bf16", "f16"] {
        let precision = format!("train.precision={precision}");
        for strategy in ["parallel.strategy=ddp", "parallel.strategy=zero-3"] {
            // The first rank has one image and one batch more.
            let settings = [
                "train.max_steps=5",
                "data.test_samples=257",
                &precision,
                strategy,
            ];
            let low = run("2", &settings);
            let full = run(
                "2",
                &[&settings[..], &["train.eval_precision=f32"]].concat(),
            );
            assert_eq!(checksum(&low), checksum(&full));
            let (low, full) = (loss(&low), loss(&full));
            assert!(
                low != full && (low / full - 1.0).abs() < 0.01,
                "{low} {full}"
            );
        }
    }
}

#[test]
fn mnist_is_learned_in_low_precision() {
    let Ok(data) = std::env::var("BURN_DIST_DATA") else {
        eprintln!("SKIPPED: BURN_DIST_DATA does not say where MNIST is");
        return;
    };
    let folder = Path::new(&data).join("mnist");
    let dir = format!("data.dir={}", folder.display());
    let settings = [
        "data.name=mnist",
        &dir,
        "data.train_samples=1920",
        "data.test_samples=500",
        "train.batch_size=32",
    ];
    let learn = |precision: &str| {
        let precision = format!("train.precision={precision}");
        let mut settings = settings.to_vec();
        settings.push(&precision);
        accuracy(&run("1", &settings))
    };
    let expected = learn("f32");
    assert!(expected > 0.7, "{expected}");
    for precision in ["bf16", "f16"] {
        let found = learn(precision);
        assert!(
            (found - expected).abs() < 0.04,
            "{precision}: {found} {expected}"
        );
    }
}

/// The rate is too high: from some step on, no loss is finite at any scale.
const BLOWS_UP: [&str; 4] = [
    "train.precision=f16",
    "optimizer.name=adam",
    "optimizer.lr=30.0",
    "checkpoint.every_steps=10",
];

fn in_folder(folder: &Path, more: &[&str]) -> Finished {
    let settings = [&BLOWS_UP[..], more].concat();
    Trial::tiny_at(&folder.join("run"), &["--resume", "auto"], &settings).run()
}

#[test]
fn a_run_whose_loss_has_no_scale_any_more_goes_on_from_before_that() {
    let folder = tempfile::tempdir().unwrap();
    let failed = in_folder(folder.path(), &["train.epochs=5"]);
    failed
        .assert_code(1)
        .assert_stderr(&["abandoned the state in which training diverged"]);
    // At most once per checkpoint.
    let slower = ["train.epochs=5", "optimizer.lr=0.001"];
    let mut again = (0..4).map(|_| in_folder(folder.path(), &slower));
    let last = again.find(|finished| finished.code != Some(1));
    last.expect("it fails for ever").assert_code(0);
}

#[test]
fn the_mean_loss_of_an_epoch_is_the_same_when_it_is_continued() {
    let folder = tempfile::tempdir().unwrap();
    let mean = |finished: &Finished| {
        let (_, rest) = finished.stdout.split_once("train loss ").unwrap();
        rest.split(',').next().unwrap().to_owned()
    };
    let whole = in_folder(folder.path(), &["train.epochs=1"]);
    // Nearly all steps are skipped.
    whole.assert_code(1);
    // In f16 the losses are not finite; in f32 they are large.
    whole.assert_stderr(&["evaluation overflowed in f16", "eval_precision"]);
    let run_dir = folder.path().join("run");
    let again = Trial::new(&["eval", run_dir.to_str().unwrap()])
        .start()
        .wait(LIMIT);
    again
        .assert_code(0)
        .assert_stderr(&["evaluation overflowed in f16"]);
    let skipped = whole.metrics_in(&run_dir, "train");
    assert!(skipped.len() < 20, "no loss was left out");
    let checkpoint = folder.path().join("run/checkpoints/step-0000000010");
    let other = folder.path().join("other");
    let args = ["--resume", checkpoint.to_str().unwrap()];
    let settings = [&BLOWS_UP[..], &["train.epochs=1"]].concat();
    let continued = Trial::tiny_at(&other, &args, &settings).run();
    continued.assert_code(1);
    assert_eq!(mean(&continued), mean(&whole));
}

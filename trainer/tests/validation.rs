//! Training with a share of the training data for validation.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Finished, Trial};
use serde_json::Value;

const SPLIT: [&str; 5] = [
    "data.validation=0.125",
    "checkpoint.every_epochs=1",
    "train.epochs=3",
    "early_stopping.patience=1",
    "early_stopping.min_delta=1.0",
];

fn eval(run: &Finished, args: &[&str]) -> Finished {
    let run_dir = run.path("run");
    let args = [
        &["eval", run_dir.to_str().unwrap(), "--json", "result.json"][..],
        args,
    ]
    .concat();
    Trial::new(&args).run()
}

/// Loss, number of samples and name of the data of `trainer eval`.
fn result(found: &Finished) -> (f64, u64, String) {
    found.assert_code(0);
    let text = std::fs::read_to_string(found.path("result.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    let evaluation = &result["evaluation"];
    (
        evaluation["loss"].as_f64().unwrap(),
        evaluation["samples"].as_u64().unwrap(),
        result["set"].as_str().unwrap().to_owned(),
    )
}

/// Checks that all evaluations of a run are of `samples` samples of `set`.
#[track_caller]
fn assert_evaluated(run: &Finished, set: &str, samples: u64) {
    let lines = run.metrics("eval");
    assert!(!lines.is_empty());
    for line in lines {
        assert_eq!(
            (line["set"].as_str(), line["samples"].as_u64()),
            (Some(set), Some(samples))
        );
    }
}

#[test]
fn training_evaluates_on_its_own_share_and_eval_on_the_test_images() {
    let run = Trial::tiny(&["--nproc", "2"], &SPLIT).run();
    run.assert_code(0);
    for said in [
        "210 training and 30 val images",
        "val loss",
        "val accuracy",
        // Early stopping follows it.
        "did not improve for 1 evaluation",
    ] {
        assert!(run.stdout.contains(said), "{said}: {}", run.stdout);
    }
    assert_evaluated(&run, "val", 30);
    let report = std::fs::read_to_string(run.path("run/report.html")).unwrap();
    assert!(report.contains("val loss") && !report.contains("test loss"));

    let (_, samples, set) = result(&eval(&run, &[]));
    assert_eq!((samples, set.as_str()), (101, "test"));
    // The best checkpoint is that of the best evaluation, and another number of ranks has the same
    // images.
    let (loss, samples, set) = result(&eval(&run, &["--on", "val"]));
    assert_eq!((samples, set.as_str()), (30, "val"));
    let lines = run.metrics("eval");
    let accuracy = |line: &Value| line["accuracy"].as_f64().unwrap();
    let best = lines.iter().map(accuracy).fold(0.0, f64::max);
    let best = lines.iter().find(|line| accuracy(line) == best).unwrap();
    let difference = best["loss"].as_f64().unwrap() - loss;
    assert!(difference.abs() < 1e-6, "{loss}: {lines:?}");

    let other = Trial::tiny(&[], &["data.validation=0.2", "train.epochs=3"])
        .arg("--resume")
        .arg(run.path("run"))
        .run();
    other
        .assert_code(1)
        .assert_stderr(&["data.validation = 0.125", "this run has 0.2"]);
}

#[test]
fn training_evaluates_on_the_test_images_if_asked() {
    let run = Trial::tiny(&[], &["data.validation=0.125", "data.evaluate=test"]).run();
    run.assert_code(0);
    assert_evaluated(&run, "test", 101);
    assert!(
        run.stdout.contains("210 training and 101 test images"),
        "{}",
        run.stdout
    );
    Trial::new(&["--set", "data.evaluate=test"])
        .run()
        .assert_code(2)
        .assert_stderr(&["without `data.validation`"]);
}

#[test]
fn images_that_do_not_exist_are_not_evaluated() {
    let run = Trial::tiny(&[], &["checkpoint.every_epochs=1"]).run();
    run.assert_code(0);
    eval(&run, &["--on", "val"])
        .assert_code(2)
        .assert_stderr(&["data.validation is not set"]);
    result(&eval(&run, &["--on", "test"]));
    // One image of each class.
    Trial::tiny(&[], &["data.validation=0.1", "data.train_samples=9"])
        .run()
        .assert_code(2)
        .assert_stderr(&["too small to hold out 0.1", "--set data.validation=0.1"]);
}

/// A run of two ranks that evaluates once.
fn of_task(config: &str, settings: &[&str]) -> Finished {
    let mut trial = Trial::new(&["--config", config, "--nproc", "2", "--run-dir", "run"]);
    let usual = [
        "train.epochs=1",
        "train.batch_size=12",
        "checkpoint.every_epochs=1",
    ];
    for setting in usual.iter().chain(settings) {
        trial = trial.arg("--set").arg(setting);
    }
    let run = trial.run();
    run.assert_code(0);
    run
}

/// Checks that one rank evaluates the held-out data as two did in training.
#[track_caller]
fn assert_same_on_one_rank(run: &Finished) {
    let line = run.metrics("eval").pop().unwrap();
    let (loss, samples, set) = result(&eval(run, &["--on", "val"]));
    assert_eq!(
        (Some(samples), set.as_str()),
        (line["samples"].as_u64(), "val")
    );
    assert!(
        (loss - line["loss"].as_f64().unwrap()).abs() < 1e-6,
        "{loss}: {line}"
    );
}

#[test]
fn a_language_model_holds_out_the_last_windows_of_its_text() {
    let settings = [
        "data.train_samples=64",
        "data.context=32",
        "data.validation=0.25",
        // Read only by `trainer eval`.
        "data.test_path=nowhere",
        "model.width=16",
        "model.layers=1",
        "model.heads=2",
    ];
    let run = of_task("language", &settings);
    for said in ["48 training and 16 val windows", "val perplexity"] {
        assert!(run.stdout.contains(said), "{said}: {}", run.stdout);
    }
    assert_evaluated(&run, "val", 16 * 32);
    assert_same_on_one_rank(&run);
    eval(&run, &[]).assert_code(1).assert_stderr(&["nowhere"]);
}

#[test]
fn segmentation_holds_out_some_of_its_images() {
    let settings = [
        "data.size=16",
        "data.train_samples=60",
        "data.test_samples=37",
        "data.validation=0.25",
        "model.filters=4",
    ];
    let run = of_task("shapes", &settings);
    for said in ["45 training and 15 val images", "val mean IoU"] {
        assert!(run.stdout.contains(said), "{said}: {}", run.stdout);
    }
    assert_same_on_one_rank(&run);
    let (_, of_val, _) = result(&eval(&run, &["--on", "val"]));
    let tested = eval(&run, &[]);
    let (_, of_test, set) = result(&tested);
    assert!(set == "test" && of_test > 2 * of_val, "{of_test} {of_val}");
    assert!(tested.stdout.contains(" test pixels"), "{}", tested.stdout);
}

#[test]
fn a_program_whose_task_holds_out_nothing_is_refused() {
    let program = Path::new(env!("CARGO_BIN_EXE_trainer"));
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(program.with_file_name("examples").join("own_task"))
        .args(["digits.toml", "run", "data.validation=0.1"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("training evaluates on val"), "{said}");
}

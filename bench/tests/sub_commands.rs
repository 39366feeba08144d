//! The subcommands with little work: their measurements are correct, complete and written. Speed is
//! not checked.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// Runs `bench` to its end, with its results in `json`.
fn bench(arguments: &[&str], json: &Path, path: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(arguments).arg("--json").arg(json);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    finish(command)
}

/// Runs a command to its end, or fails the test after [`LIMIT`].
fn finish(mut command: Command) -> Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > LIMIT {
            child.kill().expect("a child that runs");
            panic!("{command:?} took more than {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().expect("the child has ended")
}

fn succeeded(output: &Output, json: &Path) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let bytes = std::fs::read(json).expect("a result file");
    serde_json::from_slice(&bytes).expect("JSON")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key].as_array().expect("a list")
}

const QUICK: [&str; 3] = ["collectives", "--seconds", "0.001"];

#[test]
fn collectives_fill_a_row_for_each_case() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("out.json");
    let mut arguments = QUICK.to_vec();
    arguments.extend(["--ranks", "2,3", "--sizes", "1KiB,300KiB", "--rounds", "2"]);
    let output = bench(&arguments, &json, None);
    let report = succeeded(&output, &json);
    assert_eq!(report["benchmark"], "collectives");
    assert_eq!(report["world"], serde_json::json!([2, 3]));
    for key in ["date", "host", "cpu", "command"] {
        assert!(
            report[key].as_str().is_some_and(|text| !text.is_empty()),
            "{key}"
        );
    }
    let rows = list(&report, "results");
    // 2 world sizes × 2 sizes × 2 transports × 3 calls.
    assert_eq!(rows.len(), 24);
    for row in rows {
        let (best, median) = (row["best_us"].as_f64(), row["median_us"].as_f64());
        assert!(best > Some(0.0) && best <= median, "{row}");
        let (ranks, bytes) = (row["ranks"].as_f64(), row["bytes"].as_f64());
        let (ranks, bytes) = (ranks.expect("ranks"), bytes.expect("bytes"));
        let expected = 2.0 * (ranks - 1.0) / ranks * bytes / median.expect("a median") / 1e3;
        let found = row["median_bus_gb_s"].as_f64().expect("a bandwidth");
        assert!((found / expected - 1.0).abs() < 1e-9, "{row}");
        assert_eq!(list(row, "round_medians_us").len(), 2);
        assert!(row["times_mpi_median"].is_null());
    }
    // The table has a heading and the same rows.
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 25);
}

#[test]
fn mpi_stands_beside_ours() {
    let here = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !here("mpicc") || !here("mpirun") {
        eprintln!("SKIPPED: bench against OpenMPI: mpicc and mpirun are not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("out.json");
    let mut arguments = QUICK.to_vec();
    arguments.extend(["--ranks", "2", "--sizes", "64KiB,300KiB", "--rounds", "1"]);
    arguments.extend(["--transport", "shm", "--mpi"]);
    let output = bench(&arguments, &json, None);
    let report = succeeded(&output, &json);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("NOT COMPARED"), "{errors}");
    let rows = list(&report, "results");
    // 2 sizes × (3 calls + MPI).
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert!(row["times_mpi_median"].as_f64() > Some(0.0), "{row}");
        if row["transport"] == "mpi" {
            assert_eq!(row["times_mpi_median"].as_f64(), Some(1.0));
        }
    }
}

#[test]
fn without_mpi_the_rest_is_measured_and_the_lack_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("out.json");
    let mut arguments = QUICK.to_vec();
    arguments.extend(["--ranks", "2", "--sizes", "64KiB,300KiB", "--rounds", "1"]);
    arguments.extend(["--transport", "shm", "--mpi"]);
    let nothing = folder.path().to_str().expect("a plain name");
    let output = bench(&arguments, &json, Some(nothing));
    let report = succeeded(&output, &json);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("NOT COMPARED") && errors.contains("mpirun"),
        "{errors}"
    );
    assert_eq!(list(&report, "results").len(), 6);
}

#[test]
fn training_compares_ranks_threads_and_the_bare_loop() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("out.json");
    let arguments = [
        "training",
        "--seconds",
        "0.1",
        "--rounds",
        "1",
        "--batch",
        "2",
    ];
    let report = succeeded(&bench(&arguments, &json, None), &json);
    let settings = list(&report["results"], "settings");
    let found: Vec<_> = settings
        .iter()
        .map(|row| {
            (
                row["by"].as_str(),
                row["ranks"].as_u64(),
                row["threads"].as_u64(),
            )
        })
        .collect();
    let setting = |by, ranks, threads| (Some(by), Some(ranks), Some(threads));
    assert_eq!(
        found,
        [
            setting("bare", 1, 1),
            setting("trainer", 1, 1),
            setting("trainer", 2, 1),
            setting("trainer", 1, 2),
            setting("bare", 1, 2),
        ]
    );
    for row in settings {
        assert!(row["images_per_second"].as_f64() > Some(0.0), "{row}");
    }
    for ratio in list(&report["results"], "ratios") {
        assert!(ratio["median"].as_f64() > Some(0.0), "{ratio}");
    }
}

/// Ranks and measuring processes are this program, too, and must know their role.
#[test]
fn the_trainer_is_in_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let trainer = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
        command.arg("trainer").args(arguments);
        command.current_dir(folder.path());
        finish(command)
    };
    let sizes = ["--set", "data.train_samples=96", "--set", "train.epochs=1"];
    let ranks = [&sizes[..], &["--nproc", "2", "--run-dir", "run"]].concat();
    let output = trainer(&ranks);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert!(folder.path().join("run/evaluation.json").exists(), "{said}");

    let output = trainer(&[&sizes[..], &["--dry-run"]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("ddp") && !said.contains("not measured"),
        "{said}"
    );
    // Exit codes are the trainer's.
    assert_eq!(trainer(&["--set", "train.epoch=1"]).status.code(), Some(2));
    assert_eq!(trainer(&["--help"]).status.code(), Some(0));
}

#[test]
fn training_stands_beside_pytorch() {
    let Ok(python) = std::env::var("BURN_DIST_PYTHON") else {
        eprintln!("SKIPPED: set BURN_DIST_PYTHON to a Python that has torch");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("out.json");
    let arguments = [
        "training",
        "--seconds=0.1",
        "--rounds=1",
        "--batch=2",
        "--precision=bf16",
        "--torch",
        &python,
    ];
    let report = succeeded(&bench(&arguments, &json, None), &json);
    let rows = list(&report["results"], "settings");
    let of_torch = rows.iter().filter(|row| row["by"] == "pytorch");
    let found: Vec<_> = of_torch
        .map(|row| (row["ranks"].as_u64(), row["threads"].as_u64()))
        .collect();
    assert_eq!(found, [(Some(2), Some(1)), (Some(1), Some(2))]);
    for ratio in list(&report["results"], "ratios") {
        assert!(ratio["median"].as_f64() > Some(0.0), "{ratio}");
    }
}

#[test]
fn wrong_arguments_end_with_code_2_and_leave_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("out.json");
    let wrong: [&[&str]; 6] = [
        &["collectives", "--sizes", "1MB"],
        &["collectives", "--sizes", "6"],
        &["collectives", "--ranks", "1"],
        &["collectives", "--rounds", "0"],
        &["collectives", "--seconds", "nan"],
        &["training", "--batch", "0"],
    ];
    for arguments in wrong {
        let output = bench(arguments, &json, None);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!json.exists());
    }
}

#[test]
fn the_loader_is_measured_with_every_augmentation() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("out.json");
    let arguments = [
        "loader",
        "--seconds",
        "0.001",
        "--rounds",
        "2",
        "--images",
        "4096",
        "--python",
        "/nowhere/python",
    ];
    let output = bench(&arguments, &json, None);
    let report = succeeded(&output, &json);
    let rows = list(&report["results"], "rows");
    assert!(rows.len() >= 7, "{rows:?}");
    for row in rows {
        let workers: Vec<_> = list(row, "workers").iter().collect();
        let counts: Vec<_> = workers
            .iter()
            .map(|rate| rate["workers"].as_u64())
            .collect();
        assert_eq!(counts, [Some(0), Some(1), Some(2)]);
        for rate in workers {
            assert_eq!(list(rate, "rounds").len(), 2);
            assert!(
                rate["images_per_second"]
                    .as_f64()
                    .is_some_and(|rate| rate > 0.0)
            );
        }
        assert!(row["scaling"].as_f64().is_some_and(|ratio| ratio > 0.0));
    }
    // A missing comparison is reported, and the rest is measured without it.
    assert_eq!(report["results"]["compared"], serde_json::json!({}));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("/nowhere/python"), "{errors}");
}

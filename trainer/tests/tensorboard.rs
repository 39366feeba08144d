//! The real TensorBoard reads a run's events, and drops those from before a resume.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use common::Trial;
use serde_json::Value;

/// Prints all scalars below a folder as JSON: for each name, steps and values.
const READER: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
events.Reload()
tags = events.Tags()['scalars']
print(json.dumps({tag: [(s.step, s.value) for s in events.Scalars(tag)] for tag in tags}))
";

type Scalars = BTreeMap<String, Vec<(u64, f64)>>;

/// Reads a folder with TensorBoard's package. `None` if no Python has it.
fn read(folder: &Path) -> Option<Scalars> {
    let Ok(python) = std::env::var("BURN_DIST_TENSORBOARD_PYTHON") else {
        eprintln!(
            "SKIPPED: set BURN_DIST_TENSORBOARD_PYTHON to a Python with the package tensorboard to \
             read event files with it"
        );
        return None;
    };
    let output = Command::new("timeout")
        .args(["-k", "5", "100", &python, "-c", READER])
        .arg(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// The values of `key` in lines of `kind` of `metrics.jsonl`, by step.
fn metrics(run: &Path, kind: &str, key: &str) -> Vec<(u64, f64)> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["kind"] == kind)
        .map(|line| (line["step"].as_u64().unwrap(), line[key].as_f64().unwrap()))
        .collect()
}

#[track_caller]
fn assert_same(scalars: &Scalars, tag: &str, expected: &[(u64, f64)]) {
    let found = scalars.get(tag).unwrap_or_else(|| panic!("no {tag}"));
    // Event files hold single precision.
    let expected: Vec<(u64, f64)> = expected
        .iter()
        .map(|&(step, value)| (step, f64::from(value as f32)))
        .collect();
    assert_eq!(found, &expected, "{tag}");
}

#[test]
fn the_events_of_a_run_that_was_continued_are_those_of_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let train = || {
        let args = ["--nproc", "2", "--resume", "auto"];
        let settings = [
            "train.epochs=2",
            "checkpoint.every_steps=7",
            "checkpoint.keep=100",
        ];
        let finished = Trial::tiny_at(&dir, &args, &settings).run();
        finished.assert_code(0);
    };
    train();
    // As if it had been killed after step 33, with the last good checkpoint at step 7.
    for checkpoint in fs::read_dir(dir.join("checkpoints")).unwrap() {
        let path = checkpoint.unwrap().path();
        if !path.ends_with("step-0000000007") {
            fs::remove_dir_all(path).unwrap();
        }
    }
    let events = dir.join("tensorboard");
    let old = fs::read_dir(&events)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let bytes = fs::read(&old).unwrap();
    fs::write(&old, &bytes[..bytes.len() * 3 / 4 + 1]).unwrap();
    train();
    assert_eq!(fs::read_dir(&events).unwrap().count(), 2);

    let losses = metrics(&dir, "train", "loss");
    let steps: Vec<u64> = losses.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, (1..=40).collect::<Vec<u64>>());
    let Some(scalars) = read(&events) else {
        return;
    };
    assert_same(&scalars, "train/loss", &losses);
    assert_same(&scalars, "train/lr", &metrics(&dir, "train", "lr"));
    assert_same(
        &scalars,
        "test/accuracy",
        &metrics(&dir, "eval", "accuracy"),
    );
    assert_same(&scalars, "test/top5", &metrics(&dir, "eval", "top5"));
    for tag in [
        "time/forward",
        "train/images_per_second",
        "train/memory_mib",
    ] {
        assert_eq!(scalars.get(tag).map(Vec::len), Some(40), "{tag}");
    }
}

/// The run left no checkpoint, so it starts from scratch in its folder.
#[test]
fn the_events_of_a_run_that_starts_anew_are_not_mixed_with_those_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    for epochs in ["train.epochs=2", "train.epochs=1"] {
        let finished = Trial::tiny_at(&dir, &["--resume", "auto"], &[epochs]).run();
        finished.assert_code(0);
    }
    let Some(scalars) = read(&dir.join("tensorboard")) else {
        return;
    };
    assert_same(&scalars, "train/loss", &metrics(&dir, "train", "loss"));
}

#[test]
fn events_can_be_left_out() {
    let finished = Trial::tiny(&["--nproc", "1"], &["log.tensorboard=false"]).run();
    finished.assert_code(0);
    assert!(!finished.path("run/tensorboard").exists());
    assert!(finished.path("run/evaluation.json").is_file());
}

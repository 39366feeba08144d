//! With virtual ranks, a run that changes its number of ranks, strategy and transport has the same
//! losses as an undisturbed one, to the last bit.

mod common;

use std::path::Path;

use common::{LIMIT, Trial};
use serde_json::Value;

/// Ranks, strategy and transport of each part of the run.
type Part = (usize, &'static str, &'static str);

/// Steps per part.
const STEPS: usize = 3;

/// Dropout, mixed samples, running statistics, clipping and averages. 6 virtual ranks.
const IMAGES: &str = r#"
[model]
name = "wide-resnet"
depth = 10
widen = 1
dropout = 0.2
[data]
name = "generated"
size = 8
classes = 5
train_samples = 240
test_samples = 101
augment = "crop:2:reflect+flip+mixup:0.8:0.5"
[optimizer]
name = "adamw"
lr = 1e-3
[ema]
decay = 0.9
[checkpoint]
every_steps = 3
[parallel]
virtual_ranks = 6
[train]
epochs = 2
batch_size = 24
accumulate = 2
clip_norm = 0.5
evaluate_every_steps = 3
"#;

const OF_IMAGES: [Part; 4] = [
    (4, "zero-3", "auto"),
    (2, "ddp", "tcp"),
    (5, "zero-1", "auto"),
    (3, "zero-2", "tcp"),
];

/// Losses weighted by tokens, and an optimizer of whole matrices. 3 virtual ranks.
const LANGUAGE: &str = r#"
[task]
name = "language"
[model]
name = "transformer"
width = 16
layers = 1
heads = 2
dropout = 0.1
[data]
name = "text"
context = 16
[optimizer]
name = "muon"
lr = 1e-3
[checkpoint]
every_steps = 3
[parallel]
virtual_ranks = 3
[train]
limit_batches = 6
epochs = 1
batch_size = 12
evaluate_every_steps = 3
"#;

const OF_LANGUAGE: [Part; 2] = [(3, "zero-2", "auto"), (2, "zero-3", "auto")];

/// Trains up to step `until` from the folder's last checkpoint.
fn train(folder: &Path, config: &str, (ranks, strategy, transport): Part, until: usize) {
    let ranks = ranks.to_string();
    let run_dir = folder.join("run").display().to_string();
    let sets = [
        format!("parallel.strategy={strategy}"),
        format!("parallel.transport={transport}"),
        format!("train.max_steps={until}"),
    ];
    let mut args = vec![
        "--config",
        "virtual.toml",
        "--nproc",
        &ranks,
        "--run-dir",
        &run_dir,
    ];
    args.extend(["--resume", "auto"]);
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    let finished = Trial::new(&args).file("virtual.toml", config).start();
    finished.wait(LIMIT).assert_code(0).assert_nobody_left();
}

/// What a run has learned in each step: its numbers, without times.
fn learned(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let numbers = [
        "kind",
        "step",
        "epoch",
        "loss",
        "lr",
        "gradient_norm",
        "accuracy",
        "perplexity",
    ];
    lines
        .filter(|line| line["kind"] == "train" || line["kind"] == "eval")
        .map(|line| {
            numbers
                .iter()
                .map(|name| ((*name).to_owned(), line[*name].clone()))
                .collect()
        })
        .collect()
}

fn goes_on(config: &str, parts: &[Part]) {
    let (whole, changing) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(
        whole.path(),
        config,
        (1, "ddp", "auto"),
        parts.len() * STEPS,
    );
    for (index, part) in parts.iter().enumerate() {
        train(changing.path(), config, *part, (index + 1) * STEPS);
    }
    let [whole, changing] = [whole, changing].map(|folder| learned(folder.path()));
    let steps = whole.iter().filter(|line| line["kind"] == "train").count();
    assert_eq!(steps, parts.len() * STEPS);
    assert!(whole.iter().any(|line| line["kind"] == "eval"));
    for (own, expected) in changing.iter().zip(&whole) {
        assert_eq!(own, expected);
    }
    assert_eq!(changing.len(), whole.len());
    assert!(whole[0]["loss"].is_number());
}

#[test]
fn images_are_learned_alike_by_any_ranks() {
    goes_on(IMAGES, &OF_IMAGES);
}

#[test]
fn texts_are_learned_alike_by_any_ranks() {
    goes_on(LANGUAGE, &OF_LANGUAGE);
}

#[test]
fn too_many_ranks_are_refused() {
    let args = ["--config", "virtual.toml", "--nproc", "4"];
    let finished = Trial::new(&args).file("virtual.toml", LANGUAGE).start();
    let finished = finished.wait(LIMIT);
    finished
        .assert_code(2)
        .assert_stderr(&["4 ranks cannot share 3 virtual ranks", "at most 3 ranks"]);
}

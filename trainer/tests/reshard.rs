//! Resumes with other numbers of ranks and other strategies give the losses of an uninterrupted
//! run.

mod common;

use std::path::Path;

use common::{LIMIT, Trial};
use serde_json::Value;

/// Ranks and strategy of each part of the run.
const PARTS: [(usize, &str); 7] = [
    (4, "zero-3"),
    (2, "zero-2"),
    (3, "zero-3"),
    (1, "ddp"),
    (4, "zero-3"),
    (2, "ddp"),
    (3, "zero-1"),
];
/// Steps per part; 20 make an epoch.
const STEPS: usize = 4;

/// No batch normalization: the ranks' shares of a batch have different sizes.
const CONFIG: &str = r#"
[model]
name = "vit"
dim = 16
depth = 2
heads = 2
[data]
name = "generated"
size = 8
classes = 5
train_samples = 240
test_samples = 12
augment = "crop:2:reflect+flip+mixup:0.8:0.5"
[optimizer]
name = "adamw"
lr = 1e-3
decay_norm_and_bias = false
[schedule]
name = "constant"
[checkpoint]
every_steps = 4
[train]
epochs = 2
batch_size = 12
"#;

/// Trains up to step `until` from the folder's last checkpoint.
fn train(folder: &Path, ranks: usize, strategy: &str, until: usize) {
    let run_dir = folder.join("run");
    let args = [
        "--config".to_owned(),
        "reshard.toml".to_owned(),
        "--nproc".to_owned(),
        ranks.to_string(),
        "--run-dir".to_owned(),
        run_dir.display().to_string(),
        "--resume".to_owned(),
        "auto".to_owned(),
        "--set".to_owned(),
        format!("parallel.strategy={strategy}"),
        "--set".to_owned(),
        format!("train.max_steps={until}"),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let finished = Trial::new(&args).file("reshard.toml", CONFIG).start();
    finished.wait(LIMIT).assert_code(0).assert_nobody_left();
}

fn losses(folder: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .filter(|line| line["kind"] == "train")
        .map(|line| line["loss"].as_f64().unwrap())
        .collect()
}

#[test]
fn a_run_goes_on_with_any_number_of_ranks_under_any_strategy() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(whole.path(), 4, "ddp", PARTS.len() * STEPS);
    for (index, (ranks, strategy)) in PARTS.into_iter().enumerate() {
        train(parts.path(), ranks, strategy, (index + 1) * STEPS);
    }
    let (whole, parts) = (losses(whole.path()), losses(parts.path()));
    assert_eq!(whole.len(), PARTS.len() * STEPS);
    assert_eq!(parts.len(), whole.len());
    for (step, (a, b)) in whole.iter().zip(&parts).enumerate() {
        assert!((a - b).abs() <= 1e-6 * a.abs(), "step {step}: {a} and {b}");
    }
    assert!(whole[0] > whole[whole.len() - 1]);
}

//! Language models and segmentation: losses over unequal tokens and pixels do not depend on the
//! ranks, and runs have everything that image classifiers have.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{Finished, LIMIT, Trial, processes_of};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

/// Bytes of files, so different that ranks and micro-batches have unequal tokens.
const LENGTHS: [usize; 30] = [
    3, 97, 250, 11, 64, 40, 5, 131, 77, 19, 200, 1, 90, 33, 150, 8, 60, 21, 110, 45, 2, 99, 300,
    13, 70, 31, 7, 120, 81, 17,
];

/// A task with a tiny model on little data.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tiny {
    Language,
    Shapes,
}

impl Tiny {
    const ALL: [Self; 2] = [Self::Language, Self::Shapes];

    fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Language => &[
                "data.path=texts",
                "data.test_path=tests",
                "data.context=32",
                "model.width=16",
                "model.layers=2",
                "model.heads=2",
                "model.dropout=0.0",
            ],
            Self::Shapes => &[
                "data.size=16",
                "data.train_samples=60",
                "data.test_samples=37",
                "model.filters=4",
            ],
        }
    }

    /// Metrics beside the loss.
    fn measures(self) -> [&'static str; 2] {
        match self {
            Self::Language => ["perplexity", "bits_per_byte"],
            Self::Shapes => ["mean_iou", "pixel_accuracy"],
        }
    }

    /// A run of 50 steps into `run`, a folder in the trial's or an absolute path.
    fn trial(self, run: &Path, nproc: usize, more: &[&str]) -> Trial {
        let config = match self {
            Self::Language => "language.toml",
            Self::Shapes => "shapes.toml",
        };
        let nproc = nproc.to_string();
        let mut trial = Trial::new(&["--config", config, "--nproc", &nproc]);
        trial = trial.arg("--run-dir").arg(run);
        let usual = [
            "train.batch_size=12",
            "train.epochs=20",
            "train.max_steps=50",
            "checkpoint.every_epochs=0",
            "log.report=false",
        ];
        for setting in usual.iter().chain(self.settings()).chain(more) {
            trial = trial.arg("--set").arg(setting);
        }
        self.with_files(trial)
    }

    /// Writes the texts of a language model into the trial's folder.
    fn with_files(self, mut trial: Trial) -> Trial {
        if self == Self::Language {
            let text = include_str!("../src/task/language/alice.txt");
            for (index, length) in LENGTHS.into_iter().enumerate() {
                let part = &text[301 * index..][..length];
                trial = trial.file(&format!("texts/{index:02}.txt"), part);
                if index % 3 == 0 {
                    let part = &text[20_000 + 301 * index..][..length];
                    trial = trial.file(&format!("tests/{index:02}.txt"), part);
                }
            }
        }
        trial
    }

    fn train(self, nproc: usize, more: &[&str]) -> Finished {
        let finished = self.trial(Path::new("run"), nproc, more).run();
        finished.assert_code(0).assert_nobody_left();
        finished
    }
}

/// The last evaluation.
fn evaluation(finished: &Finished) -> Value {
    finished.metrics("eval").pop().unwrap()
}

#[track_caller]
fn assert_near(a: f64, b: f64, most: f64, what: &str) {
    assert!((a - b).abs() <= most * a.abs(), "{what}: {a} and {b}");
}

#[test]
fn losses_over_unequal_weights_do_not_depend_on_ranks_strategy_and_accumulation() {
    for tiny in Tiny::ALL {
        let alone = tiny.train(1, &[]);
        let expected = alone.losses();
        assert_eq!(expected.len(), 50);
        assert!(expected[49] < 0.9 * expected[0], "{expected:?}");
        for (nproc, setting) in [
            (2, "parallel.strategy=ddp"),
            (2, "parallel.strategy=zero-1"),
            (2, "parallel.strategy=zero-2"),
            (2, "parallel.strategy=zero-3"),
            (3, "train.accumulate=2"),
        ] {
            let together = tiny.train(nproc, &[setting]);
            let losses = together.losses();
            assert_eq!(losses.len(), 50);
            for (step, (a, b)) in expected.iter().zip(losses).enumerate() {
                let what = format!("{tiny:?}, {nproc} ranks, {setting}, step {step}");
                assert_near(*a, b, 1e-6, &what);
            }
        }
    }
}

/// The same model, evaluated by any number of ranks.
#[test]
fn metrics_do_not_depend_on_the_ranks() {
    for tiny in Tiny::ALL {
        let trained = tiny.train(1, &["checkpoint.every_epochs=20", "checkpoint.best=false"]);
        let run = trained.path("run");
        let of_run = evaluation(&trained);
        let evaluate = |nproc: &str| -> Value {
            let out = run.join(format!("{nproc}.json"));
            let evaluate = Trial::new(&["eval", "--nproc", nproc, "--json"]);
            let evaluated = tiny.with_files(evaluate.arg(&out).arg(&run)).run();
            evaluated.assert_code(0);
            for name in tiny.measures() {
                let label = match name {
                    "mean_iou" => "mean IoU".to_owned(),
                    name => name.replace('_', " "),
                };
                assert!(evaluated.stdout.contains(&label), "{}", evaluated.stdout);
            }
            let text = std::fs::read_to_string(out).unwrap();
            serde_json::from_str(&text).unwrap()
        };
        let one = evaluate("1");
        for nproc in ["2", "3"] {
            let more = evaluate(nproc);
            let [a, b] = [&one, &more].map(|json| &json["evaluation"]);
            assert_eq!(a["samples"], b["samples"]);
            for name in ["loss"].into_iter().chain(tiny.measures()) {
                let [a, b] = [a, b].map(|numbers| numbers[name].as_f64().unwrap());
                assert_near(a, b, 1e-9, &format!("{tiny:?}, {nproc} ranks, {name}"));
            }
        }
        for name in tiny.measures() {
            let [a, b] = [&of_run, &one["evaluation"]].map(|json| json[name].as_f64().unwrap());
            assert_near(a, b, 1e-9, name);
        }
    }
}

#[test]
fn a_killed_run_ends_with_the_bits_of_one_that_was_not() {
    for tiny in Tiny::ALL {
        let settings = [
            "checkpoint.every_steps=7",
            "model.dropout=0.1",
            "ema.decay=0.9",
        ];
        let whole = tiny.train(2, &settings);
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let running = tiny.trial(&run, 2, &settings).start();
        let deadline = Instant::now() + LIMIT;
        let lines = || std::fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
        while lines().lines().count() < 20 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        for pid in processes_of(&run) {
            let _ = kill_process(pid, Signal::KILL);
        }
        assert_ne!(running.wait(LIMIT).code, Some(0));
        let resumed = tiny.trial(&run, 2, &settings).arg("--resume").arg("auto");
        let finished = resumed.run();
        finished.assert_code(0);
        let losses = |lines: Vec<Value>| -> Vec<f64> {
            lines
                .iter()
                .map(|line| line["loss"].as_f64().unwrap())
                .collect()
        };
        assert_eq!(
            losses(finished.metrics_in(&run, "train")),
            whole.losses(),
            "{tiny:?}"
        );
        let [a, b] = [whole.metrics("eval"), finished.metrics_in(&run, "eval")];
        assert_eq!(a.len(), b.len());
        let [a, b] = [a, b].map(|mut lines| lines.pop().unwrap());
        for name in ["loss"].into_iter().chain(tiny.measures()) {
            assert_eq!(a[name], b[name], "{tiny:?} {name}");
        }
        let checksum = |finished: &Finished| -> String {
            let (_, after) = finished.stdout.split_once("checksum ").unwrap();
            after.chars().take(16).collect()
        };
        assert_eq!(checksum(&whole), checksum(&finished), "{tiny:?}");
    }
}

#[test]
fn bf16_trains() {
    for tiny in Tiny::ALL {
        let finished = tiny.train(2, &["train.precision=bf16"]);
        let (exact, losses) = (tiny.train(2, &[]).losses(), finished.losses());
        assert!(losses[49] < 0.9 * losses[0], "{losses:?}");
        assert_near(exact[0], losses[0], 0.02, "first loss");
        assert_ne!(exact[49], losses[49]);
    }
}

/// The text that the program contains. A model without knowledge has 5.5 nats per token, one that
/// knows only how frequent letters are 3.1.
#[test]
fn the_built_in_text_is_learned() {
    let settings = [
        "train.max_steps=120",
        "model.width=48",
        "model.layers=2",
        "model.dropout=0.0",
    ];
    let mut trial = Trial::new(&["--config", "language", "--nproc", "2", "--run-dir", "run"]);
    for setting in settings {
        trial = trial.arg("--set").arg(setting);
    }
    let finished = trial.run();
    finished.assert_code(0);
    let evaluation = evaluation(&finished);
    let [loss, perplexity, bits] =
        ["loss", "perplexity", "bits_per_byte"].map(|name| evaluation[name].as_f64().unwrap());
    assert!(loss < 2.6, "{loss}");
    assert_near(perplexity, loss.exp(), 1e-12, "perplexity");
    assert_near(bits, loss / std::f64::consts::LN_2, 1e-12, "bits per byte");
    for expected in ["test perplexity ", " tokens/s", "training and "] {
        assert!(finished.stdout.contains(expected), "{}", finished.stdout);
    }
    assert!(finished.metrics("train")[0]["tokens_per_second"].is_f64());
    let report = std::fs::read_to_string(finished.path("run/report.html")).unwrap();
    for expected in [
        "Perplexity",
        "best perplexity",
        "Bits per byte",
        "tokens per second",
    ] {
        assert!(report.contains(expected), "{expected}");
    }
    let told = std::fs::read(finished.path("run/evaluation.json")).unwrap();
    let told: Value = serde_json::from_slice(&told).unwrap();
    assert_eq!(told["perplexity"], evaluation["perplexity"]);
}

#[test]
fn shapes_are_segmented() {
    let settings = [
        "data.train_samples=512",
        "train.epochs=4",
        "data.test_samples=96",
    ];
    let mut trial = Trial::new(&["--config", "shapes", "--nproc", "2", "--run-dir", "run"]);
    for setting in settings {
        trial = trial.arg("--set").arg(setting);
    }
    let finished = trial.run();
    finished.assert_code(0);
    let evaluation = evaluation(&finished);
    // A model that finds shapes without telling them apart has 0.34.
    let iou = evaluation["mean_iou"].as_f64().unwrap();
    assert!(iou > 0.37, "{iou}");
    assert!(evaluation["samples"].as_u64().unwrap() < 96 * 32 * 32);
    assert!(
        finished.stdout.contains("test mean IoU "),
        "{}",
        finished.stdout
    );
}

/// Early stopping, the best checkpoint and the schedule follow any metric of the task.
#[test]
fn a_metric_of_the_task_can_be_watched() {
    let watched = [
        "checkpoint.monitor=bits_per_byte",
        "checkpoint.every_epochs=1",
        "early_stopping.monitor=perplexity",
        "early_stopping.patience=1",
        "early_stopping.min_delta=1000.0",
    ];
    let finished = Tiny::Language.train(1, &watched);
    let stopped = "the perplexity did not improve for 1 evaluation";
    assert!(finished.stdout.contains(stopped), "{}", finished.stdout);
    let evaluations = finished.metrics("eval");
    assert_eq!(evaluations.len(), 2);
    let run = Path::new("run");
    let wrong = Tiny::Shapes
        .trial(run, 1, &["checkpoint.monitor=accuracy"])
        .run();
    wrong.assert_code(2).assert_stderr(&[
        "is no metric of the task `segmentation`",
        "its metrics: loss, mean_iou, pixel_accuracy",
    ]);
    let wrong = Trial::new(&["--config", "shapes", "--set", "data.name=digits"]).run();
    wrong
        .assert_code(2)
        .assert_stderr(&["names for this task: shapes, mask-folder"]);
}

#[test]
fn other_commands_know_the_tasks() {
    let checked = Trial::new(&["check", "--config", "language", "--nproc", "2"]).run();
    checked.assert_code(0);
    for expected in ["[task]", "training and ", "windows, ", "# 3"] {
        assert!(checked.stdout.contains(expected), "{}", checked.stdout);
    }
    let sets = ["--set", "model.filters=4", "--set", "data.train_samples=60"];
    let found = Trial::new(
        &[
            &["lr-find", "--config", "shapes", "--steps", "30"][..],
            &sets,
        ]
        .concat(),
    );
    let found = found.run();
    found.assert_code(0);
    assert!(
        found.stdout.contains("30 steps, means over"),
        "{}",
        found.stdout
    );
    let preview = Trial::new(&["preview", "--config", "shapes"]).run();
    preview
        .assert_code(2)
        .assert_stderr(&["needs the task `classification`"]);
}

//! Whole runs on few digits: their files, independence of the number of ranks, and every launcher.

mod common;

use common::{Finished, LIMIT, Trial, free_port};

/// Trains with `nproc` ranks.
fn train(nproc: usize, settings: &[&str]) -> Finished {
    let nproc = nproc.to_string();
    let finished = Trial::tiny(&["--nproc", &nproc], settings).run();
    finished.assert_code(0).assert_nobody_left();
    finished
}

#[track_caller]
fn assert_close(left: &[f64], right: &[f64]) {
    assert_eq!(left.len(), right.len());
    for (step, (a, b)) in left.iter().zip(right).enumerate() {
        assert!((a - b).abs() <= 1e-5 * a.abs(), "step {step}: {a} and {b}");
    }
}

#[test]
fn a_run_writes_its_numbers_and_its_configuration() {
    let finished = train(1, &["train.epochs=2", "log.every_steps=5"]);
    let steps = finished.metrics("train");
    let numbers: Vec<u64> = steps
        .iter()
        .filter_map(|step| step["step"].as_u64())
        .collect();
    assert_eq!(numbers, [5, 10, 15, 20, 25, 30, 35, 40]);
    assert_eq!(steps[3]["epoch"], 1);
    assert_eq!(steps[4]["epoch"], 2);
    for step in &steps {
        assert_eq!(step["lr"].as_f64(), Some(1e-3));
        assert!(step["images_per_second"].as_f64().unwrap() > 0.0);
    }
    let evaluations = finished.metrics("eval");
    assert_eq!(evaluations.len(), 2);
    for (epoch, evaluation) in (1..).zip(&evaluations) {
        assert_eq!(evaluation["epoch"].as_u64(), Some(epoch));
        assert_eq!(evaluation["samples"], 101);
        let correct = evaluation["accuracy"].as_f64().unwrap() * 101.0;
        assert!((correct - correct.round()).abs() < 1e-9, "{correct}");
    }
    let config = std::fs::read_to_string(finished.path("run/config.toml")).unwrap();
    for expected in ["filters = [4, 8]", "train_samples = 240", "every_steps = 5"] {
        assert!(config.contains(expected), "{expected} is not in:\n{config}");
    }
    for expected in [
        "epoch 2/2: ",
        "train loss",
        "test accuracy",
        "images/s",
        "1 rank, 0.0",
        "device-hours",
    ] {
        assert!(finished.stdout.contains(expected), "{}", finished.stdout);
    }
}

#[test]
fn norms_of_single_gradients_are_those_of_the_whole_and_change_nothing() {
    let whole = "train.clip_norm=1.0";
    let plain = train(1, &[whole]);
    for (ranks, strategy) in [(1, "ddp"), (2, "ddp"), (2, "zero-3")] {
        let strategy = format!("parallel.strategy={strategy}");
        let asked = [
            whole,
            &strategy,
            "log.gradient_norms=true",
            "log.every_steps=5",
        ];
        let finished = train(ranks, &asked);
        let lines = finished.metrics("train");
        assert_eq!(lines.len(), 4);
        for line in &lines {
            let norms = line["gradient_norms"].as_object().unwrap();
            assert!(norms.contains_key("fc1.weight"), "{norms:?}");
            let squares = norms.values().map(|norm| norm.as_f64().unwrap().powi(2));
            let (all, norm) = (squares.sum::<f64>().sqrt(), line["gradient_norm"].as_f64());
            assert!((all - norm.unwrap()).abs() <= 1e-6 * all, "{all} {norm:?}");
        }
        if ranks == 1 {
            assert_eq!(checksum(&finished), checksum(&plain));
        }
    }
    assert!(plain.metrics("train")[0]["gradient_norms"].is_null());
}

#[test]
fn losses_and_evaluations_do_not_depend_on_the_number_of_ranks() {
    let alone = train(1, &["train.max_steps=20"]);
    assert_eq!(alone.losses().len(), 20);
    for (nproc, settings) in [
        (2, ["train.max_steps=20", "parallel.transport=shm"]),
        (2, ["train.max_steps=20", "parallel.transport=tcp"]),
        (2, ["train.max_steps=20", "train.accumulate=3"]),
        (3, ["train.max_steps=20", "data.workers=0"]),
    ] {
        let together = train(nproc, &settings);
        assert_close(&alone.losses(), &together.losses());
        let (a, b) = (alone.metrics("eval"), together.metrics("eval"));
        assert_eq!(b.len(), 1);
        assert_eq!(b[0]["samples"], 101, "with {nproc} ranks");
        assert_eq!(a[0]["accuracy"], b[0]["accuracy"]);
        let words = format!("images/s, {nproc} ranks on 1 node, 0.0");
        assert!(together.stdout.contains(&words), "{}", together.stdout);
    }
}

/// The checksum of the parameters, which the run found to be equal on all ranks.
fn checksum(finished: &Finished) -> Option<&str> {
    let mut lines = finished.stdout.lines();
    lines.find_map(|line| line.strip_prefix("parameters are the same on all ranks, "))
}

/// Everything that a run prints, without its numbers and folders.
#[test]
fn the_console_tells_start_and_end() {
    let settings = [
        "train.device=cpu",
        "train.epochs=9",
        "train.max_steps=30",
        "train.accumulate=2",
        "checkpoint.every_epochs=1",
        "checkpoint.monitor=loss",
    ];
    let finished = train(2, &settings);
    let told = &finished.stdout;
    // The limit of steps ends the run in its second epoch.
    for exact in ["\nepoch 1/2: ", "\nepoch 2/2, step 10/20: "] {
        assert!(told.contains(exact), "{told}");
    }
    let run = finished.path("run").display().to_string();
    let told = told.replace(&run, "RUN");
    // Progress depends on the clock, and checkpoints are written in the background.
    let lines = told
        .lines()
        .filter(|line| !line.starts_with("  epoch ") && !line.contains(" saved in "));
    let masked: Vec<String> = lines.map(masked).collect();
    insta::assert_snapshot!("console", masked.join("\n"));
}

/// A line with `#` for every number, without checksums and the names of kernels, which depend on
/// the CPU.
fn masked(line: &str) -> String {
    let shortened = |part: &str| {
        let (front, _) = part.split_once("checksum ").unwrap_or((part, ""));
        match () {
            () if part.starts_with("kernels ") => "kernels …".to_owned(),
            () if front != part => format!("{front}checksum …"),
            () => part.to_owned(),
        }
    };
    let parts: Vec<String> = line.split("; ").map(shortened).collect();
    let mut masked = String::new();
    for c in parts.join("; ").chars() {
        match c {
            '0'..='9' | '.' if masked.ends_with('#') => {}
            '0'..='9' => masked.push('#'),
            _ => masked.push(c),
        }
    }
    masked
}

#[test]
fn a_run_repeats_bit_for_bit() {
    let dropout = "model.dropout_hidden=0.5";
    for nproc in [1, 2] {
        let runs = [(); 2].map(|()| train(nproc, &[dropout]));
        assert_eq!(runs[0].losses(), runs[1].losses(), "with {nproc} ranks");
        assert_eq!(checksum(&runs[0]), checksum(&runs[1]));
        assert_eq!(checksum(&runs[0]).is_some(), nproc > 1);
        let other = train(nproc, &[dropout, "train.seed=2"]).losses();
        assert_ne!(runs[0].losses(), other, "the seed has no effect");
    }
}

#[test]
fn all_kernels_train_alike_and_are_named() {
    let run = |kernels: &str| {
        let filters = "model.filters=[16,32]";
        let finished = train(
            1,
            &[
                &format!("train.kernels={kernels}"),
                filters,
                "train.epochs=2",
            ],
        );
        let environment = std::fs::read_to_string(finished.path("run/environment.json")).unwrap();
        let environment: serde_json::Value = serde_json::from_str(&environment).unwrap();
        let name = environment["kernels"].as_str().unwrap().to_owned();
        let line = format!("kernels {name}; ");
        assert!(finished.stdout.contains(&line), "{}", finished.stdout);
        (name, finished.losses(), finished.metrics("eval"))
    };
    let (auto, exact, burn) = (run("auto"), run("exact"), run("burn"));
    assert!(auto.0.starts_with("own, "), "{}", auto.0);
    assert_eq!(exact.0, format!("{}, exact", auto.0));
    assert_eq!(burn.0, "burn");
    assert!(auto.1 != burn.1 && auto.1 != exact.1 && exact.1 != burn.1);
    let last = |losses: &[f64]| losses[losses.len() - 5..].iter().sum::<f64>();
    for own in [auto, exact] {
        // Dropout draws other numbers, so only the trend is the same.
        assert!(
            (last(&own.1) / last(&burn.1) - 1.0).abs() < 0.25,
            "{own:?} {burn:?}"
        );
    }
}

#[test]
fn an_instruction_set_that_is_missing_is_an_error() {
    let other = if cfg!(target_arch = "x86_64") {
        "neon"
    } else {
        "avx2"
    };
    for (value, args) in [("sse9", &[][..]), ("sse9", &["--dry-run"]), (other, &[])] {
        let finished = Trial::tiny(&[&["--nproc", "1"], args].concat(), &[])
            .env("BURN_DIST_KERNELS_ISA", value)
            .run();
        finished.assert_code(2);
        finished.assert_stderr(&["BURN_DIST_KERNELS_ISA", value, "portable"]);
    }
    let checked = Trial::new(&["check"])
        .env("BURN_DIST_KERNELS_ISA", "sse9")
        .run();
    // Training may run elsewhere.
    checked.assert_code(0);
    assert!(checked.stdout.contains("sse9"), "{}", checked.stdout);
}

#[test]
fn every_optimizer_learns() {
    for settings in [
        [
            "optimizer={name=\"sgd\", lr=0.02, momentum=0.9, nesterov=true}",
            "train.seed=1",
        ],
        ["optimizer.name=adam", "optimizer.lr=0.01"],
        ["optimizer.name=adamw", "optimizer.lr=0.01"],
        [
            "optimizer={name=\"adadelta\", lr=1.0}",
            "train.clip_norm=1.0",
        ],
        [
            "optimizer={name=\"lion\", lr=0.002, weight_decay=0.1, decay_norm_and_bias=false}",
            "train.precision=bf16",
        ],
        ["optimizer.name=lamb", "optimizer.lr=0.02"],
        ["optimizer.name=adafactor", "optimizer.lr=0.1"],
        [
            "optimizer={name=\"muon\", lr=0.02, adamw_lr=0.01, adamw_match=[\"fc2.*\"]}",
            "ema.decay=0.9",
        ],
        [
            "optimizer={name=\"rmsprop\", lr=0.002, momentum=0.9, centered=true}",
            "train.seed=1",
        ],
    ] {
        let finished = train(1, &[settings[0], settings[1], "train.epochs=4"]);
        let losses = finished.losses();
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let first = mean(&losses[..10]);
        let last = mean(&losses[losses.len() - 10..]);
        assert!(last < 0.8 * first, "{settings:?}: {first} to {last}");
    }
}

#[test]
fn optimizers_train_alike_under_every_strategy() {
    for optimizer in ["lamb", "adafactor", "muon", "rmsprop"] {
        let run = |strategy: &str| {
            let optimizer = format!("optimizer={{name=\"{optimizer}\", lr=0.01}}");
            let strategy = format!("parallel.strategy={strategy}");
            let settings = [optimizer.as_str(), &strategy, "train.max_steps=5"];
            train(2, &settings).losses()
        };
        let expected = run("ddp");
        assert_eq!(expected.len(), 5);
        for strategy in ["zero-1", "zero-2", "zero-3"] {
            assert_eq!(run(strategy), expected, "{optimizer}, {strategy}");
        }
    }
}

/// Ranks on one device share its peak.
#[test]
fn the_share_of_the_peak_is_that_of_the_devices() {
    for nproc in [1, 3] {
        let finished = train(nproc, &["log.peak_tflops=0.25", "train.max_steps=3"]);
        let line = finished.metrics("train").pop().unwrap();
        let number = |key: &str| line[key].as_f64().unwrap();
        let peak = number("tflops") / number("share_of_peak");
        assert!((peak - 0.25).abs() < 1e-9, "{peak} with {nproc} ranks");
    }
}

#[test]
fn steps_can_be_limited_inside_an_epoch() {
    let finished = train(2, &["train.epochs=9", "train.max_steps=23"]);
    assert_eq!(finished.losses().len(), 23);
    let evaluations = finished.metrics("eval");
    assert_eq!(evaluations.len(), 2);
    assert_eq!(evaluations[1]["samples"], 101);
}

#[test]
fn ranks_started_by_somebody_else_find_each_other() {
    let port = free_port();
    let ranks = [0, 1].map(|rank| {
        Trial::tiny(&[], &["train.max_steps=5"])
            .rank(rank, 2, &port)
            .start()
    });
    let [main, other] = ranks.map(|rank| rank.wait(LIMIT));
    main.assert_code(0);
    other.assert_code(0).assert_no_files(&[]);
    assert_eq!(other.stdout, "");
    assert_eq!(main.losses().len(), 5);
}

/// The rank that checks the folder or the checkpoint must not leave the others waiting.
#[test]
fn ranks_started_by_somebody_else_refuse_wrong_arguments_together() {
    let used = tempfile::tempdir().unwrap();
    std::fs::write(used.path().join("metrics.jsonl"), "").unwrap();
    for (folder, args, words) in [
        (used.path().to_owned(), &[][..], "already contains a run"),
        (
            used.path().join("metrics.jsonl"),
            &["--resume", "auto"],
            "is not a folder",
        ),
        (
            used.path().join("new"),
            &["--resume", "nothing"],
            "cannot resume from nothing",
        ),
    ] {
        let port = free_port();
        let ranks = [0, 1].map(|rank| {
            let trial = Trial::tiny_at(&folder, args, &[]);
            trial.rank(rank, 2, &port).start()
        });
        let [main, other] = ranks.map(|rank| rank.wait(LIMIT));
        main.assert_code(2).assert_stderr(&[words]);
        other.assert_code(2);
        assert_eq!((main.stdout.as_str(), other.stderr.as_str()), ("", ""));
        assert!(other.time.as_secs() < 30, "it waited for {:?}", other.time);
    }
}

#[test]
fn without_arguments_two_ranks_train_digits() {
    let finished = Trial::new(&[
        "--set",
        "train.max_steps=2",
        "--set",
        "data.test_samples=10",
    ])
    .run();
    finished.assert_code(0);
    assert!(
        finished.stdout.contains("2 ranks on 1 node"),
        "{}",
        finished.stdout
    );
    let runs: Vec<_> = std::fs::read_dir(finished.path("runs")).unwrap().collect();
    assert_eq!(runs.len(), 1);
    let name = runs[0].as_ref().unwrap().file_name();
    assert!(name.to_string_lossy().starts_with("digits-"), "{name:?}");
}

#[test]
fn asking_to_resume_says_that_there_is_nothing() {
    let finished = Trial::tiny(&["--resume", "auto"], &["train.max_steps=1"]).run();
    finished.assert_code(0);
    assert!(
        finished.stdout.contains("starting a new run"),
        "{}",
        finished.stdout
    );
}

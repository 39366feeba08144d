//! Commands that use a trained model, and commands that prepare a training.

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use burn::tensor::{Device, TensorData};
use common::{Finished, LIMIT, TINY, Trial, free_port};
use image::{GrayImage, Luma};
use models::weights::{self, PyTorchKeys, state_dict};
use models::{Cnn, CnnConfig};
use rustix::process::{Signal, kill_process};

/// A tiny run with a checkpoint of every epoch.
fn trained(settings: &[&str]) -> Finished {
    let mut all = vec!["checkpoint.every_epochs=1", "train.epochs=2"];
    all.extend(settings);
    let finished = Trial::tiny(&[], &all).start().wait(LIMIT);
    finished.assert_code(0);
    finished
}

/// Runs the program in the folder of an earlier run.
fn then(run: &Finished, args: &[&str]) -> Finished {
    let run_dir = run.path("run");
    let args: Vec<&str> = args
        .iter()
        .map(|arg| match *arg {
            "RUN" => run_dir.to_str().unwrap(),
            arg => arg,
        })
        .collect();
    Trial::new(&args).start().wait(LIMIT)
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_checkpoint_is_evaluated_as_it_was_while_training() {
    let run = trained(&[]);
    let by_the_run = run.metrics("eval");
    let best = by_the_run
        .iter()
        .max_by(|a, b| {
            a["accuracy"]
                .as_f64()
                .unwrap()
                .total_cmp(&b["accuracy"].as_f64().unwrap())
        })
        .unwrap();
    for nproc in ["1", "2"] {
        let found = then(
            &run,
            &["eval", "RUN", "--nproc", nproc, "--json", "result.json"],
        );
        found.assert_code(0);
        let result = json(&found.path("result.json"));
        assert_eq!(
            result["evaluation"]["accuracy"], best["accuracy"],
            "{nproc}"
        );
        assert_eq!(result["evaluation"]["samples"], 101);
        let confusion = result["details"]["confusion"].as_array().unwrap();
        let counts = confusion.iter().flat_map(|row| row.as_array().unwrap());
        let counts: i64 = counts.map(|count| count.as_i64().unwrap()).sum();
        assert_eq!(counts, 101);
        let loss = |value: &serde_json::Value| value["loss"].as_f64().unwrap();
        let difference = loss(&result["evaluation"]) - loss(best);
        // Other batch sizes sum in another order.
        assert!(difference.abs() < 1e-6, "{difference}");
    }
    for nproc in ["1", "2"] {
        let printed = then(&run, &["eval", "RUN", "--nproc", nproc, "--json", "-"]);
        printed.assert_code(0).assert_no_files(&[]);
        let result: serde_json::Value = serde_json::from_str(&printed.stdout).unwrap();
        assert_eq!(result["evaluation"]["samples"], 101);
    }
    for command in ["preview", "report", "lr-find"] {
        let args = match command {
            "report" => &["report", "RUN", "--out", "-"][..],
            command => &[command, "--out", "-"],
        };
        let refused = then(&run, args);
        refused
            .assert_code(2)
            .assert_stderr(&["goes only to a file"])
            .assert_no_files(&[]);
    }
    let last = then(&run, &["eval", "RUN", "--last", "--json", "last.json"]);
    last.assert_code(0);
    let found = json(&last.path("last.json"));
    assert_eq!(
        (&found["step"], &found["details"]["epoch"]),
        (&40.into(), &2.into())
    );
    // Other images than those of the run.
    let few = then(&run, &["eval", "RUN", "--set", "data.test_samples=13"]);
    few.assert_code(0);
    assert!(few.stdout.contains("13 test images"), "{}", few.stdout);
}

#[test]
fn a_checkpoint_is_evaluated_in_the_precision_of_its_training() {
    let run = trained(&["train.precision=bf16"]);
    let by_the_run = run.metrics("eval").pop().unwrap();
    let loss = |args: &[&str]| {
        let args = [&["eval", "RUN", "--last", "--json", "last.json"], args].concat();
        let found = then(&run, &args);
        found.assert_code(0);
        json(&found.path("last.json"))["evaluation"]["loss"].clone()
    };
    assert_eq!(loss(&[]), by_the_run["loss"]);
    assert_ne!(
        loss(&["--set", "train.eval_precision=f32"]),
        by_the_run["loss"]
    );
}

/// The evaluation uses the few images that the training used.
#[test]
fn a_run_that_learned_a_few_images_by_heart_is_evaluated_on_them() {
    let run = trained(&["train.overfit_batches=1"]);
    let by_the_run = run.metrics("eval").pop().unwrap();
    assert_eq!(by_the_run["samples"], 12);
    for nproc in ["1", "2"] {
        let args = [
            "eval",
            "RUN",
            "--last",
            "--nproc",
            nproc,
            "--json",
            "last.json",
        ];
        let found = then(&run, &args);
        found.assert_code(0);
        let evaluation = &json(&found.path("last.json"))["evaluation"];
        assert_eq!(evaluation["samples"], 12);
        assert_eq!(evaluation["accuracy"], by_the_run["accuracy"]);
    }
}

#[test]
fn paths_need_not_be_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join(OsStr::from_bytes(b"run-\xff"));
    for nproc in ["1", "2"] {
        let args = ["--nproc", nproc, "--resume", "auto"];
        let train = Trial::tiny_at(&run, &args, &["checkpoint.every_epochs=1"]).run();
        train.assert_code(0);
    }
    let evaluated = Trial::new(&["eval", "--json", "found.json"])
        .arg(&run)
        .run();
    evaluated.assert_code(0);
    assert_eq!(json(&evaluated.path("found.json"))["step"], 20);
}

#[test]
fn what_is_no_trained_model_is_named() {
    let nothing = |args: &[&str], code: i32, words: &[&str]| {
        Trial::new(args)
            .file("empty/config.toml", "")
            .file("run/checkpoints/step-0000000001/manifest.json", "{}")
            .file("run/checkpoints/step-0000000001/manifest.blake3", "0")
            .run()
            .assert_code(code)
            .assert_stderr(words);
    };
    for command in ["eval", "export"] {
        nothing(&[command, "nowhere"], 2, &["nowhere: no such"]);
        nothing(
            &[command, "empty"],
            2,
            &["neither a checkpoint", "nor a run folder"],
        );
        nothing(
            &[command, "run"],
            2,
            &["no good checkpoint", "checksum is wrong"],
        );
        let path = "run/checkpoints/step-0000000001";
        nothing(&[command, path], 1, &["manifest.json is damaged"]);
    }
    let run = trained(&["train.epochs=1"]);
    let folder = run.path("run");
    let other = std::fs::read_to_string(folder.join("config.toml")).unwrap();
    let other = other.replace("hidden = 16", "hidden = 17");
    std::fs::write(folder.join("other.toml"), other).unwrap();
    let other = folder.join("other.toml").to_str().unwrap().to_owned();
    let vit = "[model]\nname = \"vit\"\npatch = 5\n[optimizer]\nname = \"sgd\"\nlr = 0.1\n";
    std::fs::write(folder.join("vit.toml"), vit).unwrap();
    let vit = folder.join("vit.toml").to_str().unwrap().to_owned();
    let image = picture(&folder, "image.png", 28);
    for command in [
        &["eval", "RUN", "--nproc", "2"][..],
        &["export", "RUN"],
        &["predict", "RUN", image.to_str().unwrap()],
    ] {
        let misfit = |more: &[&str], words: &[&str]| {
            let finished = then(&run, &[command, more].concat());
            finished
                .assert_code(2)
                .assert_stderr(&["invalid configuration"])
                .assert_stderr(words)
                .assert_no_files(&[]);
            let told = finished.stderr.matches(words[0]).count();
            assert_eq!(told, 1, "{}", finished.stderr);
        };
        misfit(
            &["--set", "model.hidden=17", "--set", "train.epochs=9"],
            &["cannot restore `fc1.", "of --set model.hidden=17"],
        );
        misfit(
            &["--config", &other],
            &["cannot restore `fc1.", "other.toml", "name = \"cnn\""],
        );
        misfit(
            &["--set", "data.mean=[0.1, 0.2]"],
            &["for 1 channels", "of --set data.mean=[0.1, 0.2]"],
        );
        misfit(
            &["--config", &vit],
            &["patches of 5×5", "line 3, column 9 of"],
        );
    }
    then(&run, &["eval", "RUN", "--set", "model.hiden=17"])
        .assert_code(2)
        .assert_stderr(&["did you mean `hidden`?"]);
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_the_work_begins() {
    let run = trained(&["train.epochs=1"]);
    for args in [
        &["eval", "RUN", "--json", "none/file"][..],
        &["eval", "RUN", "--nproc", "2", "--json", "none/file"],
        &["export", "RUN", "--out", "none/file"],
        &["report", "RUN", "--out", "none/file"],
        &["preview", "--out", "none/file"],
        &["lr-find", "--out", "none/file"],
    ] {
        let told = "error: cannot write none/file: the folder none does not exist. Choose another file with --";
        let refused = then(&run, args);
        refused.assert_code(2).assert_no_files(&[]);
        assert!(refused.stderr.starts_with(told), "{}", refused.stderr);
        assert_eq!(
            (refused.stdout.as_str(), refused.stderr.lines().count()),
            ("", 1)
        );
    }
}

/// As on a full disk, or at a file size limit.
#[test]
fn a_file_that_cannot_be_completed_is_as_it_was() {
    let run = trained(&["train.epochs=1"]);
    let run_dir = run.path("run");
    let sets: Vec<&str> = TINY.iter().flat_map(|setting| ["--set", setting]).collect();
    for (args, option, name) in [
        (
            &["eval", run_dir.to_str().unwrap()][..],
            "--json",
            "result.json",
        ),
        (&[&["preview"], &sets[..]].concat(), "--out", "preview.png"),
        (&[&["lr-find"], &sets[..]].concat(), "--out", "lr-find.svg"),
    ] {
        let args = [args, &[option, name]].concat();
        let told = format!("error: cannot write {name}: File too large (os error 27)\n");
        let failed = Trial::new(&args).with_file_limit(1).run();
        failed.assert_code(1).assert_no_files(&[]);
        failed.assert_stderr(&[&told]);
        let old = Trial::new(&args).file(name, "old");
        let failed = old.with_file_limit(1).run();
        failed.assert_code(1).assert_no_files(&[name]);
        assert_eq!(std::fs::read_to_string(failed.path(name)).unwrap(), "old");
    }
}

#[test]
fn pictures_are_not_called_what_they_are_not() {
    for (command, name) in [("preview", "a.jpg"), ("lr-find", "a.png")] {
        Trial::new(&[command, "--out", name])
            .run()
            .assert_code(2)
            .assert_stderr(&[name, "with --out"])
            .assert_no_files(&[]);
    }
}

#[test]
fn ranks_do_not_wait_for_one_that_cannot_write() {
    let run = trained(&["train.epochs=1"]);
    let run_dir = run.path("run");
    let port = free_port();
    let args = ["eval", run_dir.to_str().unwrap(), "--json", "none/file"];
    let ranks = [0, 1].map(|rank| Trial::new(&args).rank(rank, 2, &port).start());
    let [main, other] = ranks.map(|rank| rank.wait(LIMIT));
    let told = "cannot write none/file: the folder none does not exist";
    main.assert_code(2).assert_stderr(&[told]);
    let told = "error on rank 1: rank 0 failed; its own message says why";
    other.assert_code(1).assert_stderr(&[told]);
}

#[test]
fn a_model_that_is_a_part_of_the_trained_one_is_not_exported() {
    let vit = [
        "model.name=vit",
        "model.patch=7",
        "model.dim=8",
        "model.depth=2",
        "model.heads=2",
        "checkpoint.every_epochs=1",
    ];
    let run = Trial::of_model(&[], &vit).start().wait(LIMIT);
    run.assert_code(0);
    then(&run, &["export", "RUN", "--set", "model.depth=1"])
        .assert_code(2)
        .assert_stderr(&["no tensor of this name", "of --set model.depth=1"])
        .assert_no_files(&[]);
}

#[test]
fn a_result_that_nobody_gets_is_a_failure() {
    let run = trained(&["train.epochs=1"]);
    let run_dir = run.path("run");
    let (run_dir, image) = (
        run_dir.to_str().unwrap(),
        picture(&run_dir, "image.png", 28),
    );
    for args in [
        &["check"][..],
        &["configs"],
        &["--dry-run"],
        &["completions", "bash"],
        &["eval", run_dir],
        &["eval", run_dir, "--nproc", "2"],
        &["predict", run_dir, image.to_str().unwrap()],
        &["report", run_dir],
    ] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let failed = Trial::new(args).to(full).run();
        failed
            .assert_code(1)
            .assert_stderr(&["error: cannot write to standard output: No space left"]);
        // A reader that closes the pipe early has what it needs.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let silent = Trial::new(args).to(writer).run();
        silent.assert_code(0);
        assert_eq!(silent.stderr, "", "{args:?}");
    }
    let full = std::fs::File::create("/dev/full").unwrap();
    let trained = Trial::tiny(&[], &[]).to(full).run();
    trained.assert_code(0);
}

/// Draws a photo-like image, not a digit.
fn picture(folder: &Path, name: &str, side: u32) -> PathBuf {
    let path = folder.join(name);
    GrayImage::from_fn(side, side, |x, y| Luma([(x * y % 256) as u8]))
        .save(&path)
        .unwrap();
    path
}

#[test]
fn images_are_predicted_and_broken_ones_are_named() {
    let run = trained(&["train.epochs=1"]);
    let folder = tempfile::tempdir().unwrap();
    let good = picture(folder.path(), "good.png", 40);
    let small = picture(folder.path(), "small.png", 9);
    let broken = folder.path().join("broken.png");
    std::fs::write(&broken, &std::fs::read(&good).unwrap()[..60]).unwrap();
    let paths = [&good, &broken, &PathBuf::from("missing.jpg"), &small];
    let mut args = vec!["predict", "RUN", "--top", "2"];
    args.extend(paths.iter().map(|path| path.to_str().unwrap()));
    let found = then(&run, &args);
    found
        .assert_code(1)
        .assert_stderr(&["broken.png", "missing.jpg"]);
    let lines: Vec<&str> = found.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{}", found.stdout);
    assert!(lines[0].contains("good.png: ") && lines[1].contains("small.png: "));
    for line in lines {
        assert_eq!(line.matches(" %").count(), 2, "{line}");
    }
    // Ten classes are all of them, so the probabilities add up to one.
    let all = then(
        &run,
        &["predict", "RUN", "--top", "99", good.to_str().unwrap()],
    );
    all.assert_code(0);
    let shares = all
        .stdout
        .split([' ', ','])
        .filter_map(|word| word.parse::<f64>().ok());
    let shares: Vec<f64> = shares.collect();
    let percent: f64 = shares.iter().sum::<f64>();
    assert!(all.stdout.matches(" %").count() == 10, "{}", all.stdout);
    assert!(percent > 99.0, "{}", all.stdout);
    then(&run, &["predict", "RUN"])
        .assert_code(2)
        .assert_stderr(&["IMAGE"]);
}

fn tiny_cnn() -> Cnn {
    let config = CnnConfig::new().with_filters([4, 8]).with_hidden(16);
    config.init(&Device::flex()).unwrap()
}

fn values(path: &Path) -> Vec<(String, TensorData)> {
    let model = tiny_cnn();
    let keys = model.key_map();
    let model = weights::load(model, path, &keys).unwrap();
    state_dict(&model, &keys).unwrap().into_iter().collect()
}

#[test]
fn an_export_that_is_killed_leaves_no_file_behind() {
    // 38 MB of weights take a while to write.
    let run = trained(&[
        "model.hidden=8192",
        "data.train_samples=24",
        "train.epochs=1",
    ]);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("weights.safetensors");
    let run_dir = run.path("run");
    let args = [
        "export",
        run_dir.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ];
    let mut running = Trial::new(&args).start();
    let files = format!("/proc/{}/fd", running.pid().as_raw_nonzero());
    let inside = format!("{}/", folder.path().display());
    let writes = || {
        let files = std::fs::read_dir(&files).into_iter().flatten().flatten();
        let mut paths = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        paths.any(|path| path.to_str().is_some_and(|path| path.starts_with(&inside)))
    };
    let deadline = Instant::now() + LIMIT;
    while !writes() {
        assert!(
            running.goes_on() && Instant::now() < deadline,
            "it writes no file"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(running.pid(), Signal::KILL).unwrap();
    assert_eq!(running.wait(LIMIT).code, None);
    assert!(!out.exists());
    // On a file system without unnamed files, the next export cleans up.
    Trial::new(&args).run().assert_code(0);
    let entries = std::fs::read_dir(folder.path()).unwrap();
    let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["weights.safetensors"]);
}

#[test]
fn both_formats_of_an_exported_model_are_the_same_model() {
    let run = trained(&["train.epochs=1"]);
    let torch = then(&run, &["export", "RUN", "--out", "torch.safetensors"]);
    torch.assert_code(0);
    let burn = then(
        &run,
        &[
            "export",
            "RUN",
            "--format",
            "burn",
            "--out",
            "burn.safetensors",
        ],
    );
    burn.assert_code(0);
    let torch = torch.path("torch.safetensors");
    let (a, b) = (values(&torch), values(&burn.path("burn.safetensors")));
    assert_eq!(a.len(), 8);
    assert_eq!(a, b);
    let bytes = std::fs::read(&torch).unwrap();
    let header = String::from_utf8_lossy(&bytes[8..2000]);
    for part in [
        "class_names",
        r#"\"hidden\":16"#,
        r#""step":"20""#,
        r#""format":"pt""#,
    ] {
        assert!(header.contains(part), "{part} is not in {header}");
    }
}

#[test]
fn training_starts_from_exported_weights() {
    let run = trained(&[]);
    let exported = then(&run, &["export", "RUN"]);
    let file = exported.path("model.safetensors");
    let weights = format!("model.weights={}", file.display());
    let best = then(&run, &["eval", "RUN", "--json", "result.json"]);
    let accuracy = json(&best.path("result.json"))["evaluation"]["accuracy"].clone();
    // The rate is too small to change anything.
    let settings = [weights.as_str(), "optimizer.lr=1e-30", "train.max_steps=1"];
    let tuned = Trial::tiny(&["--nproc", "2"], &settings)
        .start()
        .wait(LIMIT);
    tuned.assert_code(0);
    assert_eq!(tuned.metrics("eval")[0]["accuracy"], accuracy);

    let other = [
        "data.name=generated",
        "data.channels=1",
        "data.size=28",
        "data.classes=3",
        "train.max_steps=1",
        weights.as_str(),
    ];
    let refused = Trial::tiny(&["--nproc", "2"], &other).start().wait(LIMIT);
    refused.assert_code(2).assert_stderr(&[
        "cannot load model.weights",
        "of --set model.weights=",
        "fc2.weight",
        "model.new_head",
    ]);
    let with_head: Vec<&str> = other
        .iter()
        .copied()
        .chain(["model.new_head=true"])
        .collect();
    Trial::tiny(&[], &with_head)
        .start()
        .wait(LIMIT)
        .assert_code(0);
    let wider = ["model.hidden=17", weights.as_str()];
    let refused = Trial::tiny(&[], &wider).run();
    refused.assert_code(2).assert_stderr(&["fc1.weight"]);
    assert!(!refused.stderr.contains("new_head"), "{}", refused.stderr);
    Trial::new(&["check", "--set", "model.weights=none.pt"])
        .run()
        .assert_code(2)
        .assert_stderr(&["cannot read none.pt", "of --set model.weights=none.pt"]);
}

#[test]
fn learning_rates_are_tried_and_one_is_suggested() {
    let mut args = vec!["lr-find", "--steps", "200"];
    let sets: Vec<&str> = TINY.iter().flat_map(|setting| ["--set", setting]).collect();
    args.extend(&sets);
    let found = Trial::new(&args).start().wait(LIMIT);
    found.assert_code(0).assert_no_files(&["lr-find.svg"]);
    assert!(
        found.stdout.contains("steepest descent at"),
        "{}",
        found.stdout
    );
    let svg = std::fs::read_to_string(found.path("lr-find.svg")).unwrap();
    // The table, the plot and the last line have the same means.
    assert!(svg.contains("<polyline") && svg.contains(">mean of 21 steps<"));
    assert!(found.stdout.contains("mean loss") && found.stdout.contains("means over 21"));
    for wrong in [
        ["--min", "1"],
        ["--max", "-1"],
        ["--min", "0"],
        // Too close to the maximum.
        ["--min", "0.01"],
        ["--steps", "1"],
    ] {
        let mut args = vec!["lr-find", "--max=0.5"];
        if wrong[0] == "--max" {
            args.pop();
        }
        let joined = format!("{}={}", wrong[0], wrong[1]);
        args.push(&joined);
        Trial::new(&args).run().assert_code(2).assert_no_files(&[]);
    }
    let vit = "[model]\nname = \"vit\"\npatch = 5\n[optimizer]\nname = \"adamw\"\nlr = 1e-3\n";
    let refused = Trial::new(&["lr-find", "--config", "vit-5.toml"])
        .file("vit-5.toml", vit)
        .run();
    refused.assert_code(2).assert_stderr(&["patches of 5×5"]);
    assert_eq!(refused.stdout, "");
}

#[test]
fn a_rate_that_was_found_is_written_into_the_configuration() {
    let text = "# mine\n[model]\nname = \"cnn\"\nfilters = [4, 8]\nhidden = 16\n\n[optimizer]\n\
                name = \"adam\"\nlr = 0.5 # a guess\n";
    let sets = [
        "--set",
        "data.train_samples=240",
        "--set",
        "train.batch_size=12",
    ];
    let args = [
        "lr-find",
        "--steps",
        "100",
        "--config",
        "mine.toml",
        "--write",
        "mine.toml",
    ];
    let found = Trial::new(&[&args[..], &sets].concat())
        .file("mine.toml", text)
        .run();
    found.assert_code(0);
    let rate = found.stdout.split("optimizer.lr = ").last().unwrap().trim();
    let written = std::fs::read_to_string(found.path("mine.toml")).unwrap();
    let lr: f64 = rate.parse().unwrap();
    assert_eq!(written, text.replace("0.5 #", &format!("{lr:?} #")));
    assert!((1e-6..1.0).contains(&lr), "{lr}");
    // Without a suggestion, the file stays.
    let args = [&args[..], &["--max", "1e-3", "--min", "1e-9"], &sets].concat();
    let none = Trial::new(&args).file("mine.toml", text).run();
    none.assert_code(1)
        .assert_stderr(&["mine.toml is not written"]);
    assert_eq!(
        std::fs::read_to_string(none.path("mine.toml")).unwrap(),
        text
    );
}

#[test]
fn a_configuration_is_checked() {
    let good = Trial::new(&["check", "--config", "vit.toml", "--nproc", "4"]).run();
    good.assert_code(0).assert_no_files(&[]);
    assert!(good.stdout.contains("drop_path = 0.1"), "{}", good.stdout);
    Trial::new(&["check", "--config", "mine.toml"])
        .file(
            "mine.toml",
            "[model]\nname = \"cnn\"\n[optimizer]\nname = \"sgd\"\nlr = -1.0\n",
        )
        .run()
        .assert_code(2)
        .assert_stderr(&["line 5, column 6 of mine.toml", "positive"]);
    Trial::new(&["check", "--nproc", "3", "--set", "train.batch_size=64"])
        .run()
        .assert_code(2)
        .assert_stderr(&["63 or 66"]);
}

#[test]
fn training_can_be_asked_for_by_name() {
    let finished = Trial::new(&["train", "--dry-run", "--nproc", "2"]).run();
    finished.assert_code(0);
    assert!(finished.stdout.contains("# world size 2"));
}

#[test]
fn activations_are_measured_under_every_strategy() {
    let sharded = ["parallel.strategy=zero-3", "parallel.shard_within=2"];
    for settings in [&[][..], &sharded] {
        let sets = settings.iter().flat_map(|setting| ["--set", setting]);
        let args: Vec<&str> = ["--dry-run", "--nproc", "4"]
            .into_iter()
            .chain(sets)
            .collect();
        let finished = Trial::new(&args).run();
        finished.assert_code(0);
        assert!(
            finished.stdout.contains("activations"),
            "{}",
            finished.stdout
        );
        let unknown = finished.stdout.contains("not measured");
        assert!(!unknown, "{settings:?}: {}", finished.stdout);
    }
}

#[test]
fn shells_complete_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let finished = Trial::new(&["completions", shell]).run();
        finished.assert_code(0);
        for word in ["lr-find", "predict", "--nproc"] {
            let word = word.trim_start_matches('-');
            assert!(finished.stdout.contains(word), "{shell}: {word}");
        }
    }
    Trial::new(&["completions", "dos"]).run().assert_code(2);
}

/// A run with overfitted batches sees them without augmentation.
#[test]
fn the_preview_is_of_what_the_run_will_see() {
    let picture = |settings: &[&str]| {
        let all = settings.iter().chain(&["train.overfit_batches=1"]);
        let sets: Vec<&str> = all.flat_map(|setting| ["--set", setting]).collect();
        let drawn = Trial::new(&[&["preview", "--out", "picture.png"], &sets[..]].concat()).run();
        drawn.assert_code(0);
        std::fs::read(drawn.path("picture.png")).unwrap()
    };
    assert_eq!(picture(&[]), picture(&["data.augment=cutout:8"]));
}

//! Runs cut short: for a trial, by a time limit, or by a callback.

mod common;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{Trial, can_limit_threads, can_pretend_hosts, free_port};

#[test]
fn a_trial_run_tries_everything_and_writes_nothing() {
    let settings = [
        "train.fast_dev_run=true",
        "train.epochs=100",
        "checkpoint.every_steps=1",
    ];
    let finished = Trial::tiny(&["--nproc", "2"], &settings).run();
    finished.assert_code(0).assert_no_files(&[]);
    assert!(finished.stdout.contains("epoch 1/1"), "{}", finished.stdout);
}

#[test]
fn a_trial_of_a_run_that_goes_on_or_has_ended_trains_too() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let train = |settings: &[&str]| {
        let finished = Trial::tiny_at(&run, &["--resume", "auto"], settings).run();
        finished.assert_code(0);
        finished.stdout
    };
    for limit in ["train.max_steps=25", "train.epochs=2"] {
        train(&[limit, "train.epochs=2", "checkpoint.every_epochs=1"]);
        let tried = train(&["train.fast_dev_run=true"]);
        assert!(tried.contains("continues from"), "{tried}");
        assert!(tried.contains("epoch 3/3"), "{tried}");
    }
}

#[test]
fn epochs_and_evaluations_can_be_cut_short() {
    // 101 test images: each of two ranks has one batch, of 51 and 50.
    let settings = ["train.limit_batches=4", "train.epochs=2"];
    let finished = Trial::tiny(&["--nproc", "2"], &settings).run();
    finished.assert_code(0);
    assert_eq!(finished.losses().len(), 8);
    let settings = ["train.limit_batches=1", "data.test_samples=1000"];
    let finished = Trial::tiny(&["--nproc", "1"], &settings).run();
    finished.assert_code(0);
    assert_eq!(finished.metrics("eval")[0]["samples"], 128);
}

#[test]
fn a_model_learns_one_batch_by_heart() {
    let settings = [
        "train.overfit_batches=1",
        "train.epochs=150",
        "data.augment=shift:2",
        "optimizer.lr=0.01",
        "log.every_steps=150",
    ];
    let finished = Trial::tiny(&["--nproc", "2"], &settings).run();
    finished.assert_code(0);
    let evaluations = finished.metrics("eval");
    let last = evaluations.last().unwrap();
    assert_eq!(last["samples"], 12);
    assert_eq!(last["accuracy"].as_f64(), Some(1.0));
}

#[test]
fn a_run_whose_time_is_over_is_continued_to_the_same_end() {
    let checksum = |stdout: &str| {
        let line = stdout.lines().find(|line| line.starts_with("parameters"));
        line.unwrap().rsplit(' ').next().unwrap().to_owned()
    };
    let whole = Trial::tiny(&["--nproc", "2"], &["train.epochs=3"]).run();
    whole.assert_code(0);

    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let continued = |minutes: &str| {
        let args = ["--nproc", "2", "--resume", "auto"];
        Trial::tiny_at(&dir, &args, &["train.epochs=3", minutes]).run()
    };
    // Less time than a step takes: one step, and one more until all ranks know.
    let paused = continued("train.max_minutes=1e-9");
    paused.assert_code(75).assert_nobody_left();
    assert!(paused.stdout.contains("--resume auto"), "{}", paused.stdout);
    let metrics = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    assert!(!metrics.contains("\"eval\""), "{metrics}");
    let finished = continued("train.max_minutes=60.0");
    finished.assert_code(0);
    assert_eq!(checksum(&finished.stdout), checksum(&whole.stdout));
}

#[test]
fn a_stack_that_is_too_small_is_raised_or_named() {
    let run = |limit: &str| {
        let trial = Trial::tiny(&["--nproc", "2"], &["train.max_steps=1"]);
        trial.with_limit(limit).run()
    };
    run("--stack=65536:8388608").assert_code(0);
    // With 16 KiB, a larger environment leaves no room: the system kills the program before it
    // runs.
    run("--stack=65536:65536")
        .assert_code(1)
        .assert_stderr(&["error: the stack limit is", "`ulimit -s 8192`"])
        .assert_no_files(&[]);
}

#[test]
fn stacks_that_no_thread_can_have_are_named() {
    for bytes in ["100000000000000", "18446744073709551615"] {
        Trial::tiny(&["--nproc", "2"], &["train.max_steps=1"])
            .env("RUST_MIN_STACK", bytes)
            .run()
            .assert_code(1)
            .assert_stderr(&["RUST_MIN_STACK gives each thread", "Unset it"])
            .assert_no_files(&[]);
    }
}

/// A pool of 8000 threads would start silently, before signals are handled.
#[test]
fn more_threads_than_cpus_are_not_started() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let threads = match cpus {
        1 => "1 thread".to_owned(),
        cpus => format!("{cpus} threads"),
    };
    let run = |args: &[&str], settings: &[&str]| {
        Trial::tiny(args, settings)
            .env("RAYON_NUM_THREADS", "8000")
            .run()
    };
    let finished = run(&["--nproc", "2"], &["train.max_steps=1"]);
    finished.assert_code(0);
    let told = format!("{threads} per rank");
    assert!(finished.stdout.contains(&told), "{}", finished.stdout);
    // One rank warns for the whole node.
    let warned = "warning: RAYON_NUM_THREADS=8000, but this process may use";
    assert_eq!(finished.stderr.matches(warned).count(), 1);
    let told = Trial::new(&["preview", "--set", "data.train_samples=960"])
        .env("RAYON_NUM_THREADS", "8000")
        .run();
    told.assert_code(0).assert_stderr(&[warned]);
}

/// As in a container with some of the machine's CPUs: a launcher does not bind each rank to them
/// all.
#[test]
fn ranks_of_another_launcher_share_a_set_of_cpus() {
    if !can_pretend_hosts() {
        println!("SKIPPED: a set of CPUs: takes root and unshare");
        return;
    }
    let cpus = std::thread::available_parallelism().unwrap().get();
    let ranks = 4;
    let finished = Trial::tiny(&[], &["train.max_steps=1"])
        .by_agent(ranks)
        .on_large_machine()
        .run();
    let told = match cpus / ranks {
        0 | 1 => "1 thread per rank".to_owned(),
        threads => format!("{threads} threads per rank"),
    };
    let said = format!("{}{}", finished.stdout, finished.stderr);
    assert!(said.contains(&told), "{said}");
}

#[test]
fn a_limit_of_threads_is_named_whatever_it_hits() {
    if !can_limit_threads() {
        println!("SKIPPED: limits of threads: takes root, setpriv and prlimit");
        return;
    }
    let settings = ["train.max_steps=1", "data.workers=4"];
    let mut refused = 0;
    // From the first thread of the run to the last.
    for limit in [2, 8, 13, 16, 20, 24, 28, 32, 40, 80] {
        let finished = Trial::tiny(&["--nproc", "2"], &settings)
            .with_thread_limit(limit)
            .run();
        if finished.code == Some(0) {
            continue;
        }
        refused += 1;
        let named = format!(
            "cannot start another thread or process: the limit for this user is {limit} (`ulimit -u`)"
        );
        finished
            .assert_code(1)
            .assert_stderr(&[&named, "Raise the limit"])
            .assert_nobody_left();
    }
    assert!((3..10).contains(&refused), "{refused}");
}

#[test]
fn wrong_limits_are_refused() {
    for (setting, part) in [
        ("train.max_minutes=0.0", "train.max_minutes"),
        ("train.limit_batches=0", "train.limit_batches"),
        ("train.overfit_batches=0", "train.overfit_batches"),
    ] {
        let refused = Trial::tiny(&[], &[setting]).run();
        refused.assert_code(2).assert_stderr(&[part]);
    }
}

fn example(name: &str) -> PathBuf {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_trainer"));
    program.with_file_name("examples").join(name)
}

/// Losses and the last error of the example of a task on `size` ranks.
fn own_task(size: usize) -> (Vec<f64>, f64) {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let start = |rank: usize| {
        let mut command = Command::new(example("own_task"));
        command
            .args([
                "digits.toml",
                "run",
                "train.batch_size=48",
                "train.epochs=8",
            ])
            .arg("optimizer.lr=0.01")
            .current_dir(folder.path())
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", size.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", &port)
            .env("BURN_DIST_SECRET", "a secret of this test only")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let ranks: Vec<_> = (0..size).map(start).collect();
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let text = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let losses = lines.iter().filter(|line| line["kind"] == "train");
    let losses = losses.map(|line| line["loss"].as_f64().unwrap()).collect();
    let last = lines.iter().rfind(|line| line["kind"] == "eval").unwrap();
    assert_eq!(last["samples"], 101);
    (losses, last["rmse"].as_f64().unwrap())
}

#[test]
fn a_task_of_a_program_trains_alike_on_any_number_of_ranks() {
    let (one, error) = own_task(1);
    let (two, _) = own_task(2);
    assert!(error < 0.1, "{error}");
    assert_eq!((one.len(), two.len()), (200, 200));
    for (a, b) in one.iter().zip(two).take(50) {
        assert!((a - b).abs() <= 1e-5 * a, "{a} {b}");
    }
}

#[test]
fn the_examples_do_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(example("custom_callback"))
        .args(["digits.toml", "run", "data.train_samples=640"])
        .args([
            "train.epochs=50",
            "data.test_samples=100",
            "optimizer.lr=0.01",
        ])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for part in [
        "callback: epoch 1 reached",
        "callback: Early(",
        "stopped early: a callback",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(folder.path().join("run/environment.json").is_file());

    let output = Command::new(example("own_data"))
        .args(["digits.toml", "own", "train.epochs=2"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = std::fs::read_to_string(folder.path().join("own/metrics.jsonl")).unwrap();
    let last = lines
        .lines()
        .rfind(|line| line.contains("\"eval\""))
        .unwrap();
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["samples"], 512);
    assert!(last["accuracy"].as_f64().unwrap() > 0.95, "{last}");
    // The trainer does not have the program's images.
    let output = Command::new(env!("CARGO_BIN_EXE_trainer"))
        .args(["eval", "own"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("data.name"),
        "{text}"
    );

    let output = Command::new(example("loop_by_hand")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        text.lines().filter(|line| line.starts_with("loss")).count(),
        32
    );
    assert!(text.contains("rank 0 of 1: parameters"), "{text}");
}

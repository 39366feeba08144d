//! Logs of a run: one per rank, and the flight recorder of a rank after a failed collective. Its
//! provenance: the program, and every process with its start and end.

// The build script, to test it without git.
#[allow(dead_code, reason = "its main function runs in builds only")]
#[path = "../build.rs"]
mod build;
mod common;

use std::fs;
use std::path::Path;
use std::time::Duration;

use common::Trial;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

fn log(run_dir: &Path, rank: usize) -> String {
    fs::read_to_string(run_dir.join(format!("logs/rank-{rank}.log"))).unwrap()
}

/// A tiny run of two ranks in a folder that outlives it.
fn trial(run_dir: &Path, args: &[&str], settings: &[&str]) -> Trial {
    Trial::tiny_at(run_dir, &[&["--nproc", "2"], args].concat(), settings)
}

#[test]
fn every_rank_has_a_log_to_which_a_run_that_is_continued_adds() {
    let folder = tempfile::tempdir().unwrap();
    let run_dir = folder.path().join("run");
    let settings = ["checkpoint.every_steps=2"];
    let first = trial(
        &run_dir,
        &[],
        &[&settings[..], &["train.max_steps=4"]].concat(),
    )
    .run();
    first.assert_code(0);
    let ranks = [log(&run_dir, 0), log(&run_dir, 1)];
    for (rank, log) in ranks.iter().enumerate() {
        let own = format!("rank {rank} of 2, local rank {rank}, process ");
        assert!(
            log.contains(&own) && log.contains(env!("CARGO_PKG_VERSION")),
            "{log}"
        );
        assert!(log.contains("ended after step 4: complete"), "{log}");
    }
    // Messages that only the main rank prints.
    for line in first
        .stdout
        .lines()
        .filter(|line| !line.starts_with("  epoch "))
    {
        assert!(ranks[0].contains(line), "{line:?} is not in\n{}", ranks[0]);
    }
    assert!(!ranks[1].contains("epoch 1/1"), "{}", ranks[1]);

    trial(&run_dir, &["--resume", "auto"], &settings)
        .run()
        .assert_code(0);
    for (rank, before) in ranks.iter().enumerate() {
        let now = log(&run_dir, rank);
        let added = now.strip_prefix(before.as_str()).unwrap();
        assert!(added.contains(&format!("rank {rank} of 2")), "{added}");
        assert!(added.contains("ended after step 20: complete"), "{added}");
    }
}

#[test]
fn the_log_of_a_surviving_rank_names_the_one_that_died() {
    for transport in ["parallel.transport=shm", "parallel.transport=tcp"] {
        let settings = [transport, "train.epochs=1000000"];
        let mut running = Trial::tiny(&["--nproc", "2"], &settings).start();
        running.wait_for_metrics(5);
        let environment = format!("/proc/{}/environ", running.rank(0).as_raw_nonzero());
        let environment = String::from_utf8(fs::read(environment).unwrap()).unwrap();
        let secret = |entry: &str| Some(entry.strip_prefix("BURN_DIST_SECRET=")?.to_owned());
        let secret = environment.split('\0').find_map(secret).unwrap();
        kill_process(running.rank(1), Signal::KILL).unwrap();
        let finished = running.wait(Duration::from_secs(10));
        finished.assert_code(1);
        let log = log(&finished.path("run"), 0);
        let error = log.lines().find(|line| line.contains("error: "));
        assert!(
            error.is_some_and(|error| error.contains("rank 1 ")),
            "{log}"
        );
        let recorder = finished.path("run/logs/flight-recorder-rank-0.txt");
        let recorder = fs::read_to_string(recorder).unwrap();
        let unfinished = recorder.lines().last().unwrap();
        assert!(unfinished.contains("unfinished"), "{recorder}");
        // The log names the collective, and so does the recorder.
        let number = unfinished
            .split_whitespace()
            .find(|word| word.starts_with('#'));
        assert!(
            number.is_some_and(|number| log.contains(number)),
            "{recorder}{log}"
        );
        assert!(!log.contains(&secret) && !recorder.contains(&secret));
    }
}

#[test]
fn a_log_that_cannot_be_written_is_one_warning() {
    let finished = Trial::tiny(&["--nproc", "1"], &["train.max_steps=2"])
        .file("run/logs", "")
        .run();
    finished
        .assert_code(0)
        .assert_stderr(&["warning: ", "run/logs"]);
    assert_eq!(
        finished.stderr.matches("warning").count(),
        1,
        "{}",
        finished.stderr
    );
}

#[test]
fn a_run_that_only_tries_everything_has_no_log() {
    let finished = Trial::tiny(&["--nproc", "2"], &["train.fast_dev_run=true"]).run();
    finished.assert_code(0).assert_no_files(&[]);
}

#[test]
fn the_program_says_what_it_was_built_from() {
    let long = Trial::new(&["--version"]).run();
    long.assert_code(0);
    let lines: Vec<&str> = long.stdout.lines().collect();
    assert_eq!(lines[0], concat!("trainer ", env!("CARGO_PKG_VERSION")));
    let revision = lines[1].strip_prefix("revision  ").unwrap();
    let hash = revision.strip_suffix("-dirty").unwrap_or(revision);
    let is_hash = hash.len() == 12 && hash.chars().all(|c| c.is_ascii_hexdigit());
    assert!(is_hash || revision == "unknown", "{revision}");
    assert!(lines[2].starts_with("features  "), "{lines:?}");
    let target = lines[3].strip_prefix("target    ").unwrap();
    assert!(target.starts_with(std::env::consts::ARCH), "{target}");
    let short = Trial::new(&["-V"]).run();
    let expected = concat!("trainer ", env!("CARGO_PKG_VERSION"));
    assert_eq!(short.stdout, format!("{expected} ({revision})\n"));
}

/// Sources have a revision in a repository and in a package, and elsewhere none.
#[test]
fn a_build_needs_no_git() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(build::revision(folder.path()), None);
    let hash = "0123456789abcdef0123456789abcdef01234567";
    let text = format!("{{\"git\": {{\"sha1\": \"{hash}\"}}, \"path_in_vcs\": \"trainer\"}}");
    fs::write(folder.path().join(".cargo_vcs_info.json"), text).unwrap();
    assert_eq!(build::revision(folder.path()).as_deref(), Some(&hash[..12]));
}

fn environment(run_dir: &Path) -> Value {
    let text = fs::read_to_string(run_dir.join("environment.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn every_process_of_a_run_is_recorded_with_its_start_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let run_dir = folder.path().join("run");
    let text = "a text of a few words, again and again. ".repeat(40);
    fs::write(folder.path().join("text.txt"), &text).unwrap();
    let train = |settings: &[&str]| {
        let path = format!("data.path={}", folder.path().join("text.txt").display());
        let mut args = vec![
            "--nproc",
            "2",
            "--resume",
            "auto",
            "--config",
            "language.toml",
        ];
        args.extend(["--run-dir", run_dir.to_str().unwrap()]);
        let small = [
            "model.width=16",
            "model.layers=1",
            "model.heads=2",
            "data.context=16",
            "train.batch_size=4",
        ];
        let all = [&small[..], &["checkpoint.every_steps=3", &path], settings].concat();
        args.extend(all.iter().flat_map(|setting| ["--set", setting]));
        let trial = Trial::new(&args);
        trial.env("SLURM_JOB_PARTITION", "debug").run()
    };
    train(&["train.max_steps=8"]).assert_code(0);
    // As if it had been killed after step 8, with its last checkpoint at step 6.
    fs::remove_dir_all(run_dir.join("checkpoints/step-0000000008")).unwrap();
    train(&["train.max_steps=10"]).assert_code(0);
    train(&["train.max_steps=12", "optimizer.lr=1e30"]).assert_code(1);
    let environment = environment(&run_dir);
    let processes = environment["processes"].as_array().unwrap();
    let part = |key: &str| -> Vec<&Value> { processes.iter().map(|p| &p[key]).collect() };
    assert_eq!(part("first_step"), [0, 6, 10]);
    assert_eq!(part("last_step"), [&8.into(), &10.into(), &Value::Null]);
    assert_eq!(
        part("went_back_from"),
        [&Value::Null, &8.into(), &Value::Null]
    );
    let status = part("status");
    assert_eq!(status[..2], ["complete", "complete"]);
    assert!(
        status[2].as_str().unwrap().starts_with("failed: "),
        "{status:?}"
    );
    let last = &processes[2];
    let host = &last["hosts"][0];
    assert_eq!(host["devices"].as_array().map(Vec::len), Some(2));
    for value in [
        &host["host"],
        &host["cpu"],
        &host["system"],
        &last["ended"],
        &last["target"],
    ] {
        assert!(
            value.as_str().is_some_and(|text| !text.is_empty()),
            "{last}"
        );
    }
    assert!(
        host["memory_mib"].as_u64() > Some(0) && host["cpus"].as_u64() > Some(0),
        "{host}"
    );
    assert_eq!(last["slurm"]["partition"], "debug");
    assert!(last["command"].to_string().contains("--resume"), "{last}");
    assert!(
        Path::new(last["folder"].as_str().unwrap()).is_absolute(),
        "{last}"
    );
    // Checked by `sha256sum`.
    let data = &environment["data"][0];
    let sum = std::process::Command::new("sha256sum")
        .arg(folder.path().join("text.txt"))
        .output();
    let sum = String::from_utf8(sum.unwrap().stdout).unwrap();
    assert_eq!(data["each"]["text.txt"].as_str(), sum.split(' ').next());
    assert_eq!(
        (data["of"].as_str(), data["bytes"].as_u64()),
        (Some("content"), Some(text.len() as u64))
    );
}

/// The disk space of the plan is that of the files.
#[test]
fn a_dry_run_says_how_much_disk_the_checkpoints_need() {
    let folder = tempfile::tempdir().unwrap();
    let run_dir = folder.path().join("run");
    let settings = [
        "model.hidden=512",
        "checkpoint.every_steps=1",
        "checkpoint.keep=2",
        "ema.decay=0.9",
    ];
    let planned = Trial::tiny_at(&run_dir, &["--dry-run"], &settings).run();
    planned.assert_code(0);
    let line = planned
        .stdout
        .lines()
        .find(|line| line.starts_with("# MiB on disk: "));
    let line = line.unwrap_or_else(|| panic!("{}", planned.stdout));
    assert!(
        line.contains(" for at most 4; ") && line.ends_with("/run"),
        "{line}"
    );
    assert!(!run_dir.exists());
    let one: f64 = line.split(' ').nth(4).unwrap().parse().unwrap();
    let settings = [&settings[..], &["train.max_steps=2"]].concat();
    Trial::tiny_at(&run_dir, &["--nproc", "1"], &settings)
        .run()
        .assert_code(0);
    let files = fs::read_dir(run_dir.join("checkpoints/step-0000000002")).unwrap();
    let bytes: u64 = files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    let found = bytes as f64 / f64::from(1 << 20);
    assert!(
        (0.9..1.1).contains(&(one / found)),
        "{one} MiB planned, {found} MiB written"
    );
}

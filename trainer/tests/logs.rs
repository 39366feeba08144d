//! Logs of a run: one per rank, and the flight recorder of a rank after a failed collective.

mod common;

use std::fs;
use std::path::Path;
use std::time::Duration;

use common::Trial;
use rustix::process::{Signal, kill_process};

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

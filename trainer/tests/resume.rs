//! Runs that are killed, resumed or stopped early end like an uninterrupted run.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::{Finished, LIMIT, Trial, processes_of, rank_of};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Twenty steps in an epoch, all sources of randomness, and a checkpoint every 3 steps.
const SETTINGS: &[&str] = &[
    "model.dropout_conv=0.3",
    "model.dropout_hidden=0.3",
    "data.augment=shift:1+mixup:0.8:0.5+erase:0.3",
    "schedule.name=cosine",
    "schedule.warmup_epochs=0.5",
    "optimizer.weight_decay=0.01",
    "checkpoint.every_steps=3",
    "train.epochs=3",
];

/// A run in a folder that outlives its processes.
struct Run {
    folder: TempDir,
    /// The run folder, if it is elsewhere.
    at: Option<PathBuf>,
    settings: Vec<String>,
}

impl Run {
    fn new(settings: &[&str]) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            at: None,
            settings: SETTINGS
                .iter()
                .chain(settings)
                .map(ToString::to_string)
                .collect(),
        }
    }

    fn dir(&self) -> PathBuf {
        let inside = || self.folder.path().join("run");
        self.at.clone().unwrap_or_else(inside)
    }

    fn trial(&self, nproc: usize, more: &[&str]) -> Trial {
        let dir = self.dir();
        let to_run_dir = ["--run-dir", dir.to_str().unwrap()];
        self.trial_anywhere(nproc, &[&to_run_dir, more].concat())
    }

    /// A trial without a run folder.
    fn trial_anywhere(&self, nproc: usize, more: &[&str]) -> Trial {
        let nproc = nproc.to_string();
        let mut args = vec!["--nproc", &nproc];
        for setting in common::TINY
            .iter()
            .copied()
            .chain(self.settings.iter().map(String::as_str))
        {
            args.extend(["--set", setting]);
        }
        args.extend(more);
        Trial::new(&args)
    }

    fn finish(&self, nproc: usize, more: &[&str]) -> Finished {
        let finished = self.trial(nproc, more).run();
        finished.assert_code(0).assert_nobody_left();
        finished
    }

    /// Complete metrics lines of steps and evaluations, without values that depend on time or
    /// memory. The last line of the file may be partial.
    fn metrics(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir().join("metrics.jsonl")).unwrap_or_default();
        let text = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let line = |line: &str| {
            let mut value: Value = serde_json::from_str(line).unwrap();
            let measured = [
                "images_per_second",
                "elapsed",
                "time",
                "memory_mib",
                "tflops",
                "seconds",
            ];
            value
                .as_object_mut()
                .unwrap()
                .retain(|key, _| !measured.contains(&key.as_str()));
            value
        };
        let lines = text.lines().map(line);
        lines
            .filter(|line| line["kind"] == "train" || line["kind"] == "eval")
            .collect()
    }

    fn checkpoints(&self) -> Vec<PathBuf> {
        let folder = self.dir().join("checkpoints");
        let mut found: Vec<PathBuf> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        found.sort();
        found
    }

    fn checkpoint_names(&self) -> Vec<String> {
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        self.checkpoints().iter().map(name).collect()
    }
}

/// The final checksum of the parameters.
#[track_caller]
fn checksum(finished: &Finished) -> String {
    let line = finished
        .stdout
        .lines()
        .find(|line| line.starts_with("parameters") && line.contains("checksum"));
    let line = line.unwrap_or_else(|| panic!("no checksum in {}", finished.stdout));
    line.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn a_run_that_is_killed_again_and_again_ends_as_if_it_never_was() {
    for nproc in [1, 2] {
        let whole = Run::new(&[]);
        let expected = checksum(&whole.finish(nproc, &[]));
        let killed = Run::new(&[]);
        // Points before the first checkpoint, within epochs, and near their ends.
        for lines in [1, 9, 17, 21, 30, 44, 58] {
            let running = killed.trial(nproc, &["--resume", "auto"]).start();
            let deadline = std::time::Instant::now() + LIMIT;
            while killed.metrics().len() < lines && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            for pid in processes_of(&killed.dir()) {
                // It may have ended by itself meanwhile.
                let _ = kill_process(pid, Signal::KILL);
            }
            running.wait(LIMIT);
        }
        let finished = killed.finish(nproc, &["--resume", "auto"]);
        assert_eq!(checksum(&finished), expected, "{nproc} ranks");
        assert_eq!(killed.metrics(), whole.metrics(), "{nproc} ranks");
        assert_eq!(killed.metrics().len(), 63);
    }
}

#[test]
fn evaluations_within_an_epoch_change_nothing_and_are_resumed() {
    let plain = checksum(&Run::new(&[]).finish(2, &[]));
    let settings = ["train.evaluate_every_steps=7"];
    let whole = Run::new(&settings);
    let finished = whole.finish(2, &[]);
    assert_eq!(checksum(&finished), plain);
    assert!(
        finished.stdout.contains("epoch 2/3, step 8/20: "),
        "{}",
        finished.stdout
    );
    let lines = whole.metrics();
    let evaluated = lines.iter().filter(|line| line["kind"] == "eval");
    let steps: Vec<u64> = evaluated
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [7, 14, 20, 21, 28, 35, 40, 42, 49, 56, 60]);
    let killed = Run::new(&settings);
    // Beside evaluations within an epoch, and at its end.
    for count in [8, 16, 24, 50] {
        let running = killed.trial(2, &["--resume", "auto"]).start();
        let deadline = std::time::Instant::now() + LIMIT;
        while killed.metrics().len() < count && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        for pid in processes_of(&killed.dir()) {
            // It may have ended by itself meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        running.wait(LIMIT);
    }
    let finished = killed.finish(2, &["--resume", "auto"]);
    assert_eq!(checksum(&finished), plain);
    assert_eq!(killed.metrics(), lines);
}

#[test]
fn ranks_that_die_are_started_again() {
    let whole = Run::new(&[]);
    let expected = checksum(&whole.finish(2, &[]));
    let run = Run::new(&[]);
    let running = run.trial(2, &["--max-restarts", "3"]).start();
    // Before the first checkpoint, at the end of the first epoch, and in the middle of the run.
    for (lines, rank) in [(1, 0), (20, 1), (35, 0)] {
        kill_after(&run, lines, rank);
    }
    let finished = running.wait(LIMIT);
    finished
        .assert_code(0)
        .assert_nobody_left()
        .assert_stderr(&[
            "error: rank 0 was killed by signal 9",
            "restarting all ranks, restart 1 of 3",
            "error: rank 1 was killed by signal 9",
            "restarting all ranks, restart 3 of 3",
        ]);
    assert_eq!(checksum(&finished), expected);
    assert_eq!(run.metrics(), whole.metrics());
}

/// The checkpoint has the schedule's state.
#[test]
fn a_rate_that_follows_the_evaluations_goes_on_as_it_was() {
    let settings = [
        "schedule={name=\"plateau\", patience=0, factor=0.5, threshold=0.99}",
        "optimizer={name=\"rmsprop\", lr=0.001, momentum=0.5, centered=true}",
        "parallel.strategy=zero-2",
        "train.epochs=4",
    ];
    let whole = Run::new(&settings);
    let expected = checksum(&whole.finish(2, &[]));
    let lines = whole.metrics();
    let trained = |epoch: u64| {
        let mut of_epoch = lines.iter().rev();
        of_epoch.find(|line| line["kind"] == "train" && line["epoch"] == epoch)
    };
    let rate = |epoch| trained(epoch).unwrap()["lr"].as_f64().unwrap();
    assert_eq!([1, 2, 3, 4].map(rate), [1e-3, 1e-3, 5e-4, 2.5e-4]);
    let run = Run::new(&settings);
    let running = run.trial(2, &["--max-restarts", "1"]).start();
    kill_after(&run, 52, 1);
    let finished = running.wait(LIMIT);
    finished.assert_code(0).assert_nobody_left();
    assert_eq!(checksum(&finished), expected);
    assert_eq!(run.metrics(), lines);
}

#[test]
fn ranks_are_started_again_as_often_as_was_said() {
    let run = Run::new(&["train.epochs=1000"]);
    let running = run.trial(1, &["--max-restarts=1", "--resume=auto"]).start();
    kill_after(&run, 5, 0);
    kill_after(&run, 25, 0);
    let finished = running.wait(LIMIT);
    finished.assert_code(1).assert_nobody_left();
    let restarts = finished.stderr.matches("restarting all ranks").count();
    assert_eq!(restarts, 1, "{}", finished.stderr);
}

/// The error would repeat every time.
#[test]
fn ranks_that_fail_by_the_same_error_are_not_started_for_ever() {
    for nproc in [1, 2] {
        let run = Run::new(&["optimizer={name=\"sgd\", lr=1e30}", "train.epochs=50"]);
        let failed = run.trial(nproc, &["--max-restarts", "9"]).run();
        failed.assert_code(1).assert_nobody_left();
        failed.assert_stderr(&["the same error again", "diverged"]);
        let restarts = failed.stderr.matches("restarting all ranks").count();
        assert_eq!(restarts, 1, "{}", failed.stderr);
    }
}

#[test]
fn who_stops_a_run_gets_no_other() {
    let run = Run::new(&["train.epochs=1000"]);
    let running = run.trial(2, &["--max-restarts", "3"]).start();
    wait_for(&run, 5);
    kill_process(running.pid(), Signal::TERM).unwrap();
    let finished = running.wait(LIMIT);
    finished.assert_code(75).assert_nobody_left();
    assert!(
        !finished.stderr.contains("restarting all ranks"),
        "{}",
        finished.stderr
    );
}

#[test]
fn who_stops_a_run_that_is_failing_gets_no_other() {
    let run = Run::new(&["train.epochs=1000"]);
    let running = run.trial(2, &["--max-restarts", "3"]).start();
    wait_for(&run, 5);
    // A stopped rank cannot end by itself, so the launcher waits for it when the other has failed.
    kill_process(rank_of(&run.dir(), 0), Signal::STOP).unwrap();
    kill_process(rank_of(&run.dir(), 1), Signal::KILL).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    kill_process(running.pid(), Signal::TERM).unwrap();
    let finished = running.wait(LIMIT);
    finished.assert_code(1).assert_nobody_left();
    finished.assert_stderr(&["error: rank 1 was killed by signal 9"]);
    assert!(!finished.stderr.contains("again"), "{}", finished.stderr);
}

#[test]
fn restarts_that_could_not_go_on_are_refused() {
    let run = Run::new(&[]);
    let refused = run
        .trial(2, &["--max-restarts=1", "--resume=elsewhere"])
        .run();
    refused
        .assert_code(2)
        .assert_stderr(&["--max-restarts", "not a path", "auto"]);
    let refused = run.trial_anywhere(2, &["--max-restarts=1"]).run();
    refused.assert_code(2).assert_stderr(&["--run-dir"]);
    let dir = run.dir();
    let args = ["--run-dir", dir.to_str().unwrap(), "--max-restarts=1"];
    let by_others = Trial::new(&args).rank(0, 2, "1").run();
    by_others
        .assert_code(2)
        .assert_stderr(&["--max-restarts", "--nproc"]);
}

/// Waits until a run has written `lines` lines of metrics.
#[track_caller]
fn wait_for(run: &Run, lines: usize) {
    let deadline = std::time::Instant::now() + LIMIT;
    while run.metrics().len() < lines {
        assert!(std::time::Instant::now() < deadline, "no {lines} lines");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills a rank of a run once it has written `lines` lines of metrics.
#[track_caller]
fn kill_after(run: &Run, lines: usize, rank: usize) {
    wait_for(run, lines);
    kill_process(rank_of(&run.dir(), rank), Signal::KILL).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let run = Run::new(&["checkpoint.best=false"]);
    let expected = checksum(&run.finish(2, &[]));
    let checkpoints = run.checkpoints();
    assert_eq!(checkpoints.len(), 3);
    let metrics = run.metrics();
    let file = checkpoints[2].join("rank-00001-of-00002.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let finished = run.finish(2, &["--resume", "auto"]);
    finished.assert_stderr(&["warning: skipped a checkpoint", "checksum is wrong"]);
    let told = "step-0000000057";
    assert!(finished.stdout.contains(told), "{}", finished.stdout);
    assert_eq!(checksum(&finished), expected);
    assert_eq!(run.metrics(), metrics);
    assert!(
        run.checkpoint_names()
            .contains(&"abandoned-0000000060".to_owned())
    );
}

#[test]
fn a_run_that_goes_back_sets_later_checkpoints_aside() {
    let run = Run::new(&["checkpoint.best=false"]);
    run.finish(1, &[]);
    let metrics = run.metrics();
    let back = run.checkpoints()[0].clone();
    let args = [
        "--resume",
        back.to_str().unwrap(),
        "--set",
        "train.max_steps=55",
    ];
    let finished = run.trial_anywhere(1, &args).run();
    finished.assert_code(0).assert_no_files(&[]);
    let told = "abandoned checkpoints after step 54: abandoned-0000000057, abandoned-0000000060";
    assert!(finished.stdout.contains(told), "{}", finished.stdout);
    // Only its own work since counts.
    let finished = run.finish(1, &["--resume", "auto"]);
    assert!(
        finished.stdout.contains("step-0000000055"),
        "{}",
        finished.stdout
    );
    assert_eq!(
        run.metrics().len(),
        metrics.len() + 1,
        "one evaluation more"
    );
    assert_eq!(
        run.checkpoint_names(),
        [
            "abandoned-0000000057",
            "abandoned-0000000060",
            "step-0000000055",
            "step-0000000057",
            "step-0000000060"
        ]
    );
}

#[test]
fn checkpoints_of_which_none_is_good_are_no_reason_to_start_anew() {
    let run = Run::new(&["train.epochs=1", "checkpoint.best=false"]);
    let expected = checksum(&run.finish(1, &[]));
    let metrics = run.metrics();
    for checkpoint in run.checkpoints() {
        fs::rename(
            checkpoint.join("manifest.json"),
            checkpoint.join("elsewhere"),
        )
        .unwrap();
    }
    let dir = run.dir();
    let named = ["--resume", dir.to_str().unwrap()];
    let auto = ["--resume", "auto"];
    for refused in [run.trial(1, &auto), run.trial_anywhere(1, &named)] {
        let refused = refused.run();
        refused.assert_code(1).assert_stderr(&[
            "contains no good checkpoint",
            "step-0000000015",
            "step-0000000018",
            "step-0000000020",
            "manifest.json is missing",
            "--resume PATH",
        ]);
    }
    assert_eq!(run.metrics(), metrics, "nothing was lost");
    for checkpoint in run.checkpoints() {
        fs::rename(
            checkpoint.join("elsewhere"),
            checkpoint.join("manifest.json"),
        )
        .unwrap();
    }
    assert_eq!(checksum(&run.finish(1, &auto)), expected);
}

#[test]
fn a_run_goes_on_without_the_numbers_that_a_crash_of_its_node_took() {
    let run = Run::new(&["train.epochs=1"]);
    let expected = checksum(&run.finish(1, &[]));
    let metrics = run.metrics();
    let file = run.dir().join("metrics.jsonl");
    let text = fs::read(&file).unwrap();
    fs::write(&file, &text[..text.len() / 2]).unwrap();
    let left = run.metrics();
    let args = ["--resume", "auto", "--set", "train.epochs=2"];
    let finished = run.finish(1, &args);
    finished.assert_stderr(&[
        "warning",
        "metrics.jsonl",
        "Metrics are missing; the run continues",
    ]);
    assert_ne!(checksum(&finished), expected);
    assert!(metrics.starts_with(&left));
    assert!(run.metrics().starts_with(&left));
    assert_eq!(run.metrics().len(), left.len() + 21);
}

#[test]
fn a_checkpoint_outside_a_run_folder_begins_a_run_of_its_own() {
    let run = Run::new(&["train.epochs=1"]);
    run.finish(1, &[]);
    let middle = run.checkpoints()[1].clone();
    let home = tempfile::tempdir().unwrap();
    // In folders like those of a run, but without metrics.
    for place in ["a/pretrained", "b/checkpoints"] {
        let folder = home.path().join(place);
        fs::create_dir_all(&folder).unwrap();
        let checkpoint = folder.join("step-0000001000");
        fs::create_dir(&checkpoint).unwrap();
        for entry in fs::read_dir(&middle).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), checkpoint.join(entry.file_name())).unwrap();
        }
        for named in [&checkpoint, &home.path().join("b")] {
            if !named.exists() {
                continue;
            }
            let args = ["--resume", named.to_str().unwrap()];
            let finished = run.trial_anywhere(1, &args).run();
            finished.assert_code(0).assert_no_files(&["runs"]);
            let new: Vec<_> = fs::read_dir(finished.path("runs")).unwrap().collect();
            assert_eq!(new.len(), 1, "{}", finished.stdout);
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert_eq!(fs::read_dir(folder.parent().unwrap()).unwrap().count(), 1);
    }
}

#[test]
fn a_checkpoint_continues_on_another_world_size_and_in_another_folder() {
    let run = Run::new(&["checkpoint.keep=100"]);
    run.finish(2, &[]);
    let middle = run.checkpoints()[10].clone();
    let other = Run::new(&[]);
    let finished = other.finish(3, &["--resume", middle.to_str().unwrap()]);
    assert!(
        finished.stdout.contains("continues from"),
        "{}",
        finished.stdout
    );
    let losses = |run: &Run| -> Vec<f64> {
        let lines = run.metrics();
        lines
            .iter()
            .filter_map(|line| line["loss"].as_f64())
            .collect()
    };
    // The first lines belong to earlier steps, which only the first run has.
    let (whole, rest) = (losses(&run), losses(&other));
    assert!(rest.len() < whole.len() && rest.len() > 20);
}

#[test]
fn a_finished_run_has_nothing_left_to_do() {
    let run = Run::new(&[]);
    let expected = checksum(&run.finish(1, &[]));
    let metrics = run.metrics();
    let again = run.finish(1, &["--resume", "auto"]);
    assert_eq!(checksum(&again), expected);
    assert_eq!(run.metrics(), metrics);
    let told = &again.stdout;
    let over = "nothing to do: the run ended after step 60, in epoch 3 of 3";
    assert!(told.contains(over) && !told.contains("images/s"), "{told}");
    assert!(told.contains("\nbest test accuracy "), "{told}");
    // Without --resume, no metrics are touched.
    let refused = run.trial(1, &[]).run();
    refused
        .assert_code(2)
        .assert_stderr(&["already contains a run"]);
}

#[test]
fn two_runs_at_once_in_one_folder_are_refused() {
    let run = Run::new(&["train.epochs=1000000"]);
    let other = Run {
        folder: tempfile::tempdir().unwrap(),
        at: Some(run.dir()),
        settings: run.settings.clone(),
    };
    let running = run.trial(2, &["--resume", "auto"]).start();
    let deadline = std::time::Instant::now() + LIMIT;
    while run.metrics().len() < 5 && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let dir = run.dir();
    let named = ["--resume", dir.to_str().unwrap()];
    let refusals = [
        other.trial(1, &["--resume", "auto"]),
        other.trial(2, &["--resume", "auto"]),
        other.trial_anywhere(1, &named),
        other.trial_anywhere(2, &named),
    ];
    for refused in refusals {
        let refused = refused.run();
        refused.assert_code(2);
        refused.assert_stderr(&["run is in use by process ", " on "]);
        assert_eq!(
            refused.stderr.matches("in use").count(),
            1,
            "{}",
            refused.stderr
        );
    }
    for pid in processes_of(&run.dir()) {
        let _ = kill_process(pid, Signal::KILL);
    }
    running.wait(LIMIT);
    // The lock of a killed process is free.
    run.finish(2, &["--resume", "auto", "--set", "train.epochs=1"]);
}

/// Two runs find no folder and create it. Neither is told to move away the other's new folder.
#[test]
fn of_two_runs_that_begin_at_once_in_a_new_folder_the_second_is_told_of_the_first() {
    let run = Run::new(&["train.epochs=1000000"]);
    let mut both = [(); 2].map(|()| run.trial(1, &["--resume", "auto"]).start());
    let deadline = std::time::Instant::now() + LIMIT;
    let second = loop {
        assert!(std::time::Instant::now() < deadline, "both go on");
        if let Some(ended) = both.iter_mut().position(|running| !running.goes_on()) {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let [one, two] = both;
    let (second, first) = if second == 0 { (one, two) } else { (two, one) };
    let by = format!("is in use by process {} on ", first.pid().as_raw_nonzero());
    second.wait(LIMIT).assert_code(2).assert_stderr(&[&by]);
    kill_process(first.pid(), Signal::KILL).unwrap();
    first.wait(LIMIT).assert_nobody_left();
}

/// Cleanup jobs of scratch file systems remove files like this.
#[test]
fn a_run_whose_lock_or_folder_is_taken_away_ends_and_no_two_ever_write() {
    let remove_lock = |run: &Run| fs::remove_file(run.dir().join(".lock")).unwrap();
    let replace_folder = |run: &Run| {
        fs::rename(run.dir(), run.folder.path().join("moved")).unwrap();
        fs::create_dir(run.dir()).unwrap();
    };
    let take_over = |run: &Run| {
        let word = "process 7 on elsewhere\ntoken 0\n";
        fs::write(run.dir().join(".lock"), word).unwrap();
    };
    type Harm<'a> = &'a dyn Fn(&Run);
    let cases: [(Harm<'_>, &str, usize); 3] = [
        (&remove_lock, "is missing: it or the folder was removed", 1),
        (&replace_folder, "The folder contains no checkpoint", 2),
        (&take_over, "was taken over by process 7 on elsewhere", 1),
    ];
    for (take_away, told, nproc) in cases {
        let run = Run::new(&["train.epochs=1000000"]);
        let running = run.trial(nproc, &["--resume", "auto"]).start();
        wait_for(&run, 5);
        take_away(&run);
        let ended = running.wait(LIMIT);
        ended.assert_code(2).assert_nobody_left();
        ended.assert_stderr(&[told, "--resume auto"]);
        // Nothing was written into the replacement folder, and the next run gets it.
        run.finish(1, &["--resume", "auto", "--set", "train.epochs=1"]);
        let steps: Vec<u64> = run
            .metrics()
            .iter()
            .filter_map(|line| line["step"].as_u64())
            .collect();
        assert!(steps.is_sorted(), "{steps:?}");
    }
}

#[test]
fn a_run_that_is_stopped_in_an_evaluation_evaluates_when_it_goes_on() {
    // Seconds of evaluation, and nearly no training.
    let settings = [
        "data.test_samples=60000",
        "train.epochs=2",
        "train.max_steps=25",
        "checkpoint.every_steps=0",
    ];
    let whole = Run::new(&settings);
    let expected = checksum(&whole.finish(2, &[]));
    let stopped = Run::new(&settings);
    let running = stopped.trial(2, &[]).start();
    // The line about the ranks' work comes just before the evaluation.
    let lines = || fs::read_to_string(stopped.dir().join("metrics.jsonl")).unwrap_or_default();
    let deadline = std::time::Instant::now() + LIMIT;
    while !lines().contains("\"ranks\"") && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(running.pid(), Signal::USR1).unwrap();
    let paused = running.wait(LIMIT);
    paused.assert_code(75).assert_nobody_left();
    assert!(
        paused.stdout.contains("stopped after step 20"),
        "{}",
        paused.stdout
    );
    assert_eq!(stopped.metrics().len(), 20, "no evaluation yet");
    assert_eq!(stopped.checkpoint_names(), ["step-0000000020"]);
    let finished = stopped.finish(2, &["--resume", "auto"]);
    assert_eq!(checksum(&finished), expected);
    assert_eq!(stopped.metrics(), whole.metrics());
    // It trained nothing of that epoch, so it tells no speed.
    let told = &finished.stdout;
    let line = told.lines().find(|line| line.starts_with("epoch 1/2: "));
    let line = line.unwrap_or_else(|| panic!("{told}"));
    assert!(
        line.starts_with("epoch 1/2: train loss ") && !line.contains("images/s"),
        "{line}"
    );
    assert!(told.contains("epoch 2/2, step 5/20: "), "{told}");
    // Only the process that did the epoch reports the ranks' work, once.
    let told = |run: &Run| {
        let file = fs::read_to_string(run.dir().join("metrics.jsonl")).unwrap();
        file.matches("\"ranks\"").count()
    };
    assert_eq!(told(&stopped), told(&whole));
}

#[test]
fn a_run_that_is_to_have_fewer_epochs_than_it_has_begun_trains_no_further() {
    let run = Run::new(&["train.max_steps=25"]);
    let before = checksum(&run.finish(1, &[]));
    let sets = ["--set", "train.epochs=1", "--set", "train.max_steps=1000"];
    let finished = run.finish(1, &[&["--resume", "auto"], &sets[..]].concat());
    assert_eq!(checksum(&finished), before);
    let told =
        "after step 25, in epoch 2, and train.epochs is 1. To train longer, raise train.epochs";
    assert!(finished.stdout.contains(told), "{}", finished.stdout);
}

#[test]
fn checkpoints_whose_numbers_are_gone_are_not_mixed_with_those_of_a_new_run() {
    let run = Run::new(&["train.epochs=1"]);
    run.finish(1, &[]);
    fs::remove_file(run.dir().join("metrics.jsonl")).unwrap();
    let refused = run.trial(1, &[]).run();
    refused
        .assert_code(2)
        .assert_stderr(&["already contains a run"]);
}

#[test]
fn numbers_of_a_run_without_checkpoints_are_abandoned() {
    let run = Run::new(&["checkpoint.every_steps=0", "train.epochs=1"]);
    let expected = checksum(&run.finish(1, &[]));
    let metrics = run.metrics();
    let dir = run.dir();
    let unused = Trial::new(&["eval", dir.to_str().unwrap()]).run();
    unused
        .assert_code(2)
        .assert_stderr(&["this run has no checkpoint", "checkpoint.every_epochs = 1"]);
    let before = fs::read(dir.join("metrics.jsonl")).unwrap();
    let again = run.finish(1, &["--resume", "auto"]);
    for told in ["starting a new run", "abandoned-1-metrics.jsonl"] {
        assert!(again.stdout.contains(told), "{}", again.stdout);
    }
    assert_eq!(checksum(&again), expected);
    assert_eq!(run.metrics(), metrics);
    assert_eq!(
        fs::read(dir.join("abandoned-1-metrics.jsonl")).unwrap(),
        before
    );
}

#[test]
fn a_run_saves_a_checkpoint_of_every_epoch_unless_told_otherwise() {
    let settings: Vec<&str> = common::TINY
        .iter()
        .copied()
        .filter(|setting| !setting.starts_with("checkpoint."))
        .chain(["train.epochs=2"])
        .flat_map(|setting| ["--set", setting])
        .collect();
    let run_dir = ["--run-dir", "run"];
    let finished = Trial::new(&[&run_dir[..], &settings].concat()).run();
    finished.assert_code(0);
    let checkpoints = fs::read_dir(finished.path("run/checkpoints")).unwrap();
    assert_eq!(checkpoints.count(), 2);
    let dir = finished.path("run");
    let evaluated = Trial::new(&["eval", dir.to_str().unwrap()]).run();
    evaluated.assert_code(0);
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let run = Run::new(&["train.epochs=1"]);
    run.finish(1, &[]);
    let metrics = run.metrics();
    for (setting, part) in [
        ("train.batch_size=24", "train.batch_size = 12"),
        ("train.seed=5", "train.seed = 1"),
        (
            "data.train_samples=120",
            "images = 240, but this run has 120; data.train_samples was 240 and is 120: set it back",
        ),
        (
            "train.overfit_batches=2",
            "train.overfit_batches was not set and is 2",
        ),
        ("data.mean=[0.25]", "written with data.mean = [0.1216"),
        ("data.std=[0.5]", "written with data.std = [0.2544"),
        ("model.hidden=17", "model.hidden was 16 and is 17"),
        (
            "optimizer.name=sgd",
            "another optimizer. optimizer.name was \"adam",
        ),
    ] {
        let mut args = vec!["--resume", "auto", "--set", setting];
        if setting == "optimizer.name=sgd" {
            args.extend(["--set", "optimizer.momentum=0.9"]);
        }
        let refused = run.trial(1, &args).run();
        refused.assert_code(1).assert_stderr(&[part]);
        args.push("--dry-run");
        let refused = run.trial(1, &args).run();
        refused.assert_code(1).assert_stderr(&[part]);
    }
    let would = run.finish(1, &["--resume", "auto", "--dry-run"]);
    assert!(
        would.stdout.contains("# continues from"),
        "{}",
        would.stdout
    );
    assert_eq!(run.metrics(), metrics, "nothing was lost");
    let refused = run.trial(1, &["--resume", "no/such/place"]).run();
    refused
        .assert_code(2)
        .assert_stderr(&["no such checkpoint"]);
}

#[test]
fn a_run_ends_when_the_target_is_reached_or_nothing_gets_better() {
    let settings = [
        "early_stopping.target_accuracy=0.0",
        "early_stopping.patience=2",
    ];
    let run = Run::new(&settings);
    let finished = run.finish(2, &[]);
    assert!(
        finished.stdout.contains("reached 0.00 % in 2"),
        "{}",
        finished.stdout
    );
    assert_eq!(run.metrics().len(), 42);
    // The run had ended, and goes on only if the configuration asks for more.
    let metrics = run.metrics();
    let again = run.finish(2, &["--resume", "auto"]);
    assert!(
        again.stdout.contains("reached 0.00 % in 2"),
        "{}",
        again.stdout
    );
    assert_eq!(checksum(&again), checksum(&finished));
    assert_eq!(run.metrics(), metrics);
    let longer = ["--resume", "auto", "--set", "early_stopping.patience=3"];
    run.finish(2, &longer);
    assert_eq!(run.metrics().len(), 63);

    let settings = [
        "early_stopping.patience=1",
        "early_stopping.min_delta=1.0",
        "early_stopping.monitor=loss",
    ];
    let run = Run::new(&settings);
    let finished = run.finish(2, &[]);
    assert!(
        finished.stdout.contains("the loss did not improve"),
        "{}",
        finished.stdout
    );
}

#[test]
fn checkpoints_that_cannot_be_written_do_not_end_the_run() {
    let run = Run::new(&["train.epochs=1"]);
    fs::create_dir(run.dir()).unwrap();
    // A folder blocks the name of the first checkpoint.
    let taken = run.dir().join("checkpoints/step-0000000003");
    fs::create_dir_all(taken.parent().unwrap()).unwrap();
    fs::write(&taken, "a file").unwrap();
    let finished = run.finish(1, &[]);
    finished.assert_stderr(&["checkpoint not written; the run continues"]);
    assert!(run.dir().join("checkpoints/step-0000000018").is_dir());
}

#[test]
fn the_best_stays_until_a_better_one_is_written() {
    let run = Run::new(&[
        "checkpoint.every_steps=5",
        "checkpoint.keep=1",
        "checkpoint.monitor=loss",
    ]);
    // Each later evaluation is better, but no checkpoint of it can be saved.
    let folder = run.dir().join("checkpoints");
    fs::create_dir_all(&folder).unwrap();
    for step in [40, 60] {
        fs::write(folder.join(format!("step-{step:010}")), "a file").unwrap();
    }
    run.trial(2, &[]).run().assert_code(1).assert_nobody_left();
    let metrics = run.metrics();
    let evaluations = metrics.iter().filter(|line| line["kind"] == "eval");
    let losses: Vec<f64> = evaluations
        .map(|line| line["loss"].as_f64().unwrap())
        .collect();
    assert!(losses[1] < losses[0] && losses.len() == 3, "{losses:?}");
    let is_whole = |step: u64| folder.join(format!("step-{step:010}")).is_dir();
    assert!(is_whole(20) && is_whole(55), "{:?}", run.checkpoint_names());
    let best = Trial::new(&["eval", run.dir().to_str().unwrap()]).run();
    best.assert_code(0);
    assert!(best.stdout.contains("step 20"), "{}", best.stdout);
}

#[test]
fn a_run_whose_last_state_cannot_be_written_has_failed() {
    for nproc in [1, 2] {
        // A file blocks the name of each of the first checkpoints.
        let in_the_way = |run: &Run, steps: &[u64]| {
            let folder = run.dir().join("checkpoints");
            fs::create_dir_all(&folder).unwrap();
            for step in steps {
                fs::write(folder.join(format!("step-{step:010}")), "a file").unwrap();
            }
        };
        let ended = Run::new(&["train.epochs=1"]);
        in_the_way(&ended, &[20]);
        let failed = ended.trial(nproc, &[]).run();
        failed.assert_code(1).assert_nobody_left();
        failed.assert_stderr(&["step 20 was not saved: the run ended", "--resume auto"]);
        // A script that restarts while the exit code is 75 must not loop for ever.
        let paused = Run::new(&["checkpoint.every_steps=0", "train.max_minutes=1e-9"]);
        in_the_way(&paused, &[1, 2, 3, 4, 5]);
        let failed = paused.trial(nproc, &[]).run();
        failed.assert_code(1).assert_nobody_left();
        failed.assert_stderr(&["was not saved: the progress since the last good"]);
        assert!(
            !failed.stdout.contains("--resume auto"),
            "{}",
            failed.stdout
        );
        // If no folder can be created, the run fails before the first step.
        fs::remove_dir_all(paused.dir()).unwrap();
        fs::create_dir(paused.dir()).unwrap();
        fs::write(paused.dir().join("checkpoints"), "a file").unwrap();
        let failed = paused.trial(nproc, &[]).run();
        failed.assert_code(2).assert_stderr(&["checkpoints"]);
    }
}

/// A small file system, unmounted on drop.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts it. `None` if this process may not mount.
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(folder.path())
            .output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!(
                "SKIPPED: only root may mount the small file system of the test of full disks"
            );
            return None;
        }
        Some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn a_full_disk_ends_neither_the_run_nor_what_was_saved_before() {
    // Room for some checkpoints, but not the last, and for all metrics, which are few.
    let Some(disk) = SmallDisk::mount("2200k") else {
        return;
    };
    let settings = ["checkpoint.keep=100", "log.every_steps=1000"];
    let mut run = Run::new(&settings);
    let whole = checksum(&run.finish(2, &[]));
    run.at = Some(disk.0.path().join("run"));
    let finished = run.trial(2, &[]).run();
    finished
        .assert_code(1)
        .assert_nobody_left()
        .assert_stderr(&[
            "checkpoint not written; the run continues",
            "No space left",
            "the state after step 60 was not saved: the run ended, but its final model",
        ]);
    assert_eq!(checksum(&finished), whole);
    assert_eq!(finished.stderr.matches("was not saved").count(), 1);
    assert!(
        !finished.stderr.contains("exited with code"),
        "{}",
        finished.stderr
    );
    let left = run.checkpoints();
    assert!(!left.is_empty() && left.len() < 20, "{left:?}");
    let unfinished = |path: &&PathBuf| path.to_string_lossy().contains(".writing-");
    assert_eq!(left.iter().find(unfinished), None);
    let evaluated = Trial::new(&["eval", "--last", run.dir().to_str().unwrap()]).run();
    evaluated.assert_code(0);
}

#[test]
fn a_folder_that_takes_nothing_ends_the_run_before_its_first_step() {
    let Some(disk) = SmallDisk::mount("64k") else {
        return;
    };
    let remounted = Command::new("mount")
        .args(["-o", "remount,ro"])
        .arg(disk.0.path())
        .status();
    assert!(remounted.unwrap().success());
    let mut run = Run::new(&[]);
    run.at = Some(disk.0.path().join("run"));
    for nproc in [1, 2] {
        let refused = run.trial(nproc, &[]).run();
        refused.assert_code(1).assert_nobody_left();
        let folder = run.dir();
        refused.assert_stderr(&[folder.to_str().unwrap(), "Read-only file system"]);
        assert_eq!(
            refused
                .stderr
                .matches("cannot write the run folder")
                .count(),
            1,
            "{}",
            refused.stderr
        );
        assert!(!refused.stdout.contains("epoch 1"), "{}", refused.stdout);
    }
}

#[test]
fn checkpoints_are_written_by_the_clock() {
    let run = Run::new(&[
        "checkpoint.every_steps=0",
        "checkpoint.every_epochs=0",
        "checkpoint.best=false",
        "checkpoint.every_minutes=1e-6",
        "checkpoint.keep=100",
    ]);
    let finished = run.finish(2, &[]);
    let written = run.checkpoint_names();
    // A checkpoint due during the write of another is skipped; the last state is always saved.
    assert!(written.len() > 1, "{written:?}");
    assert_eq!(written.last().unwrap(), "step-0000000060");
    assert_eq!(
        checksum(&run.finish(1, &["--resume", "auto"])),
        checksum(&finished)
    );
}

/// `ulimit -f`, as some clusters set it. By default the system would kill the process silently.
#[test]
fn a_limit_of_the_size_of_files_does_not_end_the_run() {
    let run = Run::new(&["checkpoint.keep=100"]);
    let whole = checksum(&run.finish(1, &[]));
    let run = Run::new(&["checkpoint.keep=100"]);
    let finished = run.trial(1, &[]).with_file_limit(64).run();
    finished.assert_code(1).assert_stderr(&[
        "checkpoint not written; the run continues",
        "File too large",
        "was not saved",
    ]);
    assert_eq!(checksum(&finished), whole);
}

#[test]
fn numbers_that_a_full_disk_does_not_take_do_not_end_the_run() {
    // Room for the files of the start, and for the metrics of some steps.
    let Some(disk) = SmallDisk::mount("32k") else {
        return;
    };
    let mut run = Run::new(&["checkpoint.every_steps=0"]);
    let whole = checksum(&run.finish(2, &[]));
    let all = run.metrics();
    run.at = Some(disk.0.path().join("run"));
    let finished = run.finish(2, &[]);
    finished.assert_stderr(&["cannot write metrics to", "No space left"]);
    assert_eq!(checksum(&finished), whole);
    let text = fs::read_to_string(run.dir().join("metrics.jsonl")).unwrap();
    assert!(text.ends_with('\n'), "half a line: {text}");
    let some = run.metrics();
    assert!(!some.is_empty() && some.len() < all.len());
    assert!(some.iter().all(|line| all.contains(line)));
    // Not one warning per line.
    let warnings = finished.stderr.matches("cannot write metrics to").count();
    assert!(warnings <= all.len() - some.len(), "{}", finished.stderr);
}

#[test]
fn a_new_run_from_the_checkpoint_of_another_has_a_best_of_its_own() {
    let stops = ["early_stopping.patience=1", "checkpoint.every_epochs=1"];
    let first = Trial::tiny(&[], &[&stops[..], &["train.epochs=1"]].concat()).run();
    first.assert_code(0);
    let from = first.path("run/checkpoints");
    let from = std::fs::read_dir(from)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    // Nothing improves any more: the first evaluation is the best of this run, and the second is
    // not better.
    let settings = [&stops[..], &["train.epochs=9", "optimizer.lr=1e-30"]].concat();
    let second = Trial::tiny(&["--resume", from.to_str().unwrap()], &settings).run();
    second.assert_code(0);
    assert_eq!(second.metrics("eval").len(), 2, "{}", second.stdout);
}

#[test]
fn what_has_changed_is_told_kept_and_recorded() {
    let run = Run::new(&["schedule.warmup_epochs=0", "train.epochs=2"]);
    run.finish(2, &[]);
    let old = fs::read_to_string(run.dir().join("config.toml")).unwrap();
    let same = run.finish(2, &["--resume", "auto"]);
    assert!(!same.stdout.contains("changed since"), "{}", same.stdout);
    let weights = [
        "--resume",
        "auto",
        "--dry-run",
        "--set",
        "model.weights=none.pt",
    ];
    let told = "warning: model.weights is ignored";
    assert!(run.finish(1, &weights).stdout.contains(told));
    let sets = ["--set", "train.epochs=3", "--set", "optimizer.lr=0.002"];
    let would = [&["--resume", "auto", "--dry-run"], &sets[..]].concat();
    let would = run.finish(1, &would);
    let changed = run.finish(1, &[&["--resume", "auto"], &sets[..]].concat());
    let told = [
        "changed since step 40:",
        "  optimizer.lr: 0.001 → 0.002",
        "  train.epochs: 2 → 3",
        "  ranks: 2 → 1",
        "  learning rate: 1.541e-6 at step 40 → 5e-4 at step 41 (0 without the change)",
    ];
    assert!(
        changed.stdout.contains(&told.join("\n")),
        "{}",
        changed.stdout
    );
    let would_tell = format!("# {}", told.join("\n# "));
    assert!(would.stdout.contains(&would_tell), "{}", would.stdout);
    let read = |name: &str| fs::read_to_string(run.dir().join(name)).unwrap();
    assert_eq!(read("config-1.toml"), old);
    assert!(!run.dir().join("config-2.toml").exists());
    let line = read("metrics.jsonl");
    let lines: Vec<Value> = line
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let resumed: Vec<&Value> = lines
        .iter()
        .filter(|line| line["kind"] == "resume")
        .collect();
    assert_eq!(resumed.len(), 1);
    assert_eq!(resumed[0]["step"], 41);
    assert_eq!(resumed[0]["changes"][0]["key"], "optimizer.lr");
    assert_eq!(resumed[0]["changes"][0]["before"], "0.001");
    let first = lines
        .iter()
        .find(|line| line["kind"] == "train" && line["step"] == 41);
    assert_eq!(first.unwrap()["lr"], resumed[0]["lr"]);
    assert!(read("report.html").contains("<td>optimizer.lr</td><td>0.001</td><td>0.002</td>"));
    let events = fs::read_dir(run.dir().join("tensorboard")).unwrap();
    let texts = events.filter(|file| {
        let bytes = fs::read(file.as_ref().unwrap().path()).unwrap();
        let text = b"| optimizer.lr | `0.001` | `0.002` |";
        bytes.windows(text.len()).any(|part| part == text)
    });
    assert_eq!(texts.count(), 1);
}

#[test]
fn a_run_that_is_named_alone_has_its_own_configuration() {
    let run = Run::new(&[]);
    let expected = checksum(&run.finish(1, &[]));
    let config = run.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    // As if it had been killed at the first of the remaining checkpoints.
    let first = run.checkpoints()[0].clone();
    for named in [run.dir(), run.dir().join("checkpoints"), first] {
        let finished = Trial::new(&["--resume", named.to_str().unwrap()]).run();
        finished.assert_code(0).assert_no_files(&[]);
        assert!(
            !finished.stdout.contains("changed since"),
            "{}",
            finished.stdout
        );
        assert_eq!(checksum(&finished), expected);
        assert_eq!(fs::read_to_string(&config).unwrap(), text);
    }
    // Without the file, the checkpoint's configuration counts. A pipe in its place does not block.
    fs::remove_file(&config).unwrap();
    let pipe = run
        .checkpoints()
        .pop()
        .unwrap()
        .join("rank-00000-of-00001.safetensors");
    fs::remove_file(&pipe).unwrap();
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let finished = Trial::new(&["--resume", run.dir().to_str().unwrap()]).run();
    finished.assert_code(0).assert_no_files(&[]);
    finished.assert_stderr(&["not a regular file"]);
    assert_eq!(checksum(&finished), expected);
    assert_eq!(fs::read_to_string(&config).unwrap(), text);
}

#[test]
fn who_goes_on_with_fewer_ranks_is_told_the_key_that_keeps_the_batch() {
    let config = "\
        [model]\nname = \"cnn\"\nfilters = [4, 8]\nhidden = 16\n\
        [data]\nname = \"digits\"\ntrain_samples = 240\ntest_samples = 101\n\
        [optimizer]\nname = \"adamw\"\nlr = 1e-3\n\
        [schedule]\nlr_scaling = \"linear\"\n\
        [train]\nmicro_batch_size = 6\n";
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let train = |nproc: &str, sets: &[&'static str]| {
        let run_dir = dir.to_str().unwrap();
        let mut args = vec![
            "--config",
            "own.toml",
            "--run-dir",
            run_dir,
            "--resume",
            "auto",
        ];
        args.extend(["--nproc", nproc]);
        args.extend(sets.iter().flat_map(|set| ["--set", set]));
        Trial::new(&args).file("own.toml", config).run()
    };
    train("2", &[]).assert_code(0);
    // A configured batch size does not grow with the ranks.
    let refused = train("1", &["train.batch_size=6", "schedule.lr_scaling=none"]);
    refused
        .assert_code(1)
        .assert_stderr(&["this run has 6; set train.batch_size = 12"]);
    let refused = train("1", &["train.epochs=2"]);
    refused.assert_code(1).assert_stderr(&[
        "written with train.batch_size = 12, but this run has 6",
        "set train.accumulate = 2 (the world size is 1 instead of 2)",
    ]);
    let finished = train("1", &["train.epochs=2", "train.accumulate=2"]);
    finished.assert_code(0);
    // The same batch has the same rate.
    let rates: Vec<f64> = finished
        .metrics_in(&dir, "train")
        .iter()
        .map(|line| line["lr"].as_f64().unwrap())
        .collect();
    assert_eq!((rates.len(), rates[0]), (40, rates[39]));
}

//! Failures: ranks that die, Ctrl-C, diverging training. The run ends soon, says why, and leaves no
//! process behind.

mod common;

use std::fs::{self, File};
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use common::{LIMIT, Running, Trial, free_port};
use image::GrayImage;
use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_setfl, mknodat};
use rustix::process::{Pid, Signal, kill_process};

/// A run of two ranks that would take hours, well into its training.
fn endless(settings: &[&str]) -> Running {
    let settings = [&["train.epochs=1000000"], settings].concat();
    let mut running = Trial::tiny(&["--nproc", "2"], &settings).start();
    running.wait_for_metrics(5);
    running
}

#[test]
fn a_killed_rank_ends_the_run_and_is_named() {
    for transport in ["parallel.transport=shm", "parallel.transport=tcp"] {
        for victim in [0, 1] {
            let running = endless(&[transport]);
            kill_process(running.rank(victim), Signal::KILL).unwrap();
            running
                .wait(Duration::from_secs(10))
                .assert_code(1)
                .assert_stderr(&[
                    &format!("rank {victim} "),
                    "SIGKILL",
                    "it may be out of memory",
                ])
                .assert_nobody_left();
        }
    }
}

/// A stopped rank cannot report itself. The others must end, and name it.
#[test]
fn a_stopped_rank_is_named() {
    let runs = [0, 1].map(|victim| {
        let running = endless(&["parallel.timeout_seconds=1"]);
        kill_process(running.rank(victim), Signal::STOP).unwrap();
        (victim, running)
    });
    for (victim, running) in runs {
        running
            .wait(Duration::from_secs(20))
            .assert_code(1)
            .assert_stderr(&[
                &format!("\nerror: rank {victim} blocked the other ranks: rank "),
                &format!("rank {victim} does not answer"),
            ])
            .assert_nobody_left();
    }
}

/// The launcher has not told the others.
#[test]
fn a_rank_that_a_signal_ends_while_ranks_connect_is_named() {
    for (victim, signal, code, told) in [
        (1, Signal::INT, 130, "rank 1 failed: stopped by SIGINT"),
        (0, Signal::INT, 130, "rank 0 failed: stopped by SIGINT"),
        (1, Signal::USR1, 75, "rank 1 failed: stopped by SIGUSR1"),
    ] {
        let mut ranks = connecting().map(Some);
        let ended = ranks[victim].take().unwrap();
        let other = ranks[1 - victim].take().unwrap();
        kill_process(ended.pid(), signal).unwrap();
        ended.wait(Duration::from_secs(5)).assert_code(code);
        other
            .wait(Duration::from_secs(5))
            .assert_code(1)
            .assert_stderr(&[told]);
    }
    // A rank that gets the signal a little later has not failed.
    let [main, other] = connecting();
    kill_process(other.pid(), Signal::USR1).unwrap();
    other.wait(Duration::from_secs(5)).assert_code(75);
    thread::sleep(Duration::from_millis(50));
    kill_process(main.pid(), Signal::USR1).unwrap();
    main.wait(Duration::from_secs(5)).assert_code(75);
}

/// Two of three ranks, which have reached the store and wait for the third.
fn connecting() -> [Running; 2] {
    let port = free_port();
    let ranks = [0, 1].map(|rank| Trial::tiny(&[], &[]).rank(rank, 3, &port).start());
    let begin = Instant::now();
    for rank in &ranks {
        let tasks = format!("/proc/{}/task", rank.pid().as_raw_nonzero());
        let listens = |task: std::io::Result<fs::DirEntry>| {
            let name = task.and_then(|task| fs::read_to_string(task.path().join("comm")));
            name.is_ok_and(|name| name.trim_end() == "store-monitor")
        };
        while !fs::read_dir(&tasks).unwrap().any(listens) {
            assert!(begin.elapsed() < LIMIT);
            thread::sleep(Duration::from_millis(10));
        }
    }
    thread::sleep(Duration::from_millis(50));
    ranks
}

/// A missing rank may belong to another node, to a script that starts one too few, or to another
/// address.
#[test]
fn ranks_that_do_not_come_are_named_after_a_while() {
    let [port, nowhere] = [free_port(), free_port()];
    let start = |rank, port: &str| Trial::tiny(&[], &[]).rank(rank, 3, port).start();
    let waiting = [start(0, &port), start(2, &port), start(1, &nowhere)];
    thread::sleep(Duration::from_millis(11_500));
    let ended = waiting.map(|rank| {
        kill_process(rank.pid(), Signal::TERM).unwrap();
        rank.wait(Duration::from_secs(5))
    });
    let [main, waits, elsewhere] = ended;
    main.assert_stderr(&["after 10 s rank 1 has not connected to the store"]);
    assert!(!waits.stderr.contains("after 10 s"), "{}", waits.stderr);
    elsewhere.assert_stderr(&["rank 1 has not reached rank 0 at 127.0.0.1", "in 10 s"]);
}

/// Settings of a run whose step takes long.
const LONG_STEP: [&str; 4] = [
    "data.train_samples=60000",
    "train.batch_size=60000",
    "train.micro_batch_size=2",
    "data.test_samples=10",
];

/// Said at the first Ctrl-C.
const AGAIN: &str = "stopping after this step with a checkpoint; Ctrl-C again ends at once";

#[test]
fn a_second_interrupt_ends_the_run_at_once() {
    for nproc in ["1", "2"] {
        let mut running = Trial::tiny(&["--nproc", nproc], &LONG_STEP).start();
        let metrics = running.path("run/metrics.jsonl");
        let begin = Instant::now();
        while !metrics.exists() {
            assert!(begin.elapsed() < LIMIT);
            thread::sleep(Duration::from_millis(10));
        }
        // The training begins right after.
        thread::sleep(Duration::from_millis(300));
        kill_process(running.pid(), Signal::INT).unwrap();
        thread::sleep(Duration::from_millis(300));
        assert!(running.goes_on(), "the first one ended it");
        let begin = Instant::now();
        kill_process(running.pid(), Signal::INT).unwrap();
        let finished = running.wait(Duration::from_secs(10));
        let time = begin.elapsed();
        assert!(time < Duration::from_secs(3), "{time:?}");
        finished
            .assert_code(130)
            .assert_stderr(&[AGAIN, "stopped by SIGINT"])
            .assert_nobody_left();
        assert_eq!(finished.stderr.matches(AGAIN).count(), 1);
    }
}

#[test]
fn a_polite_signal_ends_the_run_with_a_checkpoint() {
    // To the launcher, as from a batch system; to one rank alone, as from `srun`; with and without
    // configured checkpoints.
    let to_launcher: fn(&Running) -> Pid = Running::pid;
    let to_rank: fn(&Running) -> Pid = |running| running.rank(1);
    for (signal, target, settings) in [
        (Signal::TERM, to_launcher, &[][..]),
        (
            Signal::USR1,
            to_launcher,
            &["checkpoint.every_steps=1000000"],
        ),
        (Signal::USR1, to_rank, &[]),
        (Signal::XCPU, to_rank, &[]),
        (Signal::XCPU, to_launcher, &[]),
        (Signal::TERM, to_rank, &[]),
        (Signal::INT, to_launcher, &[]),
        (Signal::INT, to_rank, &[]),
    ] {
        // An epoch may end, and be the best, before the signal arrives.
        let running = endless(&[settings, &["checkpoint.best=false"]].concat());
        kill_process(target(&running), signal).unwrap();
        let finished = running.wait(Duration::from_secs(20));
        finished.assert_code(75).assert_nobody_left();
        let told = "start the run again with --resume auto";
        assert!(finished.stdout.contains(told), "{}", finished.stdout);
        let to_main = signal == Signal::INT && target as usize == to_launcher as usize;
        assert_eq!(finished.stderr.contains(AGAIN), to_main);
        let checkpoints = std::fs::read_dir(finished.path("run/checkpoints")).unwrap();
        let names: Vec<_> = checkpoints
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }
}

#[test]
fn a_signal_to_all_processes_is_one_request() {
    let running = endless(&[]);
    for process in [running.rank(0), running.rank(1), running.pid()] {
        kill_process(process, Signal::TERM).unwrap();
    }
    let finished = running.wait(Duration::from_secs(20));
    finished.assert_code(75).assert_nobody_left();
    assert!(finished.path("run/checkpoints").is_dir());
}

#[test]
fn a_single_rank_ends_at_a_signal() {
    let mut running = Trial::tiny(&["--nproc", "1"], &["train.epochs=1000000"]).start();
    running.wait_for_metrics(1);
    kill_process(running.pid(), Signal::INT).unwrap();
    let finished = running.wait(Duration::from_secs(10));
    finished.assert_code(75).assert_stderr(&[AGAIN]);
    assert!(finished.path("run/checkpoints").is_dir());
}

#[test]
fn ranks_do_not_outlive_a_killed_launcher() {
    let running = endless(&["checkpoint.every_epochs=0"]);
    let ranks = [running.rank(0), running.rank(1)];
    kill_process(running.pid(), Signal::KILL).unwrap();
    let finished = running.wait(Duration::from_secs(10));
    let deadline = Instant::now() + Duration::from_secs(10);
    let alive = || {
        ranks
            .iter()
            .any(|rank| rustix::process::test_kill_process(*rank).is_ok())
    };
    while alive() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = alive();
    for rank in ranks {
        let _ = kill_process(rank, Signal::KILL);
    }
    assert!(!left, "ranks outlived their launcher");
    let checkpoints = std::fs::read_dir(finished.path("run/checkpoints"));
    assert!(
        checkpoints.is_ok_and(|mut found| found.next().is_some()),
        "they did not save"
    );
}

#[test]
fn a_rank_that_is_killed_with_its_launcher_is_noticed() {
    for (killed, left) in [(0, 1), (1, 0)] {
        let running = endless(&["checkpoint.every_epochs=0"]);
        let ranks = [running.rank(0), running.rank(1)];
        kill_process(running.pid(), Signal::KILL).unwrap();
        kill_process(ranks[killed], Signal::KILL).unwrap();
        let is_alive = || rustix::process::test_kill_process(ranks[left]).is_ok();
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_alive() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let outlived = is_alive();
        let _ = kill_process(ranks[left], Signal::KILL);
        running.wait(Duration::from_secs(10));
        assert!(
            !outlived,
            "rank {left} outlived its launcher and rank {killed}"
        );
    }
}

/// Otherwise they would train on without an owner.
#[test]
fn ranks_whose_launcher_is_killed_save_and_end() {
    for signal in [Signal::USR1, Signal::KILL] {
        // Ranks that miss it end much later, for another reason.
        let settings = ["train.epochs=1000000", "train.max_minutes=0.4"];
        let trial = Trial::tiny(&[], &settings).env("TORCHELASTIC_RUN_ID", "none");
        let mut running = trial.by_agent(2).start();
        running.wait_for_metrics(5);
        kill_process(running.pid(), signal).unwrap();
        let finished = running.wait(Duration::from_secs(10));
        let told = "because of a dead launcher; start the run again with --resume auto";
        assert!(finished.stdout.contains(told), "{}", finished.stdout);
        finished.assert_stderr(&["sh (process ", "which started this rank, is gone"]);
        for rank in ["code.0", "code.1"] {
            wait_for_file(&finished.path(rank), "75\n");
        }
        finished.assert_nobody_left();
        let checkpoints = std::fs::read_dir(finished.path("run/checkpoints")).unwrap();
        assert!(checkpoints.count() > 0);
    }
}

/// A script may start ranks and end on purpose.
#[test]
fn ranks_that_a_script_started_outlive_it() {
    let settings = ["train.epochs=1000000", "train.max_minutes=0.4"];
    let mut running = Trial::tiny(&[], &settings).by_agent(2).start();
    running.wait_for_metrics(5);
    let program = Path::new(env!("CARGO_BIN_EXE_trainer"));
    let is_rank = |pid: &Pid| {
        let file = std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero()));
        file.is_ok_and(|file| file.file_name() == program.file_name())
    };
    let ranks: Vec<Pid> = running.processes().into_iter().filter(is_rank).collect();
    assert_eq!(ranks.len(), 2);
    kill_process(running.pid(), Signal::KILL).unwrap();
    std::thread::sleep(Duration::from_millis(700));
    for rank in ranks {
        kill_process(rank, Signal::TERM).unwrap();
    }
    let finished = running.wait(Duration::from_secs(10));
    let told = "because of SIGTERM";
    assert!(finished.stdout.contains(told), "{}", finished.stdout);
    for rank in ["code.0", "code.1"] {
        wait_for_file(&finished.path(rank), "75\n");
    }
}

/// Waits for a file with this text, written by a process that is no child of this one.
#[track_caller]
fn wait_for_file(path: &Path, text: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let read = || std::fs::read_to_string(path).unwrap_or_default();
    while read() != text && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(read(), text, "{}", path.display());
}

/// Before the first step, a rank has nothing to save and need not wait.
#[test]
fn a_rank_that_waits_for_others_ends_at_a_request_to_save() {
    for signal in [Signal::USR1, Signal::XCPU] {
        let port = free_port();
        let running = Trial::tiny(&[], &[]).rank(0, 2, &port).start();
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
            assert!(Instant::now() < deadline, "it does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        kill_process(running.pid(), signal).unwrap();
        let finished = running.wait(Duration::from_secs(5));
        finished
            .assert_code(75)
            .assert_stderr(&["before the first step; start the run again"])
            .assert_no_files(&[]);
        let said = format!("{}{}", finished.stdout, finished.stderr);
        assert!(!said.contains("checkpoint"), "{said}");
    }
}

#[test]
fn divergence_is_an_error_on_all_ranks() {
    for nproc in ["1", "2"] {
        let finished = Trial::tiny(
            &["--nproc", nproc],
            &["optimizer={name=\"sgd\", lr=1e30}", "train.epochs=2"],
        )
        .run();
        finished
            .assert_code(1)
            .assert_stderr(&["training diverged", "optimizer.lr"])
            .assert_nobody_left();
        assert_eq!(finished.stderr.matches("diverged").count(), 1);
        assert!(
            !finished.stderr.contains("exited with"),
            "{}",
            finished.stderr
        );
        // Earlier lines are complete JSON.
        assert!(finished.losses().iter().all(|loss| loss.is_finite()));
    }
}

/// A PNG file with a whole header and damaged pixels, which only reading it shows.
fn damage(picture: &Path) {
    let mut bytes = fs::read(picture).unwrap();
    let data = bytes.windows(4).position(|part| part == b"IDAT").unwrap();
    bytes[data + 8..data + 28].fill(0xff);
    fs::write(picture, bytes).unwrap();
}

/// A folder of pictures of two classes, with a damaged one.
fn damaged_pictures(folder: &Path) -> String {
    for (number, name) in ["a/0", "a/1", "a/2", "b/0", "b/1", "b/2"]
        .iter()
        .enumerate()
    {
        for set in ["train", "test"] {
            let path = folder.join(set).join(format!("{name}.png"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let shade = |x, y| image::Luma([(30 * number as u32 + 7 * x * y) as u8]);
            GrayImage::from_fn(28, 28, shade).save(&path).unwrap();
        }
    }
    damage(&folder.join("train/a/1.png"));
    format!(
        "data={{name=\"image-folder\", dir={:?}, size=28}}",
        folder.to_str().unwrap()
    )
}

#[test]
fn a_broken_picture_is_named_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = damaged_pictures(folder.path());
    let model = [
        "model.filters=[4, 8]",
        "model.hidden=16",
        "train.batch_size=3",
    ];
    let settings = [&model[..], &[&data]].concat();
    for nproc in ["1", "3"] {
        let mut trial = Trial::new(&["-q", "--nproc", nproc]);
        for setting in &settings {
            trial = trial.arg("--set").arg(setting);
        }
        let finished = trial.run();
        finished
            .assert_code(1)
            .assert_stderr(&["a/1.png cannot be used"]);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    }
    // Ranks of another launcher may have outputs of their own.
    let run = folder.path().join("run");
    let port = free_port();
    let start = |rank| {
        let mut trial = Trial::new(&["-q", "--run-dir"]).arg(&run);
        for setting in &settings {
            trial = trial.arg("--set").arg(setting);
        }
        trial.rank(rank, 3, &port).start()
    };
    let ended = [0, 1, 2].map(start).map(|rank| rank.wait(LIMIT).stderr);
    let all = ended.concat();
    assert_eq!(all.matches("a/1.png").count(), 1, "{all}");
    if !ended[0].contains("a/1.png") {
        assert!(
            ended[0].contains("failed; its own message says why"),
            "{all}"
        );
    }
    assert!(all.lines().count() <= 4, "{all}");
}

#[test]
fn a_prediction_without_a_picture_names_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["train.max_steps=1", "checkpoint.every_epochs=1"];
    let run = Trial::tiny(&["-q"], &settings).run();
    run.assert_code(0);
    damaged_pictures(folder.path());
    for nproc in ["1", "2"] {
        let finished = Trial::new(&["predict", "--nproc", nproc])
            .arg(run.path("run"))
            .arg(folder.path().join("train/a"))
            .run();
        finished.assert_code(1);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert_eq!(finished.stdout.lines().count(), 2, "{}", finished.stdout);
    }
}

/// The checkpoint after a step is written before the next loss is known.
#[test]
fn a_run_that_diverged_goes_on_from_the_last_good_state() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, args: &[&str], settings: &[&str]| {
        let run_dir = folder.path().join(name);
        let args = [&["--nproc", "2", "--resume", "auto"], args].concat();
        Trial::tiny_at(&run_dir, &args, settings).run()
    };
    let every_step = "checkpoint.every_steps=1";
    for (name, strategy, lr) in [
        // Infinite parameters, and parameters that make the next loss infinite.
        ("a", "parallel.strategy=ddp", "3e38"),
        ("b", "parallel.strategy=zero-2", "3e38"),
        ("c", "parallel.strategy=ddp", "1e30"),
        ("d", "parallel.strategy=zero-3", "1e30"),
    ] {
        let settings = |lr: &'static str| ["optimizer.name=sgd", every_step, strategy, lr];
        let good = "optimizer.lr=0.01";
        let begin = [&settings(good)[..], &["train.max_steps=3"]].concat();
        run(name, &[], &begin).assert_code(0);
        let bad: &'static str = match lr {
            "3e38" => "optimizer.lr=3e38",
            _ => "optimizer.lr=1e30",
        };
        let diverged = run(name, &[], &settings(bad));
        diverged
            .assert_code(1)
            .assert_stderr(&["training diverged", "optimizer.lr"]);
        let (found, bad) =
            burn_dist::checkpoint::newest_good(&folder.path().join(name).join("checkpoints"))
                .unwrap();
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(found.unwrap().step, 3, "{name}");
        let finished = run(name, &[], &settings(good));
        finished.assert_code(0);
        assert!(
            finished.stdout.contains("step-0000000003"),
            "{}",
            finished.stdout
        );
    }
}

/// The ports of ranks under torchrun and Slurm are derived from the key.
#[test]
fn ranks_with_different_key_files_learn_it_soon() {
    let port = free_port();
    let homes = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let start = |rank: usize| {
        Trial::tiny(&[], &[])
            .rank(rank, 2, &port)
            .without("BURN_DIST_SECRET")
            .env("XDG_CONFIG_HOME", homes[rank].path().to_str().unwrap())
            .env("TORCHELASTIC_RUN_ID", "a run of this test")
            .env("TORCHELASTIC_USE_AGENT_STORE", "True")
            .start()
    };
    let ranks = [start(0), start(1)];
    thread::sleep(Duration::from_millis(3500));
    let [main, other] = ranks.map(|rank| {
        kill_process(rank.pid(), Signal::TERM).unwrap();
        rank.wait(Duration::from_secs(5))
    });
    let advice = "has another key file (~/.config/burn-dist/key)";
    main.assert_stderr(&["store: refused a connection from 127.0.0.1", advice]);
    other.assert_stderr(&["warning on rank 1: cannot join: ", advice]);
}

#[test]
fn a_wrong_secret_is_an_error() {
    let port = free_port();
    let start = |rank, secret: &str| {
        Trial::tiny(&[], &["train.max_steps=2"])
            .rank(rank, 2, &port)
            .env("BURN_DIST_SECRET", secret)
            .start()
    };
    let main = start(0, "the secret of this run");
    let other = start(1, "another secret altogether");
    other
        .wait(Duration::from_secs(60))
        .assert_code(1)
        .assert_stderr(&["error on rank 1", "secret"]);
    // The main rank keeps waiting for the right rank.
    kill_process(main.pid(), Signal::TERM).unwrap();
    main.wait(Duration::from_secs(3))
        .assert_code(75)
        .assert_stderr(&["stopped by SIGTERM before the first step"])
        .assert_no_files(&[]);
}

#[test]
fn ranks_with_other_classes_are_named() {
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let start = |rank: usize, classes: [&str; 2]| {
        for (class, split) in classes
            .iter()
            .flat_map(|class| [(class, "train"), (class, "val")])
        {
            let folder = folder.path().join(rank.to_string()).join(split).join(class);
            std::fs::create_dir_all(&folder).unwrap();
            for image in ["0.png", "1.png", "2.png", "3.png"] {
                GrayImage::new(28, 28).save(folder.join(image)).unwrap();
            }
        }
        let dir = folder.path().join(rank.to_string());
        let data = format!("data={{name=\"image-folder\", dir={dir:?}, size=28}}");
        Trial::tiny(&[], &[&data, "train.batch_size=2", "train.max_steps=2"])
            .rank(rank, 2, &port)
            .start()
    };
    let ranks = [start(0, ["a", "b"]), start(1, ["a", "z"])];
    let [first, second] = ranks.map(|rank| rank.wait(Duration::from_secs(60)));
    first
        .assert_code(1)
        .assert_stderr(&["rank 1 has other data than rank 0", "name checksum"]);
    second.assert_code(1);
}

#[test]
fn a_port_in_use_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    Trial::tiny(&[], &[])
        .rank(0, 2, &port)
        .run()
        .assert_code(1)
        .assert_stderr(&[&port, "in use"])
        .assert_no_files(&[]);
}

fn make_fifo(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// Fills a pipe, so that the next write to it blocks.
fn fill(pipe: &mut (impl Write + AsFd)) {
    fcntl_setfl(&*pipe, OFlags::NONBLOCK).unwrap();
    for piece in [&[b'x'; 4096][..], b"x"] {
        let error = loop {
            if let Err(error) = pipe.write_all(piece) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
    fcntl_setfl(&*pipe, OFlags::empty()).unwrap();
}

fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    fill(&mut writer);
    (reader, writer)
}

#[test]
fn a_pipe_that_nobody_reads_does_not_stop_a_run() {
    let (_reader, full) = full_pipe();
    let trial = Trial::tiny(&["--nproc", "1"], &["train.max_steps=2"]);
    trial
        .to(full)
        .start()
        .wait(Duration::from_secs(20))
        .assert_code(0);

    let (mut reader, full) = full_pipe();
    let settings = ["train.epochs=1000000", "checkpoint.every_steps=1"];
    let trial = Trial::tiny(&["--nproc", "1"], &settings);
    let mut running = trial.to(full).start();
    running.wait_for_metrics(20);
    // The pipe is read again.
    let mut seen = Vec::new();
    let mut part = [0; 4096];
    let begin = Instant::now();
    while !String::from_utf8_lossy(&seen).contains("step 1 saved") {
        assert!(
            begin.elapsed() < LIMIT,
            "{}",
            String::from_utf8_lossy(&seen)
        );
        let length = reader.read(&mut part).unwrap();
        seen.extend_from_slice(&part[..length]);
    }
    kill_process(running.pid(), Signal::INT).unwrap();
    running.wait(Duration::from_secs(10)).assert_code(75);
}

/// As with a hanging file system: this rank is not in a collective.
#[test]
fn a_rank_that_hangs_ends_some_time_after_another_has_failed() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    // Opening it for writing blocks until a reader opens it.
    make_fifo(&run.join("logs/rank-0.log"));
    let port = free_port();
    let start = |rank| {
        Trial::tiny_at(&run, &[], &["parallel.abort_seconds=1"])
            .rank(rank, 2, &port)
            .start()
    };
    let [hangs, dies] = [start(0), start(1)];
    let begin = Instant::now();
    while !run.join("config.toml").exists() {
        assert!(begin.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(300));
    kill_process(dies.pid(), Signal::KILL).unwrap();
    hangs
        .wait(Duration::from_secs(10))
        .assert_code(1)
        .assert_stderr(&[
            "error on rank 0: ",
            "1 s after the run failed",
            "rank 1 failed",
        ]);
}

#[test]
fn a_slow_disk_of_rank_0_costs_time_and_not_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let log = run.join("logs/rank-0.log");
    make_fifo(&log);
    let mut disk = File::options().read(true).write(true).open(&log).unwrap();
    let settings = ["parallel.timeout_seconds=1", "train.epochs=20"];
    let running = Trial::tiny_at(&run, &["--nproc", "2"], &settings).start();
    let metrics = run.join("metrics.jsonl");
    let begin = Instant::now();
    let steps = || {
        std::fs::read_to_string(&metrics)
            .unwrap_or_default()
            .lines()
            .count()
    };
    while steps() < 5 {
        assert!(begin.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(5));
    }
    fill(&mut disk);
    thread::sleep(Duration::from_millis(1500));
    let before = steps();
    thread::sleep(Duration::from_millis(1000));
    assert_eq!(steps(), before, "it does not wait for its disk");
    let reading = thread::spawn(move || std::io::copy(&mut disk, &mut std::io::sink()));
    running.wait(Duration::from_secs(30)).assert_code(0);
    drop(reading);
}

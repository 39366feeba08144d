//! The dashboard on a terminal, which `script` of util-linux simulates.

mod common;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{LIMIT, TINY, processes_of, rank_of};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const TRAINER: &str = env!("CARGO_BIN_EXE_trainer");
/// Escape sequences that enter and leave the alternate screen.
const ENTER: &[u8] = b"\x1b[?1049h";
const LEAVE: &[u8] = b"\x1b[?1049l";

/// A long run with a dashboard.
struct Watched {
    script: Child,
    keys: ChildStdin,
    terminal: ChildStdout,
    folder: TempDir,
}

impl Watched {
    /// Starts the run. After its end, the shell command `then` runs on its terminal.
    fn start(args: &str, then: &str) -> Option<Self> {
        if Command::new("script").arg("--version").output().is_err() {
            println!("SKIPPED: the dashboard on a terminal: there is no `script` (util-linux)");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let sets: Vec<String> = TINY.iter().map(|set| format!(" --set '{set}'")).collect();
        let command = format!(
            "trap : INT; stty rows 24 cols 80 echo; {TRAINER} --dashboard {args} --run-dir '{}'{} --set \
             train.epochs=1000000; {then}",
            run.display(),
            sets.concat()
        );
        let mut script = Command::new("timeout")
            .args(["-k", "5", &LIMIT.as_secs().to_string()])
            .args(["script", "-qfc", &command, "/dev/null"])
            .env("SHELL", "/bin/sh")
            .env("RAYON_NUM_THREADS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Some(Self {
            keys: script.stdin.take().unwrap(),
            terminal: script.stdout.take().unwrap(),
            script,
            folder,
        })
    }

    /// Reads the terminal's output until `done` accepts it, or to the end.
    fn read(&mut self, mut done: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
        let (mut seen, mut part) = (Vec::new(), [0; 4096]);
        while !done(&seen) {
            match self.terminal.read(&mut part).unwrap() {
                0 => break,
                length => seen.extend(&part[..length]),
            }
        }
        seen
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
        self.keys.flush().unwrap();
    }

    /// The process that draws, for a run of one rank.
    fn trainer(&self) -> Option<Pid> {
        let is_trainer = |pid: &Pid| {
            let exe = std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero()));
            exe.is_ok_and(|exe| exe == Path::new(TRAINER))
        };
        processes_of(self.folder.path())
            .into_iter()
            .find(is_trainer)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
        for pid in processes_of(self.folder.path()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn position(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[test]
fn ctrl_c_gives_the_terminal_back_as_it_was() {
    for pictures in [20_000, 21_000, 40_000, 60_000] {
        let Some(mut run) = Watched::start("--nproc 2", "stty -a") else {
            return;
        };
        let shown = run.read(|seen| seen.len() > pictures);
        assert!(position(&shown, ENTER).is_some());
        run.press(b"zxzxzx");
        let more = run.read(|seen| seen.len() > 10_000);
        run.press(b"\x03");
        let all = [shown, more, run.read(|_| false)].concat();
        let text = String::from_utf8_lossy(&all);
        assert!(!text.contains("zx"), "{text}");
        let end = position(&all, LEAVE).unwrap_or_else(|| panic!("{text}"));
        let end = String::from_utf8_lossy(&all[end + LEAVE.len()..]);
        let lines = end.strip_prefix("\x1b[?25h");
        let lines = lines.unwrap_or_else(|| panic!("{end:?}"));
        assert!(!lines.contains('\x1b'), "{lines:?}");
        assert!(lines.contains("Ctrl-C again ends at once"), "{lines:?}");
        let (_, modes) = lines
            .split_once("\r\nthe ranks stopped early, with a checkpoint\r\n")
            .unwrap_or_else(|| panic!("{lines:?}"));
        assert!(modes.contains(" echo "), "{modes}");
        assert!(modes.contains(" icanon "), "{modes}");
    }
}

/// Whether the output has most of these words. A word is missing where the screen had a letter of
/// it in the same place before.
fn has_most(seen: &[u8], words: &[&str]) -> bool {
    let shown = words
        .iter()
        .filter(|word| position(seen, word.as_bytes()).is_some());
    2 * shown.count() > words.len()
}

#[test]
fn the_dashboard_shows_all_ranks_and_its_keys_work() {
    let Some(mut run) = Watched::start("--nproc 2", "stty -a") else {
        return;
    };
    let numbers = ["lr", "left", "runs", "MiB", "accuracy"];
    run.read(|seen| {
        numbers
            .iter()
            .all(|word| position(seen, word.as_bytes()).is_some())
    });
    run.press(b"?");
    let help = ["leave", "dashboard;", "prints", "stopping", "computed"];
    run.read(|seen| has_most(seen, &help));
    run.press(b"?");
    // A rank that is stopped is told although rank 0 waits for it in a collective.
    let other = rank_of(run.folder.path(), 1);
    kill_process(other, Signal::STOP).unwrap();
    run.read(|seen| position(seen, b"answer").is_some());
    kill_process(other, Signal::CONT).unwrap();
    run.press(b"q");
    // The run goes on, and prints lines.
    let is_line = |part: &&[u8]| *part == b"test loss";
    let goes_on = |seen: &[u8]| {
        let lines = position(seen, LEAVE).map(|left| &seen[left..]);
        lines.is_some_and(|lines| {
            position(lines, b"device CPU").is_some()
                && lines.windows(9).filter(is_line).count() > 20
        })
    };
    let shown = run.read(goes_on);
    assert!(position(&shown, ENTER).is_none() && goes_on(&shown));
    run.press(b"\x03");
    let end = String::from_utf8_lossy(&run.read(|_| false)).into_owned();
    assert!(end.contains(" icanon ") && end.contains(" echo "), "{end}");
}

/// Whether a thread of that process is blocked on a write to standard error.
fn waits_for_terminal(process: Pid) -> bool {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let tasks = std::fs::read_dir(tasks).into_iter().flatten().flatten();
    let waits = |path: &Path| {
        // The number of the system call and its arguments, the first of which is the file.
        let call = std::fs::read_to_string(path.join("syscall")).unwrap_or_default();
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        name.trim() == "stderr" && call.split(' ').nth(1) == Some("0x2")
    };
    tasks.into_iter().any(|task| waits(&task.path()))
}

/// A blocked terminal cannot be restored. The process must not wait for it or run for ever.
#[test]
fn a_terminal_that_takes_nothing_more_keeps_neither_the_training_nor_the_process() {
    let Some(run) = Watched::start("--nproc 1", "true") else {
        return;
    };
    let metrics = run.folder.path().join("run/metrics.jsonl");
    let length = || std::fs::metadata(&metrics).map_or(0, |metadata| metadata.len());
    let begin = Instant::now();
    let mut waits = 0;
    while waits < 20 {
        thread::sleep(Duration::from_millis(20));
        let waits_now = run.trainer().is_some_and(waits_for_terminal);
        waits = if waits_now { waits + 1 } else { 0 };
        assert!(begin.elapsed() < LIMIT, "the terminal takes everything");
    }
    let before = length();
    thread::sleep(Duration::from_millis(500));
    assert!(length() > before, "the training waits for the terminal");
    kill_process(run.trainer().unwrap(), Signal::INT).unwrap();
    let begin = Instant::now();
    while run.trainer().is_some() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it goes on");
        thread::sleep(Duration::from_millis(10));
    }
}

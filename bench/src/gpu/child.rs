//! Runs one part in a child process with a time limit.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Found;
use crate::error::BenchError;
use crate::report;

/// Lines shown of a failed process.
const SHOWN: usize = 6;

/// Lines shown after a panic. cubecl's errors list their causes, the first cause last.
const SHOWN_OF_PANIC: usize = 40;

/// Interval between checks of a process.
const LOOK: Duration = Duration::from_millis(20);

/// Time for a process to end its own ranks.
const GRACE: Duration = Duration::from_secs(2);

/// Contents of a part's result file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Left {
    pub good: Option<bool>,
    pub words: String,
    pub values: Value,
}

/// Starts the processes of parts.
pub(crate) struct Child {
    program: PathBuf,
    folder: tempfile::TempDir,
    /// Folder for the output of failed processes.
    logs: PathBuf,
    limit: Duration,
    stopped: Arc<AtomicBool>,
}

impl Child {
    /// Limits parts to `seconds`, and keeps the output of failed ones in the folder `logs`.
    pub fn new(seconds: u64, logs: PathBuf) -> Result<Self, BenchError> {
        Ok(Self {
            program: std::env::current_exe().map_err(BenchError::Myself)?,
            folder: tempfile::tempdir().map_err(BenchError::Folder)?,
            logs,
            limit: Duration::from_secs(seconds),
            stopped: Arc::new(AtomicBool::new(false)),
        })
    }

    /// From now on a signal ends only the current part: this process has results to write.
    pub fn listen(&self) -> Result<(), BenchError> {
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::flag::register(signal, self.stopped.clone())
                .map_err(BenchError::Signals)?;
        }
        Ok(())
    }

    /// Whether a signal has come.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Folder for files of parts.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs this program with `arguments` and returns its result. The result counts as bad if the
    /// process fails after it.
    pub fn found(&self, name: &str, arguments: &[&str]) -> Result<Found, String> {
        let out = self.folder.path().join("found.json");
        let _ = std::fs::remove_file(&out);
        let mut command = self.command(arguments);
        command.arg("--out").arg(&out);
        let finished = self.finish(name, command);
        let left = report::read::<Left>(&out).map_err(|error| error.to_string());
        match (finished, left) {
            (
                Ok(_),
                Ok(Left {
                    good,
                    words,
                    values,
                }),
            ) => Ok(Found {
                good,
                words,
                values,
            }),
            (Err(reason), Ok(Left { words, values, .. })) => Ok(Found {
                good: Some(false),
                words: format!("{words}\n{reason}"),
                values,
            }),
            (Err(reason), Err(_)) | (Ok(_), Err(reason)) => Err(reason),
        }
    }

    /// A command that runs this program.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        command
    }

    /// Runs a command within the limit, and returns its output.
    ///
    /// After a failure, returns the end of the output and keeps all of it in a file `name`.
    pub fn finish(&self, name: &str, command: Command) -> Result<String, String> {
        let log = self.folder.path().join("log");
        let failure = match self.run(command, &log) {
            Ok(status) if status.success() => {
                return std::fs::read_to_string(&log).map_err(|error| error.to_string());
            }
            Ok(status) => status.to_string(),
            Err(reason) => reason,
        };
        let said = end_of(&log);
        match self.keep(&log, name) {
            Ok(kept) => Err(format!(
                "{failure}; {said}\nall of it in {}",
                kept.display()
            )),
            Err(error) => Err(format!("{failure}; {said}\nnot kept: {error}")),
        }
    }

    /// Runs a process with its output in `log`, and returns its exit status.
    fn run(&self, mut command: Command, log: &Path) -> Result<ExitStatus, String> {
        let shown = format!("{command:?}");
        let failed = |error: std::io::Error| format!("cannot start {shown}: {error}");
        let file = std::fs::File::create(log).map_err(failed)?;
        let errors = file.try_clone().map_err(failed)?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .map_err(failed)?;
        let begin = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if self.is_stopped() => {
                    end(child);
                    return Err("stopped by a signal".to_owned());
                }
                Ok(None) if begin.elapsed() > self.limit => {
                    end(child);
                    return Err(format!("not done after {} s", self.limit.as_secs()));
                }
                Ok(None) => std::thread::sleep(LOOK),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Copies the log of a failed part into the log folder.
    fn keep(&self, log: &Path, name: &str) -> std::io::Result<PathBuf> {
        std::fs::create_dir_all(&self.logs)?;
        let kept = self.logs.join(format!("{}.log", name.replace(' ', "-")));
        std::fs::copy(log, &kept)?;
        Ok(kept)
    }
}

/// Ends a process, and gives it time to end its own ranks.
fn end(mut child: std::process::Child) {
    let _ = kill_process(Pid::from_child(&child), Signal::TERM);
    let begin = Instant::now();
    while begin.elapsed() < GRACE && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(LOOK);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// The part of a log that explains a failure: from the panic on, else the last lines.
fn end_of(log: &Path) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let panic = lines.iter().position(|line| line.contains(" panicked at "));
    let start = panic.unwrap_or_else(|| lines.len().saturating_sub(SHOWN));
    let most = if panic.is_some() {
        SHOWN_OF_PANIC
    } else {
        SHOWN
    };
    let shown = lines.iter().skip(start).take(most);
    shown.copied().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    fn starter(seconds: u64) -> (tempfile::TempDir, Child) {
        let folder = tempfile::tempdir().unwrap();
        let child = Child::new(seconds, folder.path().join("new/logs")).unwrap();
        (folder, child)
    }

    #[test]
    fn all_that_a_failed_process_said_is_kept() {
        let (folder, child) = starter(60);
        let output = child.finish("good", shell("seq 50"));
        assert_eq!(output.unwrap().lines().count(), 50);
        assert!(!folder.path().join("new").exists(), "nothing failed");
        let told = child.finish("parity bf16", shell("seq 50; exit 3"));
        let told = told.unwrap_err();
        let file = folder.path().join("new/logs/parity-bf16.log");
        assert!(told.starts_with("exit status: 3; 45\n"), "{told}");
        assert!(told.ends_with(file.to_str().unwrap()), "{told}");
        assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), 50);
    }

    #[test]
    fn a_process_has_a_limit_within_which_it_can_be_stopped() {
        let (_folder, child) = starter(0);
        let told = child.finish("slow", shell("echo begun; exec sleep 60"));
        let told = told.unwrap_err();
        assert!(told.starts_with("not done after 0 s"), "{told}");

        let (_folder, child) = starter(60);
        let stopped = child.stopped.clone();
        let asked = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            stopped.store(true, Ordering::Relaxed);
        });
        // A process that ignores SIGTERM is killed.
        let stubborn = shell("trap '' TERM; while :; do sleep 0.1; done");
        let told = child.finish("stubborn", stubborn).unwrap_err();
        assert!(told.starts_with("stopped by a signal"), "{told}");
        asked.join().unwrap();
    }

    #[test]
    fn what_a_process_left_before_it_failed_is_kept() {
        let (_folder, mut child) = starter(60);
        child.program = "/bin/sh".into();
        // `--out FILE` becomes $0 and $1 of the shell.
        let leaves = |then: &str| {
            let left = r#"{"good": true, "words": "1 of 2", "values": [7]}"#;
            format!("echo '{left}' >\"$1\"; {then}")
        };
        let found = |text: &str| child.found("part", &["-c", text]);
        let whole = found(&leaves("exit 0")).unwrap_or_else(|reason| panic!("{reason}"));
        assert_eq!((whole.good, whole.words.as_str()), (Some(true), "1 of 2"));
        let half = found(&leaves("exit 3")).unwrap_or_else(|reason| panic!("{reason}"));
        assert_eq!(
            (half.good, &half.values),
            (Some(false), &serde_json::json!([7]))
        );
        assert!(
            half.words.starts_with("1 of 2\nexit status: 3"),
            "{}",
            half.words
        );
        // Nothing, and no earlier result.
        assert!(found("exit 3").is_err() && found("exit 0").is_err());
    }

    #[test]
    fn a_panic_is_shown_from_its_message_on() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let trace: String = (0..60).map(|frame| format!("  {frame}: call\n")).collect();
        let panic = "thread 'main' panicked at here.rs:1:\nwhat went wrong\nCaused by\n";
        std::fs::write(file.path(), format!("before\n\n{panic}{trace}")).unwrap();
        let shown = end_of(file.path());
        assert!(shown.starts_with("thread 'main' panicked"), "{shown}");
        assert!(shown.contains("what went wrong"), "{shown}");
        assert_eq!(shown.lines().count(), SHOWN_OF_PANIC);
        std::fs::write(file.path(), &trace).unwrap();
        let shown = end_of(file.path());
        assert_eq!(shown.lines().count(), SHOWN);
        assert!(shown.ends_with("59: call"), "{shown}");
    }
}

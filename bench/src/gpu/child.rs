//! A process of this program that does one part, with a time limit.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Found;
use crate::error::BenchError;
use crate::report;

/// Lines of a failed process that are shown.
const SHOWN: usize = 6;

/// Of one that panicked: cubecl's errors list their causes, the first one last.
const SHOWN_OF_PANIC: usize = 40;

/// What a part leaves in its file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Left {
    pub good: Option<bool>,
    pub words: String,
    pub values: Value,
}

/// Starts parts.
pub(crate) struct Child {
    program: PathBuf,
    folder: tempfile::TempDir,
    limit: Duration,
}

impl Child {
    pub fn new(seconds: u64) -> Result<Self, BenchError> {
        Ok(Self {
            program: std::env::current_exe().map_err(BenchError::Myself)?,
            folder: tempfile::tempdir().map_err(BenchError::Folder)?,
            limit: Duration::from_secs(seconds),
        })
    }

    /// A place for files of parts.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs this program with `arguments`, and gives what it left.
    pub fn found(&self, arguments: &[&str]) -> Result<Found, String> {
        let out = self.folder.path().join("found.json");
        let _ = std::fs::remove_file(&out);
        let mut command = self.command(arguments);
        command.arg("--out").arg(&out);
        self.finish(command)?;
        let left: Left = report::read(&out).map_err(|error| error.to_string())?;
        Ok(Found {
            good: left.good,
            words: left.words,
            values: left.values,
        })
    }

    /// A command that is this program.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        command
    }

    /// Runs a command within the limit; gives its output, or the end of it if it fails.
    pub fn finish(&self, mut command: Command) -> Result<String, String> {
        let failed = |error: std::io::Error| format!("cannot start {command:?}: {error}");
        let log = self.folder.path().join("log");
        let file = std::fs::File::create(&log).map_err(failed)?;
        let errors = file.try_clone().map_err(failed)?;
        let shown = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("cannot start {shown}: {error}"))?;
        let begin = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if begin.elapsed() > self.limit => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!(
                        "not done after {} s; {}",
                        self.limit.as_secs(),
                        end_of(&log)
                    ));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(error.to_string()),
            }
        };
        match status.success() {
            true => std::fs::read_to_string(&log).map_err(|error| error.to_string()),
            false => Err(format!("{status}; {}", end_of(&log))),
        }
    }
}

/// What a log says of a failure: from where a program panicked, else its last lines.
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

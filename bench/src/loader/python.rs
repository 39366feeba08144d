//! The same work in torchvision and NumPy, for comparison.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCE: &str = include_str!("../../torchvision/loader.py");
const VERSIONS: &str = "versions";

/// A Python with torchvision, and the script in a temporary file.
#[derive(Debug)]
pub struct Python {
    interpreter: PathBuf,
    script: tempfile::NamedTempFile,
}

/// Error of a comparison.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// The script could not be written or Python not be started.
    #[error("`{}` cannot be started: {source}", interpreter.display())]
    Start {
        /// The interpreter.
        interpreter: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The script failed, most likely because a module is missing.
    #[error("`{}` failed with {status}: {stderr}", interpreter.display())]
    Failed {
        /// The interpreter.
        interpreter: PathBuf,
        /// Exit status.
        status: std::process::ExitStatus,
        /// The last line of its standard error.
        stderr: String,
    },
    /// The output is no measurement.
    #[error("`{}` printed no measurement: {source}", interpreter.display())]
    Unreadable {
        /// The interpreter.
        interpreter: PathBuf,
        /// Error of the parser.
        source: serde_json::Error,
    },
}

/// One round of the script.
#[derive(Debug, Default)]
pub struct Round {
    /// Versions of the modules.
    pub versions: String,
    /// Images per second by name.
    pub rates: BTreeMap<String, f64>,
}

impl Python {
    /// Prepares the script for this interpreter.
    ///
    /// # Errors
    /// Fails if no temporary file can be made.
    pub fn new(interpreter: &Path) -> Result<Self, PythonError> {
        let written = tempfile::NamedTempFile::new().and_then(|mut file| {
            file.write_all(SOURCE.as_bytes())?;
            Ok(file)
        });
        let script = written.map_err(|source| PythonError::Start {
            interpreter: interpreter.to_owned(),
            source,
        })?;
        Ok(Self {
            interpreter: interpreter.to_owned(),
            script,
        })
    }

    /// Measures everything once, each for about `seconds`.
    ///
    /// # Errors
    /// Fails if Python cannot be started, a module is missing, or the script fails.
    pub fn round(&self, images: usize, batch: usize, seconds: f64) -> Result<Round, PythonError> {
        let interpreter = || self.interpreter.clone();
        let output = Command::new(&self.interpreter)
            .arg(self.script.path())
            .args([images.to_string(), batch.to_string(), seconds.to_string()])
            .stdin(Stdio::null())
            .output()
            .map_err(|source| PythonError::Start {
                interpreter: interpreter(),
                source,
            })?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(PythonError::Failed {
                interpreter: interpreter(),
                status: output.status,
                stderr: text.lines().last().unwrap_or_default().to_owned(),
            });
        }
        parse(&output.stdout).map_err(|source| PythonError::Unreadable {
            interpreter: interpreter(),
            source,
        })
    }
}

fn parse(text: &[u8]) -> Result<Round, serde_json::Error> {
    let mut fields: BTreeMap<String, serde_json::Value> = serde_json::from_slice(text)?;
    let versions = match fields.remove(VERSIONS) {
        Some(value) => serde_json::from_value(value)?,
        None => String::new(),
    };
    let rates = fields
        .into_iter()
        .map(|(name, value)| Ok((name, serde_json::from_value(value)?)))
        .collect::<Result<_, serde_json::Error>>()?;
    Ok(Round { versions, rates })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_read() {
        let round = parse(br#"{"versions": "torch 2", "numpy gather": 65000.5}"#).unwrap();
        assert_eq!(round.versions, "torch 2");
        assert_eq!(round.rates["numpy gather"], 65_000.5);
        assert!(parse(br#"{"numpy gather": "fast"}"#).is_err());
    }

    #[test]
    fn a_python_that_is_not_there_is_named() {
        let python = Python::new(Path::new("/nowhere/python")).unwrap();
        let error = python.round(1, 1, 0.1).unwrap_err();
        assert!(error.to_string().contains("/nowhere/python"), "{error}");
    }
}

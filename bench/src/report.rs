//! The result file of a benchmark: one JSON object, complete or absent.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::BenchError;
use crate::machine::Machine;

/// A benchmark's results and where they come from.
#[derive(Debug, Serialize)]
pub struct Report<R> {
    /// Sub-command that measured them.
    pub benchmark: &'static str,
    /// Where and when.
    #[serde(flatten)]
    pub machine: Machine,
    /// The whole command line.
    pub command: String,
    /// World sizes that were measured.
    pub world: Vec<usize>,
    /// How it was measured, in one sentence per rule.
    pub protocol: Vec<String>,
    /// What came out.
    pub results: R,
}

impl<R: Serialize> Report<R> {
    /// A report of this command line on this machine.
    pub fn new(
        benchmark: &'static str,
        world: Vec<usize>,
        protocol: Vec<String>,
        results: R,
    ) -> Self {
        let command: Vec<String> = std::env::args_os()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect();
        Self {
            benchmark,
            machine: Machine::here(),
            command: command.join(" "),
            world,
            protocol,
            results,
        }
    }

    /// Writes the report to `path`, or to a file of its own in `results/` where the user stands, and
    /// returns where it is.
    ///
    /// # Errors
    /// When the folder or file cannot be written; a file that was there before is then unchanged.
    pub fn write(&self, path: Option<&Path>) -> Result<PathBuf, BenchError> {
        let path = path.map_or_else(|| self.default_path(), Path::to_path_buf);
        write(&path, self)?;
        Ok(path)
    }

    fn default_path(&self) -> PathBuf {
        let moment = self.machine.date.replace([':', '-'], "");
        Path::new("results").join(format!("{}-{moment}.json", self.benchmark))
    }
}

/// Writes a value as JSON into a new file that takes the place of `path`; makes its folder.
///
/// # Errors
/// When the folder or file cannot be written; a file that was there before is then unchanged.
pub fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), BenchError> {
    let failed = |source| BenchError::Write {
        path: path.to_owned(),
        source,
    };
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    serde_json::to_writer_pretty(&mut file, value).map_err(|error| failed(error.into()))?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Reads back what another process of this program wrote.
///
/// # Errors
/// When the file is not there or holds something else.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, BenchError> {
    let failed = |source| BenchError::Unread {
        path: path.to_owned(),
        source,
    };
    let bytes = std::fs::read(path).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report<Vec<u32>> {
        Report::new("collectives", vec![2], vec![], vec![7])
    }

    #[test]
    fn reads_back() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("deep/er/file.json");
        assert_eq!(report().write(Some(&path))?, path);
        let value: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        assert_eq!(value["benchmark"], "collectives");
        assert_eq!(value["results"][0], 7);
        assert!(
            value["date"]
                .as_str()
                .is_some_and(|date| date.ends_with('Z'))
        );
        Ok(())
    }

    #[test]
    fn a_file_in_the_way_is_an_error_that_names_it() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let blocked = folder.path().join("file");
        std::fs::write(&blocked, "")?;
        let error = report()
            .write(Some(&blocked.join("x.json")))
            .expect_err("a file is no folder");
        assert!(error.to_string().contains("x.json"), "{error}");
        Ok(())
    }
}

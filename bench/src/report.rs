//! The result file of a benchmark: one JSON object, complete or absent.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;

use crate::error::BenchError;
use crate::machine::Machine;

/// Default folder of results.
const FOLDER: &str = "results";

/// Results of a benchmark and their origin.
#[derive(Debug, Serialize)]
pub struct Report<R> {
    /// Name of the subcommand.
    pub benchmark: &'static str,
    /// Machine and time.
    #[serde(flatten)]
    pub machine: Machine,
    /// The whole command line.
    pub command: String,
    /// World sizes measured.
    pub world: Vec<usize>,
    /// Rules of the measurement, one sentence each.
    pub protocol: Vec<String>,
    /// The results.
    pub results: R,
}

impl<R: Serialize> Report<R> {
    /// Makes a report of this command line on this machine.
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

    /// Writes the report to `path`, or to a new file in `results/` of the current folder.
    ///
    /// Returns its path.
    ///
    /// # Errors
    /// Fails if the folder or file cannot be written; an existing file is then unchanged.
    pub fn write(&self, path: Option<&Path>) -> Result<PathBuf, BenchError> {
        match path {
            Some(path) => write(path, self).map(|()| path.to_owned()),
            None => self.write_new(Path::new(FOLDER)),
        }
    }

    /// Writes into a new file: two reports may be of the same second.
    fn write_new(&self, folder: &Path) -> Result<PathBuf, BenchError> {
        let moment = self.machine.date.replace([':', '-'], "");
        let name = format!("{}-{moment}", self.benchmark);
        let mut path = folder.join(format!("{name}.json"));
        let mut file = temporary(&path, self)?;
        for number in 2.. {
            match file.persist_noclobber(&path) {
                Ok(_) => break,
                Err(error) if error.error.kind() == ErrorKind::AlreadyExists => file = error.file,
                Err(error) => return Err(failed(&path, error.error)),
            }
            path = folder.join(format!("{name}-{number}.json"));
        }
        Ok(path)
    }
}

/// Checks that [`Report::write`] can write, before anything is measured.
///
/// # Errors
/// Fails if it cannot.
pub fn check(path: Option<&Path>) -> Result<(), BenchError> {
    let Some(path) = path else {
        return temporary(&Path::new(FOLDER).join("report.json"), &()).map(drop);
    };
    if path.is_dir() {
        return Err(failed(path, ErrorKind::IsADirectory.into()));
    }
    temporary(path, &()).map(drop)
}

/// Writes a value as JSON, and replaces the file at `path` atomically. Makes its folder.
///
/// # Errors
/// Fails if the folder or file cannot be written; an existing file is then unchanged.
pub fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), BenchError> {
    let file = temporary(path, value)?;
    file.persist(path)
        .map_err(|error| failed(path, error.error))?;
    Ok(())
}

/// A temporary file with the value, in the folder of `path`, which it makes.
fn temporary<T: Serialize>(path: &Path, value: &T) -> Result<NamedTempFile, BenchError> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder).map_err(|error| failed(path, error))?;
    let mut file = NamedTempFile::new_in(folder).map_err(|error| failed(path, error))?;
    serde_json::to_writer_pretty(&mut file, value).map_err(|error| failed(path, error.into()))?;
    Ok(file)
}

fn failed(path: &Path, source: std::io::Error) -> BenchError {
    BenchError::Write {
        path: path.to_owned(),
        source,
    }
}

/// Reads the result of another process of this program.
///
/// # Errors
/// Fails if the file is missing or has other contents.
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
    fn reports_of_the_same_second_have_files_of_their_own() -> Result<(), Box<dyn std::error::Error>>
    {
        let folder = tempfile::tempdir()?;
        let report = report();
        let paths = [(); 3].map(|()| report.write_new(folder.path()));
        let [first, second, third] = paths;
        let (first, second, third) = (first?, second?, third?);
        let stem = first.with_extension("");
        assert_eq!(second, PathBuf::from(format!("{}-2.json", stem.display())));
        assert_eq!(third, PathBuf::from(format!("{}-3.json", stem.display())));
        assert_eq!(std::fs::read(first)?, std::fs::read(third)?);
        assert_eq!(std::fs::read_dir(folder.path())?.count(), 3);
        Ok(())
    }

    #[test]
    fn what_cannot_be_written_is_known_before() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("new/file.json");
        check(Some(&file))?;
        assert!(!file.exists(), "only looked");
        check(Some(folder.path())).expect_err("a folder is no file");
        std::fs::write(&file, "")?;
        check(Some(&file.join("x.json"))).expect_err("a file is no folder");
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

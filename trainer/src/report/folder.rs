//! Reads a run folder for a report.
//!
//! Only the metrics are required. A file that is missing is left out, and one that cannot be read
//! becomes a remark.

use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use burn_dist::files::open_file;
use serde::de::DeserializeOwned;

use super::ReportError;
use super::lines::Metrics;
use crate::config::run_name::CONFIG_FILE;
use crate::eval::file;
use crate::run::environment::{self, Environment};
use crate::run::metrics;
use crate::task::classification::details::Details;

/// Maximum size of a file. The confusion matrix of 2000 classes is smaller.
const WHOLE: u64 = 64 << 20;

/// Contents of a run folder.
#[derive(Debug)]
pub struct Run {
    /// Name of the folder.
    pub name: String,
    /// Metrics of the run.
    pub metrics: Metrics,
    /// The resolved configuration.
    pub config: Option<String>,
    /// Software, hosts and device of the run.
    pub environment: Option<Environment>,
    /// The last evaluation.
    pub details: Option<Details>,
    /// Files that exist but cannot be used, with the reasons.
    pub remarks: Vec<String>,
}

impl Run {
    /// Reads a run folder.
    ///
    /// # Errors
    /// Fails if the folder does not exist or has no metrics.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        if !folder.is_dir() {
            return Err(ReportError::NoRun(folder.to_owned()));
        }
        let metrics = read_metrics(folder)?;
        let mut remarks = Vec::new();
        let config = whole(&folder.join(CONFIG_FILE), &mut remarks);
        let environment = json(&folder.join(environment::FILE), &mut remarks);
        let classifies = environment
            .as_ref()
            .is_none_or(|env: &Environment| env.task.is_none());
        let details = match classifies {
            true => json(&folder.join(file::FILE), &mut remarks),
            false => None,
        };
        if metrics.broken > 0 {
            remarks.push(format!(
                "{} of {} could not be read and {} left out; the first is line {}.",
                match metrics.broken {
                    1 => "One line".to_owned(),
                    many => format!("{many} lines"),
                },
                metrics::FILE,
                if metrics.broken == 1 { "is" } else { "are" },
                metrics.first_broken
            ));
        }
        Ok(Self {
            name: name(folder),
            metrics,
            config,
            environment,
            details,
            remarks,
        })
    }
}

/// The last part of the path. Also resolves paths like `.` or `..`.
fn name(folder: &Path) -> String {
    let absolute = folder.canonicalize();
    let path: PathBuf = absolute.unwrap_or_else(|_| folder.to_owned());
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

fn read_metrics(folder: &Path) -> Result<Metrics, ReportError> {
    let path = folder.join(metrics::FILE);
    let file = match open_file(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(ReportError::NoMetrics(folder.to_owned()));
        }
        Err(error) => return Err(ReportError::Read { path, error }),
    };
    let metrics = Metrics::read(BufReader::new(file));
    let metrics = metrics.map_err(|error| ReportError::Read { path, error })?;
    match metrics.is_empty() {
        true => Err(ReportError::NoMetrics(folder.to_owned())),
        false => Ok(metrics),
    }
}

fn json<T: DeserializeOwned>(path: &Path, remarks: &mut Vec<String>) -> Option<T> {
    let text = whole(path, remarks)?;
    match serde_json::from_str(&text) {
        Ok(value) => Some(value),
        Err(error) => {
            remarks.push(format!("{} cannot be used: {error}.", name(path)));
            None
        }
    }
}

fn whole(path: &Path, remarks: &mut Vec<String>) -> Option<String> {
    let read = || {
        let mut text = String::new();
        let file = open_file(path)?;
        file.take(WHOLE + 1).read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    match read() {
        Ok(text) if text.len() as u64 <= WHOLE => Some(text),
        Ok(_) => {
            remarks.push(format!("{} is too long to show.", name(path)));
            None
        }
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            remarks.push(format!("{} cannot be read: {error}.", name(path)));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_must_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        assert!(matches!(Run::read(&missing), Err(ReportError::NoRun(_))));
        assert!(matches!(
            Run::read(folder.path()),
            Err(ReportError::NoMetrics(_))
        ));
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write(metrics::FILE, "{}\nnonsense\n");
        assert!(matches!(
            Run::read(folder.path()),
            Err(ReportError::NoMetrics(_))
        ));
        write(
            metrics::FILE,
            "{\"kind\":\"train\",\"step\":1,\"loss\":2}\nnonsense\n",
        );
        let run = Run::read(folder.path()).unwrap();
        assert!(run.environment.is_none() && run.details.is_none() && run.config.is_none());
        assert_eq!(run.remarks.len(), 1, "{:?}", run.remarks);
        write(file::FILE, "{\"epoch\":");
        write(environment::FILE, "{\"world_size\":2}");
        let run = Run::read(folder.path()).unwrap();
        assert_eq!(run.environment.unwrap().world_size, 2);
        assert!(
            run.remarks[0].starts_with("evaluation.json cannot be used: "),
            "{:?}",
            run.remarks
        );
    }
}

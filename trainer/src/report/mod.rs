//! `report.html`: a self-contained page about a run, or a comparison of several runs.

pub(crate) mod axis;
mod classes;
mod compare;
mod folder;
mod html;
mod lines;
mod matrix;
mod measures;
mod overview;
mod parent;
mod plot;
mod positions;
mod series;

use std::io;
use std::path::{Path, PathBuf};

use crate::system::whole_file;
use folder::Run;
pub use parent::{Chosen, choose};

/// File in the run folder.
pub const FILE: &str = "report.html";

/// Maximum number of compared runs: more curves look alike.
pub const MOST_RUNS: usize = 32;

/// Error of a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The run folder does not exist.
    #[error("no run at {}: it is not a folder. Name a run folder, such as runs/NAME", .0.display())]
    NoRun(PathBuf),
    /// The folder holds no metrics.
    #[error(
        "no metrics in {}: metrics.jsonl is missing or contains no step and no evaluation. Name a \
         run folder whose training has begun",
        .0.display()
    )]
    NoMetrics(PathBuf),
    /// A file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The report cannot be written.
    #[error("cannot write {}: {error}. Choose another file with --out", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// Too many runs for one plot.
    #[error("cannot compare {0} runs; the maximum is {MOST_RUNS}")]
    TooMany(usize),
}

/// Writes the report of one run into its folder, and returns its path.
///
/// Only the metrics are required: the report leaves out what the folder lacks. An existing report
/// is replaced.
///
/// # Errors
/// Fails if the folder holds no run, or the report cannot be written.
pub fn write(run_dir: &Path) -> Result<PathBuf, ReportError> {
    let file = run_dir.join(FILE);
    write_to(run_dir, &file)?;
    Ok(file)
}

/// Writes the report of one run to `file`.
///
/// # Errors
/// As [`write()`].
pub fn write_to(run_dir: &Path, file: &Path) -> Result<(), ReportError> {
    let run = Run::read(run_dir)?;
    save(file, &overview::page(&run))
}

/// Writes a comparison of several runs to `out`, with notes at its top.
///
/// # Errors
/// Fails if a folder holds no run, there are more than [`MOST_RUNS`], or the file cannot be
/// written.
pub fn compare(runs: &[PathBuf], notes: &[String], out: &Path) -> Result<(), ReportError> {
    if runs.len() > MOST_RUNS {
        return Err(ReportError::TooMany(runs.len()));
    }
    let runs: Result<Vec<Run>, ReportError> = runs.iter().map(|run| Run::read(run)).collect();
    save(out, &compare::page(&runs?, notes))
}

/// Writes atomically, with the default permissions of a file.
fn save(path: &Path, text: &str) -> Result<(), ReportError> {
    whole_file::replace(path, text.as_bytes(), None).map_err(|error| ReportError::Write {
        path: path.to_owned(),
        error,
    })
}

//! `report.html`: what happened in a run, as one file that needs nothing else to be read, and the
//! same for several runs beside each other.

mod axis;
mod classes;
mod compare;
mod folder;
mod html;
mod lines;
mod matrix;
mod overview;
mod plot;
mod series;

use std::io;
use std::path::{Path, PathBuf};

use crate::system::whole_file;
use folder::Run;

/// File in the run folder.
pub const FILE: &str = "report.html";

/// Most runs that are compared: more curves cannot be told apart.
pub const MOST_RUNS: usize = 32;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// There is no such folder.
    #[error("no run at {}: it is not a folder. Name a run folder, such as runs/NAME", .0.display())]
    NoRun(PathBuf),
    /// The folder holds no measurements.
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
        /// What the system said.
        error: io::Error,
    },
    /// The report cannot be written.
    #[error("cannot write {}: {error}. Choose another file with --out", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Too many runs for one picture.
    #[error("cannot compare {0} runs; the maximum is {MOST_RUNS}")]
    TooMany(usize),
}

/// Writes the report of one run into its folder and gives the file. Files that are missing there
/// are missing in the report; only metrics must be there. A report that is there is replaced.
///
/// # Errors
/// If there is no such run, or the report cannot be written.
pub fn write(run_dir: &Path) -> Result<PathBuf, ReportError> {
    let file = run_dir.join(FILE);
    write_to(run_dir, &file)?;
    Ok(file)
}

/// Writes the report of one run into this file.
///
/// # Errors
/// As [`write()`].
pub fn write_to(run_dir: &Path, file: &Path) -> Result<(), ReportError> {
    let run = Run::read(run_dir)?;
    save(file, &overview::page(&run))
}

/// Writes a comparison of several runs into a file.
///
/// # Errors
/// If one of them is no run, there are more than [`MOST_RUNS`], or the file cannot be written.
pub fn compare(runs: &[PathBuf], out: &Path) -> Result<(), ReportError> {
    if runs.len() > MOST_RUNS {
        return Err(ReportError::TooMany(runs.len()));
    }
    let runs: Result<Vec<Run>, ReportError> = runs.iter().map(|run| Run::read(run)).collect();
    save(out, &compare::page(&runs?))
}

/// Whole or not at all, and with the permissions of any other file.
fn save(path: &Path, text: &str) -> Result<(), ReportError> {
    whole_file::replace(path, text.as_bytes(), None).map_err(|error| ReportError::Write {
        path: path.to_owned(),
        error,
    })
}

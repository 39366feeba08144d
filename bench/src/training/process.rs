//! Starts the training processes and reads their measurements.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;

use super::trained::Taken;
use super::workload::{Optimizer, Sizes, Workload};
use super::{Loop, Precision, Setting, TORCH_2, WARM_UP, bare, trained};
use crate::error::BenchError;
use crate::report;

/// The same training in PyTorch.
const TORCH: &str = include_str!("../../torch/training.py");

/// Lines shown of a failed process.
const SHOWN_LINES: usize = 20;

/// Starts this program again for either loop.
#[derive(Debug)]
pub struct Processes {
    program: PathBuf,
    folder: tempfile::TempDir,
    model: Workload,
    batch: usize,
    precision: Precision,
    /// Arguments with settings of the configuration.
    settings: Vec<String>,
    /// Python and the script.
    torch: Option<(PathBuf, PathBuf)>,
}

impl Processes {
    /// Makes processes that train `model` with `batch` images per rank and step.
    ///
    /// # Errors
    /// Fails if this program's own file is unknown or no temporary folder can be made.
    pub fn new(model: Workload, batch: usize) -> Result<Self, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::Myself)?;
        let folder = tempfile::tempdir().map_err(BenchError::Folder)?;
        Ok(Self {
            program,
            folder,
            model,
            batch,
            precision: Precision::F32,
            settings: Vec::new(),
            torch: None,
        })
    }

    /// Sets the number format and more settings of the configuration.
    pub fn settings(mut self, precision: Precision, sets: &[String]) -> Self {
        let precision_set = format!("train.precision={}", precision.name());
        self.precision = precision;
        self.settings = std::iter::once(&precision_set)
            .chain(sets)
            .flat_map(|set| ["--set".to_owned(), set.clone()])
            .collect();
        self
    }

    /// Sets a Python with PyTorch, and tries it before anything is measured.
    ///
    /// # Errors
    /// Fails if the script cannot be written, the Python has no PyTorch, or the script does not
    /// know the model.
    pub fn torch(mut self, python: Option<&Path>) -> Result<Self, BenchError> {
        if let Some(python) = python {
            let path = self.folder.path().join("training.py");
            let write = |source| BenchError::Write {
                path: path.clone(),
                source,
            };
            std::fs::write(&path, TORCH).map_err(write)?;
            self.torch = Some((python.to_owned(), path));
            self.seconds(TORCH_2, 0, &[])?;
        }
        Ok(self)
    }

    /// Checks the settings for `ranks` ranks.
    ///
    /// # Errors
    /// Fails if the trainer rejects them.
    pub fn check_settings(
        &self,
        ranks: usize,
        optimizer: Optimizer,
        sets: &[String],
    ) -> Result<(), BenchError> {
        let sizes = Sizes {
            batch: self.batch * ranks,
            train: self.batch * ranks,
            test: ranks,
        };
        let loaded = self.model.config_with(sizes, optimizer, sets)?;
        loaded.batching(ranks)?;
        Ok(loaded.check_sharding(ranks)?)
    }

    /// Images per rank and step.
    pub fn batch(&self) -> usize {
        self.batch
    }

    fn model_name(&self) -> String {
        let value = self.model.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Images per second over all ranks, for `steps` steps after the warm-up.
    ///
    /// # Errors
    /// Fails if a process fails or leaves no result.
    pub fn images_per_second(&self, setting: Setting, steps: usize) -> Result<f64, BenchError> {
        self.images_per_second_with(setting, steps, &[])
    }

    /// Measures images per second with more arguments for the trainer's loop.
    ///
    /// # Errors
    /// As [`images_per_second`](Self::images_per_second).
    pub fn images_per_second_with(
        &self,
        setting: Setting,
        steps: usize,
        more: &[String],
    ) -> Result<f64, BenchError> {
        let seconds = self.seconds(setting, steps, more)?;
        let batch = match setting.by {
            Loop::Bare => self.batch,
            Loop::Trainer | Loop::PyTorch => self.batch * setting.ranks,
        };
        Ok((seconds.len() * batch) as f64 / seconds.iter().sum::<f64>())
    }

    /// Measures the seconds of each of `steps` steps after the warm-up, and each rank's memory.
    ///
    /// Only the trainer's loop reports memory.
    ///
    /// # Errors
    /// As [`images_per_second`](Self::images_per_second).
    pub fn seconds_and_memory(
        &self,
        setting: Setting,
        steps: usize,
        more: &[String],
    ) -> Result<(Vec<f64>, Vec<Taken>), BenchError> {
        let folder = self.folder.path();
        let memory = ["--memory".to_owned(), folder.display().to_string()];
        let seconds = self.seconds(setting, steps, &[&memory[..], more].concat())?;
        let taken = (0..setting.ranks).map(|rank| report::read(&Taken::file(folder, rank)));
        Ok((seconds, taken.collect::<Result<_, _>>()?))
    }

    fn seconds(
        &self,
        setting: Setting,
        steps: usize,
        more: &[String],
    ) -> Result<Vec<f64>, BenchError> {
        let out = self.folder.path().join("seconds.json");
        let mut command = Command::new(&self.program);
        let batch = match (setting.by, &self.torch) {
            (Loop::Bare, _) => {
                command.arg(bare::COMMAND).args(&self.settings);
                self.batch
            }
            (Loop::Trainer, _) => {
                command.arg(trained::COMMAND).args(&self.settings);
                self.batch * setting.ranks
            }
            (Loop::PyTorch, None) => return Err(BenchError::NoTorch),
            (Loop::PyTorch, Some((python, script))) => {
                command = Command::new(python);
                command
                    .arg(script)
                    .args(["--threads", &setting.threads.to_string()])
                    .args(["--precision", self.precision.name()]);
                self.batch
            }
        };
        command
            .args([OsStr::new("--model"), self.model_name().as_ref()])
            .args(["--batch", &batch.to_string()])
            .args(["--steps", &(WARM_UP + steps).to_string()])
            .args([OsStr::new("--out"), out.as_os_str()])
            .env("RAYON_NUM_THREADS", setting.threads.to_string());
        if setting.by != Loop::Bare {
            command.args(["--ranks", &setting.ranks.to_string()]);
        }
        command.args(more);
        finish(&mut command)?;
        Ok(slowest(report::read(&out)?))
    }
}

/// The counted steps of the rank with the longest total time. The sum over each step's slowest rank
/// would exceed the time of any rank.
fn slowest(ranks: Vec<Vec<f64>>) -> Vec<f64> {
    let counted = ranks
        .into_iter()
        .map(|mut seconds| seconds.split_off(WARM_UP.min(seconds.len())));
    let total = |seconds: &Vec<f64>| seconds.iter().sum::<f64>();
    counted
        .max_by(|a, b| total(a).total_cmp(&total(b)))
        .unwrap_or_default()
}

/// Runs a process to its end. Shows its output only if it fails.
fn finish(command: &mut Command) -> Result<(), BenchError> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(BenchError::Myself)?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let shown = lines.get(lines.len().saturating_sub(SHOWN_LINES)..);
    Err(BenchError::Training {
        command: format!("{command:?}"),
        status: output.status,
        output: shown.unwrap_or_default().join("\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_is_that_of_all_counted_steps() {
        let quick = vec![9.0, 9.0, 9.0, 1.0, 3.0];
        let slow = vec![1.0, 1.0, 1.0, 3.0, 2.0];
        assert_eq!(slowest(vec![quick, slow]), [3.0, 2.0]);
        assert_eq!(slowest(vec![vec![1.0]]), [0.0; 0]);
    }
}

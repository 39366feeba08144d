//! `metrics.jsonl`: the numbers of a run for programs, one JSON object per line.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::TrainError;

/// File in the run folder.
pub const FILE: &str = "metrics.jsonl";

/// One line. Numbers are written with as many digits as it takes to read them back exactly.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Metric {
    /// One optimizer step.
    Train {
        /// Steps so far, this one included.
        step: u64,
        /// Epoch, from 1.
        epoch: u64,
        /// Mean loss over the step's global batch.
        loss: f64,
        /// Learning rate of the step.
        lr: f64,
        /// Training images per second over all ranks since the line before.
        images_per_second: f64,
    },
    /// One evaluation.
    Eval {
        /// Epoch, from 1, after which the evaluation took place.
        epoch: u64,
        /// Mean loss over all samples.
        loss: f64,
        /// Share of samples whose class was predicted.
        accuracy: f64,
        /// Samples that were evaluated, over all ranks.
        samples: u64,
    },
}

/// Writes [`Metric`]s, each at once as a whole line.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
}

impl MetricsFile {
    /// Opens `metrics.jsonl` in `folder` for appending behind its first `length` bytes; what comes
    /// after them goes.
    ///
    /// # Errors
    /// If it cannot be opened, or is shorter.
    pub fn open(folder: &Path, length: u64) -> Result<Self, TrainError> {
        let path = folder.join(FILE);
        let open = || {
            let file = File::options().append(true).create(true).open(&path)?;
            if file.metadata()?.len() < length {
                let reason =
                    format!("it has fewer than the {length} bytes it had at the checkpoint");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
            }
            file.set_len(length)?;
            Ok(file)
        };
        match open() {
            Ok(file) => Ok(Self { path, file }),
            Err(error) => Err(TrainError::RunDir { path, error }),
        }
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn length(&self) -> Result<u64, TrainError> {
        let metadata = self.file.metadata();
        metadata
            .map(|metadata| metadata.len())
            .map_err(|error| TrainError::RunDir {
                path: self.path.clone(),
                error,
            })
    }

    /// Appends one line.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, metric: &Metric) -> Result<(), TrainError> {
        let written = serde_json::to_vec(metric)
            .map_err(io::Error::from)
            .and_then(|mut line| {
                line.push(b'\n');
                // One call, so that a reader or a killed process leaves no half line.
                self.file.write_all(&line)
            });
        written.map_err(|error| TrainError::RunDir {
            path: self.path.clone(),
            error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_exactly() {
        let folder = tempfile::tempdir().unwrap();
        let losses = [f64::from(0.1f32), 1.0 / 3.0, 5e-324, 1e300, 2.0];
        let mut file = MetricsFile::open(folder.path(), 0).unwrap();
        for (step, loss) in (1..).zip(losses) {
            let metric = Metric::Train {
                step,
                epoch: 1,
                loss,
                lr: 0.001,
                images_per_second: 100.5,
            };
            file.write(&metric).unwrap();
        }
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        let read: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(read.len(), losses.len());
        for (value, loss) in read.iter().zip(losses) {
            assert_eq!(value["loss"].as_f64(), Some(loss));
            assert_eq!(value["kind"], "train");
        }
    }

    #[test]
    fn an_existing_file_is_continued_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let metric = |epoch| Metric::Eval {
            epoch,
            loss: 0.5,
            accuracy: 0.75,
            samples: 10,
        };
        let mut file = MetricsFile::open(folder.path(), 0).unwrap();
        file.write(&metric(1)).unwrap();
        let length = file.length().unwrap();
        file.write(&metric(2)).unwrap();
        let mut file = MetricsFile::open(folder.path(), length).unwrap();
        file.write(&metric(3)).unwrap();
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        let line = |epoch: u64| {
            format!(
                "{{\"kind\":\"eval\",\"epoch\":{epoch},\"loss\":0.5,\"accuracy\":0.75,\"samples\":10}}"
            )
        };
        assert_eq!(text, format!("{}\n{}\n", line(1), line(3)));
        assert!(MetricsFile::open(folder.path(), 1000).is_err());
    }
}

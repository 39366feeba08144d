//! `environment.json`: what ran, where, and on what, for reports and for people who come later.

use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::compute::kernels_name;
use crate::error::TrainError;
use crate::initial::Initial;
use crate::run::Session;
use crate::{run_dir, whole_file};

/// File in the run folder.
pub const FILE: &str = "environment.json";

/// What ran, where, and on what. A run that is continued has that of its last process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Version of this program.
    pub version: String,
    /// Arguments of the process.
    pub command: Vec<String>,
    /// When it started, in UTC, as RFC 3339 writes it.
    pub started: String,
    /// Name of the host of each rank.
    pub hosts: Vec<String>,
    /// What computes.
    pub device: String,
    /// What the layers of the model compute with: Burn's own operations, or the kernels of which
    /// instruction set.
    pub kernels: String,
    /// Number of ranks.
    pub world_size: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// Threads that a rank computes with.
    pub threads: usize,
    /// Trainable elements of the model.
    pub parameters: usize,
    /// Training images.
    pub train_samples: usize,
    /// Test images.
    pub test_samples: usize,
    /// Optimizer steps of an epoch.
    pub steps_per_epoch: u64,
    /// The weights that the run started from, if it started from a file of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<Initial>,
    /// Names of the classes.
    pub class_names: Vec<String>,
    /// Channels, height and width of the images.
    pub image_shape: [usize; 3],
    /// Mean of each channel by which images are normalised, of values from 0 to 1.
    pub mean: Vec<f32>,
    /// The standard deviation.
    pub std: Vec<f32>,
}

impl Environment {
    /// Asks all ranks. A collective call.
    pub(crate) fn gather(
        session: &Session<'_>,
        parameters: usize,
        steps_per_epoch: u64,
    ) -> Result<Self, TrainError> {
        let host = rustix::system::uname();
        let hosts = session.group.gather_bytes(host.nodename().to_bytes())?;
        let splits = &session.data.splits;
        let (shape, normalization) = (splits.train.shape(), splits.train.normalization());
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: std::env::args_os()
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect(),
            started: run_dir::rfc3339(SystemTime::now()),
            hosts: hosts
                .iter()
                .map(|host| String::from_utf8_lossy(host).into_owned())
                .collect(),
            device: session.device.name.clone(),
            kernels: kernels_name(session.config, &session.device.device),
            world_size: session.group.size(),
            nodes: session.group.nodes(),
            threads: rayon::current_num_threads(),
            parameters,
            train_samples: splits.train.len(),
            test_samples: splits.test.len(),
            steps_per_epoch,
            weights: session.initial.get().map(|(initial, _)| initial.clone()),
            class_names: splits.train.class_names().to_vec(),
            image_shape: [shape.channels, shape.height, shape.width],
            mean: normalization.mean,
            std: normalization.std,
        })
    }

    /// That of a run folder, if it has one.
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        let text = whole_file::read(&folder.join(FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes it into the run folder.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn write(&self, folder: &Path) -> Result<(), TrainError> {
        let mut environment = self.clone();
        // A process that continues the run has not read the weights that it started from.
        if environment.weights.is_none() {
            environment.weights = Self::read(folder).and_then(|earlier| earlier.weights);
        }
        let text =
            serde_json::to_string_pretty(&environment).map_err(|error| TrainError::RunDir {
                path: folder.join(FILE),
                error: error.into(),
            })?;
        run_dir::replace(folder, FILE, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who is killed while a continued run writes it must find the one of before.
    #[test]
    fn the_file_is_replaced_and_never_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let of = |version: &str| Environment {
            version: version.to_owned(),
            ..Environment::default()
        };
        of("1").write(folder.path()).unwrap();
        let before = folder.path().join("before");
        std::fs::hard_link(folder.path().join(FILE), &before).unwrap();
        of("2").write(folder.path()).unwrap();
        let of_weights = Environment {
            weights: Some(Initial {
                sha256: "0f".to_owned(),
                ..Initial::default()
            }),
            ..of("3")
        };
        of_weights.write(folder.path()).unwrap();
        of("4").write(folder.path()).unwrap();
        let kept = Environment::read(folder.path()).unwrap();
        assert_eq!(
            (kept.version.as_str(), kept.weights),
            ("4", of_weights.weights)
        );
        of("2").write(folder.path()).unwrap();
        let read = |path: &Path| -> Environment {
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
        };
        assert_eq!(read(&before).version, "1");
        assert_eq!(read(&folder.path().join(FILE)).version, "2");
    }
}

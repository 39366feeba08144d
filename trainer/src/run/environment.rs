//! `environment.json`: software, hosts, device, model size and data of a run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use models::weights::Taken;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::metric::Measure;
use crate::data::checksums::DataChecksum;
use crate::error::TrainError;
use crate::run::dir;
use crate::run::process::RunProcess;
use crate::system::{clock, whole_file};

/// File in the run folder.
pub const FILE: &str = "environment.json";

/// Weights file that a run started from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Initial {
    /// Absolute path of the file.
    pub path: String,
    /// SHA-256 of the file, as `sha256sum` prints it.
    pub sha256: String,
    /// Prefix of the tensor names in the file.
    pub prefix: String,
    /// Tensors that were loaded.
    pub tensors: usize,
    /// Largest number of batches counted by PyTorch's batch normalizations.
    pub batches: i64,
    /// Smaller counts, by the names of their counters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fewer_batches: BTreeMap<String, i64>,
}

impl Initial {
    /// Describes the weights that were `taken` from a file.
    ///
    /// # Errors
    /// Fails if the file cannot be read again.
    pub(crate) fn of(path: &Path, taken: &Taken) -> io::Result<Self> {
        let mut hasher = Sha256::new();
        io::copy(&mut File::open(path)?, &mut hasher)?;
        let digest = hasher.finalize();
        let absolute = std::path::absolute(path)?;
        let most = taken.batches.values().copied().max().unwrap_or_default();
        let fewer = taken.batches.iter().filter(|(_, count)| **count < most);
        Ok(Self {
            path: absolute.display().to_string(),
            sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            prefix: taken.prefix.clone(),
            tensors: taken.tensors,
            batches: most,
            fewer_batches: fewer.map(|(name, count)| (name.clone(), *count)).collect(),
        })
    }
}

/// Software, hosts, device and data of a run. A resumed run has those of its last process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Version of this program.
    pub version: String,
    /// Arguments of the process.
    pub command: Vec<String>,
    /// Git revision of its sources, with `-dirty` if files differed from it.
    pub revision: String,
    /// Cargo features of this program, or `none`.
    pub features: String,
    /// Target that this program was compiled for.
    pub target: String,
    /// Start time in UTC, as RFC 3339.
    pub started: String,
    /// Absolute path of the folder where the process was started, to which relative paths of its
    /// configuration belong. Empty in runs of earlier versions.
    pub folder: String,
    /// Host name of each rank.
    pub hosts: Vec<String>,
    /// Name of the device.
    pub device: String,
    /// Implementation of the layers: Burn's own operations, or kernels of an instruction set.
    pub kernels: String,
    /// Number of ranks.
    pub world_size: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// Compute threads per rank.
    pub threads: usize,
    /// Trainable elements of the model.
    pub parameters: usize,
    /// Name of the task, unless it is image classification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Name of its items in the plural.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<String>,
    /// Metrics of the task, unless it is image classification.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub measures: Vec<Measure>,
    /// Items for training, such as images.
    pub train_samples: usize,
    /// Items that training evaluates on.
    #[serde(rename = "test_samples")]
    pub eval_samples: usize,
    /// Their name: `val`, `test`, or `train` if the model should overfit. Empty in runs of earlier
    /// versions.
    pub evaluated: String,
    /// Optimizer steps per epoch.
    pub steps_per_epoch: u64,
    /// Weights file that the run started from, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<Initial>,
    /// Names of the classes.
    pub class_names: Vec<String>,
    /// Channels, height and width of the images.
    pub image_shape: [usize; 3],
    /// Mean of each channel for the normalization of images, for values from 0 to 1.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel.
    pub std: Vec<f32>,
    /// Checksums of the data files. Empty for generated data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<DataChecksum>,
    /// The processes of the run, the last one last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<RunProcess>,
}

impl Environment {
    /// Reads that of a run folder, if it has one.
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        let text = whole_file::read(&folder.join(FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes it into the run folder, after the processes that the folder knows.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn write(&self, folder: &Path) -> Result<(), TrainError> {
        let mut environment = self.clone();
        let earlier = Self::read(folder).unwrap_or_default();
        // A process that resumes the run has not read the weights file.
        environment.weights = environment.weights.or(earlier.weights);
        let own = std::mem::replace(&mut environment.processes, earlier.processes);
        environment.processes.extend(own);
        environment.put(folder)
    }

    /// Notes in the run folder how its last process ended, and after which step, if known.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub(crate) fn note_end(
        folder: &Path,
        status: String,
        step: Option<u64>,
    ) -> Result<(), TrainError> {
        let Some(mut environment) = Self::read(folder) else {
            return Ok(());
        };
        if let Some(last) = environment.processes.last_mut() {
            last.ended = Some(clock::rfc3339(SystemTime::now()));
            last.status = Some(status);
            last.last_step = step;
        }
        environment.put(folder)
    }

    fn put(&self, folder: &Path) -> Result<(), TrainError> {
        let text = serde_json::to_string_pretty(self).map_err(|error| TrainError::RunDir {
            path: folder.join(FILE),
            error: error.into(),
        })?;
        dir::replace(folder, FILE, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process killed while it writes the file of a resumed run must leave the old one.
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

    #[test]
    fn every_process_is_kept_with_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let attempt = |first_step| Environment {
            processes: vec![RunProcess {
                first_step,
                ..RunProcess::default()
            }],
            ..Environment::default()
        };
        attempt(0).write(folder.path()).unwrap();
        // Killed: it has no end.
        attempt(7).write(folder.path()).unwrap();
        Environment::note_end(folder.path(), "complete".to_owned(), Some(9)).unwrap();
        let kept = Environment::read(folder.path()).unwrap().processes;
        let told: Vec<_> = kept.iter().map(|a| (a.first_step, a.last_step)).collect();
        assert_eq!(told, [(0, None), (7, Some(9))]);
        assert!(kept[0].ended.is_none() && kept[1].ended.is_some());
        assert_eq!(kept[1].status.as_deref(), Some("complete"));
    }
}

//! One process of a run in `environment.json`: how it started and how it ended.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::system::host::HostRecord;
use crate::system::program;

/// Variables of a Slurm job, and their keys in the file.
const SLURM: [(&str, &str); 9] = [
    ("SLURM_JOB_ID", "job"),
    ("SLURM_JOB_NAME", "name"),
    ("SLURM_ARRAY_JOB_ID", "array_job"),
    ("SLURM_ARRAY_TASK_ID", "array_task"),
    ("SLURM_STEP_ID", "step"),
    ("SLURM_RESTART_COUNT", "restarts"),
    ("SLURM_CLUSTER_NAME", "cluster"),
    ("SLURM_JOB_PARTITION", "partition"),
    ("SLURM_JOB_NODELIST", "nodes"),
];

/// One process of a run, from its start to its end. A resumed run has several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunProcess {
    /// Start time in UTC, as RFC 3339.
    pub started: String,
    /// Steps of the run before.
    pub first_step: u64,
    /// The last step before that the run went back from, if it repeats some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub went_back_from: Option<u64>,
    /// End time. Missing while the process runs, and if it was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// `complete`, `early: REASON`, `paused: REASON` or `failed: REASON`. Missing like `ended`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Steps of the run at the end. Missing after a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    /// Version of this program.
    pub version: String,
    /// Git revision of its sources.
    pub revision: String,
    /// Its cargo features.
    pub features: String,
    /// Target that it was compiled for.
    pub target: String,
    /// Arguments of the process.
    pub command: Vec<String>,
    /// Working directory.
    pub folder: String,
    /// Number of ranks.
    pub ranks: usize,
    /// The hosts of the ranks.
    pub hosts: Vec<HostRecord>,
    /// The Slurm job, if any.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub slurm: BTreeMap<String, String>,
}

impl RunProcess {
    /// A process of this program that starts after step `first_step` with these `ranks`.
    pub(crate) fn of_this_program(first_step: u64, ranks: Vec<HostRecord>) -> Self {
        Self {
            first_step,
            version: program::VERSION.to_owned(),
            revision: program::REVISION.to_owned(),
            features: program::FEATURES.to_owned(),
            target: program::TARGET.to_owned(),
            ranks: ranks.len(),
            hosts: HostRecord::merged(ranks),
            slurm: slurm(|name| std::env::var(name).ok()),
            ..Self::default()
        }
    }
}

/// The Slurm job of this process.
fn slurm(variable: impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let given = SLURM.iter().filter_map(|(name, key)| {
        let value = variable(name).filter(|value| !value.is_empty())?;
        Some(((*key).to_owned(), value))
    });
    given.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slurm_job_is_told_and_nothing_else_of_the_environment() {
        let job = slurm(|name| match name {
            "SLURM_JOB_ID" => Some("17".to_owned()),
            "SLURM_JOB_PARTITION" => Some(String::new()),
            "SLURM_RESTART_COUNT" => Some("2".to_owned()),
            _ => None,
        });
        let expected = [("job", "17"), ("restarts", "2")];
        assert_eq!(
            job,
            expected.map(|(a, b)| (a.to_owned(), b.to_owned())).into()
        );
    }
}

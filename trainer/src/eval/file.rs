//! `evaluation.json`: the details of the last evaluation.

use std::io;
use std::path::Path;

use serde::Deserialize;

use crate::error::TrainError;
use crate::system::whole_file;
use crate::task;

/// File in the run folder.
pub const FILE: &str = "evaluation.json";

/// The step of an evaluation of any task.
#[derive(Deserialize)]
struct Moment {
    step: u64,
}

/// Writes `details` into the run folder atomically.
///
/// # Errors
/// Fails if the system refuses.
pub fn write(details: &impl task::Details, run_dir: &Path) -> Result<(), TrainError> {
    let path = run_dir.join(FILE);
    let written = serde_json::to_vec(details).map_err(io::Error::from);
    let written = written.and_then(|json| whole_file::replace(&path, &json, None));
    written.map_err(TrainError::run_dir(&path))
}

/// Removes an evaluation after step `step` from a run folder whose run went back to that step.
pub(crate) fn forget_after(run_dir: &Path, step: u64) {
    let path = run_dir.join(FILE);
    let bytes = whole_file::read(&path).unwrap_or_default();
    let found = serde_json::from_slice::<Moment>(&bytes);
    if found.is_ok_and(|found| found.step > step) {
        // The file is only for people, and is soon written again.
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::task::classification::details::Details;

    #[test]
    fn the_file_is_readable_for_others() {
        let details = Details {
            loss: 0.5,
            ..Details::default()
        };
        let folder = tempfile::tempdir().unwrap();
        write(&details, folder.path()).unwrap();
        let text = std::fs::read(folder.path().join(FILE)).unwrap();
        let file = std::fs::metadata(folder.path().join(FILE)).unwrap();
        assert_ne!(file.permissions().mode() & 0o777, 0o600);
        assert_eq!(serde_json::from_slice::<Details>(&text).unwrap(), details);
        assert!(write(&details, &folder.path().join("nowhere")).is_err());
    }

    #[test]
    fn an_evaluation_after_the_step_that_a_run_goes_back_to_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let details = Details {
            step: 60,
            ..Details::default()
        };
        write(&details, folder.path()).unwrap();
        forget_after(folder.path(), 60);
        assert!(folder.path().join(FILE).exists());
        forget_after(folder.path(), 59);
        assert!(!folder.path().join(FILE).exists());
    }
}

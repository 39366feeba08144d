//! The run folder: chooses, names and creates it, and ensures that it holds one run only.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use burn_dist::files::{create_folders, sync_folder};

use crate::config::Config;
use crate::config::run_name::{CONFIG_FILE, when_made};
use crate::error::TrainError;
use crate::run::lock::{self, RunLock};
use crate::run::{checkpoints, metrics};
use crate::system::clock::timestamp;
use crate::system::whole_file;

/// Default parent of run folders.
pub(crate) const PARENT: &str = "runs";

/// Names to try if another run of the same second has the first.
const ATTEMPTS: u32 = 100;

/// Rejects a path that exists and is no folder, such as a broken link.
///
/// # Errors
/// [`TrainError::RunDirNotAFolder`].
pub fn check_folder(folder: &Path) -> Result<(), TrainError> {
    match folder.symlink_metadata() {
        Ok(_) if !folder.is_dir() => Err(TrainError::RunDirNotAFolder(folder.to_owned())),
        _ => Ok(()),
    }
}

/// Rejects a folder that holds a run or its remains.
///
/// Metrics and checkpoints of two runs must not be mixed.
///
/// # Errors
/// Fails if the folder holds a run, or is not a folder.
pub fn check_unused(folder: &Path) -> Result<(), TrainError> {
    check_folder(folder)?;
    match folder.join(metrics::FILE).exists() || checkpoints::has_traces(folder)? {
        true => Err(TrainError::RunDirTaken(folder.to_owned())),
        false => Ok(()),
    }
}

/// Whether `folder` has the metrics of a run.
pub fn is_run(folder: &Path) -> bool {
    folder.join(metrics::FILE).is_file()
}

/// Moves aside the metrics of a run without a checkpoint, for a new run in its folder.
///
/// Returns their new path, if it had any.
///
/// # Errors
/// Fails if the file cannot be renamed.
pub fn abandon_metrics(folder: &Path) -> Result<Option<PathBuf>, TrainError> {
    let file = folder.join(metrics::FILE);
    if !file.metadata().is_ok_and(|metadata| metadata.len() > 0) {
        return Ok(None);
    }
    let name = |number| folder.join(format!("abandoned-{number}-{}", metrics::FILE));
    let free = (1u64..).map(name).find(|path| !path.exists());
    let aside = free.unwrap_or_else(|| name(0));
    std::fs::rename(&file, &aside).map_err(TrainError::run_dir(&file))?;
    Ok(Some(aside))
}

/// Creates or takes the run folder, and writes the resolved configuration into it.
///
/// It is `chosen`, or a new folder with the run's name and the time. The returned lock keeps other
/// runs out.
///
/// # Errors
/// Fails if the folder cannot be created or written, or another run is active in it.
pub(crate) fn create(
    chosen: Option<&Path>,
    locked: Option<&Arc<RunLock>>,
    name: &str,
    config: &Config,
) -> Result<(PathBuf, Arc<RunLock>), TrainError> {
    let folder = match chosen {
        Some(folder) => {
            create_folders(folder).map_err(TrainError::run_dir(folder))?;
            folder.to_owned()
        }
        None => create_new(Path::new(PARENT), name, SystemTime::now())?,
    };
    let lock = match locked {
        Some(lock) => lock.clone(),
        // The folder did not exist when it was to be locked. Another run may have made it since.
        None => {
            let before = lock::last_holder(&folder);
            let lock = RunLock::take_new(&folder)?;
            check_unused(&folder).map_err(|error| match (error, before) {
                (TrainError::RunDirTaken(folder), Some(by)) => {
                    TrainError::RunDirJustTaken { folder, by }
                }
                (error, _) => error,
            })?;
            Arc::new(lock)
        }
    };
    let text = config.to_toml()?;
    keep_config(&folder, &text)?;
    replace(&folder, CONFIG_FILE, &text)?;
    Ok((folder, lock))
}

/// Keeps a folder's configuration if the new one differs.
///
/// Its name is the first free of `config-1.toml`, `config-2.toml` and so on.
fn keep_config(folder: &Path, new: &str) -> Result<(), TrainError> {
    let file = folder.join(CONFIG_FILE);
    let old = match whole_file::read(&file) {
        Ok(old) if old != new.as_bytes() => old,
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(TrainError::run_dir(&file)(error)),
    };
    let name = |number| folder.join(format!("config-{number}.toml"));
    let free = (1u64..).map(name).find(|path| !path.exists());
    let kept = free.unwrap_or_else(|| name(0));
    whole_file::replace_on_disk(&kept, &old).map_err(TrainError::run_dir(&kept))
}

/// Replaces a file of the folder atomically, and waits until it is on disk. A process killed
/// meanwhile leaves the old file.
///
/// # Errors
/// Fails if the system refuses.
pub(crate) fn replace(folder: &Path, name: &str, text: &str) -> Result<(), TrainError> {
    let file = folder.join(name);
    whole_file::replace_on_disk(&file, text.as_bytes()).map_err(TrainError::run_dir(&file))
}

/// Folders made for runs of this name, the oldest first.
///
/// # Errors
/// Fails if their parent folder cannot be read.
pub fn of_name(name: &str) -> Result<Vec<PathBuf>, TrainError> {
    made_in(Path::new(PARENT), name)
}

/// Folders that [`create_new`] made in `parent` for runs of this name, the oldest first.
fn made_in(parent: &Path, name: &str) -> Result<Vec<PathBuf>, TrainError> {
    if !parent.is_dir() {
        return Ok(Vec::new());
    }
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(parent).map_err(TrainError::run_dir(parent))? {
        let path = entry.map_err(TrainError::run_dir(parent))?.path();
        // Another run's name may begin with this one's.
        let rest = path.file_name().and_then(|file| file.to_str());
        let rest = rest.and_then(|text| text.strip_prefix(name)?.strip_prefix('-'));
        if let Some(made) = rest.and_then(when_made) {
            folders.push((made, path));
        }
    }
    folders.sort();
    Ok(folders.into_iter().map(|(_, path)| path).collect())
}

/// Creates `<parent>/<name>-<time>`, with a number appended if that is taken.
fn create_new(parent: &Path, name: &str, now: SystemTime) -> Result<PathBuf, TrainError> {
    create_folders(parent).map_err(TrainError::run_dir(parent))?;
    let stem = format!("{name}-{}", timestamp(now));
    let mut folder = parent.join(&stem);
    for attempt in 2..ATTEMPTS {
        match std::fs::create_dir(&folder) {
            Ok(()) => {
                sync_folder(parent).map_err(TrainError::run_dir(parent))?;
                return Ok(folder);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                folder = parent.join(format!("{stem}-{attempt}"));
            }
            Err(error) => return Err(TrainError::run_dir(&folder)(error)),
        }
    }
    Err(TrainError::RunDirTaken(folder))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::config::run_name::name_of;

    #[test]
    fn runs_of_the_same_second_get_different_folders() {
        let parent = tempfile::tempdir().unwrap();
        let first = create_new(parent.path(), "x", UNIX_EPOCH).unwrap();
        let second = create_new(parent.path(), "x", UNIX_EPOCH).unwrap();
        assert!(first.ends_with("x-19700101-000000"));
        assert!(second.ends_with("x-19700101-000000-2"));
        assert_eq!(made_in(parent.path(), "x").unwrap(), [first, second]);
    }

    #[test]
    fn runs_of_a_name_are_those_with_its_stamp_alone_in_order() {
        let parent = tempfile::tempdir().unwrap();
        let own = [
            "wrn-20260101-000000",
            "wrn-20261121-031550",
            "wrn-20261121-031550-2",
            "wrn-20261121-031550-10",
            "wrn-20261121-031551",
        ];
        let others = [
            "wrn-28-10-20261122-000000",
            "wrn-28-20261122-000000",
            "wrn-20261122",
            "wrn-20261122-00000",
            "wrn-20261122-000000-",
            "wrn-20261122-000000-+3",
            "wrn-20261122-000000-2-3",
            "wrn-20261122-000000-old",
            "wrn20261122-000000",
        ];
        for name in own.iter().chain(&others) {
            std::fs::create_dir(parent.path().join(name)).unwrap();
        }
        for (folder, name) in [
            ("wrn-28-20261122-000000-3", "wrn-28"),
            ("wrn-20261122", "wrn-20261122"),
            ("-20261122-000000", "-20261122-000000"),
        ] {
            assert_eq!(name_of(folder), name);
        }
        let found = made_in(parent.path(), "wrn").unwrap();
        assert_eq!(found, own.map(|name| parent.path().join(name)));
        assert_eq!(made_in(parent.path(), "wrn-28").unwrap().len(), 1);
        assert!(
            made_in(&parent.path().join("none"), "wrn")
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn numbers_that_are_abandoned_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(metrics::FILE);
        assert_eq!(abandon_metrics(folder.path()).unwrap(), None);
        for (number, text) in [(1, "first"), (2, "second")] {
            std::fs::write(&file, text).unwrap();
            let aside = abandon_metrics(folder.path()).unwrap().unwrap();
            assert!(aside.ends_with(format!("abandoned-{number}-metrics.jsonl")));
            assert_eq!(std::fs::read_to_string(aside).unwrap(), text);
            assert!(!file.exists());
        }
    }

    #[test]
    fn configurations_that_are_changed_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).ok();
        for text in ["a", "a", "b", "c"] {
            keep_config(folder.path(), text).unwrap();
            replace(folder.path(), CONFIG_FILE, text).unwrap();
        }
        let kept = ["config-1.toml", "config-2.toml", "config-3.toml"].map(read);
        assert_eq!(kept, [Some("a".to_owned()), Some("b".to_owned()), None]);
        assert_eq!(read(CONFIG_FILE).as_deref(), Some("c"));
    }

    #[test]
    fn a_folder_that_holds_a_run_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        check_unused(folder.path()).unwrap();
        check_unused(&folder.path().join("new")).unwrap();
        let file = folder.path().join(metrics::FILE);
        std::fs::write(&file, "").unwrap();
        assert!(check_unused(folder.path()).is_err());
        assert!(check_unused(&file).is_err());
    }
}

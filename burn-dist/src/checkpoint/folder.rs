//! The folder of a run's checkpoints: lists them, finds the newest good one, publishes and removes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{CheckpointError, Manifest};
use crate::files::{CheckedFile, sync_folder};

const PREFIX: &str = "step-";
/// Prefix of folders that are being written.
const HIDDEN: &str = ".writing-";
/// Follows that prefix in folders that are being removed.
const REMOVED: &str = "removed-";
/// Prefix of checkpoints that a run has gone back behind.
const ABANDONED: &str = "abandoned-";

/// A checkpoint in a folder; not verified yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// Steps done.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
}

/// Lists the checkpoints in `folder`, the oldest first; empty if the folder does not exist.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn list(folder: &Path) -> Result<Vec<Found>, CheckpointError> {
    let mut found = Vec::new();
    for name in names(folder)? {
        if let Some(step) = name.strip_prefix(PREFIX).and_then(|step| step.parse().ok()) {
            let path = folder.join(name);
            found.push(Found { step, path });
        }
    }
    found.sort();
    Ok(found)
}

/// Lists leftovers in `folder`: checkpoints that were moved aside, and unfinished ones.
///
/// The former come from [`abandon_after`], the oldest first. No run can go on from the latter.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn leftovers(folder: &Path) -> Result<[Vec<PathBuf>; 2], CheckpointError> {
    let mut names = names(folder)?;
    names.sort();
    let unfinished = |name: &&String| {
        let rest = name.strip_prefix(HIDDEN);
        rest.is_some_and(|rest| !rest.starts_with(REMOVED))
    };
    let aside = names.iter().filter(|name| name.starts_with(ABANDONED));
    let aside = aside.map(|name| folder.join(name)).collect();
    let unfinished = names.iter().filter(unfinished);
    Ok([aside, unfinished.map(|name| folder.join(name)).collect()])
}

/// Finds the newest checkpoint in `folder` whose files are intact.
///
/// Also returns what is wrong with the newer ones.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn newest_good(
    folder: &Path,
) -> Result<(Option<Found>, Vec<CheckpointError>), CheckpointError> {
    newest_good_by(folder, &verify)
}

/// Does the same with `verify` as the check, for ranks that share this work.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn newest_good_by(
    folder: &Path,
    verify: &dyn Fn(&Path) -> Result<(), CheckpointError>,
) -> Result<(Option<Found>, Vec<CheckpointError>), CheckpointError> {
    let mut bad = Vec::new();
    for found in list(folder)?.into_iter().rev() {
        match verify(&found.path) {
            Ok(()) => return Ok((Some(found), bad)),
            Err(error) => bad.push(error),
        }
    }
    Ok((None, bad))
}

/// Checks that a checkpoint is intact.
pub(super) fn verify(path: &Path) -> Result<(), CheckpointError> {
    let manifest = Manifest::read(path)?;
    manifest.files.iter().try_for_each(|file| file.verify(path))
}

/// The folder of a checkpoint.
pub(super) fn of_step(folder: &Path, step: u64) -> PathBuf {
    // Ten digits, so that names sort like numbers.
    folder.join(format!("{PREFIX}{step:010}"))
}

/// One attempt to write a checkpoint: its step, and its number among those of this step, from 0.
/// Later ones are greater.
pub(super) type Writing = (u64, u32);

/// The folder in which the ranks of one attempt write a checkpoint.
pub(super) fn hidden(folder: &Path, attempt: &str, (step, round): Writing) -> PathBuf {
    folder.join(format!("{HIDDEN}{attempt}-{step:010}-{round}"))
}

/// Removes everything that earlier attempts left unfinished. Returns the errors; what remains does
/// no harm.
pub(super) fn remove_unfinished(folder: &Path) -> Result<Vec<CheckpointError>, CheckpointError> {
    remove_hidden(folder, |_| true)
}

/// Removes what this attempt began before `writing` and could not finish: another rank may have
/// written its share after rank 0 had given the checkpoint up. Retries earlier failed removals.
/// Returns the errors.
pub(super) fn remove_failed(
    folder: &Path,
    attempt: &str,
    writing: Writing,
) -> Result<Vec<CheckpointError>, CheckpointError> {
    let begun = |name: &str| -> Option<Writing> {
        let (step, round) = name
            .strip_prefix(attempt)?
            .strip_prefix('-')?
            .split_once('-')?;
        Some((step.parse().ok()?, round.parse().ok()?))
    };
    remove_hidden(folder, |name| {
        name.starts_with(REMOVED) || begun(name).is_some_and(|begun| begun < writing)
    })
}

/// Removes folders with the hidden prefix if `meant` returns true for the rest of the name. Returns
/// the errors: on NFS a folder stays while a process has one of its files open.
fn remove_hidden(
    folder: &Path,
    meant: impl Fn(&str) -> bool,
) -> Result<Vec<CheckpointError>, CheckpointError> {
    let mut left = Vec::new();
    for name in names(folder)? {
        if name.strip_prefix(HIDDEN).is_some_and(&meant) {
            let path = folder.join(name);
            let removed = fs::remove_dir_all(&path);
            left.extend(removed.map_err(CheckpointError::io("remove", &path)).err());
        }
    }
    Ok(left)
}

/// Hides the checkpoints of steps after `step`, for a run that goes back to that step.
///
/// [`list`] no longer returns them, and nothing removes them. Returns their new paths, the oldest
/// first: `abandoned-NNNNNNNNNN`, with a number after it if that is taken.
///
/// # Errors
/// Fails if the folder cannot be read or a checkpoint cannot be renamed.
pub fn abandon_after(folder: &Path, step: u64) -> Result<Vec<PathBuf>, CheckpointError> {
    let mut aside = Vec::new();
    for found in list(folder)?.into_iter().filter(|found| found.step > step) {
        let path = free_name(folder, ABANDONED, found.step);
        fs::rename(&found.path, &path).map_err(CheckpointError::io("rename", &found.path))?;
        aside.push(path);
    }
    if !aside.is_empty() {
        sync(folder)?;
    }
    Ok(aside)
}

/// Gives a finished checkpoint its final name. It replaces one of the same step, left by a run that
/// went back or was stopped before the evaluation. A whole one exists at every moment, if necessary
/// one that was moved aside because the file system cannot exchange two folders.
pub(super) fn publish(folder: &Path, hidden: &Path, step: u64) -> Result<(), CheckpointError> {
    let path = of_step(folder, step);
    let renamed = CheckpointError::io("rename", hidden);
    let old = match path.is_dir() {
        false => fs::rename(hidden, &path).map(|()| None),
        true => replace(hidden, &path, free_name(folder, ABANDONED, step)).map(Some),
    };
    let old = old.map_err(renamed)?;
    sync(folder)?;
    if let Some(old) = old {
        // The new checkpoint is there in any case. The next start of the run removes hidden
        // folders.
        let _ = fs::remove_dir_all(old);
    }
    Ok(())
}

/// Puts `hidden` in the place of `path`; returns the new place of `path`.
fn replace(hidden: &Path, path: &Path, aside: PathBuf) -> std::io::Result<PathBuf> {
    if renameat_with(CWD, hidden, CWD, path, RenameFlags::EXCHANGE).is_ok() {
        return Ok(hidden.to_owned());
    }
    fs::rename(path, &aside)?;
    fs::rename(hidden, path)?;
    Ok(aside)
}

/// An unused path for a checkpoint that is moved aside or removed.
fn free_name(folder: &Path, prefix: &str, step: u64) -> PathBuf {
    let stem = format!("{prefix}{step:010}");
    let mut path = folder.join(&stem);
    let mut number = 2;
    while path.symlink_metadata().is_ok() {
        path = folder.join(format!("{stem}-{number}"));
        number += 1;
    }
    path
}

/// Removes checkpoints up to step `written`, except the newest `keep` and the best one.
///
/// The best one is that of the first of the steps `best` that has a checkpoint. Later checkpoints
/// belong to a future that the run has gone back behind: they neither count nor go.
///
/// # Errors
/// Returns the first failure. Everything that can be removed is.
pub(super) fn prune(
    folder: &Path,
    written: u64,
    keep: usize,
    best: &[u64],
) -> Result<(), CheckpointError> {
    let mut found = list(folder)?;
    found.retain(|found| found.step <= written);
    let best = best.iter().find(|step| of_step(folder, **step).is_dir());
    let old = found.len().saturating_sub(keep.max(1));
    let mut result = Ok(());
    for found in found.into_iter().take(old) {
        if found.step != written && Some(&found.step) != best {
            result = result.and(remove(folder, &found));
        }
    }
    result
}

fn remove(folder: &Path, Found { step, path }: &Found) -> Result<(), CheckpointError> {
    // Under its own name it would be visible and incomplete during the removal. A hidden one of the
    // same step may still exist.
    let hidden = free_name(folder, &format!("{HIDDEN}{REMOVED}"), *step);
    fs::rename(path, &hidden).map_err(CheckpointError::io("rename", path))?;
    fs::remove_dir_all(&hidden).map_err(CheckpointError::io("remove", &hidden))
}

/// Writes a file, waits until it is on disk, and compares it with `content`.
pub(super) fn write_whole(path: &Path, content: &[u8]) -> Result<(), CheckpointError> {
    CheckedFile::create(path)
        .and_then(|mut file| {
            file.write_all(content)?;
            file.finish()
        })
        .map(drop)
        .map_err(CheckpointError::io("write", path))
}

/// Waits until the names in a folder are on disk.
pub(super) fn sync(folder: &Path) -> Result<(), CheckpointError> {
    sync_folder(folder).map_err(CheckpointError::io("write", folder))
}

fn names(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(CheckpointError::io("read", folder))? {
        let entry = entry.map_err(CheckpointError::io("read", folder))?;
        names.extend(entry.file_name().into_string().ok());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_of_the_same_step_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for content in ["first", "second"] {
            let hidden = hidden(folder, "attempt", (7, 0));
            fs::create_dir(&hidden).unwrap();
            fs::write(hidden.join("file"), content).unwrap();
            publish(folder, &hidden, 7).unwrap();
            let file = of_step(folder, 7).join("file");
            assert_eq!(fs::read_to_string(file).unwrap(), content);
            assert_eq!(names(folder).unwrap().len(), 1);
        }
    }

    #[test]
    fn one_that_cannot_be_exchanged_is_renamed_first() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let (path, aside) = (of_step(folder, 7), free_name(folder, ABANDONED, 7));
        fs::create_dir(&path).unwrap();
        // The replacement is missing: the old one is not lost.
        assert!(replace(&folder.join("missing"), &path, aside.clone()).is_err());
        assert!(aside.is_dir());
        for name in [
            ".writing-a-0000000009-0",
            ".writing-removed-0000000001",
            "other",
        ] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        let unfinished = folder.join(".writing-a-0000000009-0");
        assert_eq!(leftovers(folder).unwrap(), [vec![aside], vec![unfinished]]);
    }

    /// A file in place of a folder cannot be removed.
    #[test]
    fn what_cannot_be_removed_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let path = |name: &str| folder.join(format!("{HIDDEN}{name}"));
        let left = |name: &str| path(name).symlink_metadata().is_ok();
        for stuck in ["a-0000000003-0", "removed-0000000001"] {
            fs::write(path(stuck), "").unwrap();
        }
        for empty in [
            "a-0000000003-1",
            "a-0000000003-2",
            "a-0000000004-0",
            "b-0000000001-0",
        ] {
            fs::create_dir(path(empty)).unwrap();
        }
        assert_eq!(remove_failed(folder, "a", (3, 2)).unwrap().len(), 2);
        assert!(!left("a-0000000003-1"));
        assert!(left("a-0000000003-2") && left("a-0000000004-0") && left("b-0000000001-0"));
        for step in 1..=3 {
            fs::create_dir(of_step(folder, step)).unwrap();
        }
        prune(folder, 3, 1, &[]).unwrap();
        assert_eq!(list(folder).unwrap().len(), 1);
        assert_eq!(remove_unfinished(folder).unwrap().len(), 2);
        assert_eq!(names(folder).unwrap().len(), 3);
    }

    #[test]
    fn the_best_stays_until_a_better_one_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let steps = || -> Vec<u64> {
            list(folder)
                .unwrap()
                .iter()
                .map(|found| found.step)
                .collect()
        };
        for step in [1, 2, 4] {
            fs::create_dir(of_step(folder, step)).unwrap();
        }
        // A file in the place of the best checkpoint does not count.
        fs::write(of_step(folder, 3), "").unwrap();
        prune(folder, 2, 1, &[3, 1]).unwrap();
        assert_eq!(steps(), [1, 2, 3, 4]);
        prune(folder, 4, 2, &[3, 1]).unwrap();
        assert_eq!(steps(), [1, 3, 4]);
        fs::create_dir(of_step(folder, 5)).unwrap();
        prune(folder, 5, 1, &[5, 3, 1]).unwrap_err();
        assert_eq!(steps(), [5]);
    }
}

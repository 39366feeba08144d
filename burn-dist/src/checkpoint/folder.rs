//! The folder that holds the checkpoints of a run: which there are, which is good, which go.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{CheckpointError, Manifest};
use crate::files::{CheckedFile, sync_folder};

const PREFIX: &str = "step-";
/// Begin of the names of folders that are being written.
const HIDDEN: &str = ".writing-";
/// What comes after that in the names of those that are being removed.
const REMOVED: &str = "removed-";
/// Begin of the names of checkpoints that a run has gone back behind.
const ABANDONED: &str = "abandoned-";

/// A checkpoint in a folder; whether it is good is not known yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// Steps that were done.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
}

/// The checkpoints in `folder`, the oldest first; none if there is no such folder.
///
/// # Errors
/// If the folder cannot be read.
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

/// What lies in `folder` beside its checkpoints: those that were set aside (see [`set_aside`]), the
/// oldest first, and those that no attempt has finished, of which nobody can go on.
///
/// # Errors
/// If the folder cannot be read.
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

/// The newest checkpoint in `folder` whose files are all as they were written, and what is wrong
/// with the newer ones.
///
/// # Errors
/// If the folder cannot be read.
pub fn newest_good(
    folder: &Path,
) -> Result<(Option<Found>, Vec<CheckpointError>), CheckpointError> {
    newest_good_by(folder, &verify)
}

/// The same where `verify` tells whether a checkpoint is as it was written: for ranks that share
/// that work.
///
/// # Errors
/// If the folder cannot be read.
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

/// Whether a checkpoint is as it was written.
pub(super) fn verify(path: &Path) -> Result<(), CheckpointError> {
    let manifest = Manifest::read(path)?;
    manifest.files.iter().try_for_each(|file| file.verify(path))
}

/// The folder of a checkpoint.
pub(super) fn of_step(folder: &Path, step: u64) -> PathBuf {
    // Ten digits, so that names sort like numbers.
    folder.join(format!("{PREFIX}{step:010}"))
}

/// One writing of a checkpoint: its step, and which of those of this step it is, from 0. Later ones
/// are greater.
pub(super) type Writing = (u64, u32);

/// The folder in which the ranks of one attempt write a checkpoint.
pub(super) fn hidden(folder: &Path, attempt: &str, (step, round): Writing) -> PathBuf {
    folder.join(format!("{HIDDEN}{attempt}-{step:010}-{round}"))
}

/// Removes all that earlier attempts left unfinished. Gives what cannot be removed, which is in
/// nobody's way.
pub(super) fn remove_unfinished(folder: &Path) -> Result<Vec<CheckpointError>, CheckpointError> {
    remove_hidden(folder, |_| true)
}

/// Removes what this attempt began before `writing` and could not finish: another rank may have
/// written its share of it when rank 0 had given it up. So it does with what was to be removed
/// before and could not be. Gives what still cannot.
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

/// Removes the folders that are being written and whose name, without what marks them as such, is
/// one that is `meant`. Gives what cannot be removed: on NFS a folder stays while somebody has a
/// file of it open.
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

/// Takes the checkpoints of steps after `step` out of sight, for a run that goes back to that step:
/// [`list`] does not see them any more, and nothing removes them. Gives their new paths, the oldest
/// first: `abandoned-NNNNNNNNNN`, with a number behind it if that is taken.
///
/// # Errors
/// If the folder cannot be read, or one of them not renamed.
pub fn set_aside(folder: &Path, step: u64) -> Result<Vec<PathBuf>, CheckpointError> {
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

/// Gives the folder in which a checkpoint was written its name. One of the same step, as of a run
/// that went back, or that was stopped before the evaluation, goes: at every moment there is a
/// whole one, and where the file system cannot exchange two folders, one that was set aside.
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
        // The new one is there whether or not this works; the next start of the run removes what is
        // hidden.
        let _ = fs::remove_dir_all(old);
    }
    Ok(())
}

/// Puts `hidden` in the place of `path`; where that is then.
fn replace(hidden: &Path, path: &Path, aside: PathBuf) -> std::io::Result<PathBuf> {
    if renameat_with(CWD, hidden, CWD, path, RenameFlags::EXCHANGE).is_ok() {
        return Ok(hidden.to_owned());
    }
    fs::rename(path, &aside)?;
    fs::rename(hidden, path)?;
    Ok(aside)
}

/// A path that nothing has yet, for a checkpoint that is set aside or removed.
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

/// Removes all but the newest `keep` of the checkpoints up to the one of step `written`, and the
/// one of the first of the steps `best` of which there is one. Later ones are of a future that the
/// run has gone back behind: they neither count nor go.
///
/// # Errors
/// The first of what was in the way. All that can be removed is.
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
    // Under its name it would be incomplete while it is being removed. One of the same step may be
    // there still.
    let hidden = free_name(folder, &format!("{HIDDEN}{REMOVED}"), *step);
    fs::rename(path, &hidden).map_err(CheckpointError::io("rename", path))?;
    fs::remove_dir_all(&hidden).map_err(CheckpointError::io("remove", &hidden))
}

/// Writes a file and waits until it is on disk, which is compared with `content`.
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
    fn one_that_cannot_be_exchanged_is_set_aside_first() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let (path, aside) = (of_step(folder, 7), free_name(folder, ABANDONED, 7));
        fs::create_dir(&path).unwrap();
        // Nothing to put there: what was there is not lost.
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

    /// A file instead of a folder stands for what cannot be removed.
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
        // What lies there instead of the best is none.
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

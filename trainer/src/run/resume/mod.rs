//! Finds where a run continues: the folder, the checkpoint, and whether it belongs to this run.

mod verify;

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use burn_dist::ProcessGroup;
use burn_dist::checkpoint::{CheckpointError, Found, Manifest, Source, leftovers, newest_good_by};
use serde::{Deserialize, Serialize};

use crate::config::run_name::CHECKPOINTS;
use crate::error::TrainError;
use crate::run::lock::RunLock;
use crate::run::{checkpoints, dir};

/// The state that a run continues from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// Starts from scratch.
    #[default]
    Off,
    /// The last good checkpoint of the run folder. Without a run folder, the newest run of the same
    /// configuration. Starts from scratch if that has no checkpoint.
    Auto,
    /// This checkpoint, or the last good one of this run folder.
    Path(PathBuf),
}

/// Result of rank 0's search.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Start {
    /// The run folder, unless a new one is to be made.
    #[serde(with = "bytes_of_path")]
    pub run_dir: Option<PathBuf>,
    /// The checkpoint to continue from.
    #[serde(with = "bytes_of_path")]
    pub checkpoint: Option<PathBuf>,
    /// The state in memory to continue from instead.
    #[serde(skip)]
    pub(crate) memory: Option<Arc<Source>>,
    /// Whether the checkpoint belongs to another run, whose metrics stay untouched.
    pub of_another_run: bool,
    /// Messages for the user.
    pub notes: Vec<String>,
    /// The state that it continues from, for the user.
    pub from: String,
    /// Lock on a folder that existed already. Only on rank 0.
    #[serde(skip)]
    pub(crate) lock: Option<Arc<RunLock>>,
}

/// Serializes paths as bytes, because they need not be UTF-8.
mod bytes_of_path {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        let bytes = path.as_ref().map(|path| path.as_os_str().as_bytes());
        bytes.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        let bytes = Option::<Vec<u8>>::deserialize(from)?;
        Ok(bytes.map(|bytes| OsString::from_vec(bytes).into()))
    }
}

/// Rank 0's error, as told to the others.
#[derive(Debug, Serialize, Deserialize)]
enum Reason {
    /// The arguments are wrong.
    Usage(String),
    /// The state cannot be resumed.
    Resume(String),
}

impl From<TrainError> for Reason {
    fn from(error: TrainError) -> Self {
        match error {
            // The others add the same prefix.
            TrainError::Resume(reason) => Self::Resume(reason),
            error if error.is_usage() => Self::Usage(error.to_string()),
            error => Self::Resume(error.to_string()),
        }
    }
}

/// Locks a run folder before the search looks into it.
type Lock<'a> = &'a dyn Fn(&Path) -> Result<Option<Arc<RunLock>>, TrainError>;

/// Verifies that a checkpoint is intact.
type Verify<'a> = &'a dyn Fn(&Path) -> Result<(), CheckpointError>;

/// Locks a folder if it exists.
fn lock(folder: &Path) -> Result<Option<Arc<RunLock>>, TrainError> {
    let take = || RunLock::take(folder).map(Arc::new);
    folder.is_dir().then(take).transpose()
}

impl Start {
    /// Searches on rank 0 and shares the result with all ranks. A collective call.
    ///
    /// Rank 0 locks the folder that it finds if the run `writes`.
    ///
    /// # Errors
    /// Fails on all ranks if the requested state cannot be resumed.
    pub fn find(
        resume: &Resume,
        run_dir: Option<&Path>,
        name: &str,
        writes: bool,
        group: &ProcessGroup,
    ) -> Result<Self, TrainError> {
        let lock: Lock<'_> = match writes {
            true => &lock,
            false => &|_| Ok(None),
        };
        let found = match group.rank() {
            0 => look(resume, run_dir, name, lock, &|path| {
                verify::ask(path, group)
            })
            .map_err(Reason::from),
            _ => Ok(Self::default()),
        };
        let message = serde_json::to_vec(&found).unwrap_or_default();
        let first = match group.rank() {
            0 => verify::conclude(message, group)?,
            _ => verify::help(group)?,
        };
        match serde_json::from_slice::<Result<Self, Reason>>(&first) {
            Ok(Ok(start)) => Ok(Self {
                lock: found.ok().and_then(|own| own.lock),
                ..start
            }),
            Ok(Err(Reason::Usage(reason))) => Err(TrainError::Refused(reason)),
            Ok(Err(Reason::Resume(reason))) => Err(TrainError::Resume(reason)),
            Err(error) => Err(TrainError::Resume(format!(
                "cannot read where rank 0 resumes: {error}"
            ))),
        }
    }
}

impl Start {
    /// Continues from the state in memory, unless the checkpoint is newer or of another run.
    pub(crate) fn prefer(&mut self, memory: Option<Source>) -> Result<(), TrainError> {
        let Some(memory) = memory.filter(|_| !self.of_another_run) else {
            return Ok(());
        };
        let on_disk = self.checkpoint.as_deref().map(Manifest::read).transpose()?;
        let step = memory.manifest().step;
        if on_disk.is_none_or(|on_disk| on_disk.step <= step) {
            self.from = format!("continues from the state in memory after step {step}");
            self.memory = Some(Arc::new(memory));
        }
        Ok(())
    }

    /// Whether the run starts from scratch.
    pub(crate) fn is_fresh(&self) -> bool {
        self.checkpoint.is_none() && self.memory.is_none()
    }

    /// The content of the state to continue from. `None` if the run starts from scratch.
    pub(crate) fn manifest(&self) -> Result<Option<Manifest>, CheckpointError> {
        match (&self.memory, &self.checkpoint) {
            (Some(memory), _) => Ok(Some(memory.manifest().clone())),
            (None, Some(path)) => Manifest::read(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// All messages for the user.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &String> {
        let from = Some(&self.from).filter(|from| !from.is_empty());
        self.notes.iter().chain(from)
    }
}

fn look(
    resume: &Resume,
    run_dir: Option<&Path>,
    name: &str,
    lock: Lock<'_>,
    verify: Verify<'_>,
) -> Result<Start, TrainError> {
    // Lock before looking: the holder of the lock may be changing the folder.
    let own = run_dir.map(lock).transpose()?.flatten();
    let start = match resume {
        Resume::Off => {
            if let Some(folder) = run_dir {
                dir::check_unused(folder)?;
            }
            Start {
                run_dir: run_dir.map(Path::to_owned),
                ..Start::default()
            }
        }
        Resume::Auto => match run_dir {
            Some(folder) => {
                dir::check_folder(folder)?;
                newest_in(folder, verify)?
            }
            None => newest_run(dir::of_name(name)?, lock, verify)?,
        },
        Resume::Path(path) => at(path, run_dir, lock, verify)?,
    };
    Ok(Start {
        lock: own.or(start.lock),
        ..start
    })
}

/// The last good checkpoint of a run folder, or only the folder if it has none. Fails if all are
/// damaged: a fresh start would discard what somebody may repair.
fn newest_in(run_dir: &Path, verify: Verify<'_>) -> Result<Start, TrainError> {
    let folder = run_dir.join(CHECKPOINTS);
    let (found, bad) = newest_good_by(&folder, verify)?;
    if found.is_none() && !bad.is_empty() {
        let wrong: Vec<String> = bad.iter().map(ToString::to_string).collect();
        return Err(TrainError::Resume(format!(
            "{} contains no good checkpoint: {}. Retry if the cause is temporary, resume from \
             another checkpoint with --resume PATH, or start a new run with another --run-dir",
            folder.display(),
            wrong.join("; ")
        )));
    }
    let mut notes: Vec<String> = bad
        .iter()
        .map(|error| format!("warning: skipped a checkpoint: {error}"))
        .collect();
    match &found {
        Some(_) => {}
        None => notes.extend(of_leftovers(&folder)?),
    }
    let from = match &found {
        Some(Found { path, .. }) => format!("continues from {}", path.display()),
        None => "no checkpoint, starting a new run".to_owned(),
    };
    Ok(Start {
        run_dir: Some(run_dir.to_owned()),
        checkpoint: found.map(|found| found.path),
        notes,
        from,
        ..Start::default()
    })
}

/// Messages about leftover checkpoints that a fresh run ignores.
fn of_leftovers(folder: &Path) -> Result<Vec<String>, TrainError> {
    let [aside, unfinished] = leftovers(folder)?;
    let mut notes = Vec::new();
    if let Some(last) = aside.last() {
        let names: Vec<_> = aside.iter().filter_map(|path| path.file_name()).collect();
        let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
        notes.push(format!(
            "warning: {} contains only abandoned checkpoints ({}). To resume from one: --resume {}",
            folder.display(),
            names.join(", "),
            last.display()
        ));
    }
    if !unfinished.is_empty() {
        notes.push(format!(
            "warning: {} contains {} that an earlier run did not finish writing. No run can resume \
             from it",
            folder.display(),
            match unfinished.len() {
                1 => "a checkpoint".to_owned(),
                many => format!("{many} checkpoints"),
            },
        ));
    }
    Ok(notes)
}

/// The newest of a name's runs, which are given oldest first.
///
/// A run that saved nothing is not resumed. Neither are those before it: the user has started a run
/// since, or can name the one that is meant.
fn newest_run(
    mut runs: Vec<PathBuf>,
    lock: Lock<'_>,
    verify: Verify<'_>,
) -> Result<Start, TrainError> {
    let anew = |notes: Vec<String>, from: String| Start {
        notes,
        from,
        ..Start::default()
    };
    let Some(newest) = runs.pop() else {
        let note = "no run to resume, starting a new one";
        return Ok(anew(Vec::new(), note.to_owned()));
    };
    if checkpoints::has_checkpoint(&newest)? {
        let own = lock(&newest)?;
        return Ok(Start {
            lock: own,
            ..newest_in(&newest, verify)?
        });
    }
    let notes = of_leftovers(&newest.join(CHECKPOINTS))?;
    let mut note = format!(
        "the newest run, {}, has no checkpoint; starting a new run",
        newest.display()
    );
    while let Some(older) = runs.pop() {
        if checkpoints::has_checkpoint(&older)? {
            note += &format!("; to resume an older one: --resume {}", older.display());
            break;
        }
    }
    Ok(anew(notes, note))
}

/// Rejects a path that does not exist.
///
/// # Errors
/// [`TrainError::Refused`].
pub(crate) fn check_there(path: &Path) -> Result<(), TrainError> {
    match path.exists() {
        true => Ok(()),
        false => Err(TrainError::Refused(format!(
            "cannot resume from {}: no such checkpoint or run folder",
            path.display()
        ))),
    }
}

/// Resolves a checkpoint or run folder named by the user. One of another run, or outside a run,
/// starts a new run from there.
fn at(
    path: &Path,
    run_dir: Option<&Path>,
    lock: Lock<'_>,
    verify: Verify<'_>,
) -> Result<Start, TrainError> {
    if let Some(folder) = run_dir {
        dir::check_unused(folder)?;
    }
    check_there(path)?;
    let path = named(path);
    // A checkpoint of another run is only read.
    let home = match path.join(CHECKPOINTS).is_dir() {
        true => Some(path.clone()),
        false => run_of(&path),
    };
    let home = home.filter(|home| run_dir.is_none() && dir::is_run(home));
    let own = home.as_deref().map(lock).transpose()?.flatten();
    let mut start = if path.join(CHECKPOINTS).is_dir() {
        newest_in(&path, verify)?
    } else {
        verify(&path)?;
        Start {
            run_dir: run_of(&path),
            checkpoint: Some(path.clone()),
            from: format!("continues from {}", path.display()),
            ..Start::default()
        }
    };
    if start.checkpoint.is_none() {
        return Err(TrainError::Resume(format!(
            "{} contains no checkpoint",
            path.display()
        )));
    }
    // Do not write into a folder that is no run folder, unless the user named it.
    start.run_dir = start.run_dir.filter(|folder| dir::is_run(folder));
    if let Some(folder) = run_dir {
        start.run_dir = Some(folder.to_owned());
    }
    start.of_another_run = run_dir.is_some() || start.run_dir.is_none();
    start.lock = own;
    Ok(start)
}

/// The absolute path of a folder named by the user. The `checkpoints` folder of a run stands for
/// the run.
pub(crate) fn named(path: &Path) -> PathBuf {
    let path = absolute(path);
    let is_of_run =
        path.file_name() == Some(CHECKPOINTS.as_ref()) && !path.join(CHECKPOINTS).is_dir();
    let run = path.parent().filter(|_| is_of_run && path.is_dir());
    run.map(Path::to_owned).unwrap_or(path)
}

/// The absolute path. Only the system can resolve `..` after a link. Other links keep their names,
/// which place a checkpoint in its run folder.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    let climbs = path.components().any(|part| part == Component::ParentDir);
    let resolved = climbs.then(|| path.canonicalize().ok()).flatten();
    resolved
        .or_else(|| std::path::absolute(path).ok())
        .unwrap_or_else(|| path.to_owned())
}

/// The run folder of a checkpoint, from its path `RUN/checkpoints/step-N`.
pub(crate) fn run_of(checkpoint: &Path) -> Option<PathBuf> {
    let folder = checkpoint.parent()?;
    let run_dir = folder.parent()?;
    (folder.file_name()? == CHECKPOINTS).then(|| run_dir.to_owned())
}

#[cfg(test)]
mod tests {
    use burn_dist::checkpoint::Manifest;

    use super::*;

    #[test]
    fn a_run_that_another_one_followed_is_not_continued() {
        let folder = tempfile::tempdir().unwrap();
        let run = |name: &str, saved: bool| {
            let path = folder.path().join(name);
            let checkpoint = path.join(CHECKPOINTS).join("step-0000000001");
            let made = if saved { &checkpoint } else { &path };
            std::fs::create_dir_all(made).unwrap();
            path
        };
        let (old, new) = (run("old", true), run("new", false));
        let find = |runs: &[&PathBuf]| {
            let runs = runs.iter().map(|run| (*run).clone()).collect();
            newest_run(runs, &|_| Ok(None), &|path| Manifest::read(path).map(drop))
        };
        for (runs, parts) in [
            (&[][..], vec!["no run to resume"]),
            (&[&new], vec!["has no checkpoint"]),
            (&[&old, &new], vec!["new, has no", "old"]),
        ] {
            let start = find(runs).unwrap();
            assert_eq!((&start.run_dir, &start.checkpoint), (&None, &None));
            for part in parts {
                assert!(start.from.contains(part), "{:?}", start.from);
            }
        }
        // Its checkpoint is an empty folder.
        let error = find(&[&new, &old]).unwrap_err();
        assert!(error.to_string().contains("no good checkpoint"), "{error}");
    }

    #[test]
    fn a_run_that_starts_anew_beside_what_does_not_count_says_so() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(CHECKPOINTS);
        let verify: Verify<'_> = &|path| Manifest::read(path).map(drop);
        let notes = || -> Vec<String> {
            let start = newest_in(home.path(), verify).unwrap();
            start.messages().cloned().collect()
        };
        assert_eq!(notes().len(), 1);
        std::fs::create_dir_all(folder.join(".writing-0123456789abcdef-0000000020-0")).unwrap();
        std::fs::create_dir(folder.join("abandoned-0000000009")).unwrap();
        std::fs::create_dir(folder.join("abandoned-0000000010")).unwrap();
        dir::check_unused(home.path()).unwrap_err();
        let newest = newest_run(vec![home.path().to_owned()], &|_| Ok(None), verify);
        let newest: Vec<String> = newest.unwrap().messages().cloned().collect();
        for notes in [notes(), newest] {
            let last = format!("--resume {}/abandoned-0000000010", folder.display());
            assert!(notes[0].ends_with(&last), "{notes:?}");
            assert!(
                notes[0].contains("(abandoned-0000000009, abandoned-0000000010)"),
                "{notes:?}"
            );
            assert!(notes[1].contains("did not finish"), "{notes:?}");
            assert!(notes[2].contains("starting a new run"), "{notes:?}");
        }
    }

    #[test]
    fn the_folder_of_checkpoints_names_its_run() {
        let home = tempfile::tempdir().unwrap();
        let run = home.path().canonicalize().unwrap().join(CHECKPOINTS);
        std::fs::create_dir_all(run.join(CHECKPOINTS).join("step-1")).unwrap();
        assert_eq!(named(&run.join(CHECKPOINTS)), run);
        assert_eq!(named(&run), run);
        assert_eq!(named(&run.join(CHECKPOINTS).join("step-1/..")), run);
        let checkpoint = run.join(CHECKPOINTS).join("step-1");
        assert_eq!(named(&checkpoint), checkpoint);
        let none = home.path().join("none").join(CHECKPOINTS);
        assert_eq!(named(&none), none);
    }

    #[test]
    fn a_path_that_climbs_leads_to_where_the_system_says() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        for name in ["run/checkpoints/a", "run/checkpoints/b", "elsewhere/deep"] {
            std::fs::create_dir_all(real.join(name)).unwrap();
        }
        let of = |path: &str| absolute(&real.join(path));
        let expected = real.join("run/checkpoints/b");
        assert_eq!(of("run/checkpoints/a/../b"), expected);
        // A link keeps its name, and `..` follows its target.
        std::os::unix::fs::symlink(real.join("elsewhere/deep"), real.join("run/link")).unwrap();
        assert_eq!(of("run/link"), real.join("run/link"));
        assert_eq!(of("run/link/.."), real.join("elsewhere"));
        assert_eq!(of("none/../x"), real.join("none/../x"));
    }
}

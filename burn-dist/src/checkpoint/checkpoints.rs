//! Checkpoints of a training loop in three calls.

use std::path::{Path, PathBuf};
use std::time::Duration;

use burn::module::Module;
use serde_json::Value;

use super::{CheckpointError, Job, Source, Writer, Written, newest_good};
use crate::ProcessGroup;
use crate::parallel::{Parallel, ParallelError};

/// Time for a rank's share.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Newest checkpoints that are kept.
const KEPT: usize = 3;

/// The checkpoints in one folder: resumes from the newest good one, and writes new ones while
/// training goes on.
///
/// ```no_run
/// # use burn::module::Module;
/// # use burn_dist::{ProcessGroup, checkpoint::Checkpoints, parallel::Parallel};
/// # type Error = Box<dyn std::error::Error>;
/// # fn step<M: Module>(_: &mut Parallel<M>, _: u64) -> Result<(), Error> { Ok(()) }
/// # fn train<M: Module>(parallel: &mut Parallel<M>, group: &ProcessGroup) -> Result<(), Error> {
/// let mut checkpoints = Checkpoints::open("runs/lm", group)?;
/// let begin = checkpoints.resume(parallel)?.map_or(0, |at| at.step);
/// for number in begin + 1..=1000 {
///     step(parallel, number)?;
///     if number % 100 == 0 {
///         checkpoints.save(number, parallel, serde_json::Value::Null)?;
///     }
/// }
/// checkpoints.finish()?;
/// # Ok(())
/// # }
/// ```
///
/// Every rank makes the same calls. The folder is on a file system that all ranks see.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    group: ProcessGroup,
    writer: Writer,
    keep: usize,
}

/// The state that a training continues from.
#[derive(Clone, Debug, PartialEq)]
pub struct Resumed {
    /// Steps done.
    pub step: u64,
    /// The value that [`Checkpoints::save`] got.
    pub meta: Value,
    /// The checkpoint.
    pub path: PathBuf,
}

impl Checkpoints {
    /// Opens a folder, and makes it if it does not exist. A collective call.
    ///
    /// # Errors
    /// Fails if the folder cannot be made or read, or if a rank failed.
    pub fn open(folder: impl AsRef<Path>, group: &ProcessGroup) -> Result<Self, ParallelError> {
        let folder = folder.as_ref();
        Ok(Self {
            folder: folder.to_owned(),
            group: group.clone(),
            writer: Writer::start(folder, group, TIMEOUT)?,
            keep: KEPT,
        })
    }

    /// Sets how many of the newest checkpoints are kept, at least 1. Default 3.
    pub fn keep(mut self, newest: usize) -> Self {
        self.keep = newest.max(1);
        self
    }

    /// Restores the newest good checkpoint; `None` if there is none. Damaged ones are skipped with
    /// a warning. A collective call.
    ///
    /// # Errors
    /// Fails if the folder cannot be read, or if the checkpoint does not fit model or optimizer.
    pub fn resume<M: Module>(
        &self,
        parallel: &mut Parallel<M>,
    ) -> Result<Option<Resumed>, ParallelError> {
        // Rank 0 chooses, so that all ranks take the same one.
        let own = match self.group.rank() {
            0 => self.newest(),
            _ => Ok(None),
        };
        let own = own.map(|path| path.map_or(Vec::new(), path_bytes));
        let own = self.told(own)?;
        let all = self.group.gather_bytes(&own)?;
        let path = match all.first() {
            Some(chosen) if !chosen.is_empty() => bytes_path(chosen),
            _ => return Ok(None),
        };
        let source = self.told(Source::open(&path))?;
        parallel.restore(&source)?;
        let manifest = source.manifest();
        Ok(Some(Resumed {
            step: manifest.step,
            meta: manifest.meta.clone(),
            path,
        }))
    }

    /// Saves the state after `step` steps with a value of the caller's. Rank 0's value counts.
    ///
    /// Files are written while training goes on. Returns the previous checkpoint if it has been
    /// written since the last call. Call it between two steps.
    ///
    /// # Errors
    /// Fails in the middle of a step, or if the state contains NaN or infinity. Other failures to
    /// write are only warned of: the earlier checkpoints are still good.
    pub fn save<M: Module>(
        &mut self,
        step: u64,
        parallel: &Parallel<M>,
        meta: Value,
    ) -> Result<Option<Written>, ParallelError> {
        let job = Job {
            step,
            state: parallel.state()?,
            meta,
            keep: self.keep,
            best: Vec::new(),
        };
        let before = self.writer.submit(job);
        before.map_or(Ok(None), |result| self.heed(result))
    }

    /// Waits until everything is written, on all ranks. A collective call.
    ///
    /// # Errors
    /// Fails if the last checkpoint could not be written, or if a rank failed.
    pub fn finish(mut self) -> Result<(), ParallelError> {
        let mut last = Ok(());
        while let Some(result) = self.writer.wait() {
            last = result.map(drop);
        }
        self.told(last)?;
        self.writer.close(&self.group)
    }

    fn newest(&self) -> Result<Option<PathBuf>, CheckpointError> {
        let (found, bad) = newest_good(&self.folder)?;
        for error in bad {
            tracing::warn!("skipped a checkpoint: {error}");
        }
        Ok(found.map(|found| found.path))
    }

    fn heed(
        &self,
        result: Result<Written, CheckpointError>,
    ) -> Result<Option<Written>, ParallelError> {
        match result {
            Ok(written) => Ok(Some(written)),
            Err(error @ CheckpointError::NotFinite { .. }) => self.told(Err(error)),
            Err(error) => {
                tracing::warn!("a checkpoint was not written: {error}");
                Ok(None)
            }
        }
    }

    /// Tells the other ranks of an error of this one.
    fn told<T>(&self, outcome: Result<T, CheckpointError>) -> Result<T, ParallelError> {
        outcome.map_err(|error| {
            let reason = error.to_string();
            self.group.abort(&reason);
            ParallelError::Checkpoints { reason }
        })
    }
}

fn path_bytes(path: PathBuf) -> Vec<u8> {
    use std::os::unix::ffi::OsStringExt;
    path.into_os_string().into_vec()
}

fn bytes_path(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(bytes.to_vec()).into()
}

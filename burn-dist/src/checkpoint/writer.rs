//! Writes checkpoints in its own thread while training goes on.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::folder::Writing;
use super::manifest::{FileEntry, Manifest};
use super::{CheckpointError, folder, shard};
use crate::ProcessGroup;
use crate::deadline::Allowance;
use crate::files::create_folders;
use crate::parallel::StateShare;
use crate::thread_limit;

/// The reason why a rank has no share, for rank 0.
#[derive(Serialize, Deserialize)]
enum NoShare {
    /// [`CheckpointError::NotFinite`]. The value is text, because JSON has no NaN or infinity.
    NotFinite {
        name: String,
        value: String,
    },
    Failed(String),
}

/// Time between two looks for finished shares.
const POLL: Duration = Duration::from_millis(10);
/// Time for the shares of other ranks when nobody waits for the result any more. They may be about
/// to write them, or dead.
const GRACE: Duration = Duration::from_secs(2);
/// Time for the work after all shares are there: naming, and removing older checkpoints.
const MARGIN: Duration = Duration::from_secs(60);

/// Returns an error with the reason if the folder must not be written to any more.
pub type Guard = Box<dyn Fn() -> Result<(), String> + Send>;

/// A checkpoint to write.
pub struct Job {
    /// Steps done.
    ///
    /// If two jobs in a row have the same number, the second replaces the first.
    pub step: u64,
    /// This rank's share of the state.
    pub state: StateShare,
    /// The writer's own data, needed to resume; rank 0's counts.
    pub meta: Value,
    /// Number of the newest checkpoints to keep, including this one.
    ///
    /// Checkpoints of later steps, found by a run that went back, are not counted and are kept.
    pub keep: usize,
    /// Steps of the best checkpoints, the best first.
    ///
    /// The first one that has a checkpoint is kept too. So the best checkpoint stays until a better
    /// one is complete.
    pub best: Vec<u64>,
}

/// A written checkpoint, as rank 0 knows it.
///
/// On other ranks only this rank's share is written. Rank 0 completes the checkpoint when it has
/// all shares; after [`Writer::meet`] it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// Steps done.
    pub step: u64,
    /// Its folder, which appears when rank 0 completes it.
    pub path: PathBuf,
    /// Time in the writer thread.
    pub time: Duration,
    /// The error if older checkpoints could not be removed.
    pub not_removed: Option<String>,
}

/// The thread that writes this rank's shares and, on rank 0, completes checkpoints.
#[derive(Debug)]
pub struct Writer {
    jobs: Option<SyncSender<Job>>,
    results: Receiver<Result<Written, CheckpointError>>,
    thread: Option<JoinHandle<()>>,
    /// Number of jobs without a result.
    pending: usize,
    /// Time for a rank's share.
    timeout: Duration,
    folder: PathBuf,
    /// Random mark of this writer's folders.
    attempt: String,
    /// Time at which the training was given up, if it was.
    dropped: Arc<OnceLock<Instant>>,
}

impl Writer {
    /// Starts writing into `folder`, which all ranks of `group` see. A collective call.
    ///
    /// It removes what earlier attempts left unfinished, and warns of what cannot be removed. Only
    /// one writer at a time may write into a folder: give each of several models its own.
    ///
    /// A checkpoint fails if a rank does not write its share within `timeout`, or if the state
    /// contains NaN or infinity ([`CheckpointError::NotFinite`] on the rank with that share and on
    /// rank 0). The writer goes on.
    ///
    /// # Errors
    /// Fails if the folder cannot be made or read, or if a rank failed.
    pub fn start(
        folder: &Path,
        group: &ProcessGroup,
        timeout: Duration,
    ) -> Result<Self, crate::parallel::ParallelError> {
        Self::start_guarded(folder, group, timeout, Box::new(|| Ok(())))
    }

    /// Does the same with a `guard` that can refuse a checkpoint.
    ///
    /// Rank 0 calls it before it begins a checkpoint and before it names one. If the guard refuses,
    /// the checkpoint fails with [`CheckpointError::Refused`]. A collective call.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_guarded(
        folder: &Path,
        group: &ProcessGroup,
        timeout: Duration,
        guard: Guard,
    ) -> Result<Self, crate::parallel::ParallelError> {
        let mut told = BTreeSet::new();
        let prepared = match group.rank() {
            0 => create_folders(folder)
                .map_err(CheckpointError::io("create", folder))
                .and_then(|()| folder::remove_unfinished(folder))
                .map(|left| warn(&mut told, left)),
            _ => Ok(()),
        };
        let reason = prepared.err().map_or_else(String::new, |e| e.to_string());
        // Rank 0's random mark keeps files of different attempts apart.
        let mark = group.gather_bytes(format!("{:016x}{reason}", random()).as_bytes())?;
        let mark = String::from_utf8_lossy(mark.first().map_or(&[], Vec::as_slice)).into_owned();
        let (attempt, reason) = mark.split_at_checked(16).unwrap_or((&mark, ""));
        if !reason.is_empty() {
            return Err(crate::parallel::ParallelError::Checkpoints {
                reason: reason.to_owned(),
            });
        }
        let dropped = Arc::new(OnceLock::new());
        let mut desk = Desk {
            folder: folder.to_owned(),
            attempt: attempt.to_owned(),
            rank: group.rank(),
            size: group.size(),
            timeout,
            dropped: dropped.clone(),
            last: None,
            told,
            guard,
        };
        let (jobs, inbox) = sync_channel::<Job>(1);
        let (outbox, results) = sync_channel(16);
        let thread = thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || {
                for job in inbox {
                    if outbox.send(desk.write(job)).is_err() {
                        return;
                    }
                }
            })
            .map_err(|error| crate::parallel::ParallelError::Checkpoints {
                reason: format!(
                    "cannot start the checkpoint writer thread: {}",
                    thread_limit::named(error)
                ),
            })?;
        Ok(Self {
            jobs: Some(jobs),
            results,
            thread: Some(thread),
            pending: 0,
            timeout,
            folder: folder.to_owned(),
            attempt: attempt.to_owned(),
            dropped,
        })
    }

    /// Submits a checkpoint; returns the result of the previous one if it had to be waited for.
    ///
    /// A failed checkpoint is no reason to stop: the run may go on without one that a slow or full
    /// disk did not take. If the previous one takes longer than half of the timeout, this one is
    /// left out ([`CheckpointError::Behind`]), because other ranks may wait for this rank in their
    /// next step.
    #[must_use = "the failure of a checkpoint is reported nowhere else"]
    pub fn submit(&mut self, job: Job) -> Option<Result<Written, CheckpointError>> {
        let mut before = None;
        if self.pending > 0 {
            let patience = self.timeout / 2;
            before = match self.results.recv_timeout(patience) {
                Ok(result) => {
                    self.pending -= 1;
                    Some(result)
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Some(Err(CheckpointError::Behind {
                        step: job.step,
                        seconds: patience.as_secs(),
                    }));
                }
                Err(RecvTimeoutError::Disconnected) => self.gone(),
            };
        }
        let sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok());
        if !sent {
            return Some(Err(CheckpointError::Gone));
        }
        self.pending += 1;
        before
    }

    /// Returns the result of a checkpoint that has finished since the last call, if any.
    #[must_use = "the failure of a checkpoint is reported nowhere else"]
    pub fn poll(&mut self) -> Option<Result<Written, CheckpointError>> {
        if self.pending == 0 {
            return None;
        }
        match self.results.try_recv() {
            Ok(result) => {
                self.pending -= 1;
                Some(result)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.gone(),
        }
    }

    /// Waits for the next result; `None` if there is none to come.
    #[must_use = "the failure of a checkpoint is reported nowhere else"]
    pub fn wait(&mut self) -> Option<Result<Written, CheckpointError>> {
        if self.pending == 0 {
            return None;
        }
        match self.results.recv() {
            Ok(result) => {
                self.pending -= 1;
                Some(result)
            }
            Err(_) => self.gone(),
        }
    }

    /// Waits until every rank has called it, each after it has waited for its results. A collective
    /// call.
    ///
    /// Ranks may be late by as long as rank 0 takes to give a checkpoint up: another rank may write
    /// its share for longer than rank 0 waits for it. Other collective calls have a shorter
    /// timeout.
    ///
    /// # Errors
    /// Fails if a rank failed.
    pub fn meet(&self, group: &ProcessGroup) -> Result<(), crate::parallel::ParallelError> {
        Ok(group.barrier_within(self.timeout.saturating_mul(2).saturating_add(MARGIN))?)
    }

    /// Ends the thread and removes unfinished checkpoints. A collective call.
    ///
    /// Every rank calls it after it has waited for its results; see [`meet`](Self::meet).
    ///
    /// # Errors
    /// Fails if a rank failed.
    pub fn close(mut self, group: &ProcessGroup) -> Result<(), crate::parallel::ParallelError> {
        self.end();
        self.meet(group)?;
        if group.rank() == 0 {
            // The next start of the run removes the rest.
            let all = (u64::MAX, u32::MAX);
            let _ = folder::remove_failed(&self.folder, &self.attempt, all);
        }
        Ok(())
    }

    fn end(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // The thread finishes its current job. A panic was reported as its absence.
            let _ = thread.join();
        }
    }

    fn gone(&mut self) -> Option<Result<Written, CheckpointError>> {
        self.pending = 0;
        Some(Err(CheckpointError::Gone))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A failed run must not hang for the timeout, waiting for a dead rank.
        let _ = self.dropped.set(Instant::now());
        self.end();
    }
}

/// State of the writer thread.
struct Desk {
    folder: PathBuf,
    attempt: String,
    rank: usize,
    size: usize,
    timeout: Duration,
    dropped: Arc<OnceLock<Instant>>,
    /// The last attempt.
    last: Option<Writing>,
    /// Warnings given so far.
    told: BTreeSet<String>,
    guard: Guard,
}

impl Desk {
    fn write(&mut self, job: Job) -> Result<Written, CheckpointError> {
        let begin = Instant::now();
        let Job {
            step,
            state,
            meta,
            keep,
            best,
        } = job;
        let writing = self.begin(step);
        if self.rank == 0 {
            self.ask()?;
            let left = folder::remove_failed(&self.folder, &self.attempt, writing)?;
            warn(&mut self.told, left);
        }
        let hidden = folder::hidden(&self.folder, &self.attempt, writing);
        fs::create_dir_all(&hidden).map_err(CheckpointError::io("create", &hidden))?;
        let own = self.write_share(&hidden, step, state);
        if let Err(error) = &own {
            self.give_up(&hidden, error);
        }
        let path = folder::of_step(&self.folder, step);
        // Rank 0 removes the folder with all shares when it gives a checkpoint up.
        let own = own.map_err(|error| match error {
            CheckpointError::Io { source, .. }
                if self.rank != 0
                    && source.kind() == io::ErrorKind::NotFound
                    && !hidden.exists() =>
            {
                CheckpointError::Rank {
                    rank: 0,
                    path: path.clone(),
                    reason: "it abandoned the checkpoint; see its error".to_owned(),
                }
            }
            other => other,
        })?;
        if self.rank == 0 {
            self.publish(&hidden, &path, own, step, meta)
                .inspect_err(|_| drop(fs::remove_dir_all(&hidden)))?;
        }
        let removed = match self.rank {
            0 => folder::prune(&self.folder, step, keep, &best),
            _ => Ok(()),
        };
        Ok(Written {
            step,
            path,
            time: begin.elapsed(),
            not_removed: removed.err().map(|error| error.to_string()),
        })
    }

    fn ask(&self) -> Result<(), CheckpointError> {
        (self.guard)().map_err(|reason| CheckpointError::Refused {
            folder: self.folder.clone(),
            reason,
        })
    }

    /// Numbers checkpoints of the same step, equally on all ranks: one rank may write its share of
    /// the second while others still write the first.
    fn begin(&mut self, step: u64) -> Writing {
        let writing = match self.last {
            Some((last, round)) if last == step => (step, round.wrapping_add(1)),
            _ => (step, 0),
        };
        self.last = Some(writing);
        writing
    }

    /// Removes a failed checkpoint: if the disk is full, the run needs the space.
    fn give_up(&self, hidden: &Path, error: &CheckpointError) {
        // The rest is removed before the next checkpoint.
        if self.rank == 0 {
            let _ = fs::remove_dir_all(hidden);
            return;
        }
        let _ = fs::remove_file(hidden.join(shard::file_name(self.rank, self.size)));
        let refusal = match error {
            CheckpointError::NotFinite { name, value, .. } => NoShare::NotFinite {
                name: name.clone(),
                value: value.to_string(),
            },
            other => NoShare::Failed(other.to_string()),
        };
        // Tells rank 0 not to wait for this share. If this cannot be written either, rank 0 waits.
        let part = hidden.join(format!(".{}", self.rank));
        let text = serde_json::to_vec(&refusal).unwrap_or_default();
        let _ = folder::write_whole(&part, &text);
        // Even a full disk has room for the name, which is enough.
        let _ = fs::rename(&part, hidden.join(failed_name(self.rank)));
    }

    fn write_share(
        &self,
        hidden: &Path,
        step: u64,
        state: StateShare,
    ) -> Result<FileEntry, CheckpointError> {
        let values = state.read()?;
        if let Some((name, value)) = values.first_not_finite() {
            return Err(CheckpointError::NotFinite {
                rank: self.rank,
                step,
                name: name.to_owned(),
                value,
            });
        }
        let entry = shard::write(hidden, shard::file_name(self.rank, self.size), values)?;
        // It gets its final name when it is complete.
        let (part, done) = (hidden.join(format!(".{}", self.rank)), done_name(self.rank));
        let text = serde_json::to_vec(&entry).map_err(|error| CheckpointError::Encode {
            path: part.clone(),
            reason: error.to_string(),
        })?;
        folder::write_whole(&part, &text)?;
        fs::rename(&part, hidden.join(done)).map_err(CheckpointError::io("rename", &part))?;
        Ok(entry)
    }

    /// Waits for the shares of the other ranks, then gives the checkpoint its name.
    fn publish(
        &self,
        hidden: &Path,
        path: &Path,
        own: FileEntry,
        step: u64,
        meta: Value,
    ) -> Result<(), CheckpointError> {
        let mut allowance = Allowance::of(self.timeout);
        let mut files = vec![own];
        for rank in 1..self.size {
            files.push(self.share_of(rank, step, (hidden, path), &mut allowance)?);
        }
        for rank in 0..self.size {
            let done = hidden.join(done_name(rank));
            fs::remove_file(&done).map_err(CheckpointError::io("remove", &done))?;
        }
        Manifest::new(step, files, meta).write(hidden)?;
        folder::sync(hidden)?;
        self.ask()?;
        folder::publish(&self.folder, hidden, step)
    }

    fn share_of(
        &self,
        rank: usize,
        step: u64,
        (hidden, path): (&Path, &Path),
        allowance: &mut Allowance,
    ) -> Result<FileEntry, CheckpointError> {
        let failed = |reason: String| CheckpointError::Rank {
            rank,
            path: path.to_owned(),
            reason,
        };
        loop {
            if let Ok(text) = fs::read(hidden.join(done_name(rank))) {
                return serde_json::from_slice(&text).map_err(|error| failed(error.to_string()));
            }
            if let Ok(text) = fs::read(hidden.join(failed_name(rank))) {
                return Err(match serde_json::from_slice(&text) {
                    Ok(NoShare::NotFinite { name, value }) => CheckpointError::NotFinite {
                        rank,
                        step,
                        name,
                        value: value.parse().unwrap_or(f64::NAN),
                    },
                    Ok(NoShare::Failed(reason)) => failed(reason),
                    Err(_) => failed(String::from_utf8_lossy(&text).into_owned()),
                });
            }
            // The other ranks report failures in this folder. Without it no report can come.
            if hidden
                .symlink_metadata()
                .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
            {
                self.ask()?;
                return Err(failed(format!("{} was moved or removed", hidden.display())));
            }
            if allowance.left(Instant::now()).is_zero() {
                return Err(failed(format!("no answer within {:?}", self.timeout)));
            }
            if self.dropped.get().is_some_and(|at| at.elapsed() >= GRACE) {
                return Err(failed(
                    "training was abandoned before it finished".to_owned(),
                ));
            }
            thread::sleep(POLL);
        }
    }
}

/// Warns once of each thing that cannot be removed.
fn warn(told: &mut BTreeSet<String>, left: Vec<CheckpointError>) {
    for error in left {
        let text = error.to_string();
        if !told.contains(&text) {
            tracing::warn!(
                "{text}. The file belongs to an unfinished checkpoint and is useless: remove it"
            );
            told.insert(text);
        }
    }
}

fn done_name(rank: usize) -> String {
    format!("rank-{rank:05}.done")
}

fn failed_name(rank: usize) -> String {
    format!("rank-{rank:05}.failed")
}

fn random() -> u64 {
    // Falls back to the process id if the system has no random numbers.
    getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()))
}

//! Decides when to save a checkpoint, and reports the outcome.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_dist::checkpoint::{CheckpointError, Job, Writer, Written, newest_good};
use burn_dist::launch::tell_saved;
use burn_dist::parallel::{ParallelError, StateShare};
use burn_dist::{ProcessGroup, ReduceOp};

use crate::config::CheckpointConfig;
use crate::error::TrainError;
use crate::run::lock::RunLock;
use crate::system::output::{complain, duration};
use crate::train::progress::{Meta, Progress};

/// Progress of a saved run: its steps, and whether the evaluation after them was done.
type State = (u64, bool);

/// Saves checkpoints as often as the configuration says.
#[derive(Debug)]
pub struct Checkpoints {
    config: CheckpointConfig,
    writer: Writer,
    rank: usize,
    folder: PathBuf,
    /// State of the last checkpoint that was begun.
    last: Option<State>,
    /// Steps of the last checkpoint that this rank knows to be written.
    written: Option<u64>,
    since: Instant,
    /// Messages that rank 0 has to print.
    news: Vec<String>,
    /// Lock that keeps others out of the run folder. Only on the main rank.
    lock: Option<Arc<RunLock>>,
    /// Error that ends the run: a state with NaN or infinity, or a folder taken by another run.
    fatal: Option<TrainError>,
    /// Whether the last checkpoint that was due was skipped.
    left_out: bool,
    /// Why the last checkpoint was not written, if so.
    reason: Option<String>,
}

impl Checkpoints {
    /// Starts saving into `folder` as long as `lock` is held. A collective call.
    ///
    /// The folder holds the state `saved`, if given.
    ///
    /// # Errors
    /// Fails if the folder cannot be created or a rank failed.
    pub fn start(
        config: &CheckpointConfig,
        folder: &Path,
        lock: Option<Arc<RunLock>>,
        saved: Option<State>,
        timeout: Duration,
        group: &ProcessGroup,
    ) -> Result<Self, ParallelError> {
        let held = lock.clone();
        let guard = move || match &held {
            Some(lock) => lock.check_held().map_err(|error| error.to_string()),
            None => Ok(()),
        };
        Ok(Self {
            config: config.clone(),
            writer: Writer::start_guarded(folder, group, timeout, Box::new(guard))?,
            lock,
            rank: group.rank(),
            folder: folder.to_owned(),
            last: saved,
            written: saved.map(|(steps, _)| steps),
            since: Instant::now(),
            news: Vec::new(),
            fatal: None,
            left_out: false,
            reason: None,
        })
    }

    /// Whether a checkpoint is due after this step, inside an epoch.
    pub fn is_due_after_step(&self, steps: u64) -> bool {
        let every = self.config.every_steps;
        every > 0 && steps.is_multiple_of(every)
    }

    /// Whether a checkpoint is due after this epoch and its evaluation.
    pub fn is_due_after_epoch(&self, epoch: u64, steps: u64) -> bool {
        let every = self.config.every_epochs;
        (every > 0 && epoch.is_multiple_of(every)) || self.is_due_after_step(steps)
    }

    /// Whether this rank's clock says that a checkpoint is due.
    ///
    /// Ranks must agree before they save, because their clocks differ.
    pub fn is_overdue(&self) -> bool {
        let minutes = self.config.every_minutes;
        minutes > 0.0 && self.since.elapsed().as_secs_f64() >= 60.0 * minutes
    }

    /// Whether this state has not been saved.
    pub fn lacks(&self, progress: &Progress) -> bool {
        self.last != Some((progress.steps, progress.evaluated))
    }

    /// Saves a state in the background.
    ///
    /// # Errors
    /// Fails if an earlier state had NaN or infinity, or the run folder belongs to another run.
    pub fn save(&mut self, state: StateShare, meta: &Meta) -> Result<(), TrainError> {
        let progress = &meta.progress;
        let before = self.last.replace((progress.steps, progress.evaluated));
        self.since = Instant::now();
        let job = Job {
            step: progress.steps,
            state,
            meta: serde_json::to_value(meta).unwrap_or_default(),
            keep: usize::try_from(self.config.keep).unwrap_or(usize::MAX),
            best: progress.best_steps().collect(),
        };
        let result = self.writer.submit(job);
        self.left_out = matches!(result, Some(Err(CheckpointError::Behind { .. })));
        if self.left_out {
            // The run saves this state at its end, when it has time.
            self.last = before;
        }
        self.note(result);
        self.check()
    }

    /// Messages about checkpoints since the last call.
    ///
    /// # Errors
    /// Fails if a state had NaN or infinity, or the run folder belongs to another run.
    pub fn news(&mut self) -> Result<Vec<String>, TrainError> {
        let result = self.writer.poll();
        self.note(result);
        self.check()?;
        Ok(std::mem::take(&mut self.news))
    }

    /// Ends the run if a state had NaN or infinity, or the folder is another run's. Only the rank
    /// with the NaN and rank 0 know. The others learn of it as of any failed rank.
    fn check(&mut self) -> Result<(), TrainError> {
        self.fatal.take().map_or(Ok(()), Err)
    }

    /// Waits until all checkpoints so far are written or have failed.
    pub fn catch_up(&mut self) {
        while let Some(result) = self.writer.wait() {
            self.note(Some(result));
        }
    }

    /// Waits until everything is written. A collective call.
    ///
    /// Returns messages, and whether the last state was written, on which all ranks agree.
    ///
    /// # Errors
    /// Fails if a rank failed, a state had NaN or infinity, or the run folder belongs to another
    /// run.
    pub fn finish(mut self, group: &ProcessGroup) -> Result<(Vec<String>, bool), TrainError> {
        self.catch_up();
        self.check()?;
        self.writer.meet(group)?;
        let mut saved = [i64::from(self.is_last_written())];
        group.all_reduce(&mut saved, ReduceOp::Min)?;
        self.writer.close(group)?;
        Ok((self.news, saved == [1]))
    }

    fn is_last_written(&self) -> bool {
        let Some((last, _)) = self.last.filter(|_| !self.left_out) else {
            return false;
        };
        // An error after the checkpoint got its name, as in removing old ones, leaves it in place.
        let lies_there = || {
            let found = newest_good(&self.folder).ok().and_then(|(found, _)| found);
            found.is_some_and(|found| found.step == last)
        };
        self.written == Some(last) || (self.rank == 0 && lies_there())
    }

    /// Notes the outcome of a checkpoint. A failed write does not end the run: earlier checkpoints
    /// are still good. A forbidden one does, see [`check`](Self::check).
    fn note(&mut self, result: Option<Result<Written, CheckpointError>>) {
        if let Some(Ok(written)) = &result {
            self.written = Some(written.step);
            self.reason = None;
        }
        match result {
            Some(Ok(written)) if self.rank == 0 => {
                tell_saved(written.step);
                let time = duration(written.time);
                self.news.push(format!(
                    "step {} saved in {} ({time})",
                    written.step,
                    written.path.display()
                ));
                if let Some(reason) = written.not_removed {
                    complain(&format!(
                        "warning: cannot remove checkpoints older than step {}: {reason}",
                        written.step
                    ));
                }
            }
            Some(Err(CheckpointError::NotFinite {
                step, name, value, ..
            })) => {
                let what = format!("{name} after step {step}, not saved,");
                self.fatal = Some(TrainError::Diverged {
                    what,
                    value,
                    state: step,
                });
            }
            Some(Err(CheckpointError::Refused { .. })) if self.lost().is_some() => {
                self.fatal = self.lost();
            }
            Some(Err(error)) => self.warn(&error.to_string()),
            _ => {}
        }
    }

    /// Warns that a checkpoint was not written, unless the one before failed for the same reason.
    fn warn(&mut self, error: &str) {
        // After the path, which has the step.
        let reason = error.rsplit(": ").next().map(str::to_owned);
        if self.reason != reason {
            complain(&format!(
                "warning: rank {}: checkpoint not written; the run continues: {error}",
                self.rank
            ));
        }
        self.reason = reason;
    }

    /// The error if the folder belongs to another run now.
    fn lost(&self) -> Option<TrainError> {
        self.lock.as_ref()?.check_held().err()
    }
}

#[cfg(test)]
mod tests {
    use burn::optim::SgdConfig;
    use burn::tensor::Device;
    use burn_dist::GroupOptions;
    use burn_dist::checkpoint::list;
    use burn_dist::parallel::{Parallel, Strategy};
    use models::CscCnnConfig;

    use super::*;
    use crate::train::progress::Identity;

    /// The metadata of the state after `steps` steps.
    fn meta(steps: u64) -> Meta {
        let progress = Progress {
            steps,
            ..Progress::start()
        };
        let task = Identity {
            name: None,
            data: String::new(),
            train_samples: 1,
            eval_samples: 1,
            global_batch: 1,
            seed: 0,
            validation: None,
            facts: Default::default(),
            items: "images",
            evaluated: "test",
            portions: None,
        };
        Meta {
            progress,
            task,
            config: None,
            bf16_path: None,
        }
    }

    /// A late checkpoint is skipped during the run, but not at its end.
    #[test]
    fn the_last_state_is_saved_even_if_the_one_before_takes_long() {
        let folder = tempfile::tempdir().unwrap();
        let groups = ProcessGroup::in_process(2, &GroupOptions::default()).unwrap();
        std::thread::scope(|scope| {
            for group in groups {
                let folder = folder.path();
                scope.spawn(move || {
                    let model = CscCnnConfig::new()
                        .init(&Device::flex().autodiff())
                        .unwrap();
                    let training =
                        Parallel::new(model, SgdConfig::new(), Strategy::Ddp, &group).unwrap();
                    let (config, limit) = (CheckpointConfig::default(), Duration::from_secs(10));
                    let started = Checkpoints::start(&config, folder, None, None, limit, &group);
                    let mut checkpoints = started.unwrap();
                    let save = |checkpoints: &mut Checkpoints, steps| {
                        checkpoints
                            .save(training.state().unwrap(), &meta(steps))
                            .unwrap();
                        checkpoints.lacks(&meta(steps).progress)
                    };
                    // The other rank never writes its part of the first checkpoint, so rank 0 waits
                    // for it.
                    if group.rank() == 0 {
                        assert!(!save(&mut checkpoints, 1));
                        assert!(save(&mut checkpoints, 2), "it is not left out");
                        checkpoints.catch_up();
                    }
                    assert!(!save(&mut checkpoints, 2));
                    let (_, saved) = checkpoints.finish(&group).unwrap();
                    assert!(saved);
                });
            }
        });
        let steps: Vec<u64> = list(folder.path())
            .unwrap()
            .iter()
            .map(|f| f.step)
            .collect();
        assert_eq!(steps, [2]);
    }

    /// A rank with a slow disk is late by more than the timeout of collectives.
    #[test]
    fn a_rank_may_be_late_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let options = GroupOptions {
            first_timeout: Duration::from_secs(4),
            timeout: Duration::from_secs(4),
            ..GroupOptions::default()
        };
        let groups = ProcessGroup::in_process(2, &options).unwrap();
        std::thread::scope(|scope| {
            for group in groups {
                let folder = folder.path();
                scope.spawn(move || {
                    let (config, limit) = (CheckpointConfig::default(), Duration::from_secs(5));
                    let started = Checkpoints::start(&config, folder, None, None, limit, &group);
                    if group.rank() == 1 {
                        std::thread::sleep(Duration::from_secs(7));
                    }
                    let (_, saved) = started.unwrap().finish(&group).unwrap();
                    assert!(!saved, "nothing was to be saved");
                });
            }
        });
    }
}

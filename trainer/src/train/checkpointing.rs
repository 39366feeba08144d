//! When the state of a run is saved, and what comes of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_dist::checkpoint::{CheckpointError, Job, Writer, Written, newest_good};
use burn_dist::parallel::{ParallelError, StateShare};
use burn_dist::{ProcessGroup, ReduceOp};

use crate::config::CheckpointConfig;
use crate::error::TrainError;
use crate::run::lock::RunLock;
use crate::system::output::{complain, duration};
use crate::train::progress::{Meta, Progress};

/// How far a run was when it was saved: its steps, and whether the evaluation after them was over.
type State = (u64, bool);

/// Saves the state of a run as often as the configuration says.
#[derive(Debug)]
pub struct Checkpoints {
    config: CheckpointConfig,
    writer: Writer,
    rank: usize,
    folder: PathBuf,
    /// Which state the last one that was begun holds, if there is one.
    last: Option<State>,
    /// Steps of the last one that this rank knows to be written.
    written: Option<u64>,
    since: Instant,
    /// What rank 0 has to tell.
    news: Vec<String>,
    /// Keeps others out of the run folder; on the main rank.
    lock: Option<Arc<RunLock>>,
    /// What ends the run: a state from which nobody could go on, or a folder that is another run's.
    fatal: Option<TrainError>,
    /// Whether the last state that was to be saved was left out.
    left_out: bool,
}

impl Checkpoints {
    /// Starts saving into `folder`, which holds the state `saved` if that is given, as long as
    /// `lock` is held. A collective call.
    ///
    /// # Errors
    /// If the folder cannot be made, or a rank failed.
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
        })
    }

    /// Whether the step that just ended is one to save, inside an epoch.
    pub fn is_due_after_step(&self, steps: u64) -> bool {
        let every = self.config.every_steps;
        every > 0 && steps.is_multiple_of(every)
    }

    /// Whether the epoch that just ended, with its evaluation, is one to save.
    pub fn is_due_after_epoch(&self, epoch: u64, steps: u64) -> bool {
        let every = self.config.every_epochs;
        (every > 0 && epoch.is_multiple_of(every)) || self.is_due_after_step(steps)
    }

    /// Whether so much time went by that this rank wants to save. Only the word of all ranks
    /// together counts: their clocks differ.
    pub fn is_overdue(&self) -> bool {
        let minutes = self.config.every_minutes;
        minutes > 0.0 && self.since.elapsed().as_secs_f64() >= 60.0 * minutes
    }

    /// Whether this state was not saved yet.
    pub fn lacks(&self, progress: &Progress) -> bool {
        self.last != Some((progress.steps, progress.evaluated))
    }

    /// Saves a state. Training goes on meanwhile.
    ///
    /// # Errors
    /// If a state before it was not finite, or the run folder is another run's.
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
            // At the end of the run, where there is time for it, it is lacking.
            self.last = before;
        }
        self.note(result);
        self.check()
    }

    /// What there is to tell of checkpoints since the last call.
    ///
    /// # Errors
    /// If a state that was to be saved was not finite, or the run folder is another run's.
    pub fn news(&mut self) -> Result<Vec<String>, TrainError> {
        let result = self.writer.poll();
        self.note(result);
        self.check()?;
        Ok(std::mem::take(&mut self.news))
    }

    /// Ends the run of which a state was not finite, or whose folder is another's. Only the rank
    /// that had the number, and rank 0, know; the others learn it as they do of everything that
    /// ends a rank.
    fn check(&mut self) -> Result<(), TrainError> {
        self.fatal.take().map_or(Ok(()), Err)
    }

    /// Waits until what was to be saved so far is written, or given up.
    pub fn catch_up(&mut self) {
        while let Some(result) = self.writer.wait() {
            self.note(Some(result));
        }
    }

    /// Waits until everything is written; what there is to tell of it, and whether the last state
    /// is among what was written, which all ranks agree about. A collective call.
    ///
    /// # Errors
    /// If a rank failed, a state that was to be saved was not finite, or the run folder is another
    /// run's.
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
        // What failed after the checkpoint had its name, such as the removal of old ones, has not
        // taken it away.
        let lies_there = || {
            let found = newest_good(&self.folder).ok().and_then(|(found, _)| found);
            found.is_some_and(|found| found.step == last)
        };
        self.written == Some(last) || (self.rank == 0 && lies_there())
    }

    /// A checkpoint that cannot be written does not end the run: the ones before it are still good.
    /// One that must not be does, see [`check`](Self::check).
    fn note(&mut self, result: Option<Result<Written, CheckpointError>>) {
        if let Some(Ok(written)) = &result {
            self.written = Some(written.step);
        }
        match result {
            Some(Ok(written)) if self.rank == 0 => {
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
            Some(Err(error)) => complain(&format!(
                "warning: rank {}: checkpoint not written; the run continues: {error}",
                self.rank
            )),
            _ => {}
        }
    }

    /// That the folder is not this run's any more, if so.
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
    use crate::train::progress::Task;

    /// The state after some steps.
    fn meta(steps: u64) -> Meta {
        let progress = Progress {
            steps,
            ..Progress::start()
        };
        let task = Task {
            data: String::new(),
            train_samples: 1,
            test_samples: 1,
            classes: 1,
            class_names: None,
            normalization: None,
            global_batch: 1,
            seed: 0,
            portions: None,
        };
        Meta {
            progress,
            task,
            config: None,
        }
    }

    /// One that would be late is left out, but at the end there is time.
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
                    // The other rank has no share of the first, for which rank 0 waits.
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

    /// As one is whose disk is slow, for longer than collectives wait for a rank.
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

//! Steps and evaluations that are ahead of a run, up to the limit that comes first.

use std::time::Duration;

use super::Training;
use crate::run::eta::Ahead;
use crate::task::Task;

/// Position of a run, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Course {
    /// The current epoch, from 1, and the last one.
    pub epoch: u64,
    pub epochs: u64,
    pub steps_per_epoch: u64,
    /// Steps done of this epoch, and of the run.
    pub steps_of_epoch: u64,
    pub steps: u64,
    /// `train.max_steps`.
    pub max_steps: Option<u64>,
    /// `train.evaluate_every_steps`.
    pub evaluate_every: Option<u64>,
}

impl Course {
    /// Steps until `train.max_steps`.
    fn limit(&self) -> u64 {
        let left = |most: u64| most.saturating_sub(self.steps);
        self.max_steps.map_or(u64::MAX, left)
    }

    /// Steps that are left of this epoch.
    pub fn epoch_left(&self) -> u64 {
        let left = self.steps_per_epoch.saturating_sub(self.steps_of_epoch);
        left.min(self.limit())
    }

    /// Steps that this epoch will have.
    pub fn epoch_steps(&self) -> u64 {
        self.steps_of_epoch + self.epoch_left()
    }

    /// Steps that are left of the run.
    pub fn run_left(&self) -> u64 {
        let later = self.epochs.saturating_sub(self.epoch);
        let later = later.saturating_mul(self.steps_per_epoch);
        let left = self.steps_per_epoch.saturating_sub(self.steps_of_epoch);
        left.saturating_add(later).min(self.limit())
    }

    /// Number of the epoch in which the run ends.
    pub fn last_epoch(&self) -> u64 {
        let later = self.run_left() - self.epoch_left();
        self.epoch + later.div_ceil(self.steps_per_epoch.max(1))
    }

    /// Evaluations that are left. Those within an epoch and at its end may fall together.
    pub fn evaluations_left(&self) -> u64 {
        let at_ends = self.last_epoch() - self.epoch + 1;
        let within = self.evaluate_every.map_or(0, |every| {
            let every = every.max(1);
            (self.steps + self.run_left()) / every - self.steps / every
        });
        at_ends + within
    }
}

impl<T: Task> Training<'_, T> {
    /// Position of this run.
    pub(super) fn course(&self) -> Course {
        let train = &self.context.config.train;
        Course {
            epoch: self.progress.epoch,
            epochs: self.epochs(),
            steps_per_epoch: self.steps_per_epoch,
            steps_of_epoch: self.progress.steps_of_epoch,
            steps: self.progress.steps,
            max_steps: train.max_steps,
            evaluate_every: train.evaluate_every_steps,
        }
    }

    /// Work that is ahead of this run.
    pub(super) fn ahead(&self) -> Ahead {
        let (config, course) = (self.context.config, self.course());
        let evaluations = course.evaluations_left();
        let earliest = self.progress.watch.earliest(&config.early_stopping);
        let pause = config.train.max_minutes.and_then(|minutes| {
            let limit = Duration::try_from_secs_f64(60.0 * minutes).ok()?;
            Some(limit.saturating_sub(self.begin.elapsed()))
        });
        Ahead {
            epoch_steps: course.epoch_left(),
            run_steps: course.run_left(),
            evaluations,
            may_end_early: earliest.is_some_and(|earliest| earliest < evaluations),
            pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COURSE: Course = Course {
        epoch: 1,
        epochs: 10,
        steps_per_epoch: 625,
        steps_of_epoch: 9,
        steps: 9,
        max_steps: None,
        evaluate_every: None,
    };

    fn left(course: Course) -> [u64; 4] {
        [
            course.epoch_left(),
            course.run_left(),
            course.last_epoch(),
            course.evaluations_left(),
        ]
    }

    #[test]
    fn a_run_ends_after_its_last_epoch_or_step() {
        assert_eq!(left(COURSE), [616, 6241, 10, 10]);
        let limited = |steps| Course {
            max_steps: Some(steps),
            ..COURSE
        };
        assert_eq!(left(limited(20)), [11, 11, 1, 1]);
        assert_eq!(
            [COURSE, limited(20)].map(|course| course.epoch_steps()),
            [625, 20]
        );
        assert_eq!(left(limited(625)), [616, 616, 1, 1]);
        assert_eq!(left(limited(626)), [616, 617, 2, 2]);
        assert_eq!(left(limited(99_999)), [616, 6241, 10, 10]);
        assert_eq!(left(limited(5)), [0, 0, 1, 1]);
    }

    #[test]
    fn evaluations_within_epochs_count() {
        let often = Course {
            evaluate_every: Some(100),
            max_steps: Some(650),
            ..COURSE
        };
        assert_eq!(left(often), [616, 641, 2, 8]);
    }
}

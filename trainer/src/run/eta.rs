//! Estimates the time that is left of an epoch and of a run.

use std::fmt;
use std::time::{Duration, Instant};

use crate::system::output::duration;

/// Weight of a step in the mean, relative to that of the next one. About the last fifty count.
const DECAY: f64 = 0.98;

/// Steps and evaluations that are ahead of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Steps of this epoch. `train.max_steps` may cut it short.
    pub epoch_steps: u64,
    /// Steps of the run, including those of this epoch.
    pub run_steps: u64,
    /// Evaluations of the run.
    pub evaluations: u64,
    /// Whether early stopping may end the run before.
    pub may_end_early: bool,
    /// Time until `train.max_minutes` pauses the run.
    pub pause: Option<Duration>,
}

/// A step that is done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepDone {
    /// Steps of the run so far.
    pub step: u64,
    /// Steps of the epoch so far.
    pub step_of_epoch: u64,
    /// Throughput in units per second.
    pub rate: f64,
    /// Fraction of the devices' peak (MFU), if known.
    pub share_of_peak: Option<f64>,
    /// Work that is ahead.
    pub ahead: Ahead,
}

/// Estimated time that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLeft {
    /// Time to the last step of the epoch.
    pub epoch: Duration,
    /// Time to the end of the run, with evaluations.
    pub run: Duration,
    /// Cause of the end.
    pub end: RunEnd,
}

/// Cause of a run's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// The last step.
    LastStep,
    /// The last step, or early stopping before.
    MayBeEarly,
    /// `train.max_minutes`.
    Pause,
}

impl TimeLeft {
    /// The time that is left of the run, in words.
    pub fn run_in_words(&self) -> String {
        let time = duration(self.run);
        match self.end {
            RunEnd::LastStep => time,
            RunEnd::MayBeEarly => format!("at most {time}"),
            RunEnd::Pause => format!("{time} to train.max_minutes"),
        }
    }
}

impl fmt::Display for TimeLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (epoch, run) = (duration(self.epoch), self.run_in_words());
        write!(f, "{epoch} left (run {run})")
    }
}

/// The pace of this process.
#[derive(Debug, Default)]
pub struct Pace {
    /// Decaying sums over the steps so far.
    seconds: f64,
    steps: f64,
    /// Number of steps so far.
    seen: u64,
    /// Seconds of the last evaluation.
    evaluation: f64,
    /// End of the last step, or begin of the epoch.
    since: Option<Instant>,
}

impl Pace {
    /// Starts the clock, at the begin of an epoch's steps.
    pub fn start(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Counts a step that has just ended.
    pub fn step(&mut self) {
        let now = Instant::now();
        if let Some(since) = self.since.replace(now) {
            self.count(now.duration_since(since));
        }
    }

    /// Counts an evaluation that took this long.
    pub fn evaluated(&mut self, time: Duration) {
        self.evaluation = time.as_secs_f64();
    }

    fn count(&mut self, time: Duration) {
        // The first step of a process also compiles kernels and fills caches.
        let decay = if self.seen == 1 { 0.0 } else { DECAY };
        self.seconds = self.seconds * decay + time.as_secs_f64();
        self.steps = self.steps * decay + 1.0;
        self.seen += 1;
    }

    /// The time that is left at this pace. `None` before the first step.
    pub fn left(&self, ahead: &Ahead) -> Option<TimeLeft> {
        if self.seen == 0 {
            return None;
        }
        let per_step = self.seconds / self.steps;
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let epoch = seconds(per_step * ahead.epoch_steps as f64);
        let evaluations = self.evaluation * ahead.evaluations as f64;
        let run = seconds(per_step * ahead.run_steps as f64 + evaluations);
        Some(match ahead.pause {
            Some(pause) if pause < run => TimeLeft {
                epoch: epoch.min(pause),
                run: pause,
                end: RunEnd::Pause,
            },
            _ => TimeLeft {
                epoch,
                run,
                end: match ahead.may_end_early {
                    true => RunEnd::MayBeEarly,
                    false => RunEnd::LastStep,
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AHEAD: Ahead = Ahead {
        epoch_steps: 20,
        run_steps: 100,
        evaluations: 3,
        may_end_early: false,
        pause: None,
    };

    fn pace() -> Pace {
        let mut pace = Pace::default();
        // The first step takes longer.
        for millis in [30_000, 500, 500, 500] {
            pace.count(Duration::from_millis(millis));
        }
        pace.evaluated(Duration::from_secs(4));
        pace
    }

    #[test]
    fn steps_and_evaluations_count_and_the_first_step_does_not() {
        assert_eq!(Pace::default().left(&AHEAD), None);
        let left = pace().left(&AHEAD).unwrap();
        assert_eq!(left.to_string(), "10.0 s left (run 62.0 s)");
        let early = Ahead {
            may_end_early: true,
            ..AHEAD
        };
        let left = pace().left(&early).unwrap();
        assert_eq!(left.to_string(), "10.0 s left (run at most 62.0 s)");
    }

    #[test]
    fn a_pause_ends_the_estimate_if_it_comes_first() {
        let pause = |seconds| {
            let pause = Some(Duration::from_secs(seconds));
            pace().left(&Ahead { pause, ..AHEAD }).unwrap().to_string()
        };
        assert_eq!(pause(500), "10.0 s left (run 62.0 s)");
        assert_eq!(pause(30), "10.0 s left (run 30.0 s to train.max_minutes)");
        assert_eq!(pause(5), "5.0 s left (run 5.0 s to train.max_minutes)");
    }

    #[test]
    fn the_pace_follows_the_last_steps() {
        let mut pace = pace();
        for _ in 0..300 {
            pace.count(Duration::from_secs(2));
        }
        let left = pace.left(&AHEAD).unwrap();
        assert!((left.epoch.as_secs_f64() - 40.0).abs() < 0.5, "{left:?}");
    }
}

//! The learning rate of every step of a run.
//!
//! A schedule is a pure function of the step number and of the past evaluations, which checkpoints
//! keep. A resumed run therefore has the same rates as an uninterrupted one. `config/schedule` has
//! the schedules themselves.

use crate::config::metric::Measure;
use crate::config::{Batching, Config, LrScaling, Moment, ScheduleConfig, ScheduleEvery, Seen};
use crate::error::TrainError;
use crate::task::Evaluation;
use crate::train::early_stopping::watched;

/// Maps a step number to its learning rate.
#[derive(Clone, Debug)]
pub struct Schedule {
    config: ScheduleConfig,
    /// The first step.
    first: Moment,
}

impl Schedule {
    /// The schedule of a run of `config` with its batch sizes.
    pub fn of_run(config: &Config, steps_per_epoch: u64, batching: Batching) -> Self {
        let total = total_steps(config, steps_per_epoch);
        let lr = config.optimizer.lr();
        let micro_batches = batching.accumulate.saturating_mul(batching.ranks());
        Self::new(&config.schedule, lr, steps_per_epoch, total, micro_batches)
    }

    /// The schedule of a run of `total` steps.
    ///
    /// An epoch has `steps_per_epoch` steps, the global batch `micro_batches` micro-batches, and
    /// `lr` is the configured rate.
    pub fn new(
        config: &ScheduleConfig,
        lr: f64,
        steps_per_epoch: u64,
        total: u64,
        micro_batches: usize,
    ) -> Self {
        let factor = match config.lr_scaling {
            LrScaling::None => 1.0,
            LrScaling::Linear => micro_batches as f64,
        };
        let mut first = Moment {
            high: lr * factor,
            position: 0,
            warmup: 0,
            total,
            steps_per_epoch: steps_per_epoch.max(1),
            seen: Seen::default(),
        };
        first.warmup = match (config.warmup_steps, config.warmup_epochs) {
            (Some(warmup), _) => warmup,
            (None, epochs) => epochs.map_or(0, |epochs| first.steps(epochs)),
        };
        Self {
            config: config.clone(),
            first,
        }
    }

    /// The schedule after the evaluations in `seen`.
    #[must_use]
    pub fn after(mut self, seen: Seen) -> Self {
        self.first.seen = seen;
        self
    }

    /// Takes an evaluation of a task with these `measures`, and returns the state after it.
    pub fn see(&mut self, measures: &[Measure], evaluation: &Evaluation) -> Seen {
        let kind = &self.config.kind;
        if let Some(monitor) = kind.monitor() {
            let (value, better) = watched(monitor, measures, evaluation);
            kind.see(&mut self.first.seen, value, better);
        }
        self.seen()
    }

    /// State after the evaluations so far.
    pub fn seen(&self) -> Seen {
        self.first.seen.clone()
    }

    /// Checks that a schedule that follows the evaluations has data for them.
    ///
    /// # Errors
    /// [`TrainError::NoEvaluation`] if it has none.
    pub fn check(config: &ScheduleConfig, eval_samples: usize) -> Result<(), TrainError> {
        match config.kind.monitor().is_some() && eval_samples == 0 {
            true => Err(TrainError::NoEvaluation {
                schedule: config.kind.name(),
            }),
            false => Ok(()),
        }
    }

    /// A warning if the run ends within its warm-up, or if the warm-up has no effect.
    pub fn warning(&self) -> Option<String> {
        let Moment { warmup, total, .. } = self.first;
        if self.config.kind.warms_up() || warmup == 0 {
            return None;
        }
        if total < warmup {
            return Some(format!(
                "warning: the warm-up takes {warmup} steps but the run only {total}, so the \
                 learning rate never reaches optimizer.lr"
            ));
        }
        let by_epochs = self.config.every == ScheduleEvery::Epoch;
        (by_epochs && warmup <= self.first.steps_per_epoch).then(|| {
            "warning: the learning rate changes once per epoch (schedule.every) and the warm-up \
             ends within one epoch, so it has no effect"
                .to_owned()
        })
    }

    /// Learning rate of step `number`, from 1.
    pub fn lr(&self, number: u64) -> f64 {
        // Steps done before this one.
        let done = number.saturating_sub(1);
        let Moment {
            high,
            warmup,
            steps_per_epoch,
            ..
        } = self.first;
        // Steps for which the rate stays the same.
        let unit = match self.config.every {
            ScheduleEvery::Step => 1,
            ScheduleEvery::Epoch => steps_per_epoch,
        };
        let position = done - done % unit;
        if position < warmup && !self.config.kind.warms_up() {
            // The last step of the warm-up has the full rate.
            let share = ((position + unit) as f64 / warmup as f64).min(1.0);
            let from = self.config.warmup_factor;
            return high * (from + (1.0 - from) * share);
        }
        self.config.kind.rate(&Moment {
            position,
            ..self.first.clone()
        })
    }
}

/// Optimizer steps of a whole run.
pub(crate) fn total_steps(config: &Config, steps_per_epoch: u64) -> u64 {
    let all = steps_per_epoch.saturating_mul(config.train.epochs);
    config.train.max_steps.map_or(all, |limit| limit.min(all))
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use super::*;
    use crate::config::{
        Constant, Cosine, DecayShape, Exponential, Linear, Loaded, OneCycle, Plateau, ScheduleKeys,
        ScheduleKind, Step, Wsd,
    };
    use proptest::prelude::*;

    const STEPS_PER_EPOCH: u64 = 10;
    const TOTAL: u64 = 100;

    fn schedule(config: ScheduleConfig) -> Schedule {
        Schedule::new(&config, 0.5, STEPS_PER_EPOCH, TOTAL, 4)
    }

    fn cosine() -> ScheduleConfig {
        ScheduleKind::Cosine(Cosine::default()).into()
    }

    fn with(keys: ScheduleKeys) -> ScheduleConfig {
        ScheduleConfig { keys, ..cosine() }
    }

    #[track_caller]
    fn assert_rates(schedule: &Schedule, rates: &[(u64, f64)]) {
        for (step, rate) in rates {
            let found = schedule.lr(*step);
            assert!(
                (found - rate).abs() < 1e-12,
                "step {step}: {found}, not {rate}"
            );
        }
    }

    #[test]
    fn constant_stays() {
        let constant = schedule(ScheduleConfig::default());
        assert_rates(&constant, &[(1, 0.5), (100, 0.5), (1000, 0.5)]);
    }

    #[test]
    fn a_run_that_ends_within_its_warm_up_is_warned() {
        let warmed = |steps| {
            let config = with(ScheduleKeys {
                warmup_steps: Some(steps),
                ..ScheduleKeys::default()
            });
            schedule(config).warning()
        };
        assert_eq!(warmed(TOTAL), None);
        let warning = warmed(TOTAL + 1).unwrap();
        assert!(
            warning.contains("takes 101 steps but the run only 100"),
            "{warning}"
        );
    }

    #[test]
    fn a_warm_up_that_is_over_before_the_rate_changes_is_warned_of() {
        let warned = |steps, every| {
            let config = with(ScheduleKeys {
                warmup_steps: Some(steps),
                every,
                ..ScheduleKeys::default()
            });
            schedule(config).warning()
        };
        for steps in [3, STEPS_PER_EPOCH] {
            let warning = warned(steps, ScheduleEvery::Epoch).unwrap();
            assert!(warning.contains("schedule.every"), "{warning}");
            assert_eq!(warned(steps, ScheduleEvery::Step), None);
        }
        assert_eq!(warned(STEPS_PER_EPOCH + 1, ScheduleEvery::Epoch), None);
        assert_eq!(warned(0, ScheduleEvery::Epoch), None);
    }

    #[test]
    fn rates_grow_with_the_global_batch_if_asked() {
        let config = with(ScheduleKeys {
            lr_scaling: LrScaling::Linear,
            ..ScheduleKeys::default()
        });
        assert_rates(&schedule(config), &[(1, 2.0)]);
        // The same global batch on fewer ranks has the same rate.
        let text = "[model]\nname = \"cnn\"\n[data]\nname = \"digits\"\n\
                    [optimizer]\nname = \"adam\"\nlr = 0.1\n\
                    [schedule]\nlr_scaling = \"linear\"\n[train]\nmicro_batch_size = 8\n";
        for (ranks, accumulate) in [(4, 1), (2, 2), (1, 4)] {
            let sets = [format!("train.accumulate={accumulate}")];
            let loaded = Loaded::parse("own.toml", "own", text, &sets).unwrap();
            let batching = loaded.batching(ranks).unwrap();
            let schedule = Schedule::of_run(&loaded.config, STEPS_PER_EPOCH, batching);
            assert!(
                (schedule.first.high - 0.4).abs() < 1e-12,
                "{ranks} ranks: {}",
                schedule.first.high
            );
        }
    }

    #[test]
    fn warm_up_ends_at_the_full_rate() {
        let mut config: ScheduleConfig = ScheduleKind::Cosine(Cosine { min_lr: 0.1 }).into();
        config.warmup_epochs = Some(2.0);
        let cosine = schedule(config.clone());
        let middle = 0.1 + 0.4 / 2.0;
        assert_rates(
            &cosine,
            &[(1, 0.025), (20, 0.5), (21, 0.5), (61, middle), (101, 0.1)],
        );
        config.warmup_steps = Some(4);
        config.warmup_factor = 0.2;
        assert_rates(&schedule(config), &[(1, 0.2), (2, 0.3), (4, 0.5)]);
    }

    #[test]
    fn linear_reaches_the_least_rate_at_the_end() {
        let linear = schedule(ScheduleKind::Linear(Linear { min_lr: 0.1 }).into());
        assert_rates(&linear, &[(1, 0.5), (51, 0.3), (101, 0.1), (200, 0.1)]);
    }

    #[test]
    fn wsd_stays_and_then_falls_to_the_least_rate() {
        let wsd = |shape| {
            let wsd = Wsd {
                decay: 0.4,
                shape,
                min_lr: 0.1,
            };
            let mut config: ScheduleConfig = ScheduleKind::Wsd(wsd).into();
            config.warmup_steps = Some(10);
            schedule(config)
        };
        // A quarter and a half of the 40 steps of the decay are steps 71 and 81.
        for (shape, quarter, half) in [
            (DecayShape::Linear, 0.75, 0.5),
            (DecayShape::Cosine, (1.0 + (PI / 4.0).cos()) / 2.0, 0.5),
            (DecayShape::Sqrt, 0.5, 1.0 - 0.5f64.sqrt()),
        ] {
            let rates = [(5, 0.25), (10, 0.5), (11, 0.5), (61, 0.5), (101, 0.1)];
            assert_rates(&wsd(shape), &rates);
            let falling = [(71, 0.1 + 0.4 * quarter), (81, 0.1 + 0.4 * half)];
            assert_rates(&wsd(shape), &falling);
        }
    }

    #[test]
    fn milestones_are_epochs_or_steps() {
        let step = Step {
            milestones: vec![6.0, 3.0],
            milestone_steps: vec![95],
            gamma: 0.2,
        };
        let step = schedule(ScheduleKind::Step(step).into());
        assert_rates(
            &step,
            &[
                (30, 0.5),
                (31, 0.1),
                (60, 0.1),
                (61, 0.02),
                (95, 0.02),
                (96, 0.004),
            ],
        );
    }

    #[test]
    fn exponential_falls_by_gamma_every_epoch() {
        let half = Exponential {
            min_lr: 0.0,
            gamma: 0.5,
        };
        let mut config: ScheduleConfig = ScheduleKind::Exponential(half).into();
        assert_rates(
            &schedule(config.clone()),
            &[(1, 0.5), (11, 0.25), (21, 0.125)],
        );
        config.every = ScheduleEvery::Epoch;
        assert_rates(&schedule(config), &[(10, 0.5), (11, 0.25), (20, 0.25)]);
    }

    #[test]
    fn by_epoch_the_rate_changes_between_epochs_only() {
        let mut config = cosine();
        config.every = ScheduleEvery::Epoch;
        config.warmup_epochs = Some(2.0);
        let cosine = schedule(config);
        assert_rates(
            &cosine,
            &[
                (1, 0.25),
                (10, 0.25),
                (11, 0.5),
                (20, 0.5),
                (21, 0.5),
                (61, 0.25),
            ],
        );
        for step in 1..=TOTAL {
            let first = step - (step - 1) % STEPS_PER_EPOCH;
            assert_eq!(cosine.lr(step), cosine.lr(first));
        }
    }

    #[test]
    fn rates_that_follow_evaluations_need_some() {
        let plateau = ScheduleKind::Plateau(Plateau {
            patience: 0,
            ..Plateau::default()
        });
        let plateau = plateau.into();
        Schedule::check(&plateau, 1).unwrap();
        Schedule::check(&cosine(), 0).unwrap();
        let error = Schedule::check(&plateau, 0).unwrap_err().to_string();
        assert!(error.contains("`plateau` depends on"), "{error}");
        let mut schedule = schedule(plateau);
        let evaluation = Evaluation::new(1.0, 1, []);
        schedule.see(&[], &evaluation);
        let seen = schedule.see(&[], &evaluation);
        assert_rates(&schedule, &[(30, 0.05)]);
        let again = self::schedule(ScheduleKind::Plateau(Plateau::default()).into());
        assert_rates(&again.after(seen), &[(30, 0.05)]);
    }

    #[test]
    fn one_cycle_is_pytorchs() {
        // torch.optim.lr_scheduler.OneCycleLR(max_lr=0.5, total_steps=100), defaults otherwise.
        let cycle = schedule(ScheduleKind::OneCycle(OneCycle::default()).into());
        assert_rates(&cycle, &[(1, 0.02), (30, 0.5), (100, 0.02 / 1e4)]);
        let third = 0.02 + 0.48 * (1.0 - (1.0 + (PI * 10.0 / 29.0).cos()) / 2.0);
        assert_rates(&cycle, &[(11, third)]);
    }

    proptest! {
        #[test]
        fn rates_are_finite_and_never_above_the_highest(
            kind in prop::sample::select(vec![
                ScheduleKind::Constant(Constant::default()),
                ScheduleKind::Linear(Linear::default()),
                ScheduleKind::Cosine(Cosine::default()),
                ScheduleKind::Step(Step { milestones: vec![1.5], ..Step::default() }),
                ScheduleKind::Exponential(Exponential::default()),
                ScheduleKind::OneCycle(OneCycle::default()),
                ScheduleKind::Wsd(Wsd::default()),
            ]),
            total in 0u64..50, per_epoch in 0u64..20, warmup in 0u64..60, step in 0u64..200,
            by_epoch: bool,
        ) {
            let mut config: ScheduleConfig = kind.into();
            config.warmup_steps = Some(warmup);
            config.every = if by_epoch { ScheduleEvery::Epoch } else { ScheduleEvery::Step };
            let rate = Schedule::new(&config, 0.5, per_epoch, total, 2).lr(step);
            prop_assert!((0.0..=0.5 + 1e-12).contains(&rate), "{rate}");
        }
    }
}

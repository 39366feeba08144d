//! The learning rate of every step of a run.
//!
//! A schedule is a pure function of the step's number, so a run that is continued has the same
//! rates as one that never stopped.

use std::f64::consts::PI;

use crate::config::{Batching, Config, LrScaling, ScheduleConfig, ScheduleEvery, ScheduleName};

/// Turns the number of a step into its learning rate.
#[derive(Clone, Debug)]
pub struct Schedule {
    config: ScheduleConfig,
    /// The highest rate.
    lr: f64,
    steps_per_epoch: u64,
    /// Steps of the whole run.
    total: u64,
    warmup: u64,
    /// Steps, in rising order, from which the rate is smaller by another factor.
    milestones: Vec<u64>,
}

impl Schedule {
    /// The schedule of the run that `config` describes, with the batch sizes that it has on `world_size` ranks.
    pub fn of_run(
        config: &Config,
        steps_per_epoch: u64,
        batching: Batching,
        world_size: usize,
    ) -> Self {
        let all = steps_per_epoch.saturating_mul(config.train.epochs);
        let total = config.train.max_steps.map_or(all, |limit| limit.min(all));
        let lr = config.optimizer.lr();
        let micro_batches = batching.accumulate.saturating_mul(world_size);
        Self::new(&config.schedule, lr, steps_per_epoch, total, micro_batches)
    }

    /// The schedule of a run of `total` steps with `steps_per_epoch` steps in an epoch, whose global
    /// batch is `micro_batches` micro-batches; `lr` is the configured rate.
    pub fn new(
        config: &ScheduleConfig,
        lr: f64,
        steps_per_epoch: u64,
        total: u64,
        micro_batches: usize,
    ) -> Self {
        let steps = |epochs: f64| (epochs * steps_per_epoch as f64).round() as u64;
        let warmup = match (config.warmup_steps, config.warmup_epochs) {
            (Some(warmup), _) => warmup,
            (None, Some(epochs)) => steps(epochs),
            (None, None) => 0,
        };
        let mut milestones: Vec<u64> = config.milestone_steps.clone();
        milestones.extend(config.milestones.iter().map(|epochs| steps(*epochs)));
        milestones.sort_unstable();
        let factor = match config.lr_scaling {
            LrScaling::None => 1.0,
            LrScaling::Linear => micro_batches as f64,
        };
        Self {
            config: config.clone(),
            lr: lr * factor,
            steps_per_epoch: steps_per_epoch.max(1),
            total,
            warmup,
            milestones,
        }
    }

    /// What a person should know: that the run ends within its warm-up, or that this is none.
    pub fn warning(&self) -> Option<String> {
        let (warmup, total) = (self.warmup, self.total);
        if self.config.name == ScheduleName::OneCycle || warmup == 0 {
            return None;
        }
        if total < warmup {
            return Some(format!(
                "warning: the warm-up takes {warmup} steps and the run {total}: the learning rate does not reach \
                 optimizer.lr"
            ));
        }
        let by_epochs = self.config.every == ScheduleEvery::Epoch;
        (by_epochs && warmup <= self.steps_per_epoch).then(|| {
            "warning: the learning rate changes at every epoch (schedule.every) and its warm-up takes no more than one: it \
             has no effect"
                .to_owned()
        })
    }

    /// The rate of step `number`, counted from 1.
    pub fn lr(&self, number: u64) -> f64 {
        // Steps that are over when this one begins.
        let done = number.saturating_sub(1);
        let position = match self.config.every {
            ScheduleEvery::Step => done,
            ScheduleEvery::Epoch => done - done % self.steps_per_epoch,
        };
        if self.config.name == ScheduleName::OneCycle {
            return self.one_cycle(position);
        }
        if position < self.warmup {
            // The last step of the warm-up has the full rate.
            let unit = match self.config.every {
                ScheduleEvery::Step => 1,
                ScheduleEvery::Epoch => self.steps_per_epoch,
            };
            let share = ((position + unit) as f64 / self.warmup as f64).min(1.0);
            let from = self.config.warmup_factor;
            return self.lr * (from + (1.0 - from) * share);
        }
        self.after_warmup(position)
    }

    fn after_warmup(&self, position: u64) -> f64 {
        let (high, low) = (self.lr, self.config.min_lr);
        let length = self.total.saturating_sub(self.warmup).max(1);
        let share = ((position - self.warmup) as f64 / length as f64).min(1.0);
        match self.config.name {
            ScheduleName::Linear => high + (low - high) * share,
            ScheduleName::Cosine => low + (high - low) * cosine(share),
            ScheduleName::Step => {
                let passed = self.milestones.partition_point(|step| *step <= position);
                // More milestones than an i32 counts would underflow to zero as well.
                high * self
                    .config
                    .gamma
                    .powi(passed.try_into().unwrap_or(i32::MAX))
            }
            ScheduleName::Exponential => {
                let epochs = (position - self.warmup) as f64 / self.steps_per_epoch as f64;
                (high * self.config.gamma.powf(epochs)).max(low)
            }
            ScheduleName::Constant | ScheduleName::OneCycle => high,
        }
    }

    /// Up to the highest rate and down again, both in half a cosine (Smith & Topin 2017,
    /// <https://arxiv.org/abs/1708.07120>), with the steps and factors of PyTorch's `OneCycleLR`.
    fn one_cycle(&self, position: u64) -> f64 {
        let config = &self.config;
        let start = self.lr / config.div_factor;
        let end = start / config.final_div_factor;
        let peak = config.peak * self.total as f64 - 1.0;
        let last = self.total as f64 - 1.0;
        let position = position as f64;
        let between =
            |from: f64, to: f64, share: f64| to + (from - to) * cosine(share.clamp(0.0, 1.0));
        if position <= peak {
            between(
                start,
                self.lr,
                if peak > 0.0 { position / peak } else { 1.0 },
            )
        } else {
            between(
                self.lr,
                end,
                (position - peak) / (last - peak).max(f64::MIN_POSITIVE),
            )
        }
    }
}

/// Falls from 1 to 0 as `share` goes from 0 to 1.
fn cosine(share: f64) -> f64 {
    (1.0 + (PI * share).cos()) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Loaded;
    use proptest::prelude::*;

    const STEPS_PER_EPOCH: u64 = 10;
    const TOTAL: u64 = 100;

    fn schedule(config: ScheduleConfig) -> Schedule {
        Schedule::new(&config, 0.5, STEPS_PER_EPOCH, TOTAL, 4)
    }

    fn named(name: ScheduleName) -> ScheduleConfig {
        ScheduleConfig {
            name,
            ..ScheduleConfig::default()
        }
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
        let constant = schedule(named(ScheduleName::Constant));
        assert_rates(&constant, &[(1, 0.5), (100, 0.5), (1000, 0.5)]);
    }

    #[test]
    fn a_run_that_ends_within_its_warm_up_is_warned() {
        let warmed = |steps| {
            let config = ScheduleConfig {
                warmup_steps: Some(steps),
                ..named(ScheduleName::Cosine)
            };
            schedule(config).warning()
        };
        assert_eq!(warmed(TOTAL), None);
        let warning = warmed(TOTAL + 1).unwrap();
        assert!(
            warning.contains("takes 101 steps and the run 100"),
            "{warning}"
        );
    }

    #[test]
    fn a_warm_up_that_is_over_before_the_rate_changes_is_warned_of() {
        let warned = |steps, every| {
            let config = ScheduleConfig {
                warmup_steps: Some(steps),
                every,
                ..named(ScheduleName::Cosine)
            };
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
        let config = ScheduleConfig {
            lr_scaling: LrScaling::Linear,
            ..ScheduleConfig::default()
        };
        assert_rates(&schedule(config), &[(1, 2.0)]);
        // The same global batch on fewer ranks has the same rate.
        let text = "[model]\nname = \"cnn\"\n[data]\nname = \"digits\"\n\
                    [optimizer]\nname = \"adam\"\nlr = 0.1\n\
                    [schedule]\nlr_scaling = \"linear\"\n[train]\nmicro_batch_size = 8\n";
        for (ranks, accumulate) in [(4, 1), (2, 2), (1, 4)] {
            let sets = [format!("train.accumulate={accumulate}")];
            let loaded = Loaded::parse("own.toml", "own", text, &sets).unwrap();
            let batching = loaded.batching(ranks).unwrap();
            let schedule = Schedule::of_run(&loaded.config, STEPS_PER_EPOCH, batching, ranks);
            assert!(
                (schedule.lr - 0.4).abs() < 1e-12,
                "{ranks} ranks: {}",
                schedule.lr
            );
        }
    }

    #[test]
    fn warm_up_ends_at_the_full_rate() {
        let mut config = named(ScheduleName::Cosine);
        config.warmup_epochs = Some(2.0);
        config.min_lr = 0.1;
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
        let mut config = named(ScheduleName::Linear);
        config.min_lr = 0.1;
        let linear = schedule(config);
        assert_rates(&linear, &[(1, 0.5), (51, 0.3), (101, 0.1), (200, 0.1)]);
    }

    #[test]
    fn milestones_are_epochs_or_steps() {
        let mut config = named(ScheduleName::Step);
        config.gamma = 0.2;
        config.milestones = vec![6.0, 3.0];
        config.milestone_steps = vec![95];
        let step = schedule(config);
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
        let mut config = named(ScheduleName::Exponential);
        config.gamma = 0.5;
        assert_rates(
            &schedule(config.clone()),
            &[(1, 0.5), (11, 0.25), (21, 0.125)],
        );
        config.every = ScheduleEvery::Epoch;
        assert_rates(&schedule(config), &[(10, 0.5), (11, 0.25), (20, 0.25)]);
    }

    #[test]
    fn by_epoch_the_rate_changes_between_epochs_only() {
        let mut config = named(ScheduleName::Cosine);
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
    fn one_cycle_is_pytorchs() {
        // torch.optim.lr_scheduler.OneCycleLR(max_lr=0.5, total_steps=100), defaults otherwise.
        let cycle = schedule(named(ScheduleName::OneCycle));
        assert_rates(&cycle, &[(1, 0.02), (30, 0.5), (100, 0.02 / 1e4)]);
        let third = 0.02 + 0.48 * (1.0 - cosine(10.0 / 29.0));
        assert_rates(&cycle, &[(11, third)]);
    }

    proptest! {
        #[test]
        fn rates_are_finite_and_never_above_the_highest(
            name in prop::sample::select(vec![
                ScheduleName::Constant, ScheduleName::Linear, ScheduleName::Cosine,
                ScheduleName::Step, ScheduleName::Exponential, ScheduleName::OneCycle,
            ]),
            total in 0u64..50, per_epoch in 0u64..20, warmup in 0u64..60, step in 0u64..200,
            by_epoch: bool,
        ) {
            let mut config = named(name);
            config.warmup_steps = Some(warmup);
            config.milestones = vec![1.5];
            config.every = if by_epoch { ScheduleEvery::Epoch } else { ScheduleEvery::Step };
            let rate = Schedule::new(&config, 0.5, per_epoch, total, 2).lr(step);
            prop_assert!((0.0..=0.5 + 1e-12).contains(&rate), "{rate}");
        }
    }
}

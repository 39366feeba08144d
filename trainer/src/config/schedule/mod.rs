//! `[schedule]`: the learning-rate schedules.
//!
//! Each schedule is one file (keys, defaults, checks and rates) and one line in the list below.

mod constant;
mod cosine;
mod exponential;
mod linear;
mod one_cycle;
mod plateau;
mod step;
mod wsd;

use serde::{Deserialize, Serialize};

use super::Config;
use super::error::Fault;
use super::metric::Better;
use super::named::named_section;
use super::section::{keys, names};
use super::validate::{ensure, not_negative};

named_section! {
    /// `[schedule]`: how the learning rate changes over the run. `optimizer.lr` is the highest
    /// value. Some keys depend on `name`, which defaults to `constant`.
    "schedule" ScheduleConfig(ScheduleKeys) ScheduleKind: AnySchedule, Some("constant");
    "constant" Constant(constant::Constant),
    "linear" Linear(linear::Linear),
    "cosine" Cosine(cosine::Cosine),
    "step" Step(step::Step),
    "exponential" Exponential(exponential::Exponential),
    "one-cycle" OneCycle(one_cycle::OneCycle),
    "plateau" Plateau(plateau::Plateau),
    "wsd" Wsd(wsd::Wsd),
}

pub use wsd::DecayShape;

names! {
    /// `[schedule] every`: when the rate changes.
    ScheduleEvery {
        /// At every step.
        #[default]
        Step = "step",
        /// At the first step of every epoch.
        Epoch = "epoch",
    }
}

names! {
    /// `[schedule] lr_scaling`: how the rate follows the global batch.
    LrScaling {
        /// Unchanged.
        #[default]
        None = "none",
        /// In proportion to the global batch: × `accumulate` × world size.
        Linear = "linear",
    }
}

keys! {
    /// The keys of `[schedule]` that go with every `name`.
    ScheduleKeys {
        /// When the learning rate changes: at every `step` or `epoch`. Default `step`.
        every: ScheduleEvery = ScheduleEvery::default(),
        /// `linear` multiplies the learning rate by `train.accumulate` × world size, for a global
        /// batch that grows with the ranks (`train.micro_batch_size` without `train.batch_size`).
        /// `none` leaves it. Default `none`.
        lr_scaling: LrScaling = LrScaling::default(),
        /// Epochs of linear warm-up. In a warm-up of n steps (or epochs), the first has 1/n of the
        /// rise and the last all of it. Default 0; `one-cycle` has its own.
        #[schemars(extend("unit" = "epochs"))]
        warmup_epochs: Option<f64> = None,
        /// `warmup_epochs` as a number of steps.
        #[schemars(extend("unit" = "steps"))]
        warmup_steps: Option<u64> = None,
        /// Share of the learning rate at which the warm-up starts, in [0, 1]. Default 0.
        warmup_factor: f64 = 0.0,
    }
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        ScheduleKind::Constant(Constant::default()).into()
    }
}

impl From<ScheduleKind> for ScheduleConfig {
    fn from(kind: ScheduleKind) -> Self {
        Self {
            kind,
            keys: ScheduleKeys::default(),
        }
    }
}

/// The interface of a schedule in `[schedule]`.
pub trait AnySchedule {
    /// Checks the schedule's own keys for the peak rate `lr`.
    ///
    /// # Errors
    /// The first invalid key.
    fn check(&self, _lr: f64) -> Result<(), Fault> {
        Ok(())
    }

    /// Whether it has its own warm-up.
    fn warms_up(&self) -> bool {
        false
    }

    /// Name of the metric that it follows, if any.
    fn monitor(&self) -> Option<&str> {
        None
    }

    /// Records the value of its metric in `seen`. All ranks do the same.
    fn see(&self, _seen: &mut Seen, _value: f64, _better: Better) {}

    /// The rate after the warm-up.
    fn rate(&self, at: &Moment) -> f64;
}

/// A step of a run.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The peak rate.
    pub high: f64,
    /// Steps done.
    pub position: u64,
    /// Steps of the warm-up. They are done, too, unless the schedule has its own warm-up.
    pub warmup: u64,
    /// Steps of the whole run.
    pub total: u64,
    /// Steps of an epoch, at least 1.
    pub steps_per_epoch: u64,
    /// State after the evaluations so far.
    pub seen: Seen,
}

/// State of a schedule that follows the evaluations. Part of every checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// The monitored metric.
    pub monitor: Option<String>,
    /// Its best value.
    pub best: Option<f64>,
    /// Evaluations without improvement since the best one, or since the rate fell.
    pub stale: u64,
    /// Evaluations still to ignore after the rate fell.
    pub cooldown: u64,
    /// Number of times that the rate fell.
    pub lowered: u64,
}

impl Seen {
    /// Whether no evaluation was recorded.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Moment {
    /// Fraction of the run after the warm-up that is done, in [0, 1].
    pub fn share(&self) -> f64 {
        let length = self.total.saturating_sub(self.warmup).max(1);
        ((self.position - self.warmup) as f64 / length as f64).min(1.0)
    }

    /// Converts epochs to steps.
    pub fn steps(&self, epochs: f64) -> u64 {
        (epochs * self.steps_per_epoch as f64).round() as u64
    }
}

impl ScheduleConfig {
    /// Drops a warm-up that the schedule ignores and its name overrides, as from the command line.
    pub(super) fn forget_unused(&mut self, overridden: impl Fn(&str) -> bool) {
        if !self.kind.warms_up() {
            return;
        }
        if overridden("schedule.warmup_epochs") {
            self.warmup_epochs = None;
        }
        if overridden("schedule.warmup_steps") {
            self.warmup_steps = None;
        }
        if overridden("schedule.warmup_factor") {
            self.warmup_factor = 0.0;
        }
    }
}

/// Checks the values, and that all of them have an effect.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let schedule = &config.schedule;
    let warm = schedule.warmup_epochs.is_some() || schedule.warmup_steps.is_some();
    if schedule.warmup_epochs.is_some() && schedule.warmup_steps.is_some() {
        return Err(Fault::in_key(
            "schedule.warmup_steps",
            "`schedule.warmup_steps` and `schedule.warmup_epochs` both set the warm-up",
        )
        .help("keep one of them"));
    }
    if schedule.kind.warms_up() && warm {
        let key = match schedule.warmup_steps {
            Some(_) => "schedule.warmup_steps",
            None => "schedule.warmup_epochs",
        };
        let name = schedule.kind.name();
        return Err(
            Fault::in_key(key, format!("`{name}` already has a warm-up")).help(format!(
                "remove `{key}`; `schedule.peak` is the share of the run in which the learning \
                 rate rises"
            )),
        );
    }
    if let Some(epochs) = schedule.warmup_epochs {
        not_negative("schedule.warmup_epochs", epochs)?;
    }
    let factor = schedule.warmup_factor;
    let good = (0.0..=1.0).contains(&factor);
    ensure(good, "schedule.warmup_factor", factor, "in [0, 1]")?;
    schedule.kind.check(config.optimizer.lr())?;
    if !warm && factor != 0.0 {
        let message = "`schedule.warmup_factor` has no effect without a warm-up";
        return Err(Fault::in_key("schedule.warmup_factor", message)
            .help("remove it, or set schedule.warmup_epochs or schedule.warmup_steps"));
    }
    let train = &config.train;
    let grows = train.batch_size.is_none() && train.micro_batch_size.is_some();
    if schedule.lr_scaling == LrScaling::Linear && !grows {
        let message = "`schedule.lr_scaling` = linear needs a global batch that grows with the \
                       ranks, but `train.batch_size` fixes it";
        return Err(Fault::in_key("schedule.lr_scaling", message).help(
            "remove it, or set train.micro_batch_size, the images per rank, instead of \
             train.batch_size",
        ));
    }
    Ok(())
}

fn check_min_lr(min_lr: f64, lr: f64) -> Result<(), Fault> {
    let good = (0.0..=lr).contains(&min_lr);
    let wanted = "between 0 and `optimizer.lr`";
    ensure(good, "schedule.min_lr", min_lr, wanted)
}

fn check_gamma(gamma: f64) -> Result<(), Fault> {
    let good = gamma > 0.0 && gamma <= 1.0;
    ensure(good, "schedule.gamma", gamma, "in (0, 1]")
}

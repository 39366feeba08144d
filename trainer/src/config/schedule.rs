//! `[schedule]`: how the learning rate changes, and which keys have a use for which schedule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::error::Fault;
use super::section::names;
use super::validate::{ensure, have_use, not_negative};

names! {
    /// `[schedule] name`.
    ScheduleName {
        /// The optimizer's `lr` at every step.
        #[default]
        Constant = "constant",
        /// A straight line.
        Linear = "linear",
        /// Half a cosine.
        Cosine = "cosine",
        /// Smaller by a factor at given epochs.
        Step = "step",
        /// Smaller by a factor every epoch.
        Exponential = "exponential",
        /// Up to the highest rate and down again.
        OneCycle = "one-cycle",
    }
}

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
        /// Not at all.
        #[default]
        None = "none",
        /// In proportion to the global batch: times `accumulate` × world size.
        Linear = "linear",
    }
}

/// `[schedule]`: how the learning rate changes over the run. `optimizer.lr` is the highest rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// `constant`, `linear` (a straight line to `min_lr`), `cosine` (half a cosine to `min_lr`),
    /// `step` (times `gamma` at every milestone), `exponential` (times `gamma` every epoch, a part of it at every step
    /// unless `every = "epoch"`) or `one-cycle` (the momentum stays as it is, as with PyTorch's `cycle_momentum=False`).
    /// Default `constant`.
    pub name: ScheduleName,
    /// When the rate changes: at every `step` or `epoch`. Default `step`.
    pub every: ScheduleEvery,
    /// `linear` multiplies the rate by the micro-batches of a global batch (`train.accumulate` × world size), for a global
    /// batch that grows with the ranks (that of `train.micro_batch_size` without `train.batch_size`); `none` leaves it.
    /// Default `none`.
    pub lr_scaling: LrScaling,
    /// Epochs in which the rate first rises in a straight line; of n steps (or epochs) the first has 1/n of the rise and
    /// the last all of it. Default 0; `one-cycle` has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("unit" = "epochs"))]
    pub warmup_epochs: Option<f64>,
    /// The same as a number of steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("unit" = "steps"))]
    pub warmup_steps: Option<u64>,
    /// Share of the rate from which the warm-up rises, in [0, 1]. Default 0.
    pub warmup_factor: f64,
    /// The rate at the end of `linear` and `cosine`, and the least of `exponential`. Default 0.
    pub min_lr: f64,
    /// Epochs after which `step` lowers the rate. Default none.
    #[schemars(extend("unit" = "epochs"))]
    pub milestones: Vec<f64>,
    /// The same as numbers of steps. Default none.
    #[schemars(extend("unit" = "steps"))]
    pub milestone_steps: Vec<u64>,
    /// The factor of `step` and `exponential`, in (0, 1]. Default 0.1.
    pub gamma: f64,
    /// `one-cycle`: share of the run in which the rate rises, in (0, 1). Default 0.3.
    pub peak: f64,
    /// `one-cycle`: how many times smaller the first rate is than the highest. Default 25.
    pub div_factor: f64,
    /// `one-cycle`: how many times smaller the last rate is than the first. Default 10000.
    pub final_div_factor: f64,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            name: ScheduleName::Constant,
            every: ScheduleEvery::Step,
            lr_scaling: LrScaling::None,
            warmup_epochs: None,
            warmup_steps: None,
            warmup_factor: 0.0,
            min_lr: 0.0,
            milestones: Vec::new(),
            milestone_steps: Vec::new(),
            gamma: 0.1,
            peak: 0.3,
            div_factor: 25.0,
            final_div_factor: 1e4,
        }
    }
}

impl ScheduleConfig {
    /// Gives up the values that the schedule does not use and that another key overrides.
    pub(super) fn forget_unused(&mut self, overridden: impl Fn(&str, &str) -> bool) {
        let usual = Self::default();
        for (key, _, users) in self.particular_keys() {
            if users.contains(&self.name) || !overridden("schedule.name", key) {
                continue;
            }
            match key {
                "schedule.min_lr" => self.min_lr = usual.min_lr,
                "schedule.milestones" => self.milestones.clear(),
                "schedule.milestone_steps" => self.milestone_steps.clear(),
                "schedule.gamma" => self.gamma = usual.gamma,
                "schedule.peak" => self.peak = usual.peak,
                "schedule.div_factor" => self.div_factor = usual.div_factor,
                _ => self.final_div_factor = usual.final_div_factor,
            }
        }
        if self.name != ScheduleName::OneCycle {
            return;
        }
        if overridden("schedule.name", "schedule.warmup_epochs") {
            self.warmup_epochs = None;
        }
        if overridden("schedule.name", "schedule.warmup_steps") {
            self.warmup_steps = None;
        }
        if overridden("schedule.name", "schedule.warmup_factor") {
            self.warmup_factor = usual.warmup_factor;
        }
    }

    /// Keys that only some schedules use: their name, whether a value other than the default is given, and
    /// the schedules.
    fn particular_keys(&self) -> [(&'static str, bool, &'static [ScheduleName]); 7] {
        use ScheduleName::{Cosine, Exponential, Linear, OneCycle, Step};
        let usual = Self::default();
        [
            (
                "schedule.min_lr",
                self.min_lr != usual.min_lr,
                &[Linear, Cosine, Exponential],
            ),
            ("schedule.milestones", !self.milestones.is_empty(), &[Step]),
            (
                "schedule.milestone_steps",
                !self.milestone_steps.is_empty(),
                &[Step],
            ),
            (
                "schedule.gamma",
                self.gamma != usual.gamma,
                &[Step, Exponential],
            ),
            ("schedule.peak", self.peak != usual.peak, &[OneCycle]),
            (
                "schedule.div_factor",
                self.div_factor != usual.div_factor,
                &[OneCycle],
            ),
            (
                "schedule.final_div_factor",
                self.final_div_factor != usual.final_div_factor,
                &[OneCycle],
            ),
        ]
    }
}

/// Whether the values make sense, and all of them have a use.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let schedule = &config.schedule;
    let name = schedule.name;
    let one_cycle = name == ScheduleName::OneCycle;
    let warm = schedule.warmup_epochs.is_some() || schedule.warmup_steps.is_some();
    if schedule.warmup_epochs.is_some() && schedule.warmup_steps.is_some() {
        return Err(Fault::in_key(
            "schedule.warmup_steps",
            "`schedule.warmup_steps` and `schedule.warmup_epochs` say the same thing",
        )
        .help("keep one of them"));
    }
    if one_cycle && warm {
        let key = match schedule.warmup_steps {
            Some(_) => "schedule.warmup_steps",
            None => "schedule.warmup_epochs",
        };
        return Err(
            Fault::in_key(key, "`one-cycle` has a warm-up of its own").help(format!(
                "remove `{key}`; `schedule.peak` is the share of the run in which the rate rises"
            )),
        );
    }
    if let Some(epochs) = schedule.warmup_epochs {
        not_negative("schedule.warmup_epochs", epochs)?;
    }
    ensure(
        (0.0..=1.0).contains(&schedule.warmup_factor),
        "schedule.warmup_factor",
        schedule.warmup_factor,
        "in [0, 1]",
    )?;
    ensure(
        (0.0..=config.optimizer.lr()).contains(&schedule.min_lr),
        "schedule.min_lr",
        schedule.min_lr,
        "between 0 and `optimizer.lr`",
    )?;
    ensure(
        schedule.gamma > 0.0 && schedule.gamma <= 1.0,
        "schedule.gamma",
        schedule.gamma,
        "in (0, 1]",
    )?;
    for epochs in &schedule.milestones {
        not_negative("schedule.milestones", *epochs)?;
    }
    ascending("schedule.milestones", &schedule.milestones)?;
    ascending("schedule.milestone_steps", &schedule.milestone_steps)?;
    let milestones = schedule.milestones.len() + schedule.milestone_steps.len();
    if name == ScheduleName::Step && milestones == 0 {
        return Err(
            Fault::in_key("schedule.name", "`schedule.name` = step needs milestones")
                .help("for example schedule.milestones = [60, 120, 160], in epochs"),
        );
    }
    ensure(
        schedule.peak > 0.0 && schedule.peak < 1.0,
        "schedule.peak",
        schedule.peak,
        "between 0 and 1",
    )?;
    for (key, factor) in [
        ("schedule.div_factor", schedule.div_factor),
        ("schedule.final_div_factor", schedule.final_div_factor),
    ] {
        ensure(
            factor >= 1.0 && factor.is_finite(),
            key,
            factor,
            "1 or larger",
        )?;
    }
    has_use(config)
}

/// Refuses milestones that are not in ascending order, or of which two are the same.
fn ascending<T: PartialOrd>(key: &str, milestones: &[T]) -> Result<(), Fault> {
    let wrong = milestones.windows(2).find_map(|pair| match pair {
        [one, next] if one == next => Some("have the same value twice"),
        [one, next] if one > next => Some("are not in ascending order"),
        _ => None,
    });
    wrong.map_or(Ok(()), |wrong| {
        Err(Fault::in_key(key, format!("`{key}` {wrong}")).help(
            "sort them and name each once; a typing error would lower the rate at another time",
        ))
    })
}

/// Refuses what changes nothing.
fn has_use(config: &Config) -> Result<(), Fault> {
    let schedule = &config.schedule;
    have_use("schedule.name", schedule.name, &schedule.particular_keys())?;
    let cold = schedule.warmup_epochs.is_none() && schedule.warmup_steps.is_none();
    if cold && schedule.warmup_factor != 0.0 {
        let message = "`schedule.warmup_factor` has no use without a warm-up";
        return Err(Fault::in_key("schedule.warmup_factor", message)
            .help("remove it, or set schedule.warmup_epochs or schedule.warmup_steps"));
    }
    let train = &config.train;
    let grows = train.batch_size.is_none() && train.micro_batch_size.is_some();
    if schedule.lr_scaling == LrScaling::Linear && !grows {
        let message = "`schedule.lr_scaling` = linear is for a global batch that grows with the \
                       ranks, and this one is the same for any number of them";
        return Err(Fault::in_key("schedule.lr_scaling", message).help(
            "remove it, or give train.micro_batch_size, the images of each rank, instead of train.batch_size",
        ));
    }
    Ok(())
}

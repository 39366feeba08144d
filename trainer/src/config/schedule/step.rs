//! A decay at milestones.

use super::{AnySchedule, Moment, check_gamma};
use crate::config::error::Fault;
use crate::config::section::keys;
use crate::config::validate::not_negative;

keys! {
    /// `step`: decay by `gamma` at every milestone.
    Step {
        /// Epochs after which the learning rate drops. Default none.
        #[schemars(extend("unit" = "epochs"))]
        milestones: Vec<f64> = Vec::new(),
        /// `milestones` as numbers of steps. Default none.
        #[schemars(extend("unit" = "steps"))]
        milestone_steps: Vec<u64> = Vec::new(),
        /// The factor, in (0, 1]. Default 0.1.
        gamma: f64 = 0.1,
    }
}

impl AnySchedule for Step {
    fn check(&self, _lr: f64) -> Result<(), Fault> {
        check_gamma(self.gamma)?;
        for epochs in &self.milestones {
            not_negative("schedule.milestones", *epochs)?;
        }
        ascending("schedule.milestones", &self.milestones)?;
        ascending("schedule.milestone_steps", &self.milestone_steps)?;
        match self.milestones.is_empty() && self.milestone_steps.is_empty() {
            false => Ok(()),
            true => Err(
                Fault::in_key("schedule.name", "`schedule.name` = step needs milestones")
                    .help("for example schedule.milestones = [60, 120, 160], in epochs"),
            ),
        }
    }

    fn rate(&self, at: &Moment) -> f64 {
        let is_over = |step: &u64| *step <= at.position;
        let epochs = self.milestones.iter().map(|epochs| at.steps(*epochs));
        let steps = self.milestone_steps.iter().copied();
        let passed = epochs.chain(steps).filter(is_over).count();
        // Above the range of i32, the power underflows to zero as well.
        at.high * self.gamma.powi(passed.try_into().unwrap_or(i32::MAX))
    }
}

/// Rejects milestones that are not strictly ascending.
fn ascending<T: PartialOrd>(key: &str, milestones: &[T]) -> Result<(), Fault> {
    let wrong = milestones.windows(2).find_map(|pair| match pair {
        [one, next] if one == next => Some("contain the same value twice"),
        [one, next] if one > next => Some("are not in ascending order"),
        _ => None,
    });
    wrong.map_or(Ok(()), |wrong| {
        Err(Fault::in_key(key, format!("`{key}` {wrong}")).help("sort them and list each once"))
    })
}

//! The dynamic loss scale: multiplies the loss by the largest factor without overflow, so that
//! small gradients do not become zero in half precision.
//!
//! It knows nothing of tensors. The caller reports whether a step overflowed, from a sum that is
//! the same on all ranks, so its state is the same on all ranks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Largest scale. Beyond it a loss of some size is not finite in `f32`, whatever its gradient.
const LARGEST: f64 = (1u128 << 100) as f64;

/// Options of the loss scale. The defaults are those of DeepSpeed and PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScaleOptions {
    /// Initial scale. Default 65536.
    pub initial: f64,
    /// Factor of the scale after `growth_interval` good steps. Default 2.
    pub growth: f64,
    /// Good steps in a row before the scale grows. Default 2000.
    pub growth_interval: u64,
    /// Factor of the scale after an overflow. Default 0.5.
    pub backoff: f64,
    /// Overflows since the last growth that lower the scale: from this one on. Default 2.
    ///
    /// The first `hysteresis - 1` overflows keep the scale; their steps are skipped nevertheless.
    pub hysteresis: u64,
    /// Smallest scale. Default 1.
    pub floor: f64,
    /// Overflows in a row at the floor before training fails. Default 10.
    pub give_up_after: u64,
}

impl Default for LossScaleOptions {
    fn default() -> Self {
        Self {
            initial: 65536.0,
            growth: 2.0,
            growth_interval: 2000,
            backoff: 0.5,
            hysteresis: 2,
            floor: 1.0,
            give_up_after: 10,
        }
    }
}

impl LossScaleOptions {
    /// Checks the options.
    ///
    /// # Errors
    /// Returns name, value and accepted values of the first invalid option.
    pub fn check(&self) -> Result<(), (&'static str, f64, &'static str)> {
        let scale = "a finite number from 2^-100 to 2^100";
        let good = |value: f64| (1.0 / LARGEST..=LARGEST).contains(&value);
        let at_least_one = "at least 1";
        let checks = [
            (good(self.initial), "initial", self.initial, scale),
            (good(self.floor), "floor", self.floor, scale),
            (
                self.floor <= self.initial,
                "floor",
                self.floor,
                "at most `initial`",
            ),
            (
                self.growth >= 1.0 && self.growth <= LARGEST,
                "growth",
                self.growth,
                at_least_one,
            ),
            (
                self.backoff > 0.0 && self.backoff < 1.0,
                "backoff",
                self.backoff,
                "between 0 and 1",
            ),
            (
                self.growth_interval > 0,
                "growth_interval",
                self.growth_interval as f64,
                at_least_one,
            ),
            (
                self.hysteresis > 0,
                "hysteresis",
                self.hysteresis as f64,
                at_least_one,
            ),
            (
                self.give_up_after > 0,
                "give_up_after",
                self.give_up_after as f64,
                at_least_one,
            ),
        ];
        match checks.into_iter().find(|(good, ..)| !good) {
            Some((_, option, value, expected)) => Err((option, value, expected)),
            None => Ok(()),
        }
    }
}

/// Steps overflow at the smallest scale.
#[derive(Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "the gradients of {overflows} steps in a row contain NaN or infinity, although the loss scale \
     is at its minimum of {floor}: training diverges. Lower the learning rate, clip gradients, or \
     train in bf16 or f32"
)]
pub struct LossScaleError {
    /// Overflows in a row at the floor.
    pub overflows: u64,
    /// The floor.
    pub floor: f64,
}

crate::debug_is_display!(LossScaleError);

/// The state to save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    scale: f64,
    /// Good steps since the last overflow or growth.
    good_steps: u64,
    /// Overflows since the last growth that kept the scale.
    tolerated: u64,
    /// Overflows in a row at the floor.
    at_floor: u64,
    /// Skipped steps in the whole training.
    skipped: u64,
}

/// The loss scale of a training.
#[derive(Clone, Debug, PartialEq)]
pub struct LossScale {
    options: LossScaleOptions,
    state: State,
}

impl LossScale {
    /// Starts at the initial scale.
    pub fn new(options: LossScaleOptions) -> Self {
        let state = State {
            scale: options.initial,
            ..State::default()
        };
        Self { options, state }
    }

    /// Factor of the next loss.
    pub fn scale(&self) -> f64 {
        self.state.scale
    }

    /// Number of steps skipped so far.
    pub fn skipped(&self) -> u64 {
        self.state.skipped
    }

    /// Updates the scale after a step, by the rule of DeepSpeed's `DynamicLossScaler`.
    ///
    /// # Errors
    /// Fails after too many overflows in a row at the floor.
    pub fn update(&mut self, overflow: bool) -> Result<(), LossScaleError> {
        let (options, state) = (&self.options, &mut self.state);
        if !overflow {
            state.at_floor = 0;
            state.good_steps += 1;
            if state.good_steps >= options.growth_interval {
                state.scale = (state.scale * options.growth).min(LARGEST);
                state.good_steps = 0;
                state.tolerated = 0;
            }
            return Ok(());
        }
        state.skipped += 1;
        state.good_steps = 0;
        if state.scale <= options.floor {
            state.at_floor += 1;
            if state.at_floor >= options.give_up_after {
                return Err(LossScaleError {
                    overflows: state.at_floor,
                    floor: options.floor,
                });
            }
        } else if state.tolerated + 1 < options.hysteresis {
            state.tolerated += 1;
        } else {
            state.scale = (state.scale * options.backoff).max(options.floor);
        }
        Ok(())
    }

    /// The state as named scalars.
    pub(crate) fn scalars(&self) -> Vec<(String, Value)> {
        match serde_json::to_value(self.state) {
            Ok(Value::Object(fields)) => fields.into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Continues from scalars that [`scalars`](Self::scalars) returned; without any, starts afresh.
    pub(crate) fn restore(&mut self, scalars: BTreeMap<String, Value>) -> Result<(), String> {
        if scalars.is_empty() {
            *self = Self::new(self.options);
            return Ok(());
        }
        let state: State = serde_json::from_value(scalars.into_iter().collect())
            .map_err(|error| error.to_string())?;
        if !(1.0 / LARGEST..=LARGEST).contains(&state.scale) {
            return Err(format!("a scale of {}", state.scale));
        }
        self.state = state;
        // The floor may differ from that of the saved state.
        self.state.scale = state.scale.max(self.options.floor);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scaler(options: LossScaleOptions, outcomes: &[bool]) -> LossScale {
        let mut scaler = LossScale::new(options);
        for overflow in outcomes {
            scaler.update(*overflow).unwrap();
        }
        scaler
    }

    fn short() -> LossScaleOptions {
        LossScaleOptions {
            initial: 64.0,
            growth_interval: 3,
            give_up_after: 2,
            ..LossScaleOptions::default()
        }
    }

    #[test]
    fn grows_after_good_steps_in_a_row() {
        assert_eq!(scaler(short(), &[false; 2]).scale(), 64.0);
        assert_eq!(scaler(short(), &[false; 3]).scale(), 128.0);
        assert_eq!(scaler(short(), &[false; 7]).scale(), 256.0);
        let interrupted = [false, false, true, false, false];
        assert_eq!(scaler(short(), &interrupted).scale(), 64.0);
        let defaults = LossScaleOptions::default();
        assert_eq!(scaler(defaults, &[false; 1999]).scale(), 65536.0);
        assert_eq!(scaler(defaults, &[false; 2000]).scale(), 131_072.0);
    }

    #[test]
    fn the_first_overflow_is_tolerated_until_the_scale_grows() {
        assert_eq!(scaler(short(), &[true]).scale(), 64.0);
        // A good step in between does not reset the count.
        assert_eq!(scaler(short(), &[true, false, true]).scale(), 32.0);
        assert_eq!(scaler(short(), &[true, true, true]).scale(), 16.0);
        let grown = [true, false, false, false, true];
        assert_eq!(scaler(short(), &grown).scale(), 128.0);
        assert_eq!(scaler(short(), &grown).skipped(), 2);
        let strict = LossScaleOptions {
            hysteresis: 1,
            ..short()
        };
        assert_eq!(scaler(strict, &[true]).scale(), 32.0);
    }

    #[test]
    fn overflows_at_the_floor_end_the_training() {
        let options = LossScaleOptions {
            floor: 30.0,
            ..short()
        };
        let mut scaler = scaler(options, &[true, true, true, true]);
        assert_eq!(scaler.scale(), 30.0);
        scaler.update(false).unwrap();
        scaler.update(true).unwrap();
        let error = scaler.update(true).unwrap_err();
        assert_eq!((error.overflows, error.floor), (2, 30.0));
    }

    #[test]
    fn options_without_meaning_are_refused() {
        let defaults = LossScaleOptions::default();
        assert!(defaults.check().is_ok() && short().check().is_ok());
        let wrong = [
            LossScaleOptions {
                initial: f64::INFINITY,
                ..defaults
            },
            LossScaleOptions {
                floor: 1e6,
                ..defaults
            },
            LossScaleOptions {
                growth: 0.5,
                ..defaults
            },
            LossScaleOptions {
                backoff: 1.0,
                ..defaults
            },
            LossScaleOptions {
                hysteresis: 0,
                ..defaults
            },
        ];
        let options = ["initial", "floor", "growth", "backoff", "hysteresis"];
        for (wrong, option) in wrong.iter().zip(options) {
            assert_eq!(wrong.check().unwrap_err().0, option);
        }
    }

    #[test]
    fn nonsense_is_not_restored() {
        let mut scaler = LossScale::new(short());
        for (name, value) in [("scale", "inf"), ("scale", "0"), ("good_steps", "-1")] {
            let mut scalars: BTreeMap<_, _> = scaler.scalars().into_iter().collect();
            let value = serde_json::from_str(value).unwrap_or(Value::Null);
            scalars.insert(name.to_owned(), value);
            assert!(scaler.restore(scalars).is_err());
        }
        let mut scalars: BTreeMap<_, _> = scaler.scalars().into_iter().collect();
        scalars.remove("scale");
        assert!(scaler.restore(scalars).is_err());
    }

    proptest! {
        #[test]
        fn goes_on_where_it_was_saved(
            before in prop::collection::vec(any::<bool>(), 0..40),
            after in prop::collection::vec(any::<bool>(), 0..40),
        ) {
            let options = LossScaleOptions {
                give_up_after: 1000,
                ..short()
            };
            let mut all = scaler(options, &before);
            let mut restored = LossScale::new(options);
            restored.restore(all.scalars().into_iter().collect()).unwrap();
            prop_assert_eq!(&restored, &all);
            for overflow in after {
                all.update(overflow).unwrap();
                restored.update(overflow).unwrap();
                prop_assert!(all.scale() >= options.floor && all.scale() <= LARGEST);
            }
            prop_assert_eq!(restored, all);
        }
    }
}

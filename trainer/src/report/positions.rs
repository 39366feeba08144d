//! The epochs and the time of a run's steps, and where the run went back.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::series::{Series, is_drawable};

/// Maximum points of a map from steps to epochs or seconds.
const KNOTS: usize = 256;
/// Maximum epochs. Later ones are ignored.
const EPOCHS: usize = 1 << 16;
/// Maximum returns to an earlier step.
const RETURNS: usize = 100;

/// The epochs and the time of a run's steps.
#[derive(Clone, Debug, Default)]
pub struct Positions {
    seconds: Series,
    /// First step and its epoch.
    first: Option<(f64, f64)>,
    /// Last step of each epoch.
    epochs: BTreeMap<u64, f64>,
    last_step: Option<f64>,
    /// Steps that the run went back from and to.
    returns: Vec<(f64, f64)>,
}

impl Positions {
    /// Takes the position of a line.
    pub fn see(&mut self, step: f64, epoch: f64, elapsed: Option<f64>) {
        if !is_drawable(step) || step < 0.0 {
            return;
        }
        self.seconds.push_some(step, elapsed);
        if let Some(before) = self.last_step.replace(step).filter(|before| step < *before)
            && self.returns.len() < RETURNS
        {
            self.returns.push((before, step - 1.0));
        }
        if epoch >= 1.0 && is_drawable(epoch) {
            self.first.get_or_insert((step - 1.0, epoch - 1.0));
            let known = self.epochs.len();
            let last = self.epochs.entry(epoch as u64);
            if known < EPOCHS {
                let last = last.or_insert(step);
                *last = last.max(step);
            }
        }
    }

    /// Steps that the run went back from and to, within its file.
    pub fn returns(&self) -> &[(f64, f64)] {
        &self.returns
    }

    /// Maps from steps to epochs and to seconds for the script, as JSON. An epoch has
    /// `steps_per_epoch`, if known.
    pub fn json(&self, steps_per_epoch: Option<f64>) -> String {
        let epochs = list(&self.of_epochs(steps_per_epoch));
        let seconds = list(&self.seconds.means());
        format!("{{\"epoch\":{epochs},\"time\":{seconds}}}")
    }

    /// Steps and the epochs that are done then.
    fn of_epochs(&self, steps_per_epoch: Option<f64>) -> Vec<(f64, f64)> {
        let mut knots: Vec<(f64, f64)> = self.first.into_iter().collect();
        let count = self.epochs.len();
        for (index, (epoch, last)) in self.epochs.iter().enumerate() {
            let Some(before) = knots.last().copied().filter(|before| before.0 < *last) else {
                continue;
            };
            let epoch = *epoch as f64;
            let is_over = index + 1 < count;
            // The last epoch may be in progress.
            let length = steps_per_epoch.or_else(|| match knots.as_slice() {
                [.., a, b] => Some((b.0 - a.0) / (b.1 - a.1)),
                _ => None,
            });
            let part = length.map_or(1.0, |length| (last - before.0) / length);
            let done = if is_over {
                epoch
            } else {
                epoch - 1.0 + part.min(1.0)
            };
            knots.push((*last, done));
        }
        knots
    }
}

/// At most [`KNOTS`] of the points, with the first and the last, as a JSON array.
fn list(points: &[(f64, f64)]) -> String {
    let skip = points.len().div_ceil(KNOTS).max(1);
    let last = points.len().saturating_sub(1);
    let mut text = "[".to_owned();
    let kept = points.iter().enumerate();
    for (index, (x, y)) in kept.filter(|(index, _)| index % skip == 0 || *index == last) {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}[{},{}]", brief(*x), brief(*y));
    }
    text.push(']');
    text
}

/// A number with six significant digits, as JSON has it.
pub fn brief(value: f64) -> String {
    let text = format!("{value:.5e}");
    text.parse::<f64>().unwrap_or(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_epochs_and_times() {
        let mut positions = Positions::default();
        for step in 1..=25 {
            let epoch = f64::from((step - 1) / 10 + 1);
            positions.see(f64::from(step), epoch, Some(0.5 * f64::from(step)));
        }
        // Two and a half epochs.
        let json = positions.json(None);
        assert!(json.starts_with("{\"epoch\":[[0,0],[10,1],[20,2],[25,2.5]],\"time\":[[1,0.5],"));
        assert!(positions.json(Some(20.0)).contains("[25,2.25]"));
        assert_eq!(positions.returns(), []);
        positions.see(16.0, 2.0, None);
        assert_eq!(positions.returns(), [(25.0, 15.0)]);
    }

    #[test]
    fn maps_are_short_valid_json() {
        let mut positions = Positions::default();
        for step in 0..100_000 {
            positions.see(f64::from(step), f64::from(step / 3 + 1), Some(1e-9));
        }
        positions.see(f64::NAN, f64::INFINITY, Some(f64::NAN));
        positions.see(-1.0, 1.0, None);
        let value: serde_json::Value = serde_json::from_str(&positions.json(None)).unwrap();
        for axis in ["epoch", "time"] {
            assert!(value[axis].as_array().unwrap().len() <= KNOTS + 1);
        }
        assert_eq!(brief(0.123_456_789), "0.123457");
        assert_eq!(brief(1234.0), "1234");
        let empty = Positions::default().json(None);
        assert_eq!(empty, "{\"epoch\":[],\"time\":[]}");
    }
}

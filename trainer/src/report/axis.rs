//! Axes of plots: positions of values, and round values for labels.

use super::series::Point;

/// One axis of a plot.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Positions of `low` and `high` in the picture.
    from: f64,
    to: f64,
}

impl Axis {
    /// Makes an axis from `low` to `high` exactly.
    pub fn tight(low: f64, high: f64, from: f64, to: f64) -> Self {
        let (low, high) = widened(low, high);
        Self {
            low,
            high,
            logarithmic: false,
            from,
            to,
        }
    }

    /// Makes an axis that begins and ends at round values.
    pub fn round(low: f64, high: f64, from: f64, to: f64) -> Self {
        let (low, high) = widened(low, high);
        let step = round_step(low, high, 5);
        let down = (low / step + 1e-9).floor() * step;
        let up = (high / step - 1e-9).ceil() * step;
        Self::tight(down.min(low), up.max(high), from, to)
    }

    /// Makes a logarithmic axis, or a linear one if values are not positive.
    pub fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Self {
        if low <= 0.0 || high <= 0.0 {
            return Self::round(low, high, from, to);
        }
        // Leaves room at both ends, and around a single value.
        let (low, high) = (low / 1.1, high * 1.1);
        Self {
            low,
            high,
            logarithmic: true,
            from,
            to,
        }
    }

    /// Whether a value lies on the axis.
    pub fn covers(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Position of a value. A value outside the axis goes to its end.
    pub fn place(&self, value: f64) -> f64 {
        let share = match self.logarithmic {
            false => (value - self.low) / (self.high - self.low),
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        let share = if share.is_finite() {
            share.clamp(0.0, 1.0)
        } else {
            0.0
        };
        self.from + (self.to - self.from) * share
    }

    /// Values to label, with their labels; on a linear axis at least `apart` from each other.
    pub fn ticks(&self, wanted: u32, apart: f64) -> Vec<(f64, String)> {
        match self.logarithmic {
            true => self.logarithmic_ticks(wanted),
            false => self.linear_ticks(wanted, apart),
        }
    }

    fn linear_ticks(&self, wanted: u32, apart: f64) -> Vec<(f64, String)> {
        let step = round_step(self.low, self.high, wanted).max(apart);
        let first = (self.low / step - 1e-6).ceil();
        let steps = 0..=3 * wanted;
        let values = steps.map(|index| (first + f64::from(index)) * step);
        values
            .take_while(|value| *value <= self.high + 1e-6 * step)
            .map(|value| (value, tick_label(value, step)))
            .collect()
    }

    fn logarithmic_ticks(&self, wanted: u32) -> Vec<(f64, String)> {
        let decades = (self.high / self.low).log10();
        let factors: &[f64] = match decades {
            decades if decades < 1.5 => &[1.0, 2.0, 3.0, 5.0],
            decades if decades < 3.0 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let skip = ((decades / f64::from(wanted)).ceil() as usize).max(1);
        let powers = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let values = powers.step_by(skip).flat_map(|power| {
            let decade = 10f64.powi(power);
            factors.iter().map(move |factor| factor * decade)
        });
        let within = values.filter(|value| (self.low..=self.high).contains(value));
        let ticks: Vec<_> = within
            .map(|value| (value, tick_label(value, value)))
            .collect();
        if ticks.len() > 1 {
            return ticks;
        }
        // An axis within one factor is labeled like a linear one.
        self.linear_ticks(wanted, 0.0)
    }

    /// Data for the script, which maps positions back to values.
    pub fn attribute(&self) -> String {
        let kind = if self.logarithmic { "log" } else { "linear" };
        format!(
            "{} {} {} {} {kind}",
            self.low, self.high, self.from, self.to
        )
    }
}

/// Minimum and maximum of points by one coordinate.
pub fn range<'a>(
    points: impl IntoIterator<Item = &'a Point>,
    by: impl Fn(&Point) -> f64,
) -> Option<(f64, f64)> {
    let ranges = points.into_iter().map(|point| (by(point), by(point)));
    ranges.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))
}

/// Adds room around a single value.
fn widened(low: f64, high: f64) -> (f64, f64) {
    let span = high - low;
    // A smaller difference is lost in rounding.
    if span > 1e-9 * low.abs().max(high.abs()) {
        return (low, high);
    }
    let room = if low == 0.0 { 1.0 } else { 0.1 * low.abs() };
    (low - room, high + room)
}

/// The step of 1, 2 or 5 times a power of ten that gives about `wanted` steps.
fn round_step(low: f64, high: f64, wanted: u32) -> f64 {
    let rough = (high - low) / f64::from(wanted.max(1));
    let power = 10f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let fitting = factors
        .into_iter()
        .find(|factor| factor * power >= 0.95 * rough);
    fitting.unwrap_or(10.0) * power
}

/// Label of a value, if labels are `step` apart.
fn tick_label(value: f64, step: f64) -> String {
    if value.abs() < 1e-9 * step {
        return "0".to_owned();
    }
    let size = value.abs();
    if size >= 1e9 || step.abs() < 0.9e-4 {
        return shortest_exponential(value);
    }
    for (unit, letter) in [(1e6, "M"), (1e4, "k")] {
        if size >= unit {
            let unit = if letter == "k" { 1e3 } else { unit };
            return format!("{}{letter}", decimals(value / unit, step / unit));
        }
    }
    decimals(value, step)
}

/// The value with as many decimals as the step has.
fn decimals(value: f64, step: f64) -> String {
    let digits = (-(step.abs() * 1.0001).log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.digits$}")
}

fn shortest_exponential(value: f64) -> String {
    let text = format!("{value:.2e}");
    match text.split_once('e') {
        Some((digits, power)) => {
            let digits = digits.trim_end_matches('0').trim_end_matches('.');
            format!("{digits}e{power}")
        }
        None => text,
    }
}

/// A number for people, with four significant digits.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "–".to_owned();
    }
    if size == 0.0 {
        return "0".to_owned();
    }
    if !(1e-3..1e7).contains(&size) {
        return shortest_exponential(value);
    }
    let digits = (3.0 - size.log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(axis: &Axis, wanted: u32) -> Vec<String> {
        let ticks = axis.ticks(wanted, 0.0);
        ticks.into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round() {
        let axis = Axis::round(0.913, 0.987, 0.0, 100.0);
        assert_eq!(
            labels(&axis, 5),
            ["0.90", "0.92", "0.94", "0.96", "0.98", "1.00"]
        );
        let axis = Axis::tight(1.0, 46_900.0, 0.0, 100.0);
        assert_eq!(labels(&axis, 5), ["10k", "20k", "30k", "40k"]);
        let axis = Axis::logarithmic(0.001, 2.5, 0.0, 100.0);
        assert_eq!(labels(&axis, 5), ["0.001", "0.01", "0.1", "1"]);
        let axis = Axis::tight(0.0, 3e-5, 0.0, 100.0);
        assert_eq!(labels(&axis, 3), ["0", "1e-5", "2e-5", "3e-5"]);
        let axis = Axis::tight(0.001, 0.001, 0.0, 100.0);
        assert_eq!(
            labels(&axis, 4),
            ["9e-4", "9.5e-4", "1e-3", "1.05e-3", "1.1e-3"]
        );
    }

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.97123, "0.9712"),
            (1234.56, "1235"),
            (2.0, "2"),
            (0.000_123_4, "1.23e-4"),
            (3.2e9, "3.2e9"),
            (100.0, "100"),
            (f64::NAN, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    proptest! {
        #[test]
        fn every_value_lies_on_the_axis(low in -1e30..1e30f64, span in 0.0..1e30f64, share in -1.0..2.0f64) {
            let high = low + span;
            let value = low + share * span;
            for axis in [
                Axis::tight(low, high, 300.0, 10.0),
                Axis::round(low, high, 300.0, 10.0),
                Axis::logarithmic(low, high, 300.0, 10.0),
            ] {
                prop_assert!((10.0..=300.0).contains(&axis.place(value)));
                let ticks = axis.ticks(5, 0.0);
                prop_assert!(ticks.len() <= 17, "{:?}", ticks);
                for (value, _) in ticks {
                    prop_assert!(value.is_finite());
                }
            }
        }
    }
}

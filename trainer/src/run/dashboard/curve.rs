//! Curves with a bounded number of points, and axes with round ticks.

/// Maximum points of a curve. A fuller curve drops every other point.
pub(super) const POINTS: usize = 512;

/// A curve with a bounded number of points.
#[derive(Debug, Default)]
pub(super) struct Curve {
    points: Vec<(f64, f64)>,
    /// Values per point.
    stride: u64,
    seen: u64,
}

impl Curve {
    pub(super) fn push(&mut self, x: f64, y: f64) {
        let stride = self.stride.max(1);
        self.seen += 1;
        if !self.seen.is_multiple_of(stride) || !y.is_finite() {
            return;
        }
        self.points.push((x, y));
        if self.points.len() >= POINTS {
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            self.stride = stride * 2;
        }
    }

    pub(super) fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
}

/// Bounds of an axis and its ticks, evenly from end to end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ticks {
    pub bounds: [f64; 2],
    pub labels: Vec<String>,
}

impl Ticks {
    /// Ticks around all values. `None` without values, which have no scale.
    ///
    /// `least` is the least distance of two ticks, and `most` the largest possible value.
    pub(super) fn around(
        values: impl Iterator<Item = f64>,
        least: f64,
        most: Option<f64>,
    ) -> Option<Self> {
        let found = values.fold(None, |found: Option<(f64, f64)>, value| {
            let (low, high) = found.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        });
        let (mut low, mut high) = found?;
        if low == high {
            let room = (0.05 * low.abs()).max(1e-6).max(least);
            let most = most.unwrap_or(f64::INFINITY).max(high);
            (low, high) = (low - room, (high + room).min(most));
        }
        let step = round_step((high - low) / 3.0).max(least);
        // A value on a tick, but for rounding, needs no further tick.
        let (first, mut last) = ((low / step + 1e-6).floor(), (high / step - 1e-6).ceil());
        if let Some(most) = most.filter(|most| *most >= high) {
            last = last.min((most / step + 1e-6).floor());
        }
        last = last.max(first + 1.0);
        let decimals = (-(step * 1.0001).log10().floor()).clamp(0.0, 6.0) as usize;
        let ticks = (0..=(last - first) as u64).map(|index| (first + index as f64) * step);
        Some(Self {
            bounds: [first * step, last * step],
            labels: ticks.map(|tick| format!("{tick:.decimals$}")).collect(),
        })
    }
}

/// The next of 1, 2 or 5 times a power of ten.
fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 5.0];
    let fits = |factor: &f64| factor * power >= 0.999 * rough;
    factors.into_iter().find(fits).unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(values: &[f64], least: f64, most: Option<f64>) -> Vec<String> {
        let ticks = Ticks::around(values.iter().copied(), least, most);
        ticks.map(|ticks| ticks.labels).unwrap_or_default()
    }

    #[test]
    fn ticks_are_round_and_cover_all_values() {
        assert_eq!(ticks(&[], 0.0, None), [""; 0]);
        assert_eq!(ticks(&[0.13, 2.31], 0.0, None), ["0", "1", "2", "3"]);
        assert_eq!(
            ticks(&[97.6, 98.95], 0.0, Some(100.0)),
            ["97.5", "98.0", "98.5", "99.0"]
        );
        assert_eq!(ticks(&[1.0, 170.0], 1.0, None), ["0", "100", "200"]);
        assert_eq!(ticks(&[1.0, 2.0], 1.0, None), ["1", "2"]);
        assert_eq!(
            ticks(&[99.99, 100.0], 0.0, Some(100.0)).last().unwrap(),
            "100.000"
        );
        let single = ticks(&[97.6], 0.0, Some(100.0));
        assert_eq!(single.last().map(String::as_str), Some("100"));
        let around = Ticks::around([0.5].into_iter(), 0.0, None).unwrap();
        assert!(
            around.bounds[0] < 0.5 && around.bounds[1] > 0.5,
            "{around:?}"
        );
        let one = Ticks::around([1e-3, 1e-3].into_iter(), 0.0, None).unwrap();
        assert!(one.bounds[0] > 0.0 && one.bounds[1] < 0.002, "{one:?}");
    }

    #[test]
    fn a_long_curve_keeps_a_bounded_number_of_points() {
        let mut curve = Curve::default();
        curve.push(0.0, f64::NAN);
        for step in 1..=10_000 {
            curve.push(f64::from(step), 1.0);
        }
        let points = curve.points();
        assert!(
            (POINTS / 2..POINTS).contains(&points.len()),
            "{}",
            points.len()
        );
        assert!(points[0].0 < 40.0 && points[points.len() - 1].0 > 9_900.0);
    }
}

//! A curve of any length in bounded memory.
//!
//! Neighboring values share a bucket. Whenever the buckets run out, pairs of them merge.

/// A point: x and y.
pub type Point = (f64, f64);

/// Maximum buckets of a curve, about the width of a plot in pixels.
pub const BUCKETS: usize = 512;

/// Largest number to draw: larger ones overflow when an axis is computed.
const LARGEST: f64 = 1e30;

/// Whether a number can be drawn.
pub fn is_drawable(value: f64) -> bool {
    value.abs() <= LARGEST
}

/// Summary of consecutive values.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    count: u64,
    sum: Point,
    min: Point,
    max: Point,
}

impl Bucket {
    fn of(point: Point) -> Self {
        Self {
            count: 1,
            sum: point,
            min: point,
            max: point,
        }
    }

    /// Merges with the bucket behind it.
    fn merged(self, next: Self) -> Self {
        let smaller = next.min.1 < self.min.1;
        let larger = next.max.1 > self.max.1;
        Self {
            count: self.count + next.count,
            sum: (self.sum.0 + next.sum.0, self.sum.1 + next.sum.1),
            min: if smaller { next.min } else { self.min },
            max: if larger { next.max } else { self.max },
        }
    }

    fn mean(self) -> Point {
        let count = self.count as f64;
        (self.sum.0 / count, self.sum.1 / count)
    }
}

/// A curve: values in the order of their arrival.
#[derive(Clone, Debug)]
pub struct Series {
    buckets: Vec<Bucket>,
    /// Values in a full bucket.
    width: u64,
    first: Option<Point>,
    last: Option<Point>,
    min: f64,
    max: f64,
    /// Number of values above zero, and the sum of their inverses.
    positive: (u64, f64),
}

impl Default for Series {
    fn default() -> Self {
        Self {
            buckets: Vec::new(),
            width: 1,
            first: None,
            last: None,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            positive: (0, 0.0),
        }
    }
}

impl Series {
    /// Appends a value, unless it cannot be drawn.
    pub fn push(&mut self, x: f64, y: f64) {
        if !is_drawable(x) || !is_drawable(y) {
            return;
        }
        self.first = self.first.or(Some((x, y)));
        self.last = Some((x, y));
        self.min = self.min.min(y);
        self.max = self.max.max(y);
        if y > 0.0 {
            self.positive = (self.positive.0 + 1, self.positive.1 + 1.0 / y);
        }
        let new = Bucket::of((x, y));
        match self.buckets.last_mut() {
            Some(bucket) if bucket.count < self.width => *bucket = bucket.merged(new),
            _ => self.buckets.push(new),
        }
        if self.buckets.len() > BUCKETS {
            self.halve();
        }
    }

    /// Appends a value that may be missing.
    pub fn push_some(&mut self, x: f64, y: Option<f64>) {
        if let Some(y) = y {
            self.push(x, y);
        }
    }

    fn halve(&mut self) {
        let pairs = self.buckets.chunks(2);
        let merge = |pair: &[Bucket]| pair.iter().copied().reduce(Bucket::merged);
        self.buckets = pairs.filter_map(merge).collect();
        self.width = self.width.saturating_mul(2);
    }

    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// The last value.
    pub fn last(&self) -> Option<f64> {
        self.last.map(|(_, y)| y)
    }

    /// The step of the last value.
    pub fn last_step(&self) -> Option<f64> {
        self.last.map(|(x, _)| x)
    }

    /// The smallest value.
    pub fn min(&self) -> Option<f64> {
        (!self.is_empty()).then_some(self.min)
    }

    /// The largest value.
    pub fn max(&self) -> Option<f64> {
        (!self.is_empty()).then_some(self.max)
    }

    /// Overall rate of rates that are each over the same work: total work by total time.
    ///
    /// An arithmetic mean would be too high.
    pub fn mean_rate(&self) -> Option<f64> {
        let (count, inverses) = self.positive;
        (count > 0).then(|| count as f64 / inverses)
    }

    /// Minimum and maximum of every bucket in their order, from the first value to the last.
    ///
    /// Keeps all peaks.
    pub fn extremes(&self) -> Vec<Point> {
        let mut points = Vec::with_capacity(2 * self.buckets.len() + 2);
        let begins_later = |first: &Point| {
            self.buckets
                .first()
                .is_some_and(|b| b.min.0.min(b.max.0) > first.0)
        };
        points.extend(self.first.filter(begins_later));
        for bucket in &self.buckets {
            let (min, max) = (bucket.min, bucket.max);
            let (first, second) = if min.0 <= max.0 {
                (min, max)
            } else {
                (max, min)
            };
            points.push(first);
            if second.0 > first.0 {
                points.push(second);
            }
        }
        let ends_earlier = |last: &Point| points.last().is_some_and(|end| end.0 < last.0);
        points.extend(self.last.filter(ends_earlier));
        points
    }

    /// The mean of every bucket.
    pub fn means(&self) -> Vec<Point> {
        self.buckets.iter().map(|bucket| bucket.mean()).collect()
    }

    /// Means over a window around every bucket.
    ///
    /// The window is a twentieth of the curve, and narrower at its ends, so that the curve keeps
    /// its shape and does not lag.
    pub fn smooth(&self) -> Vec<Point> {
        let means = self.means();
        let reach = means.len() / 40;
        let mut sums = vec![0.0];
        for (_, y) in &means {
            sums.push(sums.last().copied().unwrap_or_default() + y);
        }
        let smoothed = means.iter().enumerate().map(|(index, (x, y))| {
            let reach = reach.min(index).min(means.len() - 1 - index);
            let (from, to) = (index - reach, index + reach + 1);
            match (sums.get(from), sums.get(to)) {
                (Some(before), Some(until)) => (*x, (until - before) / (to - from) as f64),
                _ => (*x, *y),
            }
        });
        smoothed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_long_curve_keeps_its_peaks_ends_and_mean() {
        let mut series = Series::default();
        let count = 1_000_000;
        for step in 0..count {
            let peak = f64::from(u8::from(step == 777_777)) * 50.0;
            series.push(f64::from(step), f64::from(step % 10) + peak);
        }
        assert!(series.buckets.len() <= BUCKETS);
        let points = series.extremes();
        assert!(points.len() <= 2 * BUCKETS + 2);
        assert!(points.contains(&(777_777.0, 57.0)));
        assert!(points.is_sorted_by(|a, b| a.0 < b.0));
        assert!(points[0].0 == 0.0 && points[points.len() - 1].0 == f64::from(count - 1));
        assert_eq!(series.last(), Some(9.0));
        let smooth = series.smooth();
        let middle = smooth[smooth.len() / 4];
        assert!((middle.1 - 4.5).abs() < 0.01, "{middle:?}");
    }

    #[test]
    fn a_short_curve_is_drawn_as_it_is() {
        let mut series = Series::default();
        let points = [(1.0, 3.0), (2.0, 1.0), (3.0, 2.0)];
        for (x, y) in points {
            series.push(x, y);
        }
        assert_eq!(series.extremes(), points);
        assert_eq!(series.means(), points);
        assert_eq!(series.smooth(), points);
        let ends = [series.last(), series.min(), series.max()];
        assert_eq!(ends, [Some(2.0), Some(1.0), Some(3.0)]);
    }

    #[test]
    fn what_is_no_number_is_left_out() {
        let mut series = Series::default();
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
            series.push(1.0, value);
            series.push(value, 1.0);
        }
        series.push_some(1.0, None);
        assert!(series.is_empty() && series.mean_rate().is_none() && series.max().is_none());
    }

    #[test]
    fn rates_count_by_the_time_that_they_held() {
        let mut series = Series::default();
        // The same work in 1 s, in 3 s, and in almost no time.
        for (step, rate) in [90.0, 30.0, 1e9].into_iter().enumerate() {
            series.push(step as f64, rate);
        }
        assert!((series.mean_rate().unwrap() - 3.0 * 90.0 / 4.0).abs() < 1e-3);
        series.push(4.0, 0.0);
        assert!((series.mean_rate().unwrap() - 3.0 * 90.0 / 4.0).abs() < 1e-3);
    }

    proptest! {
        #[test]
        fn no_value_lies_outside_the_extremes(values in prop::collection::vec(-1e3..1e3f64, 1..3000)) {
            let mut series = Series::default();
            for (x, y) in values.iter().enumerate() {
                series.push(x as f64, *y);
            }
            let drawn: Vec<f64> = series.extremes().iter().map(|point| point.1).collect();
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert!(drawn.contains(&low) && drawn.contains(&high));
            prop_assert!(drawn.len() <= 2 * BUCKETS + 2);
        }
    }
}

//! The loss over the learning rate, and what it suggests.

/// Weight of the past in the smoothed loss.
const MEMORY: f64 = 0.9;
/// How many times the smallest smoothed loss is too much.
const DIVERGED: f64 = 4.0;

/// One step of a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The learning rate.
    pub lr: f64,
    /// The loss before the step.
    pub loss: f64,
    /// The mean of the losses so far, in which the latest count most.
    pub smooth: f64,
}

/// Rates that look good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suggestion {
    /// Where the loss falls fastest.
    pub steepest: f64,
    /// A tenth of the rate of the smallest loss.
    pub tenth_of_minimum: f64,
}

/// A sweep so far.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    points: Vec<Point>,
    average: f64,
}

impl Curve {
    /// Adds a step; false if the loss went up for good, and with it the sweep is over.
    pub(super) fn push(&mut self, lr: f64, loss: f64) -> bool {
        if !loss.is_finite() {
            return false;
        }
        self.average = MEMORY * self.average + (1.0 - MEMORY) * loss;
        // The average began at 0, which must not count.
        let seen = 1.0 - MEMORY.powf((self.points.len() + 1) as f64);
        let smooth = self.average / seen;
        self.points.push(Point { lr, loss, smooth });
        let least = self.minimum().map_or(smooth, |(_, point)| point.smooth);
        smooth <= DIVERGED * least
    }

    /// All steps, by rising rate.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    fn minimum(&self) -> Option<(usize, &Point)> {
        let points = self.points.iter().enumerate();
        points.min_by(|a, b| a.1.smooth.total_cmp(&b.1.smooth))
    }

    /// What looks good; nothing if the loss never fell.
    pub fn suggestion(&self) -> Option<Suggestion> {
        let (end, minimum) = self.minimum()?;
        let falling = self.points.get(..=end)?;
        let slope = |pair: &[Point]| match pair {
            [a, b] => (b.smooth - a.smooth) / (b.lr / a.lr).ln(),
            _ => 0.0,
        };
        let steepest = falling
            .windows(2)
            .min_by(|a, b| slope(a).total_cmp(&slope(b)))
            .filter(|pair| slope(pair) < 0.0)?;
        Some(Suggestion {
            steepest: steepest.first()?.lr,
            tenth_of_minimum: minimum.lr / 10.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flat, falling around 1e-3, lowest near 1e-1, then far up.
    fn curve() -> (Curve, usize) {
        let mut curve = Curve::default();
        for index in 0..200 {
            let log = -6.0 + 0.04 * f64::from(index);
            let fall = 2.0 / (1.0 + (3.0 * (log + 3.0)).exp());
            let rise = (8.0 * (log + 0.5)).exp();
            if !curve.push(10f64.powf(log), 0.3 + fall + rise) {
                break;
            }
        }
        let steps = curve.points().len();
        (curve, steps)
    }

    #[test]
    fn the_steepest_descent_and_the_minimum_are_found() {
        let (curve, _) = curve();
        let found = curve.suggestion().unwrap();
        // Smoothing sees a slope some steps late.
        assert!((1e-3..6e-3).contains(&found.steepest), "{found:?}");
        let tenth = found.tenth_of_minimum;
        assert!((5e-3..4e-2).contains(&tenth), "{found:?}");
    }

    #[test]
    fn a_sweep_ends_when_the_loss_goes_up_for_good() {
        let (curve, steps) = curve();
        assert!(steps < 180, "{steps}");
        let last = curve.points().last().unwrap();
        assert!(last.smooth > 1.2, "{last:?}");
        assert!(!Curve::default().push(0.1, f64::NAN));
        assert!(!Curve::default().push(0.1, f64::INFINITY));
    }

    #[test]
    fn a_loss_that_never_falls_suggests_nothing() {
        let mut curve = Curve::default();
        for index in 1..20 {
            curve.push(f64::from(index), 1.0 + 0.01 * f64::from(index));
        }
        assert_eq!(curve.suggestion(), None);
        assert_eq!(Curve::default().suggestion(), None);
    }

    #[test]
    fn the_first_losses_count_in_full() {
        let mut curve = Curve::default();
        curve.push(0.1, 2.0);
        curve.push(0.2, 2.0);
        for point in curve.points() {
            assert!((point.smooth - 2.0).abs() < 1e-12, "{point:?}");
        }
    }
}

//! The loss over the learning rate, and the learning rates that it suggests.
//!
//! Losses of single steps are noisy, and most of a sweep is flat. A suggestion needs a fall that
//! noise does not explain, and comes from the part of the sweep with that fall.

/// Weight of the past in the average that tells a divergence.
const MEMORY: f64 = 0.9;
/// Multiple of the smallest average that counts as divergence.
const DIVERGED: f64 = 4.0;
/// Minimum steps for that average: below, it depends on a single one.
const SETTLED: usize = 10;
/// One in this many steps, at the beginning, is skipped and gives the initial loss.
const FIRST_OF: usize = 10;
/// One in this many steps on either side joins the mean at a step. Unlike a moving average of the
/// past, this mean does not lag.
const BESIDE_OF: usize = 20;
/// Standard errors of a clear fall. The lowest of many means is a few below the others by chance.
const CLEAR: f64 = 4.0;
/// Minimum fall as a fraction of the loss, for a loss without noise.
const LEAST_FALL: f64 = 0.01;
/// Ratio of the standard deviation to the median difference of neighbors, for normal noise.
const DEVIATION_OF_MEDIAN: f64 = 1.4826 * std::f64::consts::FRAC_1_SQRT_2;

/// One step of a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// The learning rate.
    pub lr: f64,
    /// The loss before the step.
    pub loss: f64,
}

impl Suggestion {
    /// One rate between the two, rounded to two digits.
    pub fn rate(&self) -> f64 {
        let middle = (self.steepest * self.tenth_of_minimum).sqrt();
        format!("{middle:.1e}").parse().unwrap_or(middle)
    }
}

/// Suggested learning rates, within the rates of the sweep.
///
/// Either may be larger: the loss often falls fastest close to its minimum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suggestion {
    /// Rate at which the loss falls fastest.
    pub steepest: f64,
    /// A tenth of the rate with the smallest loss.
    pub tenth_of_minimum: f64,
}

/// Reason why a sweep suggests nothing.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Unclear {
    /// The loss diverged at once.
    #[error(
        "no suggestion: the loss diverged after {steps} steps, too few to judge. Try a smaller \
         --min or more --steps"
    )]
    TooFew {
        /// Steps before the divergence.
        steps: usize,
    },
    /// The loss did not fall clearly.
    #[error(
        "no suggestion: the mean loss was {first:.4} at first and {least:.4} at best, within the \
         noise of {noise:.4} per step. Try more --steps, a larger train.batch_size or a smaller \
         --min"
    )]
    Noise {
        /// Mean loss of the first steps.
        first: f64,
        /// The smallest mean of neighboring losses.
        least: f64,
        /// The standard deviation of a loss.
        noise: f64,
    },
    /// The smallest loss is too close to the first rate.
    #[error(
        "no suggestion: the loss was lowest at {lr:.1e}, less than ten times the first learning \
         rate. Try a smaller --min"
    )]
    AtOnce {
        /// The rate of the smallest loss.
        lr: f64,
    },
}

/// A sweep so far.
#[derive(Clone, Debug, Default)]
pub struct LossCurve {
    points: Vec<Trial>,
    /// Steps that the sweep may have.
    planned: usize,
    /// Exponential moving average of the losses so far, biased towards 0 at first.
    average: f64,
    /// The smallest unbiased average so far, ignoring the first steps.
    least: Option<f64>,
}

/// Neighboring steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The rate of the middle step.
    pub lr: f64,
    /// The mean loss.
    pub mean: f64,
    /// Slope of the loss per step.
    slope: f64,
}

impl Span {
    fn of(points: &[Trial]) -> Self {
        let half = points.len() / 2;
        // Least squares: the sum of squared distances from the middle is the denominator of the
        // slope.
        let (mut sum, mut along, mut squares) = (0.0, 0.0, 0.0);
        for (index, point) in points.iter().enumerate() {
            let distance = index as f64 - half as f64;
            sum += point.loss;
            along += distance * point.loss;
            squares += distance * distance;
        }
        Self {
            lr: points.get(half).map_or(f64::NAN, |point| point.lr),
            mean: sum / points.len() as f64,
            slope: along / squares,
        }
    }
}

impl LossCurve {
    /// An empty sweep of up to `planned` steps.
    pub(super) fn of_steps(planned: usize) -> Self {
        Self {
            planned,
            ..Self::default()
        }
    }

    /// Adds a step. False if the loss diverged, which ends the sweep.
    pub(super) fn push(&mut self, lr: f64, loss: f64) -> bool {
        if !loss.is_finite() {
            return false;
        }
        self.average = MEMORY * self.average + (1.0 - MEMORY) * loss;
        // Corrects the bias of an average that began at 0.
        let seen = 1.0 - MEMORY.powf((self.points.len() + 1) as f64);
        let smooth = self.average / seen;
        self.points.push(Trial { lr, loss });
        if self.points.len() < SETTLED {
            return true;
        }
        let least = self.least.map_or(smooth, |least| least.min(smooth));
        self.least = Some(least);
        smooth <= DIVERGED * least
    }

    /// All steps, by rising rate.
    pub fn points(&self) -> &[Trial] {
        &self.points
    }

    /// Steps on either side in the mean at a step.
    fn beside(&self) -> usize {
        (self.planned.max(self.points.len()) / BESIDE_OF).max(1)
    }

    /// Steps in a mean.
    pub fn width(&self) -> usize {
        2 * self.beside() + 1
    }

    /// The mean around the newest step that has enough neighbors on both sides, with the index of
    /// that step.
    pub(super) fn newest(&self) -> Option<(usize, Trial, f64)> {
        let index = self.points.len().checked_sub(1 + self.beside())?;
        let span = Span::of(
            self.points
                .get(self.points.len().checked_sub(self.width())?..)?,
        );
        Some((index, *self.points.get(index)?, span.mean))
    }

    /// The mean around every step that has enough neighbors on both sides.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> {
        self.points.windows(self.width()).map(Span::of)
    }

    /// Standard deviation of a single loss, from neighbors, whose rates hardly differ.
    fn noise(&self) -> f64 {
        let pairs = self.points.windows(2);
        let mut differences: Vec<f64> = pairs
            .filter_map(|pair| Some((pair.last()?.loss - pair.first()?.loss).abs()))
            .collect();
        differences.sort_by(f64::total_cmp);
        let median = differences.get(differences.len() / 2);
        median.map_or(0.0, |median| median * DEVIATION_OF_MEDIAN)
    }

    /// The suggested rates.
    ///
    /// # Errors
    /// If no rate stands out: the reason and advice.
    pub fn suggestion(&self) -> Result<Suggestion, Unclear> {
        let steps = self.points.len();
        let beside = self.beside();
        let skipped = (steps / FIRST_OF).max(beside);
        let spans: Vec<Span> = self.spans().skip(skipped - beside).collect();
        let begin = self.points.iter().take(skipped);
        let first = begin.map(|point| point.loss).sum::<f64>() / skipped as f64;
        let noise = self.noise();
        let error = noise * (1.0 / skipped as f64 + 1.0 / (2 * beside + 1) as f64).sqrt();
        let clear = (CLEAR * error).max(LEAST_FALL * first.abs());

        let falling = until_minimum(&spans, first, clear);
        let (Some(minimum), Some(start)) = (falling.last(), self.points.first()) else {
            return Err(Unclear::TooFew { steps });
        };
        let (least, fall) = (minimum.mean, first - minimum.mean);
        if fall <= clear {
            return Err(Unclear::Noise {
                first,
                least,
                noise,
            });
        }
        if minimum.lr < 10.0 * start.lr {
            return Err(Unclear::AtOnce { lr: minimum.lr });
        }
        // Between the initial loss and the minimum, the slope is that of the fall, not noise.
        let high = |span: &Span| span.mean > first - fall / 4.0;
        let low = |span: &Span| span.mean <= first - fall * 3.0 / 4.0;
        let from = falling.iter().rposition(high).unwrap_or(0);
        let slope = falling.get(from..).unwrap_or_default();
        let to = slope.iter().position(low).unwrap_or(0);
        let slope = slope.iter().take(to + 1);
        let steepest = slope.min_by(|a, b| a.slope.total_cmp(&b.slope));
        Ok(Suggestion {
            steepest: steepest.unwrap_or(minimum).lr,
            tenth_of_minimum: minimum.lr / 10.0,
        })
    }
}

/// The spans up to the smallest mean, which comes last. Stops once the loss, after a clear fall, is
/// clearly above `first` again: from there on rates are too large, and no minimum counts.
fn until_minimum(spans: &[Span], first: f64, clear: f64) -> &[Span] {
    let mut end: Option<(usize, f64)> = None;
    for (index, span) in spans.iter().enumerate() {
        match end {
            Some((_, least)) if least < first - clear && span.mean > first + clear => break,
            Some((_, least)) if least <= span.mean => {}
            _ => end = Some((index, span.mean)),
        }
    }
    let end = end.map_or(0, |(index, _)| index + 1);
    spans.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flat, falling around 1e-3 from 2.3 to 0.3, then far up from 1e-1 on.
    fn loss(lr: f64) -> f64 {
        let log = lr.log10();
        let fall = 2.0 / (1.0 + (3.0 * (log + 3.0)).exp());
        let rise = (8.0 * (log + 0.5)).exp();
        0.3 + fall + rise
    }

    /// From a fall by a twentieth to the lowest loss.
    const FALLING: std::ops::Range<f64> = 1e-4..1e-1;

    /// Normal noise with mean 0 and standard deviation 1.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            let sum: f64 = (0..12).map(|_| self.uniform()).sum();
            sum - 6.0
        }

        /// SplitMix64.
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut bits = self.0;
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bits ^= bits >> 31;
            (bits >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// A sweep from 1e-6 to 10 with losses that scatter by `noise`.
    fn sweep(steps: u32, noise: f64, seed: u64, loss: impl Fn(f64) -> f64) -> LossCurve {
        let mut curve = LossCurve::of_steps(steps as usize);
        let mut random = Noise(seed);
        for index in 0..steps {
            let lr = 10f64.powf(-6.0 + 7.0 * f64::from(index) / f64::from(steps - 1));
            if !curve.push(lr, loss(lr) + noise * random.next()) {
                break;
            }
        }
        curve
    }

    #[test]
    fn the_steepest_descent_and_the_minimum_are_found() {
        let found = sweep(200, 0.0, 0, loss).suggestion().unwrap();
        assert!((7e-4..1.4e-3).contains(&found.steepest), "{found:?}");
        let tenth = found.tenth_of_minimum;
        assert!((3e-3..9e-3).contains(&tenth), "{found:?}");
    }

    #[test]
    fn noise_does_not_lead_out_of_the_falling_part() {
        for (steps, noise) in [
            (30, 0.1),
            (100, 0.05),
            (100, 0.2),
            (100, 0.4),
            (300, 0.5),
            (1000, 0.8),
        ] {
            for seed in 0..200 {
                let found = sweep(steps, noise, seed, loss).suggestion();
                let told = format!("{steps} steps, noise {noise}, seed {seed}: {found:?}");
                let found = found.unwrap_or_else(|_| panic!("{told}"));
                assert!(FALLING.contains(&found.steepest), "{told}");
                let minimum = 10.0 * found.tenth_of_minimum;
                assert!((1e-3..3e-1).contains(&minimum), "{told}");
            }
        }
    }

    /// With noise as large as the fall, chance may win. A suggestion then lies within the sweep,
    /// and most sweeps give none.
    #[test]
    fn noise_alone_suggests_nothing() {
        for steps in [10, 20, 100, 300] {
            let flat = (0..500).map(|seed| sweep(steps, 0.2, seed, |_| 1.6));
            let found: Vec<Suggestion> = flat.filter_map(|c| c.suggestion().ok()).collect();
            assert!(found.len() <= 10, "{steps} steps: {}", found.len());
            for Suggestion {
                steepest,
                tenth_of_minimum,
            } in found
            {
                assert!((1e-6..=10.0).contains(&steepest), "{steepest}");
                assert!((1e-6..=10.0).contains(&tenth_of_minimum));
            }
        }
    }

    #[test]
    fn what_comes_after_rates_that_are_too_large_is_no_minimum() {
        // Above the first loss at 0.5, which does not end the sweep, then far down.
        let twice = |lr: f64| match lr {
            ..0.25 => 1.0 + loss(lr),
            0.25..1.0 => 4.5,
            _ => 0.1,
        };
        let curve = sweep(100, 0.1, 1, twice);
        assert_eq!(curve.points().last().unwrap().lr, 10.0);
        let found = curve.suggestion().unwrap();
        assert!(found.tenth_of_minimum < 1e-2, "{found:?}");
    }

    #[test]
    fn a_sweep_ends_when_the_loss_goes_up_for_good() {
        let curve = sweep(200, 0.0, 0, loss);
        let steps = curve.points().len();
        assert!(steps < 180, "{steps}");
        let last = curve.points().last().unwrap();
        assert!(last.loss > 1.2, "{last:?}");
        assert!(!LossCurve::default().push(0.1, f64::NAN));
        assert!(!LossCurve::default().push(0.1, f64::INFINITY));
    }

    #[test]
    fn a_loss_that_never_falls_suggests_nothing_and_says_why() {
        let why = |curve: &LossCurve| curve.suggestion().unwrap_err().to_string();
        for slope in [0.0, 1e-8, 0.01] {
            let mut curve = LossCurve::default();
            for index in 1..20 {
                curve.push(f64::from(index), 1.0 + slope * f64::from(index));
            }
            let why = why(&curve);
            assert!(why.contains("1.0") && why.contains("--min"), "{why}");
        }
        let mut curve = LossCurve::default();
        assert!(why(&curve).contains("0 steps"));
        curve.push(0.1, 1.0);
        curve.push(0.2, 9.0);
        assert!(why(&curve).contains("2 steps"));
    }

    /// A tenth of the minimum's rate would be below the sweep.
    #[test]
    fn a_loss_that_is_lowest_at_once_wants_smaller_rates() {
        let mut curve = LossCurve::default();
        for index in 0..100 {
            let lr = 10f64.powf(-3.0 + 0.04 * f64::from(index));
            curve.push(lr, 2.0 - (lr / 5e-3).min(1.0) + lr);
        }
        let why = curve.suggestion().unwrap_err();
        assert!(matches!(why, Unclear::AtOnce { lr } if (4e-3..1e-2).contains(&lr)));
    }

    /// The table of a sweep has the means of its curve.
    #[test]
    fn the_newest_mean_is_that_of_the_whole_curve() {
        let mut curve = LossCurve::of_steps(60);
        let mut newest = Vec::new();
        for index in 0..60 {
            curve.push(
                10f64.powf(0.1 * f64::from(index) - 6.0),
                f64::from(index % 7),
            );
            newest.extend(curve.newest());
        }
        let spans: Vec<f64> = curve.spans().map(|span| span.mean).collect();
        let means: Vec<f64> = newest.iter().map(|(.., mean)| *mean).collect();
        assert_eq!((means, newest[0].0, curve.width()), (spans, 3, 7));
        assert_eq!(newest[5].1, curve.points()[8]);
    }

    #[test]
    fn one_rate_lies_between_the_two() {
        let suggestion = Suggestion {
            steepest: 1e-3,
            tenth_of_minimum: 4e-3,
        };
        assert_eq!(suggestion.rate(), 2e-3);
    }

    #[test]
    fn the_first_losses_count_in_full() {
        let mut curve = LossCurve::default();
        // Would be four times an average that counts the start as 0.
        for loss in [2.0; SETTLED] {
            assert!(curve.push(0.1, loss));
        }
        assert!(curve.least.is_some_and(|least| (least - 2.0).abs() < 1e-12));
    }
}

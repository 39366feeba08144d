//! Random numbers that depend only on their key.
//!
//! Every use (a shuffle, one image's augmentation, one drawn digit) opens its own ChaCha8 stream,
//! whose 256-bit key is the purpose and three integers. So no result depends on earlier draws of
//! others, and the numbers are the same on every platform (normal and beta variables, which use
//! logarithms, up to the last bits).

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Purpose of a stream: streams with different purposes never coincide.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Shuffle = 1,
    Augment = 2,
    Digits = 3,
    Patterns = 10,
    Generated = 11,
    RandAugment = 16,
    Mix = 17,
    Cutout = 18,
    Erase = 19,
    AutoAugment = 20,
}

/// A stream of random numbers.
pub(crate) struct Stream(ChaCha8Rng);

impl Stream {
    pub(crate) fn new(purpose: Purpose, seed: u64, a: u64, b: u64) -> Self {
        let mut key = [0; 32];
        let words = [purpose as u64, seed, a, b];
        for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Stream(ChaCha8Rng::from_seed(key))
    }

    /// Uniform in `0..bound` without bias (Lemire 2019, <https://arxiv.org/abs/1805.10941>); 0 if
    /// `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let mut product = u128::from(self.0.next_u64()) * u128::from(bound);
        if (product as u64) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u64) < threshold {
                product = u128::from(self.0.next_u64()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }

    /// Uniform in `0.0..1.0`, in steps of 2^-24.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32
    }

    /// Uniform between `low` and `high`.
    pub(crate) fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// Uniform between `-reach` and `reach`.
    pub(crate) fn around(&mut self, reach: f32) -> f32 {
        self.between(-reach, reach)
    }

    /// True with probability `p`.
    pub(crate) fn chance(&mut self, p: f32) -> bool {
        self.unit() < p
    }

    /// Two independent draws from the standard normal distribution (Box and Muller 1958).
    pub(crate) fn normals(&mut self) -> [f32; 2] {
        // 1 - unit is above zero, so the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let (sin, cos) = (std::f32::consts::TAU * self.unit()).sin_cos();
        [radius * cos, radius * sin]
    }

    /// Draws from the distribution Beta(`alpha`, `alpha`) with `alpha` above zero. For small
    /// `alpha` the result is nearly always close to 0 or 1.
    pub(crate) fn beta(&mut self, alpha: f32) -> f32 {
        let alpha = f64::from(alpha);
        // X / (X + Y) of two gamma variables, in logarithms because both underflow for small alpha.
        let (x, y) = (self.log_gamma(alpha), self.log_gamma(alpha));
        (1.0 / (1.0 + (y - x).exp())) as f32
    }

    /// The logarithm of a draw from the gamma distribution of this shape and scale 1 (Marsaglia and
    /// Tsang 2000, <https://doi.org/10.1145/358407.358414>; shapes below 1 by their section 6).
    fn log_gamma(&mut self, shape: f64) -> f64 {
        let boost = (1.0 - f64::from(self.unit())).ln() / shape;
        let d = shape + 1.0 - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = f64::from(self.normals()[0]);
            let v = (1.0 + c * x).powi(3);
            let u = 1.0 - f64::from(self.unit());
            if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return (d * v).ln() + boost;
            }
        }
    }

    pub(crate) fn bytes(&mut self, buffer: &mut [u8]) {
        self.0.fill_bytes(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_fixed_by_its_key() {
        let draw = |purpose, seed, a, b| Stream::new(purpose, seed, a, b).below(u64::MAX);
        let first = draw(Purpose::Shuffle, 1, 2, 3);
        assert_eq!(first, draw(Purpose::Shuffle, 1, 2, 3));
        assert_ne!(first, draw(Purpose::Augment, 1, 2, 3));
        assert_ne!(first, draw(Purpose::Shuffle, 2, 2, 3));
        assert_ne!(first, draw(Purpose::Shuffle, 1, 3, 3));
        assert_ne!(first, draw(Purpose::Shuffle, 1, 2, 4));
    }

    #[test]
    fn below_is_even_and_stays_below() {
        let mut stream = Stream::new(Purpose::Shuffle, 7, 0, 0);
        let mut counts = [0; 7];
        for _ in 0..70_000 {
            counts[stream.below(7) as usize] += 1;
        }
        assert!(
            counts.iter().all(|&n| (9_500..10_500).contains(&n)),
            "{counts:?}"
        );
        assert_eq!(stream.below(1), 0);
        assert_eq!(stream.below(0), 0);
    }

    #[test]
    fn units_lie_between_zero_and_one() {
        let mut stream = Stream::new(Purpose::Shuffle, 7, 0, 0);
        assert!((0..10_000).all(|_| (0.0..1.0).contains(&stream.unit())));
        assert!((0..10_000).all(|_| (-2.0..=2.0).contains(&stream.around(2.0))));
    }
    #[test]
    fn chances_are_as_told() {
        let mut stream = Stream::new(Purpose::Shuffle, 7, 0, 0);
        let mut hits = |p| (0..10_000).filter(|_| stream.chance(p)).count();
        assert_eq!((hits(0.0), hits(1.0)), (0, 10_000));
        assert!((2_300..2_700).contains(&hits(0.25)));
    }

    /// Mean and variance of `draw`.
    fn moments(mut draw: impl FnMut(&mut Stream) -> f32) -> (f64, f64) {
        let mut stream = Stream::new(Purpose::Mix, 3, 1, 4);
        let values: Vec<f64> = (0..40_000).map(|_| draw(&mut stream).into()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square = |value: &f64| (value - mean).powi(2);
        let variance = values.iter().map(square).sum::<f64>() / values.len() as f64;
        (mean, variance)
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        for which in [0, 1] {
            let (mean, variance) = moments(|stream| stream.normals()[which]);
            assert!(mean.abs() < 0.02, "{mean}");
            assert!((variance - 1.0).abs() < 0.03, "{variance}");
        }
    }

    #[test]
    fn betas_have_the_moments_of_their_distribution() {
        for alpha in [0.001, 0.2, 0.8, 1.0, 3.0, 1000.0] {
            let (mean, variance) = moments(|stream| {
                let value = stream.beta(alpha);
                assert!((0.0..=1.0).contains(&value), "{value}");
                value
            });
            assert!((mean - 0.5).abs() < 0.01, "{alpha}: {mean}");
            let expected = 1.0 / (4.0 * (2.0 * f64::from(alpha) + 1.0));
            assert!(
                (variance / expected - 1.0).abs() < 0.05,
                "{alpha}: {variance}, not {expected}"
            );
        }
    }
}

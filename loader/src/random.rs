//! Random numbers that depend only on their key.
//!
//! Every use (a shuffle, one sample's augmentation, one drawn digit) opens its own ChaCha8 stream,
//! whose 256-bit key is the purpose and three integers. So no result depends on earlier draws of
//! others, and the numbers are the same on every platform (normal and beta variables, which use
//! logarithms, up to the last bits).

use std::convert::Infallible;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng, TryRng};

/// Purposes of this crate's streams. The crate `datasets` has the numbers from 2 to 63.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Shuffle = 1,
    Sample = 64,
    Weighted = 65,
    ShardOrder = 66,
    ShardBuffer = 67,
}

impl From<Purpose> for u64 {
    fn from(purpose: Purpose) -> u64 {
        purpose as u64
    }
}

/// A stream of random numbers.
///
/// It is also a generator of `rand_core` 0.10, so distributions of the crate `rand` can use it.
///
/// ```
/// use loader::random::Stream;
///
/// // Numbers for the third item of epoch 5, in every run with seed 42.
/// let mut random = Stream::new(1000_u64, 42, 5, 3);
/// let (die, p) = (1 + random.below(6), random.unit());
/// assert!((1..=6).contains(&die) && (0.0..1.0).contains(&p));
/// ```
#[derive(Debug, Clone)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// Opens the stream of a purpose and three integers.
    ///
    /// Streams of different purposes never coincide. The crates of this project use purposes below
    /// 128.
    #[inline]
    pub fn new(purpose: impl Into<u64>, seed: u64, a: u64, b: u64) -> Self {
        let mut key = [0; 32];
        let words = [purpose.into(), seed, a, b];
        for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Stream(ChaCha8Rng::from_seed(key))
    }

    /// Opens the stream of copy `copy` of sample `index` in an epoch.
    ///
    /// Different for all samples below 2^40 and copies below 2^24.
    #[inline]
    pub fn of_sample(
        purpose: impl Into<u64>,
        seed: u64,
        epoch: usize,
        index: usize,
        copy: u32,
    ) -> Self {
        let (low, high) = (u64::from(copy & 0xff), u64::from(copy >> 8));
        let sample = index as u64 ^ low << 56 ^ (high & 0xffff) << 40;
        Self::new(purpose, seed, epoch as u64, sample)
    }

    /// The next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `0..bound` without bias (Lemire 2019, <https://arxiv.org/abs/1805.10941>); 0 if
    /// `bound` is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
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
    #[inline]
    pub fn unit(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32
    }

    /// Uniform in `0.0..1.0`, in steps of 2^-53.
    #[inline]
    pub fn unit_f64(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform between `low` and `high`.
    #[inline]
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// Uniform between `-reach` and `reach`.
    #[inline]
    pub fn around(&mut self, reach: f32) -> f32 {
        self.between(-reach, reach)
    }

    /// True with probability `p`.
    #[inline]
    pub fn chance(&mut self, p: f32) -> bool {
        self.unit() < p
    }

    /// Puts `values` into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            values.swap(last, other);
        }
    }

    /// Two independent draws from the standard normal distribution (Box and Muller 1958).
    #[inline]
    pub fn normals(&mut self) -> [f32; 2] {
        // 1 - unit is above zero, so the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let (sin, cos) = (std::f32::consts::TAU * self.unit()).sin_cos();
        [radius * cos, radius * sin]
    }

    /// Draws from the distribution Beta(`alpha`, `alpha`) with `alpha` above zero. For small
    /// `alpha` the result is nearly always close to 0 or 1.
    ///
    /// NaN if `alpha` is not positive and finite.
    pub fn beta(&mut self, alpha: f32) -> f32 {
        if !(alpha > 0.0 && alpha.is_finite()) {
            return f32::NAN;
        }
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

    /// Fills `buffer` with random bytes.
    #[inline]
    pub fn bytes(&mut self, buffer: &mut [u8]) {
        self.0.fill_bytes(buffer);
    }
}

impl TryRng for Stream {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.0.try_next_u32()
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.0.try_next_u64()
    }

    fn try_fill_bytes(&mut self, buffer: &mut [u8]) -> Result<(), Infallible> {
        self.0.try_fill_bytes(buffer)
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
        assert_ne!(first, draw(Purpose::Sample, 1, 2, 3));
        assert_ne!(first, draw(Purpose::Shuffle, 2, 2, 3));
        assert_ne!(first, draw(Purpose::Shuffle, 1, 3, 3));
        assert_ne!(first, draw(Purpose::Shuffle, 1, 2, 4));
    }

    #[test]
    fn samples_and_copies_have_streams_of_their_own() {
        let mut seen = std::collections::HashSet::new();
        for index in [0, 1, 255, 256, 1 << 39] {
            for copy in [0, 1, 255, 256, 257, 65_535, (1 << 24) - 1] {
                let first = Stream::of_sample(Purpose::Sample, 1, 2, index, copy).bits();
                assert!(seen.insert(first), "{index} {copy}");
            }
        }
        let plain = Stream::new(Purpose::Sample, 1, 2, 7 ^ (3 << 56)).bits();
        assert_eq!(Stream::of_sample(Purpose::Sample, 1, 2, 7, 3).bits(), plain);
    }

    #[test]
    fn it_is_a_generator_for_rand() {
        fn draw(generator: &mut impl Rng) -> u64 {
            generator.next_u64()
        }
        let stream = || Stream::new(Purpose::Sample, 1, 2, 3);
        assert_eq!(draw(&mut stream()), stream().bits());
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

    #[test]
    fn a_beta_without_a_distribution_is_nan() {
        let mut stream = Stream::new(Purpose::Shuffle, 7, 0, 0);
        for alpha in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(stream.beta(alpha).is_nan(), "{alpha}");
        }
    }

    /// Mean and variance of `draw`.
    fn moments(mut draw: impl FnMut(&mut Stream) -> f32) -> (f64, f64) {
        let mut stream = Stream::new(Purpose::Sample, 3, 1, 4);
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

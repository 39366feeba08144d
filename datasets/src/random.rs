//! Random numbers that depend on their key alone.
//!
//! Every use (a shuffle, one image's augmentation, one drawn digit) opens its own ChaCha8 stream
//! whose 256-bit key is the purpose and three integers. So no result depends on how many numbers
//! somebody else drew before, and the numbers are the same on every platform.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// What a stream is for: streams of different purposes never coincide.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Shuffle = 1,
    Augment = 2,
    Digits = 3,
    Patterns = 10,
    Generated = 11,
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

    /// Uniform in `0..bound` without bias (Lemire 2019, <https://arxiv.org/abs/1805.10941>);
    /// 0 where `bound` is 0.
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
}

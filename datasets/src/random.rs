//! Purposes of this crate's random numbers.

pub(crate) use loader::random::Stream;

/// Purpose of a stream: streams with different purposes never coincide.
///
/// The crate `loader` has the number 1 and those from 64.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Augment = 2,
    Digits = 3,
    Patterns = 10,
    Generated = 11,
    RandAugment = 16,
    Mix = 17,
    Cutout = 18,
    Erase = 19,
    AutoAugment = 20,
    ThreeAugment = 21,
    ColorJitter = 22,
}

impl From<Purpose> for u64 {
    #[inline]
    fn from(purpose: Purpose) -> u64 {
        purpose as u64
    }
}

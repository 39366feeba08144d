//! Rounding to bf16.

use crate::cpu::simd::Simd;

/// `to = from`, rounded to the nearest bf16, ties to even. NaNs stay.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; `from` and `to` have `count` elements.
#[inline(always)]
pub(crate) unsafe fn round<V: Simd>(count: usize, from: *const f32, to: *mut f32) {
    for index in 0..count {
        // SAFETY: guaranteed by the caller.
        unsafe { *to.add(index) = nearest(*from.add(index)) };
    }
}

/// Returns the nearest bf16 as f32, ties to even.
#[inline(always)]
fn nearest(value: f32) -> f32 {
    let bits = value.to_bits();
    let even = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + even) & 0xffff_0000;
    f32::from_bits(if value.is_nan() { bits } else { rounded })
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn rounds_to_the_nearest_and_ties_to_even() {
        let ulp = 2f32.powi(-7);
        assert_eq!(nearest(1.0 + 0.49 * ulp), 1.0);
        assert_eq!(nearest(1.0 + 0.51 * ulp), 1.0 + ulp);
        assert_eq!(nearest(1.0 + 0.5 * ulp), 1.0);
        assert_eq!(nearest(1.0 + 1.5 * ulp), 1.0 + 2.0 * ulp);
        assert_eq!(nearest(-3.0), -3.0);
        assert_eq!(nearest(f32::INFINITY), f32::INFINITY);
        assert!(nearest(f32::NAN).is_nan());
    }
}

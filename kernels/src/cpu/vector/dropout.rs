//! Dropout whose mask is a hash of the positions.

use crate::cpu::simd::Simd;

/// The parameters of a mask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask {
    /// Differs between masks.
    pub key: [u32; 2],
    /// Numbers with a smaller hash become zero.
    pub threshold: u32,
    /// Factor of the other numbers.
    pub factor: f32,
}

/// A hash of 32 bits: the finalizer of MurmurHash3 by Austin Appleby.
#[inline(always)]
fn mix(mut bits: u32) -> u32 {
    bits ^= bits >> 16;
    bits = bits.wrapping_mul(0x85eb_ca6b);
    bits ^= bits >> 13;
    bits = bits.wrapping_mul(0xc2b2_ae35);
    bits ^ (bits >> 16)
}

/// `y = x · factor`, or 0 where the mask says so.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; both addresses are good for `count` elements.
#[inline(always)]
pub(crate) unsafe fn dropout<V: Simd>(count: usize, mask: &Mask, x: *const f32, y: *mut f32) {
    let Mask {
        key: [first, second],
        threshold,
        factor,
    } = *mask;
    for index in 0..count {
        let drawn = mix(mix(index as u32 ^ first).wrapping_add(second));
        // The compiler vectorises this form: no branch, no sum.
        let kept = if drawn < threshold { 0.0 } else { factor };
        // SAFETY: `index` < `count`.
        unsafe { *y.add(index) = *x.add(index) * kept };
    }
}

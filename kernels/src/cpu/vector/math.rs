//! The exponential and the normal distribution.

use crate::cpu::simd::Simd;

/// Returns `eˣ`, to about one unit in the last place. Arguments are limited to the range of f32, so
/// that minus infinity gives about 1e-38.
#[inline(always)]
pub(crate) unsafe fn exp<V: Simd>(x: V) -> V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        // In this order NaN stays NaN.
        let x = V::splat(88.3).min(V::splat(-87.3).max(x));
        let n = x.mul(V::splat(std::f32::consts::LOG2_E)).round();
        // ln 2 in two parts; the first has few enough bits for an exact product.
        let r = n.fma(V::splat(-0.693_359_4), x);
        let r = n.fma(V::splat(2.121_944_4e-4), r);
        let mut sum = V::splat(1.0 / 5040.0);
        for term in [
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5,
            1.0,
            1.0,
        ] {
            sum = sum.fma(r, V::splat(term));
        }
        sum.mul(n.pow2())
    }
}

/// `erfc(z) · exp(z²) / t` as a polynomial of `t = 1 / (1 + 0.3 z)`, for z from 0 to 10: a minimax
/// fit with a relative error of 3e-8.
const TAIL: [f32; 9] = [
    0.169_188_02,
    0.170_714_93,
    0.148_341_21,
    0.214_918_38,
    -0.094_633_065,
    0.547_694_74,
    -0.512_256,
    0.485_552_5,
    -0.129_520_68,
];

/// Returns the normal distribution's cumulative probability and density at `x`. Both have a small
/// relative error in the tails too, where `1 + erf` would cancel.
#[inline(always)]
pub(crate) unsafe fn normal<V: Simd>(x: V) -> (V, V) {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let z = x
            .max(V::zero().sub(x))
            .mul(V::splat(std::f32::consts::FRAC_1_SQRT_2));
        let bell = exp(x.mul(x).mul(V::splat(-0.5)));
        let t = V::splat(1.0).div(z.fma(V::splat(0.3), V::splat(1.0)));
        let mut sum = V::splat(TAIL[8]);
        for index in (0..8).rev() {
            sum = sum.fma(t, V::splat(TAIL[index]));
        }
        let tail = sum.mul(t).mul(bell).mul(V::splat(0.5));
        let probability = x.gt(V::zero(), V::splat(1.0).sub(tail), tail);
        // 1 / √(2 π)
        (probability, bell.mul(V::splat(0.398_942_3)))
    }
}

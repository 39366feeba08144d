//! GELU with the exact normal distribution (Hendrycks and Gimpel 2016,
//! <https://arxiv.org/abs/1606.08415>). With table look-up, absolute errors are small, about as
//! with `x · (1 + erf(x / √2)) / 2` in f32. Otherwise relative errors are small, in the tail too.

use super::curve::{CURVES, Curve};
use super::math::normal;
use crate::cpu::simd::{Simd, load_up_to, store_up_to};

/// Number of elements to prefetch ahead.
const AHEAD: usize = 2048;

/// `y = x · Φ(x)`
///
/// # Safety
///
/// The CPU has `V`'s instruction set; both addresses are good for `count` elements.
#[inline(always)]
pub(crate) unsafe fn gelu<V: Simd>(count: usize, x: *const f32, y: *mut f32) {
    let curve = V::PICKS.then(|| &CURVES.probability);
    for index in (0..count).step_by(V::LANES) {
        // SAFETY: only remaining elements are touched.
        unsafe {
            let left = count - index;
            V::fetch(x.wrapping_add(index + AHEAD));
            let value = load_up_to::<V>(x.add(index), left);
            let result = match curve {
                // x (½ + sign(x) f(|x|))
                Some(curve) => {
                    let size = value.max(V::zero().sub(value));
                    size.fma(at(curve, size), value.mul(V::splat(0.5)))
                }
                None => value.mul(normal(value).0),
            };
            store_up_to(result, y.add(index), left);
        }
    }
}

/// `dx = dy · (Φ(x) + x · φ(x))`
///
/// # Safety
///
/// The CPU has `V`'s instruction set; all addresses are good for `count` elements; `dx` may
/// be `dy`.
#[inline(always)]
pub(crate) unsafe fn gelu_gradient<V: Simd>(
    count: usize,
    x: *const f32,
    dy: *const f32,
    dx: *mut f32,
) {
    let curve = V::PICKS.then(|| &CURVES.slope);
    for index in (0..count).step_by(V::LANES) {
        // SAFETY: only remaining elements are touched.
        unsafe {
            let left = count - index;
            V::fetch(x.wrapping_add(index + AHEAD));
            let value = load_up_to::<V>(x.add(index), left);
            let slope = match curve {
                Some(curve) => {
                    let opposite = V::zero().sub(value);
                    let more = at(curve, value.max(opposite));
                    let sign = value.gt(V::zero(), V::splat(1.0), V::splat(-1.0));
                    sign.fma(more, V::splat(0.5))
                }
                None => {
                    let (probability, density) = normal(value);
                    value.fma(density, probability)
                }
            };
            let gradient = load_up_to::<V>(dy.add(index), left).mul(slope);
            store_up_to(gradient, dx.add(index), left);
        }
    }
}

/// Evaluates the curve at `size`, which is not negative.
#[inline(always)]
pub(super) unsafe fn at<V: Simd>(curve: &Curve, size: V) -> V {
    // Larger numbers are whole: their last bits are the number itself.
    const WHOLE: f32 = (1 << 23) as f32;
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        // In this order NaN stays NaN.
        let steps = V::splat((Curve::PIECES - 1) as f32).min(size.mul(V::splat(Curve::PER_ONE)));
        let piece = steps.add(V::splat(WHOLE));
        let offset = steps.sub(piece.sub(V::splat(WHOLE)));
        let [first, rest @ ..] = &curve.0;
        let mut sum = piece.pick(first);
        for factors in rest {
            sum = sum.fma(offset, piece.pick(factors));
        }
        sum
    }
}

//! GELU with the exact normal distribution (Hendrycks and Gimpel 2016,
//! <https://arxiv.org/abs/1606.08415>).

use super::math::normal;
use crate::simd::{Simd, load_up_to, store_up_to};

/// `y = x · Φ(x)`
///
/// # Safety
///
/// The processor has `V`'s instruction set; both addresses are good for `count` elements.
#[inline(always)]
pub(crate) unsafe fn gelu<V: Simd>(count: usize, x: *const f32, y: *mut f32) {
    for index in (0..count).step_by(V::LANES) {
        // SAFETY: no more than what is left is touched.
        unsafe {
            let left = count - index;
            let value = load_up_to::<V>(x.add(index), left);
            store_up_to(value.mul(normal(value).0), y.add(index), left);
        }
    }
}

/// `dx = dy · (Φ(x) + x · φ(x))`
///
/// # Safety
///
/// The processor has `V`'s instruction set; all addresses are good for `count` elements.
#[inline(always)]
pub(crate) unsafe fn gelu_gradient<V: Simd>(
    count: usize,
    x: *const f32,
    dy: *const f32,
    dx: *mut f32,
) {
    for index in (0..count).step_by(V::LANES) {
        // SAFETY: no more than what is left is touched.
        unsafe {
            let left = count - index;
            let value = load_up_to::<V>(x.add(index), left);
            let (probability, density) = normal(value);
            let slope = value.fma(density, probability);
            let gradient = load_up_to::<V>(dy.add(index), left).mul(slope);
            store_up_to(gradient, dx.add(index), left);
        }
    }
}

//! Addition of one array to another.

use crate::cpu::simd::{Simd, load_up_to, store_up_to};

/// `to += from`
///
/// # Safety
///
/// The CPU has `V`'s instruction set; both addresses are good for `count` elements.
#[inline(always)]
pub(crate) unsafe fn accumulate<V: Simd>(count: usize, from: *const f32, to: *mut f32) {
    for index in (0..count).step_by(V::LANES) {
        // SAFETY: `index` < `count`, and only remaining elements are touched.
        unsafe {
            let left = count - index;
            let sum = load_up_to::<V>(to.add(index), left).add(load_up_to(from.add(index), left));
            store_up_to(sum, to.add(index), left);
        }
    }
}

//! Operations on matrices whose columns share a parameter: biases and their gradients.

use crate::cpu::simd::{Simd, load_up_to, store_up_to};

/// `values += bias` for every row and `+= residual`, unless they are null, then ReLU if asked for.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; `values` and `residual` have `rows` × `columns`
/// elements, `bias` `columns`; both may be null.
#[inline(always)]
pub(crate) unsafe fn add_bias<V: Simd>(
    rows: usize,
    columns: usize,
    values: *mut f32,
    bias: *const f32,
    residual: *const f32,
    relu: bool,
) {
    for row in 0..rows {
        for column in (0..columns).step_by(V::LANES) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let (left, place) = (columns - column, row * columns + column);
                let mut value = load_up_to::<V>(values.add(place), left);
                if !bias.is_null() {
                    value = value.add(load_up_to(bias.add(column), left));
                }
                if !residual.is_null() {
                    value = value.add(load_up_to(residual.add(place), left));
                }
                if relu {
                    // In this order NaN stays NaN.
                    value = V::zero().max(value);
                }
                store_up_to(value, values.add(place), left);
            }
        }
    }
}

/// Adds the rows of `values` to `sums`.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; `values` has `rows` × `columns` elements, `sums`
/// `columns`.
#[inline(always)]
pub(crate) unsafe fn column_sums<V: Simd>(
    rows: usize,
    columns: usize,
    values: *const f32,
    sums: *mut f32,
) {
    for first in (0..columns).step_by(4 * V::LANES) {
        // SAFETY: guaranteed by the caller; `place` stays below `columns`.
        unsafe {
            if columns - first >= 4 * V::LANES {
                let mut sum = [V::zero(); 4];
                for row in 0..rows {
                    for (index, sum) in sum.iter_mut().enumerate() {
                        let place = row * columns + first + index * V::LANES;
                        *sum = sum.add(V::load(values.add(place)));
                    }
                }
                for (index, sum) in sum.into_iter().enumerate() {
                    let to = sums.add(first + index * V::LANES);
                    sum.add(V::load(to)).store(to);
                }
                continue;
            }
            for place in (first..columns).step_by(V::LANES) {
                let left = columns - place;
                let mut sum = V::zero();
                for row in 0..rows {
                    sum = sum.add(load_up_to(values.add(row * columns + place), left));
                }
                let to = sums.add(place);
                store_up_to(sum.add(load_up_to(to, left)), to, left);
            }
        }
    }
}

/// `d = 0` where `y ≤ 0`.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; both addresses are good for `count` elements.
#[inline(always)]
pub(crate) unsafe fn relu_gradient<V: Simd>(count: usize, y: *const f32, d: *mut f32) {
    for index in (0..count).step_by(V::LANES) {
        // SAFETY: only remaining elements are touched.
        unsafe {
            let left = count - index;
            let output = load_up_to::<V>(y.add(index), left);
            let gradient = load_up_to::<V>(d.add(index), left);
            store_up_to(
                output.gt(V::zero(), gradient, V::zero()),
                d.add(index),
                left,
            );
        }
    }
}

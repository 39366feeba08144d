//! Softmax of rows, and its gradient.

use super::math::exp;
use crate::simd::{Simd, load_up_to, store_up_to};

/// Replaces each row by its softmax times `scale`; writes the rows' `ln Σ exp(scale · x)` to `logs`
/// unless that is null.
///
/// # Safety
///
/// The processor has `V`'s instruction set; `values` has rows of `columns`, `step` apart, `logs`
/// one element for each of them or none.
#[inline(always)]
pub(crate) unsafe fn softmax<V: Simd>(
    rows: usize,
    columns: usize,
    step: usize,
    scale: f32,
    values: *mut f32,
    logs: *mut f32,
) {
    for row in 0..rows {
        // SAFETY: as the caller says.
        unsafe {
            let values = values.add(row * step);
            let whole = columns - columns % V::LANES;
            let mut largest = f32::NEG_INFINITY;
            if whole > 0 {
                let mut lanes = V::load(values);
                for column in (V::LANES..whole).step_by(V::LANES) {
                    lanes = lanes.max(V::load(values.add(column)));
                }
                largest = lanes.max_lane();
            }
            for column in whole..columns {
                largest = largest.max(*values.add(column));
            }
            let (top, factor) = (V::splat(largest), V::splat(scale));
            let mut sum = V::zero();
            for column in (0..whole).step_by(V::LANES) {
                let value = exp(V::load(values.add(column)).sub(top).mul(factor));
                sum = sum.add(value);
                value.store(values.add(column));
            }
            let mut total = sum.sum();
            if whole < columns {
                let left = columns - whole;
                let value = V::load_part(values.add(whole), left).sub(top).mul(factor);
                exp(value).store_part(values.add(whole), left);
                total += V::load_part(values.add(whole), left).sum();
            }
            let share = V::splat(1.0 / total);
            for column in (0..columns).step_by(V::LANES) {
                let left = columns - column;
                let value = load_up_to::<V>(values.add(column), left).mul(share);
                store_up_to(value, values.add(column), left);
            }
            if !logs.is_null() {
                *logs.add(row) = largest * scale + total.ln();
            }
        }
    }
}

/// Replaces the gradient of each row's softmax `p` by that of the row: `scale · p · (d − Σ p d)`.
///
/// # Safety
///
/// The processor has `V`'s instruction set; both addresses have rows of `columns`, `step` apart.
#[inline(always)]
pub(crate) unsafe fn softmax_gradient<V: Simd>(
    rows: usize,
    columns: usize,
    step: usize,
    scale: f32,
    p: *const f32,
    d: *mut f32,
) {
    for row in 0..rows {
        // SAFETY: as the caller says.
        unsafe {
            let (p, d) = (p.add(row * step), d.add(row * step));
            let mut sum = V::zero();
            for column in (0..columns).step_by(V::LANES) {
                let left = columns - column;
                let share = load_up_to::<V>(p.add(column), left);
                sum = share.fma(load_up_to(d.add(column), left), sum);
            }
            let (sum, scale) = (V::splat(sum.sum()), V::splat(scale));
            for column in (0..columns).step_by(V::LANES) {
                let left = columns - column;
                let share = load_up_to::<V>(p.add(column), left).mul(scale);
                let value = load_up_to::<V>(d.add(column), left).sub(sum).mul(share);
                store_up_to(value, d.add(column), left);
            }
        }
    }
}

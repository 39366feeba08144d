//! Softmax of rows, and its gradient.

use super::math::exp;
use crate::cpu::simd::{Simd, load_up_to, store_up_to};

/// Rows of other matrices that are read next. They lie far apart, so the CPU does not prefetch
/// them; this does, while it computes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ahead {
    /// First row and row distance of each matrix.
    pub matrices: [Option<(*const f32, usize)>; 4],
    /// Elements per row.
    pub columns: usize,
}

impl Ahead {
    /// Prefetches a row of each matrix.
    #[inline(always)]
    unsafe fn fetch<V: Simd>(&self, row: usize) {
        for (start, step) in self.matrices.into_iter().flatten() {
            for column in (0..self.columns).step_by(LINE) {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { V::fetch(start.wrapping_add(row * step + column)) };
            }
        }
    }
}

/// Elements per cache line.
const LINE: usize = 16;

/// The lane numbers.
const NUMBERS: [f32; 16] = {
    let mut numbers = [0.0; 16];
    let mut lane = 0;
    while lane < 16 {
        numbers[lane] = lane as f32;
        lane += 1;
    }
    numbers
};

/// Replaces each row by its softmax times `scale`; writes the rows' `ln Σ exp(scale · x)` to `logs`
/// unless that is null. Prefetches the rows `ahead`, row by row.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; `values` has rows of `columns`, `step` apart, `logs`
/// one element for each of them or none.
#[inline(always)]
pub(crate) unsafe fn softmax<V: Simd>(
    (rows, columns, step): (usize, usize, usize),
    scale: f32,
    values: *mut f32,
    logs: *mut f32,
    ahead: &Ahead,
) {
    let whole = columns - columns % V::LANES;
    let left = columns - whole;
    for row in 0..rows {
        // SAFETY: guaranteed by the caller.
        unsafe {
            ahead.fetch::<V>(row);
            let values = values.add(row * step);
            let last = values.add(whole);
            // Missing lanes are minus infinity, which adds nothing.
            let nothing = V::splat(f32::NEG_INFINITY);
            let mut rest = nothing;
            if left > 0 {
                let exists = V::splat(left as f32);
                rest = exists.gt(V::load(NUMBERS.as_ptr()), V::load_part(last, left), nothing);
            }
            let mut lanes = rest;
            for column in (0..whole).step_by(V::LANES) {
                lanes = lanes.max(V::load(values.add(column)));
            }
            let largest = lanes.max_lane();
            let (top, factor) = (V::splat(largest), V::splat(scale));
            let mut sum = V::zero();
            if left > 0 {
                rest = exp(rest.sub(top).mul(factor));
                sum = rest;
            }
            for column in (0..whole).step_by(V::LANES) {
                let value = exp(V::load(values.add(column)).sub(top).mul(factor));
                sum = sum.add(value);
                value.store(values.add(column));
            }
            let total = sum.sum();
            let share = V::splat(1.0 / total);
            for column in (0..whole).step_by(V::LANES) {
                let value = V::load(values.add(column)).mul(share);
                value.store(values.add(column));
            }
            if left > 0 {
                rest.mul(share).store_part(last, left);
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
/// The CPU has `V`'s instruction set; both addresses have rows of `columns`, `step` apart.
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
        // SAFETY: guaranteed by the caller.
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

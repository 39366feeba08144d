//! Layer normalisation (Ba, Kiros and Hinton 2016, <https://arxiv.org/abs/1607.06450>).

use crate::cpu::simd::{Simd, load_up_to, store_up_to};

/// Returns the mean and the reciprocal standard deviation of a row.
#[inline(always)]
unsafe fn moments<V: Simd>(columns: usize, epsilon: f32, x: *const f32) -> (f32, f32) {
    // SAFETY: the caller guarantees `columns` elements and the instruction set.
    unsafe {
        let whole = columns - columns % V::LANES;
        let mut sum = [V::zero(); 2];
        for (index, column) in (0..whole).step_by(V::LANES).enumerate() {
            sum[index % 2] = sum[index % 2].add(V::load(x.add(column)));
        }
        let mut total = sum[0].add(sum[1]).sum();
        for column in whole..columns {
            total += *x.add(column);
        }
        let mean = total / columns as f32;
        // A second pass over the row, which is in the cache, loses no digits to a large mean.
        let centre = V::splat(mean);
        let mut sum = [V::zero(); 2];
        for (index, column) in (0..whole).step_by(V::LANES).enumerate() {
            let value = V::load(x.add(column)).sub(centre);
            sum[index % 2] = value.fma(value, sum[index % 2]);
        }
        let mut total = sum[0].add(sum[1]).sum();
        for column in whole..columns {
            let value = *x.add(column) - mean;
            total += value * value;
        }
        (mean, 1.0 / (total / columns as f32 + epsilon).sqrt())
    }
}

/// Normalises rows, then scales by `weight` and shifts by `bias`.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; `x` and `y` have `rows` × `columns` elements, `weight`
/// and `bias` `columns`.
#[inline(always)]
pub(crate) unsafe fn layer_norm<V: Simd>(
    rows: usize,
    columns: usize,
    epsilon: f32,
    x: *const f32,
    weight: *const f32,
    bias: *const f32,
    y: *mut f32,
) {
    for row in 0..rows {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (x, y) = (x.add(row * columns), y.add(row * columns));
            let (mean, reciprocal) = moments::<V>(columns, epsilon, x);
            let (mean, reciprocal) = (V::splat(mean), V::splat(reciprocal));
            for column in (0..columns).step_by(V::LANES) {
                let left = columns - column;
                let value = load_up_to::<V>(x.add(column), left)
                    .sub(mean)
                    .mul(reciprocal);
                let value = value.fma(
                    load_up_to(weight.add(column), left),
                    load_up_to(bias.add(column), left),
                );
                store_up_to(value, y.add(column), left);
            }
        }
    }
}

/// The gradient of [`layer_norm`]; adds those of weight and bias to the two rows of `sums`.
///
/// # Safety
///
/// As for [`layer_norm`]; `sums` has 2 × `columns` elements.
#[inline(always)]
pub(crate) unsafe fn layer_norm_gradient<V: Simd>(
    rows: usize,
    columns: usize,
    epsilon: f32,
    weight: *const f32,
    [x, dy]: [*const f32; 2],
    dx: *mut f32,
    sums: *mut f32,
) {
    for row in 0..rows {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (x, dy) = (x.add(row * columns), dy.add(row * columns));
            let dx = dx.add(row * columns);
            let (mean, reciprocal) = moments::<V>(columns, epsilon, x);
            let (mean, reciprocal) = (V::splat(mean), V::splat(reciprocal));
            let (mut plain, mut along) = (V::zero(), V::zero());
            for column in (0..columns).step_by(V::LANES) {
                let left = columns - column;
                // Lanes beyond the row are nonzero in `value`, but zero in all its factors.
                let value = load_up_to::<V>(x.add(column), left)
                    .sub(mean)
                    .mul(reciprocal);
                let gradient = load_up_to::<V>(dy.add(column), left);
                let (scale, shift) = (sums.add(column), sums.add(columns + column));
                let sum = gradient.fma(value, load_up_to(scale, left));
                store_up_to(sum, scale, left);
                store_up_to(gradient.add(load_up_to(shift, left)), shift, left);
                let inner = gradient.mul(load_up_to(weight.add(column), left));
                plain = plain.add(inner);
                along = inner.fma(value, along);
            }
            let plain = V::splat(plain.sum() / columns as f32);
            let along = V::splat(along.sum() / columns as f32);
            for column in (0..columns).step_by(V::LANES) {
                let left = columns - column;
                let value = load_up_to::<V>(x.add(column), left)
                    .sub(mean)
                    .mul(reciprocal);
                let inner =
                    load_up_to::<V>(dy.add(column), left).mul(load_up_to(weight.add(column), left));
                let gradient = inner.sub(plain).sub(value.mul(along)).mul(reciprocal);
                store_up_to(gradient, dx.add(column), left);
            }
        }
    }
}

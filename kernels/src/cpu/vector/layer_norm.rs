//! Layer normalisation (Ba, Kiros and Hinton 2016, <https://arxiv.org/abs/1607.06450>).

use crate::cpu::simd::{Simd, load_up_to, store_up_to};

/// Rows that are computed side by side, because the sums of a single one would wait for each other.
const TOGETHER: usize = 4;

/// Returns the mean and the reciprocal standard deviation of each of `N` adjacent rows.
///
/// No closures here: they would be compiled without `V`'s instruction set.
#[inline(always)]
unsafe fn moments<V: Simd, const N: usize>(
    columns: usize,
    epsilon: f32,
    x: *const f32,
) -> [(V, V); N] {
    // SAFETY: the caller guarantees `N` × `columns` elements and the instruction set.
    unsafe {
        let whole = columns - columns % V::LANES;
        let pairs = columns - columns % (2 * V::LANES);
        let mut sums = [[V::zero(); 2]; N];
        for column in (0..pairs).step_by(2 * V::LANES) {
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = x.add(row * columns + column);
                sums[0] = sums[0].add(V::load(x));
                sums[1] = sums[1].add(V::load(x.add(V::LANES)));
            }
        }
        let mut means = [0.0; N];
        for (row, mean) in means.iter_mut().enumerate() {
            let x = x.add(row * columns);
            if pairs < whole {
                sums[row][0] = sums[row][0].add(V::load(x.add(pairs)));
            }
            let mut total = sums[row][0].add(sums[row][1]).sum();
            for column in whole..columns {
                total += *x.add(column);
            }
            *mean = total / columns as f32;
        }
        // A second pass over the rows, which are in the cache, loses no digits to a large mean.
        let mut centres = [V::zero(); N];
        for (row, centre) in centres.iter_mut().enumerate() {
            *centre = V::splat(means[row]);
        }
        let mut sums = [[V::zero(); 2]; N];
        for column in (0..pairs).step_by(2 * V::LANES) {
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = x.add(row * columns + column);
                let first = V::load(x).sub(centres[row]);
                sums[0] = first.fma(first, sums[0]);
                let second = V::load(x.add(V::LANES)).sub(centres[row]);
                sums[1] = second.fma(second, sums[1]);
            }
        }
        let mut moments = [(V::zero(), V::zero()); N];
        for (row, moments) in moments.iter_mut().enumerate() {
            let x = x.add(row * columns);
            if pairs < whole {
                let value = V::load(x.add(pairs)).sub(centres[row]);
                sums[row][0] = value.fma(value, sums[row][0]);
            }
            let mut total = sums[row][0].add(sums[row][1]).sum();
            for column in whole..columns {
                let value = *x.add(column) - means[row];
                total += value * value;
            }
            let reciprocal = 1.0 / (total / columns as f32 + epsilon).sqrt();
            *moments = (centres[row], V::splat(reciprocal));
        }
        moments
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
    let whole = rows - rows % TOGETHER;
    // SAFETY: guaranteed by the caller.
    unsafe {
        for row in (0..whole).step_by(TOGETHER) {
            let at = (x.add(row * columns), y.add(row * columns));
            normalise::<V, TOGETHER>(columns, epsilon, [weight, bias], at);
        }
        for row in whole..rows {
            let at = (x.add(row * columns), y.add(row * columns));
            normalise::<V, 1>(columns, epsilon, [weight, bias], at);
        }
    }
}

/// [`layer_norm`] of `N` rows.
#[inline(always)]
unsafe fn normalise<V: Simd, const N: usize>(
    columns: usize,
    epsilon: f32,
    [weight, bias]: [*const f32; 2],
    (x, y): (*const f32, *mut f32),
) {
    // SAFETY: as for `layer_norm`.
    unsafe {
        let moments = moments::<V, N>(columns, epsilon, x);
        for column in (0..columns).step_by(V::LANES) {
            let left = columns - column;
            let weight = load_up_to(weight.add(column), left);
            let bias = load_up_to(bias.add(column), left);
            for (row, &(mean, reciprocal)) in moments.iter().enumerate() {
                let place = row * columns + column;
                let value = load_up_to::<V>(x.add(place), left)
                    .sub(mean)
                    .mul(reciprocal);
                store_up_to(value.fma(weight, bias), y.add(place), left);
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
    let whole = rows - rows % TOGETHER;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let at = |row: usize| {
            let start = row * columns;
            ([x.add(start), dy.add(start)], dx.add(start))
        };
        for row in (0..whole).step_by(TOGETHER) {
            gradient::<V, TOGETHER>(columns, epsilon, weight, at(row), sums);
        }
        for row in whole..rows {
            gradient::<V, 1>(columns, epsilon, weight, at(row), sums);
        }
    }
}

/// [`layer_norm_gradient`] of `N` rows.
#[inline(always)]
unsafe fn gradient<V: Simd, const N: usize>(
    columns: usize,
    epsilon: f32,
    weight: *const f32,
    ([x, dy], dx): ([*const f32; 2], *mut f32),
    sums: *mut f32,
) {
    // SAFETY: as for `layer_norm_gradient`.
    unsafe {
        let moments = moments::<V, N>(columns, epsilon, x);
        let (mut plain, mut along) = ([V::zero(); N], [V::zero(); N]);
        for column in (0..columns).step_by(V::LANES) {
            let left = columns - column;
            let weight = load_up_to::<V>(weight.add(column), left);
            let (scale, shift) = (sums.add(column), sums.add(columns + column));
            let mut of_scale = load_up_to::<V>(scale, left);
            let mut of_shift = load_up_to::<V>(shift, left);
            for (row, &(mean, reciprocal)) in moments.iter().enumerate() {
                let place = row * columns + column;
                // Lanes beyond the row are nonzero in `value`, but zero in all its factors.
                let value = load_up_to::<V>(x.add(place), left)
                    .sub(mean)
                    .mul(reciprocal);
                let gradient = load_up_to::<V>(dy.add(place), left);
                of_scale = gradient.fma(value, of_scale);
                of_shift = gradient.add(of_shift);
                let inner = gradient.mul(weight);
                plain[row] = plain[row].add(inner);
                along[row] = inner.fma(value, along[row]);
            }
            store_up_to(of_scale, scale, left);
            store_up_to(of_shift, shift, left);
        }
        for sum in plain.iter_mut().chain(&mut along) {
            *sum = V::splat(sum.sum() / columns as f32);
        }
        for column in (0..columns).step_by(V::LANES) {
            let left = columns - column;
            let weight = load_up_to::<V>(weight.add(column), left);
            for (row, &(mean, reciprocal)) in moments.iter().enumerate() {
                let place = row * columns + column;
                let value = load_up_to::<V>(x.add(place), left)
                    .sub(mean)
                    .mul(reciprocal);
                let inner = load_up_to::<V>(dy.add(place), left).mul(weight);
                let gradient = inner
                    .sub(plain[row])
                    .sub(value.mul(along[row]))
                    .mul(reciprocal);
                store_up_to(gradient, dx.add(place), left);
            }
        }
    }
}

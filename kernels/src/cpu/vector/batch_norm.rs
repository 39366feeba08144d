//! Batch normalisation (Ioffe and Szegedy 2015, <https://arxiv.org/abs/1502.03167>) of
//! channels-last data, with ReLU.

use crate::cpu::simd::{Simd, load_up_to, store_up_to};

/// Parameters of the channels in forward and backward, one element for each: `y = (x − mean) ·
/// scale + bias`. Folding a large mean into the bias would lose digits.
pub(crate) struct Channels {
    /// Number of channels.
    pub count: usize,
    /// Factor.
    pub scale: *const f32,
    /// Summand.
    pub bias: *const f32,
    /// Mean.
    pub mean: *const f32,
    /// Applies ReLU afterwards.
    pub relu: bool,
}

/// Factors of the input's gradient, one element per channel.
pub(crate) struct Factors {
    /// Factor of the output's gradient.
    pub gradient: *const f32,
    /// Factor of `x − mean`.
    pub centred: *const f32,
    /// Summand.
    pub constant: *const f32,
}

/// Adds `Σ (x − pivot)` and `Σ (x − pivot)²` of every channel to the two rows of `sums`. The pivot
/// saves the digits that a large mean would cost.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; `x` has `rows` × `channels` elements, `pivot`
/// `channels`, `sums` two times as many.
#[inline(always)]
pub(crate) unsafe fn batch_norm_sums<V: Simd>(
    rows: usize,
    channels: usize,
    x: *const f32,
    pivot: *const f32,
    sums: *mut f32,
) {
    const AT_ONCE: usize = 4;
    let mut first = 0;
    while first < channels {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let whole = channels - first >= AT_ONCE * V::LANES;
            let width = if whole { AT_ONCE } else { 1 };
            let mut sum = [[V::zero(); AT_ONCE]; 2];
            let mut centre = [V::zero(); AT_ONCE];
            if whole {
                for (index, centre) in centre.iter_mut().enumerate() {
                    *centre = V::load(pivot.add(first + index * V::LANES));
                }
                for row in 0..rows {
                    for index in 0..AT_ONCE {
                        let place = row * channels + first + index * V::LANES;
                        let value = V::load(x.add(place)).sub(centre[index]);
                        sum[0][index] = sum[0][index].add(value);
                        sum[1][index] = value.fma(value, sum[1][index]);
                    }
                }
            } else {
                let left = channels - first;
                centre[0] = load_up_to(pivot.add(first), left);
                for row in 0..rows {
                    let value = load_up_to::<V>(x.add(row * channels + first), left).sub(centre[0]);
                    sum[0][0] = sum[0][0].add(value);
                    sum[1][0] = value.fma(value, sum[1][0]);
                }
            }
            add(channels, first, width, &sum, sums);
            first += width * V::LANES;
        }
    }
}

/// Adds two rows of `width` vectors to `sums`, from channel `first` on.
#[inline(always)]
unsafe fn add<V: Simd>(
    channels: usize,
    first: usize,
    width: usize,
    sum: &[[V; 4]; 2],
    sums: *mut f32,
) {
    for (row, sum) in sum.iter().enumerate() {
        for (index, sum) in sum.iter().take(width).enumerate() {
            let channel = first + index * V::LANES;
            // SAFETY: the caller guarantees two rows of `channels`.
            unsafe {
                let to = sums.add(row * channels + channel);
                let left = channels - channel;
                store_up_to(sum.add(load_up_to(to, left)), to, left);
            }
        }
    }
}

/// `y = (x − mean) · scale + bias`, then ReLU if asked for.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; `x` and `y` have `rows` rows of all channels.
#[inline(always)]
pub(crate) unsafe fn batch_norm_apply<V: Simd>(
    rows: usize,
    channels: &Channels,
    x: *const f32,
    y: *mut f32,
) {
    for row in 0..rows {
        for channel in (0..channels.count).step_by(V::LANES) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let (left, place) = (channels.count - channel, row * channels.count + channel);
                let mean = load_up_to(channels.mean.add(channel), left);
                let mut value = load_up_to::<V>(x.add(place), left).sub(mean).fma(
                    load_up_to(channels.scale.add(channel), left),
                    load_up_to(channels.bias.add(channel), left),
                );
                if channels.relu {
                    // In this order NaN stays NaN.
                    value = V::zero().max(value);
                }
                store_up_to(value, y.add(place), left);
            }
        }
    }
}

/// Returns the gradient between normalisation and ReLU: zero where ReLU has cut.
#[inline(always)]
unsafe fn before_relu<V: Simd>(relu: bool, centred: V, scale: V, bias: V, gradient: V) -> V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        if relu {
            // The same expression as in the forward pass, so that the same values are cut.
            centred.fma(scale, bias).gt(V::zero(), gradient, V::zero())
        } else {
            gradient
        }
    }
}

/// Adds `Σ d` and `Σ d · (x − mean)` of every channel to the two rows of `sums`.
///
/// # Safety
///
/// As for [`batch_norm_apply`]; `sums` has two rows of all channels.
#[inline(always)]
pub(crate) unsafe fn batch_norm_gradient_sums<V: Simd>(
    rows: usize,
    channels: &Channels,
    x: *const f32,
    dy: *const f32,
    sums: *mut f32,
) {
    let count = channels.count;
    let mut first = 0;
    while first < count {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let whole = count - first >= 4 * V::LANES;
            let width = if whole { 4 } else { 1 };
            let mut sum = [[V::zero(); 4]; 2];
            if whole {
                let mut known = [[V::zero(); 3]; 4];
                for (index, known) in known.iter_mut().enumerate() {
                    let channel = first + index * V::LANES;
                    *known = [
                        V::load(channels.scale.add(channel)),
                        V::load(channels.bias.add(channel)),
                        V::load(channels.mean.add(channel)),
                    ];
                }
                for row in 0..rows {
                    for (index, &[scale, bias, mean]) in known.iter().enumerate() {
                        let place = row * count + first + index * V::LANES;
                        let centred = V::load(x.add(place)).sub(mean);
                        let gradient = V::load(dy.add(place));
                        let d = before_relu(channels.relu, centred, scale, bias, gradient);
                        sum[0][index] = sum[0][index].add(d);
                        sum[1][index] = d.fma(centred, sum[1][index]);
                    }
                }
            } else {
                let left = count - first;
                let scale = load_up_to::<V>(channels.scale.add(first), left);
                let bias = load_up_to::<V>(channels.bias.add(first), left);
                let mean = load_up_to::<V>(channels.mean.add(first), left);
                for row in 0..rows {
                    let place = row * count + first;
                    let centred = load_up_to::<V>(x.add(place), left).sub(mean);
                    let gradient = load_up_to::<V>(dy.add(place), left);
                    let d = before_relu(channels.relu, centred, scale, bias, gradient);
                    sum[0][0] = sum[0][0].add(d);
                    sum[1][0] = d.fma(centred, sum[1][0]);
                }
            }
            add(count, first, width, &sum, sums);
            first += width * V::LANES;
        }
    }
}

/// Computes `dx = gradient · d + centred · (x − mean) + constant`, `+ more` unless that is null.
///
/// # Safety
///
/// As for [`batch_norm_apply`]; `dy`, `more` and `dx` are as large as `x`.
#[inline(always)]
pub(crate) unsafe fn batch_norm_gradient<V: Simd>(
    rows: usize,
    channels: &Channels,
    factors: &Factors,
    x: *const f32,
    dy: *const f32,
    more: *const f32,
    dx: *mut f32,
) {
    for row in 0..rows {
        for channel in (0..channels.count).step_by(V::LANES) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let (left, place) = (channels.count - channel, row * channels.count + channel);
                let mean = load_up_to(channels.mean.add(channel), left);
                let centred = load_up_to::<V>(x.add(place), left).sub(mean);
                let scale = load_up_to(channels.scale.add(channel), left);
                let bias = load_up_to(channels.bias.add(channel), left);
                let gradient = load_up_to(dy.add(place), left);
                let d = before_relu(channels.relu, centred, scale, bias, gradient);
                let sum = centred.fma(
                    load_up_to(factors.centred.add(channel), left),
                    load_up_to(factors.constant.add(channel), left),
                );
                let mut sum = d.fma(load_up_to(factors.gradient.add(channel), left), sum);
                if !more.is_null() {
                    sum = sum.add(load_up_to(more.add(place), left));
                }
                store_up_to(sum, dx.add(place), left);
            }
        }
    }
}

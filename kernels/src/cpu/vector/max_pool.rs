//! Maximum over windows of one channels-last image.

use crate::cpu::simd::{Simd, load_up_to, store_up_to};

/// Sizes of one image and its windows.
pub(crate) struct Windows {
    /// Rows and columns of the image.
    pub size: [usize; 2],
    /// Rows and columns of the result.
    pub out: [usize; 2],
    /// Rows and columns of a window.
    pub kernel: [usize; 2],
    /// Steps between windows.
    pub stride: [usize; 2],
    /// Pixels before the first row and column, which do not count.
    pub padding: [usize; 2],
    /// Channels.
    pub channels: usize,
}

impl Windows {
    /// Returns true if every pixel lies in exactly one window.
    pub(crate) fn partition(&self) -> bool {
        let whole = |axis: usize| {
            self.kernel[axis] == self.stride[axis]
                && self.padding[axis] == 0
                && self.size[axis].is_multiple_of(self.kernel[axis])
        };
        whole(0) && whole(1)
    }

    /// Returns the first and last (exclusive) pixel of a window along an axis that lie in the
    /// image.
    #[inline(always)]
    fn span(&self, axis: usize, index: usize) -> (usize, usize) {
        let start = index * self.stride[axis];
        let end = (start + self.kernel[axis]).saturating_sub(self.padding[axis]);
        (
            start.saturating_sub(self.padding[axis]),
            end.min(self.size[axis]),
        )
    }
}

/// The largest value of each window; NaN if one of them is NaN.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; `x` has the image, `y` room for the result; every
/// window has a pixel in the image.
#[inline(always)]
pub(crate) unsafe fn max_pool<V: Simd>(windows: &Windows, x: *const f32, y: *mut f32) {
    let channels = windows.channels;
    for row in 0..windows.out[0] {
        let (top, bottom) = windows.span(0, row);
        for column in 0..windows.out[1] {
            let (left, right) = windows.span(1, column);
            for channel in (0..channels).step_by(V::LANES) {
                let count = channels - channel;
                // SAFETY: guaranteed by the caller; spans lie within the image.
                unsafe {
                    let mut best = V::splat(f32::NEG_INFINITY);
                    for i in top..bottom {
                        for j in left..right {
                            let place = (i * windows.size[1] + j) * channels + channel;
                            let value = load_up_to::<V>(x.add(place), count);
                            best = value.gt(best, value, best);
                            // Unequal to itself: NaN.
                            best = value.eq(value, best, value);
                        }
                    }
                    let place = (row * windows.out[1] + column) * channels + channel;
                    store_up_to(best, y.add(place), count);
                }
            }
        }
    }
}

/// Adds each window's gradient to the first of its pixels that has the largest value. If the
/// windows are a partition, `dx` is overwritten instead.
///
/// # Safety
///
/// As for [`max_pool`]; `dy` is as large as `y`, `dx` as `x`.
#[inline(always)]
pub(crate) unsafe fn max_pool_gradient<V: Simd>(
    windows: &Windows,
    x: *const f32,
    y: *const f32,
    dy: *const f32,
    dx: *mut f32,
) {
    let channels = windows.channels;
    let overwrite = windows.partition();
    for row in 0..windows.out[0] {
        let (top, bottom) = windows.span(0, row);
        for column in 0..windows.out[1] {
            let (left, right) = windows.span(1, column);
            for channel in (0..channels).step_by(V::LANES) {
                let count = channels - channel;
                // SAFETY: guaranteed by the caller; spans lie within the image.
                unsafe {
                    let place = (row * windows.out[1] + column) * channels + channel;
                    let best = load_up_to::<V>(y.add(place), count);
                    let mut rest = load_up_to::<V>(dy.add(place), count);
                    for i in top..bottom {
                        for j in left..right {
                            let place = (i * windows.size[1] + j) * channels + channel;
                            let value = load_up_to::<V>(x.add(place), count);
                            let mut sum = value.eq(best, rest, V::zero());
                            if !overwrite {
                                sum = sum.add(load_up_to(dx.add(place), count));
                            }
                            store_up_to(sum, dx.add(place), count);
                            rest = value.eq(best, V::zero(), rest);
                        }
                    }
                }
            }
        }
    }
}

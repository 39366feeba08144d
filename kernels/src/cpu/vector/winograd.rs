//! The transforms of Winograd's convolution F(4×4, 3×3) (Lavin and Gray 2015,
//! <https://arxiv.org/abs/1509.09308>, section 4.2), with vectors along the channels.
//!
//! `Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A`. The 36 products of a tile lie in 36 planes.

#![expect(
    clippy::needless_range_loop,
    reason = "rows and columns of small matrices read best by their indices"
)]

use crate::cpu::simd::{Simd, load_up_to, store_up_to};

/// A strip of adjacent tiles in an image (NHWC, one image).
pub(crate) struct Strip {
    /// Rows of the image.
    pub height: usize,
    /// Columns of the image.
    pub width: usize,
    /// Elements between neighbouring pixels.
    pub pixel: usize,
    /// Channels to transform, starting at the address of the image.
    pub channels: usize,
    /// Index of the strip: its first row is four times this, minus the padding.
    pub row: usize,
    /// Tiles in the strip.
    pub tiles: usize,
    /// Zeros before the first row and the first column.
    pub padding: [usize; 2],
    /// Elements between planes.
    pub plane: usize,
    /// Elements between tiles within a plane: the channels padded to whole vectors.
    pub step: usize,
}

impl Strip {
    /// Returns the distance from a pixel to the one four rows below, which is in the next strip.
    #[inline(always)]
    fn next(&self) -> usize {
        4 * self.width * self.pixel
    }

    /// The position of the pixel of tile `tile` in the image, if it is in it.
    #[inline(always)]
    fn place(&self, tile: usize, y: usize, x: usize) -> Option<usize> {
        let row = (self.row * 4 + y).wrapping_sub(self.padding[0]);
        let column = (tile * 4 + x).wrapping_sub(self.padding[1]);
        (row < self.height && column < self.width).then(|| (row * self.width + column) * self.pixel)
    }
}

/// `Bᵀ d`
#[inline(always)]
unsafe fn input<V: Simd>(d: [V; 6]) -> [V; 6] {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let c = |value| V::splat(value);
        let a = d[2].fma(c(-4.0), d[4]);
        let b = d[1].fma(c(-4.0), d[3]);
        let e = d[4].sub(d[2]);
        let f = d[3].sub(d[1]).mul(c(2.0));
        [
            d[0].fma(c(4.0), d[2].fma(c(-5.0), d[4])),
            a.add(b),
            a.sub(b),
            e.add(f),
            e.sub(f),
            d[1].fma(c(4.0), d[3].fma(c(-5.0), d[5])),
        ]
    }
}

/// `Aᵀ m`
#[inline(always)]
unsafe fn output<V: Simd>(m: [V; 6]) -> [V; 4] {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let c = |value| V::splat(value);
        let (p, q) = (m[1].add(m[2]), m[1].sub(m[2]));
        let (r, s) = (m[3].add(m[4]), m[3].sub(m[4]));
        [
            m[0].add(p).add(r),
            s.fma(c(2.0), q),
            r.fma(c(4.0), p),
            s.fma(c(8.0), q).add(m[5]),
        ]
    }
}

/// `A y`
#[inline(always)]
unsafe fn output_transposed<V: Simd>(y: [V; 4]) -> [V; 6] {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let c = |value| V::splat(value);
        let (even, odd) = (y[0].add(y[2]), y[1].add(y[3]));
        let even2 = y[2].fma(c(4.0), y[0]);
        let odd2 = y[3].fma(c(4.0), y[1]).mul(c(2.0));
        [
            y[0],
            even.add(odd),
            even.sub(odd),
            even2.add(odd2),
            even2.sub(odd2),
            y[3],
        ]
    }
}

/// `G g`
#[inline(always)]
unsafe fn weight<V: Simd>(g: [V; 3]) -> [V; 6] {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let c = |value| V::splat(value);
        let s = g[0].add(g[2]).mul(c(-1.0 / 6.0));
        let t = g[1].mul(c(1.0 / 6.0));
        let e = g[0].fma(c(1.0 / 24.0), g[2].mul(c(1.0 / 6.0)));
        let f = g[1].mul(c(1.0 / 12.0));
        [
            g[0].mul(c(0.25)),
            s.sub(t),
            s.add(t),
            e.add(f),
            e.sub(f),
            g[2],
        ]
    }
}

/// `Gᵀ u`
#[inline(always)]
unsafe fn weight_transposed<V: Simd>(u: [V; 6]) -> [V; 3] {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let c = |value| V::splat(value);
        let p = u[1].add(u[2]).mul(c(-1.0 / 6.0));
        let q = u[2].sub(u[1]).mul(c(1.0 / 6.0));
        let (r, s) = (u[3].add(u[4]), u[3].sub(u[4]));
        [
            r.fma(c(1.0 / 24.0), u[0].fma(c(0.25), p)),
            s.fma(c(1.0 / 12.0), q),
            r.fma(c(1.0 / 6.0), p).add(u[5]),
        ]
    }
}

/// Transforms a strip of the input: `Bᵀ d B` of every tile into the 36 planes.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; `image` holds the image; `planes` is the place of the
/// strip's first tile in the first plane.
#[inline(always)]
pub(crate) unsafe fn winograd_input<V: Simd>(strip: &Strip, image: *const f32, planes: *mut f32) {
    for tile in 0..strip.tiles {
        // Pixels outside the image are read from a vector of zeros, at the same place for all
        // channels, so that the loop over the channels has no branch.
        let mut from = [ZEROS.as_ptr(); 36];
        let mut mask = [0; 36];
        for (index, (from, mask)) in from.iter_mut().zip(&mut mask).enumerate() {
            if let Some(place) = strip.place(tile, index / 6, index % 6) {
                (*from, *mask) = (image.wrapping_add(place), usize::MAX);
            }
        }
        let whole = strip.channels - strip.channels % V::LANES;
        // The rows that the next strip does not share with this one: no CPU predicts this order of
        // reads.
        let next = ((4 * strip.row + 5) * strip.width + 4 * tile) * strip.pixel;
        // SAFETY: guaranteed by the caller; a vector fits into the zeros.
        unsafe {
            let planes = planes.add(tile * strip.step);
            for channel in (0..whole).step_by(V::LANES) {
                let mut pixels = [V::zero(); 36];
                for (index, pixel) in pixels.iter_mut().enumerate() {
                    *pixel = V::load(from[index].add(channel & mask[index]));
                }
                for y in 0..4 {
                    for x in 0..4 {
                        let place = next + (y * strip.width + x) * strip.pixel + channel;
                        V::fetch(image.wrapping_add(place));
                    }
                }
                input_tile(pixels, strip.plane, planes.add(channel));
            }
            if whole < strip.channels {
                let mut pixels = [V::zero(); 36];
                for (index, pixel) in pixels.iter_mut().enumerate() {
                    let from = from[index].add(whole & mask[index]);
                    *pixel = V::load_part(from, strip.channels - whole);
                }
                input_tile(pixels, strip.plane, planes.add(whole));
            }
        }
    }
}

/// The values outside of the image.
static ZEROS: [f32; 16] = [0.0; 16];

/// Transforms one vector of channels of one tile.
#[inline(always)]
unsafe fn input_tile<V: Simd>(pixels: [V; 36], plane: usize, planes: *mut f32) {
    // SAFETY: the caller guarantees the planes and the instruction set.
    unsafe {
        let mut half = [[V::zero(); 6]; 6];
        for x in 0..6 {
            let mut column = [V::zero(); 6];
            for (y, value) in column.iter_mut().enumerate() {
                *value = pixels[y * 6 + x];
            }
            let column = input(column);
            for y in 0..6 {
                half[y][x] = column[y];
            }
        }
        for (y, row) in half.into_iter().enumerate() {
            for (x, value) in input(row).into_iter().enumerate() {
                value.store(planes.add((y * 6 + x) * plane));
            }
        }
    }
}

/// Transforms a strip of products back: `Aᵀ m A` of every tile into the image.
///
/// # Safety
///
/// As for [`winograd_input`]; `image` may be written where the strip lies.
#[inline(always)]
pub(crate) unsafe fn winograd_output<V: Simd>(strip: &Strip, planes: *const f32, image: *mut f32) {
    for tile in 0..strip.tiles {
        for channel in (0..strip.channels).step_by(V::LANES) {
            let count = strip.channels - channel;
            // SAFETY: guaranteed by the caller; places outside of the image are not written.
            unsafe {
                let planes = planes.add(tile * strip.step + channel);
                let mut half = [[V::zero(); 6]; 4];
                for x in 0..6 {
                    let mut column = [V::zero(); 6];
                    for (y, value) in column.iter_mut().enumerate() {
                        *value = V::load(planes.add((y * 6 + x) * strip.plane));
                    }
                    let column = output(column);
                    for y in 0..4 {
                        half[y][x] = column[y];
                    }
                }
                for (y, row) in half.into_iter().enumerate() {
                    for (x, value) in output(row).into_iter().enumerate() {
                        if let Some(place) = strip.place(tile, y, x) {
                            let place = image.add(place + channel);
                            V::fetch(place.wrapping_add(strip.next()));
                            store_up_to(value, place, count);
                        }
                    }
                }
            }
        }
    }
}

/// Transforms a strip of the output's gradient: `A y Aᵀ` of every tile into the planes.
///
/// # Safety
///
/// As for [`winograd_input`].
#[inline(always)]
pub(crate) unsafe fn winograd_gradient<V: Simd>(
    strip: &Strip,
    image: *const f32,
    planes: *mut f32,
) {
    for tile in 0..strip.tiles {
        for channel in (0..strip.channels).step_by(V::LANES) {
            let count = strip.channels - channel;
            // SAFETY: guaranteed by the caller; places outside of the image are not read.
            unsafe {
                let planes = planes.add(tile * strip.step + channel);
                let mut half = [[V::zero(); 4]; 6];
                for x in 0..4 {
                    let mut column = [V::zero(); 4];
                    for (y, value) in column.iter_mut().enumerate() {
                        if let Some(place) = strip.place(tile, y, x) {
                            let place = image.add(place + channel);
                            V::fetch(place.wrapping_add(strip.next()));
                            *value = load_up_to(place, count);
                        }
                    }
                    let column = output_transposed(column);
                    for y in 0..6 {
                        half[y][x] = column[y];
                    }
                }
                for (y, row) in half.into_iter().enumerate() {
                    for (x, value) in output_transposed(row).into_iter().enumerate() {
                        value.store(planes.add((y * 6 + x) * strip.plane));
                    }
                }
            }
        }
    }
}

/// Transforms the nine taps of `lanes` channels: `taps` has nine rows `step` apart, the result goes
/// to 36 planes in panels of `panel` columns, `panel_step` apart.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; `step` and `panel` are whole vectors, `lanes` ≤ `step`.
#[inline(always)]
pub(crate) unsafe fn winograd_weight<V: Simd>(
    taps: *const f32,
    step: usize,
    flip: bool,
    planes: *mut f32,
    plane: usize,
    panel: usize,
    panel_step: usize,
) {
    for lane in (0..step).step_by(V::LANES) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let planes = planes.add(lane / panel * panel_step + lane % panel);
            let mut half = [[V::zero(); 3]; 6];
            for x in 0..3 {
                let mut column = [V::zero(); 3];
                for (y, value) in column.iter_mut().enumerate() {
                    let tap = if flip { 8 - (y * 3 + x) } else { y * 3 + x };
                    *value = V::load(taps.add(tap * step + lane));
                }
                let column = weight(column);
                for y in 0..6 {
                    half[y][x] = column[y];
                }
            }
            for (y, row) in half.into_iter().enumerate() {
                for (x, value) in weight(row).into_iter().enumerate() {
                    value.store(planes.add((y * 6 + x) * plane));
                }
            }
        }
    }
}

/// Transforms the gradient in 36 planes back into nine taps of `lanes` channels, `step` apart:
/// `Gᵀ u G`.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; `lanes` is whole vectors.
#[inline(always)]
pub(crate) unsafe fn winograd_weight_gradient<V: Simd>(
    planes: *const f32,
    plane: usize,
    lanes: usize,
    taps: *mut f32,
    step: usize,
) {
    for lane in (0..lanes).step_by(V::LANES) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut half = [[V::zero(); 6]; 3];
            for x in 0..6 {
                let mut column = [V::zero(); 6];
                for (y, value) in column.iter_mut().enumerate() {
                    *value = V::load(planes.add((y * 6 + x) * plane + lane));
                }
                let column = weight_transposed(column);
                for y in 0..3 {
                    half[y][x] = column[y];
                }
            }
            for (y, row) in half.into_iter().enumerate() {
                for (x, value) in weight_transposed(row).into_iter().enumerate() {
                    value.store(taps.add((y * 3 + x) * step + lane));
                }
            }
        }
    }
}

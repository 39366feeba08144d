//! Dropout that does not keep its mask, but draws it again in backward (Srivastava et al. 2014,
//! <https://jmlr.org/papers/v15/srivastava14a.html>).
//!
//! Philox4x32-10 decides about a value from its place in memory and a key (Salmon et al. 2011,
//! <https://doi.org/10.1145/2063384.2063405>). The device's generator draws the key. It stays on
//! the device, so that nobody waits for it.

use std::sync::Arc;

use burn::tensor::{Device, Distribution, Tensor};
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::matrix::{Matrix, arg, primitive};
use super::operation::{BackwardInput, Operation, apply};
use super::sums::cube;

/// Sets each number to zero with probability `rate`, and divides the others by `1 − rate`.
///
/// `rate` is below 1, and rounded to a multiple of 2⁻¹⁶. The result has the type of `x`. Requires a
/// device for which [`super::is_gpu`] is true, and at least one value.
pub fn dropout<const D: usize>(x: Tensor<D>, rate: f64) -> Tensor<D> {
    let drops = Drops::draw(rate, &x.device().inner());
    apply(Arc::new(drops), x)
}

/// Numbers of a key.
const KEY: usize = 2;

/// Numbers that are drawn with one counter, of 16 bits each, because drawing is most of the work.
const DRAWN: usize = 8;

/// Philox's multipliers and its increments of the key per round.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

/// The dropout of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Drops {
    pub key: CubeTensor,
    /// All numbers below it are dropped, of 2¹⁶.
    pub below: u32,
    /// Factor of the others.
    pub scale: f32,
}

impl Drops {
    /// Draws a key on `device`, one without autodiff.
    pub fn draw(rate: f64, device: &Device) -> Self {
        let key = Tensor::<1>::random([KEY], Distribution::Uniform(0.0, 1.0), device);
        let all = f64::from(1u32 << 16);
        // Never all values.
        let below = (rate * all).round().min(all - 1.0);
        Self {
            key: primitive(key),
            below: below as u32,
            scale: (all / (all - below)) as f32,
        }
    }

    fn of(&self, values: CubeTensor) -> CubeTensor {
        let values = Matrix::of_values(values);
        let (vector, out) = (values.wide_vector(), values.empty_like());
        let vectors = values.rows() * values.columns() / vector;
        // SAFETY: every unit writes at most one vector, its own; the key has both numbers.
        unsafe {
            drop_some::launch_unchecked(
                values.client(),
                calculate_cube_count_elemwise(values.client(), vectors, cube()),
                cube(),
                values.address(),
                vector,
                values.arg(),
                arg(&self.key),
                out.arg(),
                vectors,
                self.below,
                self.scale,
                values.elem(),
            );
        }
        out.into_values()
    }
}

impl Operation<1> for Drops {
    fn forward(&self, [x]: [CubeTensor; 1]) -> CubeTensor {
        self.of(x)
    }

    fn backward(&self, BackwardInput { dy, .. }: BackwardInput) -> [Option<CubeTensor>; 1] {
        [Some(self.of(dy))]
    }
}

/// The same parameters within a kernel.
#[derive(CubeType)]
pub(super) struct Mask {
    key: Array<u32>,
    below: u32,
    scale: f32,
    #[cube(comptime)]
    drops: bool,
}

#[cube]
impl Mask {
    /// The mask of a key and the rest of [`Drops`]; it keeps everything if nothing is dropped.
    pub fn new(
        key: &[Vector<f32, Const<1>>],
        below: u32,
        scale: f32,
        #[comptime] drops: bool,
    ) -> Self {
        let mut bits = Array::<u32>::new(KEY);
        if comptime!(drops) {
            bits[0] = u32::reinterpret(key[0]);
            bits[1] = u32::reinterpret(key[1]);
        }
        Mask {
            key: bits,
            below,
            scale,
            drops,
        }
    }

    /// Applies dropout to the vector of this number in memory.
    pub fn of<N: Size>(&self, values: Vector<f32, N>, vector: usize) -> Vector<f32, N> {
        if comptime!(self.drops) {
            let width = N::value();
            // Eight values share a counter, whatever the width of a vector.
            let place = vector * width;
            let four = philox((place / DRAWN) as u32, self.key[0], self.key[1]);
            let mut left = Vector::<f32, N>::empty();
            #[unroll]
            for lane in 0..width {
                let number = (place + lane) % DRAWN;
                let word = number / 2;
                let low = select(word == 0, four.first, four.second);
                let high = select(word == 2, four.third, four.fourth);
                let word = select(word < 2, low, high);
                let half = number % 2;
                let drawn = select(half == 0, word & 0xffff, word >> 16);
                let kept = values.extract(lane) * self.scale;
                left.insert(lane, select(drawn < self.below, 0.0f32, kept));
            }
            left
        } else {
            values
        }
    }
}

/// Four numbers for a counter.
#[derive(CubeType)]
struct Four {
    first: u32,
    second: u32,
    third: u32,
    fourth: u32,
}

#[cube]
fn philox(counter: u32, key_first: u32, key_second: u32) -> Four {
    let mut key_first = key_first;
    let mut key_second = key_second;
    let mut first = counter;
    let mut second = 0u32.runtime();
    let mut third = 0u32.runtime();
    let mut fourth = 0u32.runtime();
    #[unroll]
    for _ in 0..ROUNDS {
        let high_first = first.mul_hi(MULTIPLIERS[0]);
        let high_third = third.mul_hi(MULTIPLIERS[1]);
        let low_first = first * MULTIPLIERS[0];
        first = high_third ^ second ^ key_first;
        second = third * MULTIPLIERS[1];
        third = high_first ^ fourth ^ key_second;
        fourth = low_first;
        key_first += WEYL[0];
        key_second += WEYL[1];
    }
    Four {
        first,
        second,
        third,
        fourth,
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn drop_some<F: Float, N: Size>(
    x: &[Vector<F, N>],
    key: &[Vector<f32, Const<1>>],
    out: &mut [Vector<F, N>],
    vectors: usize,
    below: u32,
    scale: f32,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let mask = Mask::new(key, below, scale, true);
        let value = Vector::<f32, N>::cast_from(x[at]);
        out[at] = Vector::<F, N>::cast_from(mask.of::<N>(value, at));
    }
}

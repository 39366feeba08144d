//! Dropout whose mask is not kept, but drawn again in backward (Srivastava et al. 2014,
//! <https://jmlr.org/papers/v15/srivastava14a.html>).
//!
//! What becomes of a value follows from its place in memory and a key, by Philox4x32-10 (Salmon et al. 2011,
//! <https://doi.org/10.1145/2063384.2063405>). The key is drawn by the device's generator and stays on the
//! device, so that nobody waits for it.

use std::sync::Arc;

use burn::tensor::{Distribution, Tensor};
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::matrix::{Matrix, arg, primitive};
use super::operation::{Operation, ToFirst, apply};
use super::sums::cube;

/// Sets each number to zero with the probability `rate`, in steps of 2⁻¹⁶, and divides the others by the probability
/// that they stay, in the type of `x`; `rate` is below 1. For a device that [`super::computes_on`], and at least one value.
pub fn dropout<const D: usize>(x: Tensor<D>, rate: f64) -> Tensor<D> {
    let key = Distribution::Uniform(0.0, 1.0);
    let key = Tensor::<1>::random([KEY], key, &x.device().inner());
    let operation = Dropout {
        key: primitive(key),
        rate,
    };
    apply(Arc::new(operation), x)
}

/// Numbers of a key.
const KEY: usize = 2;

/// Numbers that are drawn with one counter: of 16 bits each, for drawing them is most of the work.
const DRAWN: usize = 8;

/// Philox's multipliers and what it adds to the key from round to round.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

#[derive(Debug)]
struct Dropout {
    key: CubeTensor,
    rate: f64,
}

impl Dropout {
    fn of(&self, values: CubeTensor) -> CubeTensor {
        let values = Matrix::of_values(values);
        let (vector, out) = (values.wide_vector(), values.empty_like());
        let vectors = values.rows() * values.columns() / vector;
        // All below it are dropped, and never all that there are.
        let all = f64::from(1u32 << 16);
        let below = (self.rate * all).round().min(all - 1.0);
        // SAFETY: every unit writes a vector of its own, if there is one; the key has both numbers.
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
                below as u32,
                (all / (all - below)) as f32,
                vector,
                values.elem(),
            );
        }
        out.into_values()
    }
}

impl Operation<1> for Dropout {
    fn forward(&self, [x]: [CubeTensor; 1]) -> CubeTensor {
        self.of(x)
    }

    fn backward(
        &self,
        _x: Option<CubeTensor>,
        dy: CubeTensor,
        _to_first: ToFirst,
    ) -> [Option<CubeTensor>; 1] {
        [Some(self.of(dy))]
    }

    fn reads_input(&self) -> bool {
        false
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
fn philox(counter: u32, key: &[Vector<f32, Const<1>>]) -> Four {
    let mut key_first = u32::reinterpret(key[0]);
    let mut key_second = u32::reinterpret(key[1]);
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
    #[comptime] width: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        // Eight values share a counter, however many are in a vector.
        let place = at * width;
        let four = philox((place / DRAWN) as u32, key);
        let value = Vector::<f32, N>::cast_from(x[at]);
        let mut result = Vector::<f32, N>::empty();
        #[unroll]
        for lane in 0..width {
            let number = (place + lane) % DRAWN;
            let word = number / 2;
            let low = select(word == 0, four.first, four.second);
            let high = select(word == 2, four.third, four.fourth);
            let word = select(word < 2, low, high);
            let drawn = select(number % 2 == 0, word & 0xffff, word >> 16);
            let kept = value.extract(lane) * scale;
            result.insert(lane, select(drawn < below, 0.0f32, kept));
        }
        out[at] = Vector::<F, N>::cast_from(result);
    }
}

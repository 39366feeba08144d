//! Common parts of matrix instructions: elements in registers, and the product.
#![allow(unsafe_code)] // The product is compiled for wide vectors too.

use half::{bf16, f16};

use super::formats::Scalar;
use super::lanes::{LANES, Vectors, vectors};
use super::warp::Lanes;
use crate::ptx::Type;

/// Rows of the first factor, columns of the second, and length of the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl Shape {
    /// `m16n8k16`
    pub fn of(word: &str) -> Option<Self> {
        let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        let [m, n, k] = [m, n, k].map(|number| number.parse().ok());
        Some(Self {
            m: m?,
            n: n?,
            k: k?,
        })
    }
}

/// Returns the elements of a register of 32 bits.
pub(super) fn per_register(kind: Type) -> usize {
    4 / kind.size().clamp(1, 4)
}

/// Returns element `n` of a register.
pub(super) fn element(bits: u64, n: usize, kind: Type) -> f32 {
    match kind {
        Type::F16 => f16::read(bits >> (16 * n)),
        Type::BF16 => bf16::read(bits >> (16 * n)),
        // The hardware uses 19 bits.
        Type::TF32 => f32::read(bits & !0x1fff),
        _ => f32::read(bits),
    }
}

/// Returns the bits of an element, at the place of element `n` of a register.
pub(super) fn element_bits(value: f32, n: usize, kind: Type) -> u64 {
    match kind {
        Type::F16 => f16::write(value) << (16 * n),
        Type::BF16 => bf16::write(value) << (16 * n),
        _ => f32::write(value),
    }
}

/// Reads a matrix of up to `MOST` elements from registers. `place` returns the place of element `n`
/// of register `r` of a lane.
pub(super) fn gather<const MOST: usize>(
    warp: &Lanes,
    registers: &[usize],
    kind: Type,
    place: impl Fn(usize, usize, usize) -> usize,
) -> [f32; MOST] {
    let mut out = [0.0; MOST];
    for (r, &register) in registers.iter().enumerate() {
        for lane in 0..LANES {
            for n in 0..per_register(kind) {
                out[place(lane, r, n)] = element(warp.registers[register][lane], n, kind);
            }
        }
    }
    out
}

/// Writes a matrix to registers.
pub(super) fn scatter<const MOST: usize>(
    warp: &mut Lanes,
    registers: &[usize],
    kind: Type,
    matrix: &[f32; MOST],
    place: impl Fn(usize, usize, usize) -> usize,
) {
    for (r, &register) in registers.iter().enumerate() {
        for lane in 0..LANES {
            let elements = 0..per_register(kind);
            let bits = elements.map(|n| element_bits(matrix[place(lane, r, n)], n, kind));
            warp.registers[register][lane] = bits.fold(0, |all, bits| all | bits);
        }
    }
}

/// Adds the product of `a` and `b`, both row-major.
pub(super) fn add_product(shape: Shape, a: &[f32], b: &[f32], sum: &mut [f32]) {
    if !matches!(vectors(), Vectors::Plain) {
        // SAFETY: the CPU has the instructions that the function is compiled for.
        unsafe { add_product_wide(shape, a, b, sum) }
    } else {
        add_product_plain(shape, a, b, sum);
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
unsafe fn add_product_wide(shape: Shape, a: &[f32], b: &[f32], sum: &mut [f32]) {
    add_product_plain(shape, a, b, sum);
}

#[inline(always)]
fn add_product_plain(shape: Shape, a: &[f32], b: &[f32], sum: &mut [f32]) {
    let Shape { m, n, k } = shape;
    for (row, sums) in sum[..m * n].chunks_exact_mut(n).enumerate() {
        for (at, b) in b[..k * n].chunks_exact(n).enumerate() {
            let factor = a[row * k + at];
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += factor * b;
            }
        }
    }
}

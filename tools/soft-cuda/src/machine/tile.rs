//! The product that dominates kernels on tensor cores: `mma.m16n8k16` of 16-bit factors with sums
//! in f32, in loops that the compiler vectorizes. Sums equal those of
//! [`super::matrix::add_product`], bit for bit.
#![allow(unsafe_code)] // Functions for CPUs that can more are unsafe to call.

use super::lanes::{LANES, Registers, Row, Vectors, vectors};
use crate::ptx::Type;

const M: usize = 16;
const N: usize = 8;
const K: usize = 16;

/// Registers of both factors, of the addend and of the sum.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub a: [usize; 4],
    pub b: [usize; 2],
    pub c: [usize; 4],
    pub d: [usize; 4],
}

type Function = unsafe fn(&mut Registers, &Operands);

/// The product of one type on this CPU.
#[derive(Clone, Copy)]
pub(super) struct TileProduct(Function);

impl TileProduct {
    /// The tile function for factors of a type, if they have 16 bits.
    pub fn of(kind: Type) -> Option<Self> {
        match kind {
            Type::F16 => Some(Self::compiled::<true>()),
            Type::BF16 => Some(Self::compiled::<false>()),
            _ => None,
        }
    }

    fn compiled<const IS_F16: bool>() -> Self {
        Self(match vectors() {
            Vectors::Plain => multiply::<IS_F16>,
            Vectors::Wide => wide::<IS_F16>,
            Vectors::Widest => widest::<IS_F16>,
        })
    }

    pub fn run(self, registers: &mut Registers, operands: &Operands) {
        // SAFETY: `compiled` takes a function for wide vectors only where the CPU has them.
        unsafe { (self.0)(registers, operands) }
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
fn wide<const IS_F16: bool>(registers: &mut Registers, operands: &Operands) {
    multiply::<IS_F16>(registers, operands);
}

#[cfg_attr(
    target_arch = "x86_64",
    target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")
)]
fn widest<const IS_F16: bool>(registers: &mut Registers, operands: &Operands) {
    multiply::<IS_F16>(registers, operands);
}

#[inline(always)]
fn multiply<const IS_F16: bool>(registers: &mut Registers, operands: &Operands) {
    let Operands { a, b, c, d } = *operands;
    let mut rows = [[0.0; K]; M];
    for (r, register) in a.into_iter().enumerate() {
        let (below, right) = (8 * (r % 2), 8 * (r / 2));
        for (group, eight) in eights(&registers[register]).iter().enumerate() {
            rows[below + group][right..right + 8].copy_from_slice(&numbers::<IS_F16>(eight));
        }
    }
    let mut columns = [[0.0; N]; K];
    for (r, register) in b.into_iter().enumerate() {
        for (column, eight) in eights(&registers[register]).iter().enumerate() {
            for (k, number) in numbers::<IS_F16>(eight).into_iter().enumerate() {
                columns[8 * r + k][column] = number;
            }
        }
    }
    let mut sums = [[0.0; N]; M];
    for (r, register) in c.into_iter().enumerate() {
        for (lane, bits) in registers[register].iter().enumerate() {
            sums[lane / 4 + 8 * (r / 2)][lane % 4 * 2 + r % 2] = f32::from_bits(*bits as u32);
        }
    }
    for (sums, row) in sums.iter_mut().zip(&rows) {
        for (factor, column) in row.iter().zip(&columns) {
            for (sum, other) in sums.iter_mut().zip(column) {
                *sum += factor * other;
            }
        }
    }
    for (r, register) in d.into_iter().enumerate() {
        for (lane, bits) in registers[register].iter_mut().enumerate() {
            let sum = sums[lane / 4 + 8 * (r / 2)][lane % 4 * 2 + r % 2];
            *bits = sum.to_bits().into();
        }
    }
}

/// Returns the halves of a register: eight for each four lanes.
#[inline(always)]
fn eights(row: &Row) -> [[u16; 8]; LANES / 4] {
    let mut out = [[0; 8]; LANES / 4];
    for (eight, lanes) in out.iter_mut().zip(row.as_chunks::<4>().0) {
        for (two, bits) in eight.as_chunks_mut::<2>().0.iter_mut().zip(lanes) {
            *two = [*bits as u16, (*bits >> 16) as u16];
        }
    }
    out
}

#[inline(always)]
pub(super) fn numbers<const IS_F16: bool>(bits: &[u16; 8]) -> [f32; 8] {
    bits.map(|bits| match IS_F16 {
        true => of_f16(bits.into()),
        false => f32::from_bits(u32::from(bits) << 16),
    })
}

/// Converts from half precision without a branch or a call.
#[inline(always)]
fn of_f16(bits: u32) -> f32 {
    // The exponent's bias is 112 less than that of f32; infinity and NaN must stay so.
    let magnitude = bits & 0x7fff;
    let finite = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
    let above = if magnitude >= 0x7c00 { 0xff << 23 } else { 0 };
    f32::from_bits(finite.to_bits() | above | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn every_number_in_half_precision_is_what_it_was() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (of_f16(bits.into()), f16::from_bits(bits).to_f32());
            let same = found.to_bits() == expected.to_bits();
            assert!(same || (found.is_nan() && expected.is_nan()), "{bits:x}");
        }
    }
}

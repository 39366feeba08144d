//! Four lanes in plain Rust, for CPUs that have none of the other instruction sets and for
//! the checks of Miri.

use super::Simd;

/// Four numbers in an array.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 4]);

#[inline(always)]
fn zip(a: Portable, b: Portable, f: impl Fn(f32, f32) -> f32) -> Portable {
    Portable([
        f(a.0[0], b.0[0]),
        f(a.0[1], b.0[1]),
        f(a.0[2], b.0[2]),
        f(a.0[3], b.0[3]),
    ])
}

#[inline(always)]
fn pick(
    a: Portable,
    b: Portable,
    yes: Portable,
    no: Portable,
    f: impl Fn(f32, f32) -> bool,
) -> Portable {
    Portable(std::array::from_fn(|lane| {
        if f(a.0[lane], b.0[lane]) {
            yes.0[lane]
        } else {
            no.0[lane]
        }
    }))
}

impl Simd for Portable {
    const LANES: usize = 4;
    const ROWS: usize = 6;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 4])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller guarantees four elements.
        Self(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller guarantees four elements.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        let mut lanes = [0.0; 4];
        for (lane, value) in lanes.iter_mut().take(count).enumerate() {
            // SAFETY: the caller guarantees `count` elements.
            *value = unsafe { *from.add(lane) };
        }
        Self(lanes)
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        for (lane, value) in self.0.iter().take(count).enumerate() {
            // SAFETY: the caller guarantees `count` elements.
            unsafe { *to.add(lane) = *value };
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        zip(self, other, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        zip(self, other, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        zip(self, other, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        zip(self, other, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fma(self, factor: Self, term: Self) -> Self {
        // Not `mul_add`, which is a slow library call where the CPU has no such instruction.
        Self(std::array::from_fn(|lane| {
            self.0[lane] * factor.0[lane] + term.0[lane]
        }))
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        zip(self, other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        zip(self, other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn gt(self, other: Self, yes: Self, no: Self) -> Self {
        pick(self, other, yes, no, |a, b| a > b)
    }
    #[inline(always)]
    unsafe fn eq(self, other: Self, yes: Self, no: Self) -> Self {
        pick(self, other, yes, no, |a, b| a == b)
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // Adding and subtracting 1.5 · 2²³ rounds numbers below 2²².
        const MAGIC: f32 = 12_582_912.0;
        Self(self.0.map(|value| (value + MAGIC) - MAGIC))
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        Self(
            self.0
                .map(|value| f32::from_bits(((value as i32 + 127) as u32) << 23)),
        )
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        (self.0[0] + self.0[1]) + (self.0[2] + self.0[3])
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        self.0[0].max(self.0[1]).max(self.0[2].max(self.0[3]))
    }
}

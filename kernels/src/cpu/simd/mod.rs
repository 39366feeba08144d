//! One vector type per instruction set behind a small trait, so that every kernel is written once.
//!
//! All functions are `inline(always)`: they are only ever called from the wrappers in
//! [`crate::cpu::table`], which enable the instruction set, and become part of them.

/// Those functions of [`Simd`] that are one instruction each, which the processor must have.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! instructions {
    (
        splat: $splat:ident, load: $load:ident, store: $store:ident,
        $($function:ident: $instruction:ident),+ $(,)?
    ) => {
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: as the trait says.
            Self(unsafe { $splat(value) })
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: as the trait says.
            Self(unsafe { $load(from) })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: as the trait says.
            unsafe { $store(to, self.0) }
        }
        $(
            #[inline(always)]
            unsafe fn $function(self, other: Self) -> Self {
                // SAFETY: as the trait says.
                Self(unsafe { $instruction(self.0, other.0) })
            }
        )+
    };
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;

/// A vector of `LANES` numbers of type f32.
///
/// # Safety
///
/// Every function needs a processor that has the implementor's instruction set. Pointers must be
/// valid for `LANES` elements, for the first `count` in [`Simd::load_part`] and
/// [`Simd::store_part`]; they need no alignment.
pub(crate) trait Simd: Copy {
    /// Numbers per vector.
    const LANES: usize;
    /// Rows of the largest micro-tile (two vectors wide) that stays in the registers.
    const ROWS: usize;
    /// Whether [`Simd::pick`] is as fast as an addition.
    const PICKS: bool = false;

    /// All lanes the same.
    unsafe fn splat(value: f32) -> Self;
    /// All lanes zero.
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: as the trait says.
        unsafe { Self::splat(0.0) }
    }
    /// Reads `LANES` numbers.
    unsafe fn load(from: *const f32) -> Self;
    /// Writes `LANES` numbers.
    unsafe fn store(self, to: *mut f32);
    /// Reads `count` ≤ `LANES` numbers, the other lanes are zero.
    unsafe fn load_part(from: *const f32, count: usize) -> Self;
    /// Writes the first `count` ≤ `LANES` numbers.
    unsafe fn store_part(self, to: *mut f32, count: usize);
    /// `self + other`
    unsafe fn add(self, other: Self) -> Self;
    /// `self − other`
    unsafe fn sub(self, other: Self) -> Self;
    /// `self · other`
    unsafe fn mul(self, other: Self) -> Self;
    /// `self / other`
    unsafe fn div(self, other: Self) -> Self;
    /// `self · factor + term`, rounded once where the processor can.
    unsafe fn fma(self, factor: Self, term: Self) -> Self;
    /// The larger one; `other` where one of them is not a number.
    unsafe fn max(self, other: Self) -> Self;
    /// The smaller one; `other` where one of them is not a number.
    unsafe fn min(self, other: Self) -> Self;
    /// `yes` where `self > other`, else `no` (also where one of them is not a number).
    unsafe fn gt(self, other: Self, yes: Self, no: Self) -> Self;
    /// `yes` where `self = other`, else `no` (also where one of them is not a number).
    unsafe fn eq(self, other: Self, yes: Self, no: Self) -> Self;
    /// The nearest integers.
    unsafe fn round(self) -> Self;
    /// Two to the power of lanes that hold integers from −126 to 127.
    unsafe fn pow2(self) -> Self;
    /// The sum of all lanes.
    unsafe fn sum(self) -> f32;
    /// The largest lane.
    unsafe fn max_lane(self) -> f32;

    /// For every lane the number of `table` that the last five bits of the lane name.
    #[inline(always)]
    unsafe fn pick(self, table: &[f32; 32]) -> Self {
        let mut lanes = [0.0f32; 32];
        // SAFETY: there are at most 32 lanes.
        unsafe {
            self.store(lanes.as_mut_ptr());
            let picked = lanes.map(|lane| table[lane.to_bits() as usize % 32]);
            Self::load(picked.as_ptr())
        }
    }

    /// Asks for the line at `place`, which may lie anywhere, in the second-level cache.
    #[inline(always)]
    unsafe fn fetch(_place: *const f32) {}

    /// Transposes `LANES` × `LANES` numbers: rows of `from` are `from_step` apart, those of `to`
    /// `to_step`.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
        for row in 0..Self::LANES {
            for column in 0..Self::LANES {
                // SAFETY: the caller vouches for LANES rows of LANES elements on both sides.
                unsafe { *to.add(column * to_step + row) = *from.add(row * from_step + column) };
            }
        }
    }
}

/// `load` or `load_part`, whichever `count` asks for.
#[inline(always)]
pub(crate) unsafe fn load_up_to<V: Simd>(from: *const f32, count: usize) -> V {
    // SAFETY: the caller vouches for min(count, LANES) elements.
    unsafe {
        if count >= V::LANES {
            V::load(from)
        } else {
            V::load_part(from, count)
        }
    }
}

/// `store` or `store_part`, whichever `count` asks for.
#[inline(always)]
pub(crate) unsafe fn store_up_to<V: Simd>(value: V, to: *mut f32, count: usize) {
    // SAFETY: the caller vouches for min(count, LANES) elements.
    unsafe {
        if count >= V::LANES {
            value.store(to);
        } else {
            value.store_part(to, count);
        }
    }
}

//! One vector type per instruction set behind a small trait, so that every kernel is written once.
//!
//! All functions are `inline(always)`: they are called only by the wrappers in
//! [`crate::cpu::table`], which enable the instruction set, and become part of them.

/// Functions of [`Simd`] that are one instruction each, which the CPU must have.
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
/// Every function needs a CPU that has the implementor's instruction set. Pointers must be
/// valid for `LANES` elements, for the first `count` in [`Simd::load_part`] and
/// [`Simd::store_part`]; they need no alignment.
pub(crate) trait Simd: Copy {
    /// Numbers per vector.
    const LANES: usize;
    /// Rows of the largest micro-tile (two vectors wide) that stays in the registers.
    const ROWS: usize;
    /// True if [`Simd::pick`] is as fast as an addition.
    const PICKS: bool = false;

    /// Sets all lanes to `value`.
    unsafe fn splat(value: f32) -> Self;
    /// Sets all lanes to zero.
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: guaranteed by the trait's contract.
        unsafe { Self::splat(0.0) }
    }
    /// Reads `LANES` numbers.
    unsafe fn load(from: *const f32) -> Self;
    /// Writes `LANES` numbers.
    unsafe fn store(self, to: *mut f32);
    /// Reads `count` ≤ `LANES` numbers; the other lanes are zero.
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
    /// `self · factor + term`, rounded once where the CPU can.
    unsafe fn fma(self, factor: Self, term: Self) -> Self;
    /// The larger one; `other` if one of them is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// The smaller one; `other` if one of them is NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// `yes` where `self > other`, else `no` (also if one of them is NaN).
    unsafe fn gt(self, other: Self, yes: Self, no: Self) -> Self;
    /// `yes` where `self = other`, else `no` (also if one of them is NaN).
    unsafe fn eq(self, other: Self, yes: Self, no: Self) -> Self;
    /// Rounds to the nearest integers.
    unsafe fn round(self) -> Self;
    /// Returns two to the power of lanes that hold integers from −126 to 127.
    unsafe fn pow2(self) -> Self;
    /// Returns the sum of all lanes.
    unsafe fn sum(self) -> f32;
    /// Returns the largest lane.
    unsafe fn max_lane(self) -> f32;

    /// Looks up each lane in `table` by the last five bits of the lane.
    #[inline(always)]
    unsafe fn pick(self, table: &[f32; 32]) -> Self {
        let mut lanes = [0.0f32; 32];
        // SAFETY: a vector has at most 32 lanes.
        unsafe {
            self.store(lanes.as_mut_ptr());
            let picked = lanes.map(|lane| table[lane.to_bits() as usize % 32]);
            Self::load(picked.as_ptr())
        }
    }

    /// Prefetches the line at `place`, which may be any address, into the L2 cache.
    #[inline(always)]
    unsafe fn fetch(_place: *const f32) {}

    /// Transposes `LANES` × `LANES` numbers; the rows of `from` are `from_step` apart, those of
    /// `to` `to_step`.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
        for row in 0..Self::LANES {
            for column in 0..Self::LANES {
                // SAFETY: the caller guarantees LANES rows of LANES elements on both sides.
                unsafe { *to.add(column * to_step + row) = *from.add(row * from_step + column) };
            }
        }
    }
}

/// Calls `load` or `load_part`, depending on `count`.
#[inline(always)]
pub(crate) unsafe fn load_up_to<V: Simd>(from: *const f32, count: usize) -> V {
    // SAFETY: the caller guarantees min(count, LANES) elements.
    unsafe {
        if count >= V::LANES {
            V::load(from)
        } else {
            V::load_part(from, count)
        }
    }
}

/// Calls `store` or `store_part`, depending on `count`.
#[inline(always)]
pub(crate) unsafe fn store_up_to<V: Simd>(value: V, to: *mut f32, count: usize) {
    // SAFETY: the caller guarantees min(count, LANES) elements.
    unsafe {
        if count >= V::LANES {
            value.store(to);
        } else {
            value.store_part(to, count);
        }
    }
}

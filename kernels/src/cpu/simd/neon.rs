//! NEON: four lanes, 32 registers. Every 64-bit ARM CPU has it.

use std::arch::aarch64::*;

use super::Simd;

/// A register of four numbers.
#[derive(Clone, Copy)]
pub(crate) struct Neon(float32x4_t);

// SAFETY of every block below: NEON is part of the base of aarch64; for loads and stores the caller
// guarantees the elements that the trait names.
impl Simd for Neon {
    const LANES: usize = 4;
    const ROWS: usize = 12;

    instructions! {
        splat: vdupq_n_f32, load: vld1q_f32, store: vst1q_f32,
        add: vaddq_f32, sub: vsubq_f32, mul: vmulq_f32,
        div: vdivq_f32,
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        let mut lanes = [0.0; 4];
        for (lane, value) in lanes.iter_mut().take(count).enumerate() {
            // SAFETY: see above.
            *value = unsafe { *from.add(lane) };
        }
        // SAFETY: `lanes` has four elements.
        unsafe { Self::load(lanes.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        let mut lanes = [0.0; 4];
        // SAFETY: `lanes` has four elements.
        unsafe { self.store(lanes.as_mut_ptr()) };
        for (lane, value) in lanes.iter().take(count).enumerate() {
            // SAFETY: see above.
            unsafe { *to.add(lane) = *value };
        }
    }
    #[inline(always)]
    unsafe fn fma(self, factor: Self, term: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vfmaq_f32(term.0, self.0, factor.0) })
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { self.gt(other, self, other) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { other.gt(self, self, other) }
    }
    #[inline(always)]
    unsafe fn gt(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vbslq_f32(vcgtq_f32(self.0, other.0), yes.0, no.0) })
    }
    #[inline(always)]
    unsafe fn eq(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vbslq_f32(vceqq_f32(self.0, other.0), yes.0, no.0) })
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vrndnq_f32(self.0) })
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let exponent = vaddq_s32(vcvtq_s32_f32(self.0), vdupq_n_s32(127));
            Self(vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see above.
        unsafe { vaddvq_f32(self.0) }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: see above.
        unsafe { vmaxvq_f32(self.0) }
    }
}

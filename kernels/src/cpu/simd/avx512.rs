//! AVX-512: sixteen lanes, 32 registers.

use std::arch::x86_64::*;

use super::Simd;

/// A register of sixteen numbers.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

#[inline(always)]
fn mask(count: usize) -> u16 {
    ((1u32 << count) - 1) as u16
}

// SAFETY of every block below: the caller guarantees AVX-512F/BW/DQ/VL and, for loads and stores,
// for the elements that the trait names; masked-out elements are not touched.
impl Simd for Avx512 {
    const LANES: usize = 16;
    const ROWS: usize = 12;
    const PICKS: bool = true;

    instructions! {
        splat: _mm512_set1_ps, load: _mm512_loadu_ps, store: _mm512_storeu_ps,
        add: _mm512_add_ps, sub: _mm512_sub_ps, mul: _mm512_mul_ps,
        div: _mm512_div_ps, max: _mm512_max_ps, min: _mm512_min_ps,
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_maskz_loadu_ps(mask(count), from) })
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        // SAFETY: see above.
        unsafe { _mm512_mask_storeu_ps(to, mask(count), self.0) }
    }
    #[inline(always)]
    unsafe fn fma(self, factor: Self, term: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, term.0) })
    }
    #[inline(always)]
    unsafe fn gt(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let greater = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, other.0);
            Self(_mm512_mask_blend_ps(greater, no.0, yes.0))
        }
    }
    #[inline(always)]
    unsafe fn eq(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let equal = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, other.0);
            Self(_mm512_mask_blend_ps(equal, no.0, yes.0))
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_roundscale_ps::<0>(self.0) })
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_scalef_ps(_mm512_set1_ps(1.0), self.0) })
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn pick(self, table: &[f32; 32]) -> Self {
        // SAFETY: see above; the table has 32 numbers.
        unsafe {
            let (low, high) = (table.as_ptr(), table.as_ptr().add(16));
            let (low, high) = (_mm512_loadu_ps(low), _mm512_loadu_ps(high));
            let index = _mm512_castps_si512(self.0);
            Self(_mm512_permutex2var_ps(low, index, high))
        }
    }

    #[inline(always)]
    unsafe fn fetch(place: *const f32) {
        // SAFETY: see above; a prefetch cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(place.cast()) }
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
        // SAFETY: see above.
        unsafe {
            let mut rows = [_mm512_setzero_ps(); 16];
            for (row, register) in rows.iter_mut().enumerate() {
                *register = _mm512_loadu_ps(from.add(row * from_step));
            }
            for (row, register) in transposed(rows).iter().enumerate() {
                _mm512_storeu_ps(to.add(row * to_step), *register);
            }
        }
    }
}

/// Transposes a 16 × 16 matrix in sixteen registers.
#[inline(always)]
pub(crate) unsafe fn transposed(mut a: [__m512; 16]) -> [__m512; 16] {
    // SAFETY: see above.
    unsafe {
        let mut b = a;
        // Pairs, then groups of four within the quarters of the registers.
        for i in 0..8 {
            b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
        }
        for i in 0..4 {
            let pair = |j: usize| _mm512_castps_pd(b[4 * i + j]);
            let single = |value| _mm512_castpd_ps(value);
            a[4 * i] = single(_mm512_unpacklo_pd(pair(0), pair(2)));
            a[4 * i + 1] = single(_mm512_unpackhi_pd(pair(0), pair(2)));
            a[4 * i + 2] = single(_mm512_unpacklo_pd(pair(1), pair(3)));
            a[4 * i + 3] = single(_mm512_unpackhi_pd(pair(1), pair(3)));
        }
        // The quarters themselves.
        for half in 0..2 {
            for i in 0..4 {
                let (low, high) = (a[8 * half + i], a[8 * half + 4 + i]);
                b[8 * half + i] = _mm512_shuffle_f32x4::<0x88>(low, high);
                b[8 * half + 4 + i] = _mm512_shuffle_f32x4::<0xdd>(low, high);
            }
        }
        for i in 0..8 {
            a[i] = _mm512_shuffle_f32x4::<0x88>(b[i], b[8 + i]);
            a[8 + i] = _mm512_shuffle_f32x4::<0xdd>(b[i], b[8 + i]);
        }
        a
    }
}

//! AVX2 with FMA: eight lanes, 16 registers.

use std::arch::x86_64::*;

use super::Simd;

/// A register of eight numbers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256);

/// Eight words of ones, then eight of zeros. A window of eight words is a mask.
static ONES_THEN_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
unsafe fn mask(count: usize) -> __m256i {
    // SAFETY: the caller guarantees AVX; count ≤ 8, so the window lies within the sixteen words.
    unsafe { _mm256_loadu_si256(ONES_THEN_ZEROS.as_ptr().add(8 - count).cast()) }
}

// SAFETY of every block below: the caller guarantees AVX2 and FMA and, for loads and stores, for
// the elements that the trait names; masked-out elements are not touched.
impl Simd for Avx2 {
    const LANES: usize = 8;
    const ROWS: usize = 6;

    instructions! {
        splat: _mm256_set1_ps, load: _mm256_loadu_ps, store: _mm256_storeu_ps,
        add: _mm256_add_ps, sub: _mm256_sub_ps, mul: _mm256_mul_ps,
        div: _mm256_div_ps, max: _mm256_max_ps, min: _mm256_min_ps,
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_maskload_ps(from, mask(count)) })
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        // SAFETY: see above.
        unsafe { _mm256_maskstore_ps(to, mask(count), self.0) }
    }
    #[inline(always)]
    unsafe fn fma(self, factor: Self, term: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, term.0) })
    }
    #[inline(always)]
    unsafe fn gt(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let greater = _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, other.0);
            Self(_mm256_blendv_ps(no.0, yes.0, greater))
        }
    }
    #[inline(always)]
    unsafe fn eq(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let equal = _mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0);
            Self(_mm256_blendv_ps(no.0, yes.0, equal))
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see above.
        Self(unsafe {
            _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)
        })
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see above.
        unsafe {
            let four = _mm_add_ps(
                _mm256_castps256_ps128(self.0),
                _mm256_extractf128_ps::<1>(self.0),
            );
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn fetch(place: *const f32) {
        // SAFETY: see above; a prefetch cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(place.cast()) }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: see above.
        unsafe {
            let four = _mm_max_ps(
                _mm256_castps256_ps128(self.0),
                _mm256_extractf128_ps::<1>(self.0),
            );
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
        // SAFETY: see above.
        unsafe {
            let zero = _mm256_setzero_ps();
            let mut a = [zero; 8];
            for (row, register) in a.iter_mut().enumerate() {
                *register = _mm256_loadu_ps(from.add(row * from_step));
            }
            let mut b = [zero; 8];
            for i in 0..4 {
                b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
                b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
            }
            for i in 0..2 {
                a[4 * i] = _mm256_shuffle_ps::<0x44>(b[4 * i], b[4 * i + 2]);
                a[4 * i + 1] = _mm256_shuffle_ps::<0xee>(b[4 * i], b[4 * i + 2]);
                a[4 * i + 2] = _mm256_shuffle_ps::<0x44>(b[4 * i + 1], b[4 * i + 3]);
                a[4 * i + 3] = _mm256_shuffle_ps::<0xee>(b[4 * i + 1], b[4 * i + 3]);
            }
            for i in 0..4 {
                let low = _mm256_permute2f128_ps::<0x20>(a[i], a[4 + i]);
                let high = _mm256_permute2f128_ps::<0x31>(a[i], a[4 + i]);
                _mm256_storeu_ps(to.add(i * to_step), low);
                _mm256_storeu_ps(to.add((4 + i) * to_step), high);
            }
        }
    }
}

//! Packing into bf16 pairs, and the micro-kernel, on AVX-512 BF16.
//!
//! A panel is \[pairs of depth\]\[width\] words. The left matrix may also be \[rows\]\[pairs of
//! depth\], because its words are read one by one.

use std::arch::x86_64::*;

use super::micro::{COLUMNS, Left, Micro};
use crate::cpu::simd::avx512::transposed;

/// Rows of a micro-tile.
const ROWS: usize = 12;
/// Rows of a micro-tile that is at most half full.
const FEW: usize = ROWS / 2;
/// Steps of the depth that are prefetched while packing, because rows come from memory, not from a
/// cache.
const AHEAD: usize = 8;

/// Dot products of pairs, AVX-512 BF16.
pub(crate) struct Dot;

impl Micro for Dot {
    const ROWS: usize = ROWS;
    const GRAIN: usize = 2;
    const DEPTH: usize = 768;
    const BLOCK: usize = 20;
    const LEAST: usize = 4;
    type Session = ();

    fn session() {}

    unsafe fn pack_adjacent(
        lanes: usize,
        depth: usize,
        from: *const f32,
        step: usize,
        to: *mut u32,
        panel: usize,
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe { pack_adjacent((lanes, ROWS), depth, from, step, to, panel) }
    }

    unsafe fn pack_rows(
        rows: usize,
        depth: usize,
        from: *const f32,
        step: usize,
        to: *mut u32,
    ) -> Left {
        // SAFETY: guaranteed by the caller.
        unsafe { pack_rows(rows, depth, from, step, to) };
        Left {
            start: to,
            row: depth.div_ceil(2),
        }
    }

    unsafe fn tile(
        depth: usize,
        a: Left,
        b: *const u32,
        size: (usize, usize),
        c: *mut f32,
        step: usize,
        add: bool,
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe { tile(depth, a, b, size, c, step, add) }
    }
}

/// Returns a mask of the first `count` lanes.
pub(super) fn mask(count: usize) -> u16 {
    if count >= 16 {
        u16::MAX
    } else {
        (1 << count) - 1
    }
}

/// Packs `lanes` lanes that are adjacent in memory into panels of `width`, `panel` words apart;
/// steps of the depth are `step` apart.
///
/// Rows are read from end to end, as they lie in memory.
///
/// # Safety
///
/// The CPU has AVX-512 and its BF16; `from` has `depth` steps of `lanes` elements; `to` has
/// room for the panels.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn pack_adjacent(
    (lanes, width): (usize, usize),
    depth: usize,
    from: *const f32,
    step: usize,
    to: *mut u32,
    panel: usize,
) {
    for pair in 0..depth.div_ceil(2) {
        let both_exist = 2 * pair + 1 < depth;
        for (index, first) in (0..lanes).step_by(width).enumerate() {
            for lane in (0..width).step_by(16) {
                let exist = lanes.saturating_sub(first + lane);
                // SAFETY: masked lanes are not touched; the second step is read only if it exists.
                unsafe {
                    let at = from.wrapping_add(2 * pair * step + first + lane);
                    // A prefetch may go beyond the matrix.
                    let ahead = at.wrapping_add(AHEAD * step).cast();
                    _mm_prefetch::<_MM_HINT_T1>(ahead);
                    _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(4 * step));
                    let to = to.add(index * panel + pair * width + lane).cast();
                    if exist >= 16 && width - lane >= 16 && both_exist {
                        let words = interleaved(_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(step)));
                        _mm512_storeu_epi32(to, words);
                        continue;
                    }
                    let used = mask(exist);
                    let more = if both_exist { used } else { 0 };
                    let low = _mm512_maskz_loadu_ps(used, at);
                    let high = _mm512_maskz_loadu_ps(more, at.wrapping_add(step));
                    let words = interleaved(low, high);
                    _mm512_mask_storeu_epi32(to, mask(width - lane), words);
                }
            }
        }
    }
}

/// Rounds `rows` rows of `depth` elements that are `step` apart, to rows of whole words.
///
/// # Safety
///
/// The CPU has AVX-512 and its BF16; `from` has the rows; `to` has room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn pack_rows(rows: usize, depth: usize, from: *const f32, step: usize, to: *mut u32) {
    let pairs = depth.div_ceil(2);
    let whole = depth / 32 * 16;
    for row in 0..rows {
        // SAFETY: masked elements are not touched.
        unsafe {
            let (from, to) = (from.add(row * step), to.add(row * pairs));
            for pair in (0..whole).step_by(16) {
                let at = from.add(2 * pair);
                let words = rounded(_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(16)));
                _mm512_storeu_epi32(to.add(pair).cast(), words);
            }
            if whole < pairs {
                let words = some_rounded(from.add(2 * whole), depth - 2 * whole);
                _mm512_mask_storeu_epi32(to.add(whole).cast(), mask(pairs - whole), words);
            }
        }
    }
}

/// Returns the words of the first 32 of `count` elements, with zeros beyond `count`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn some_rounded(from: *const f32, count: usize) -> __m512i {
    let (first, second) = (mask(count), mask(count.saturating_sub(16)));
    // SAFETY: masked elements are not touched.
    unsafe {
        let low = _mm512_maskz_loadu_ps(first, from);
        let high = _mm512_maskz_loadu_ps(second, from.wrapping_add(16));
        rounded(low, high)
    }
}

/// Returns words whose lower halves come from one vector and whose upper ones from the other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn interleaved(low: __m512, high: __m512) -> __m512i {
    // Alternates the values of the lower and the upper half of a register.
    const ORDER: [u16; 32] = {
        let mut order = [0; 32];
        let mut index = 0;
        while index < 32 {
            order[index as usize] = index / 2 + 16 * (index % 2);
            index += 1;
        }
        order
    };
    // SAFETY: the array has 64 bytes.
    let order = unsafe { _mm512_loadu_si512(ORDER.as_ptr().cast()) };
    _mm512_permutexvar_epi16(order, rounded(low, high))
}

/// Returns the words of two vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn rounded(low: __m512, high: __m512) -> __m512i {
    wide_words(_mm512_cvtne2ps_pbh(high, low))
}

/// Packs `width` lanes that are `step` apart; steps of the depth are adjacent.
///
/// # Safety
///
/// The CPU has AVX-512 and its BF16; `from` has `lanes` ≤ `width` rows of `depth` elements;
/// `to` has room for the panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn pack_apart(
    (lanes, width): (usize, usize),
    depth: usize,
    from: *const f32,
    step: usize,
    to: *mut u32,
) {
    let pairs = depth.div_ceil(2);
    // Squares beyond the last lane stay unchanged.
    for lane in (0..lanes).step_by(16) {
        let used = mask(width - lane);
        for pair in (0..pairs).step_by(16) {
            let mut square = [_mm512_setzero_ps(); 16];
            // SAFETY: masked elements are not touched; `to` has the lanes and pairs.
            unsafe {
                for (row, words) in square.iter_mut().enumerate().take(lanes - lane) {
                    let at = from.add((lane + row) * step + 2 * pair);
                    *words = _mm512_castsi512_ps(some_rounded(at, depth - 2 * pair));
                }
                let turned = transposed(square);
                for (row, &words) in turned.iter().enumerate().take(pairs - pair) {
                    let to = to.add((pair + row) * width + lane);
                    _mm512_mask_storeu_ps(to.cast(), used, words);
                }
            }
        }
    }
}

fn wide_words(value: __m512bh) -> __m512i {
    // SAFETY: both are 64 bytes without invalid patterns.
    unsafe { std::mem::transmute(value) }
}

fn pairs(value: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes without invalid patterns.
    unsafe { std::mem::transmute(value) }
}

/// `c (+)= a · b` for a micro-tile; only `rows` × `columns` of it exist.
///
/// # Safety
///
/// The CPU has AVX-512 and its BF16; `a` has [`ROWS`] rows of `depth` pairs, and the rows beyond
/// `rows` are arbitrary; `b` is a panel of `depth` pairs; `c` has the rows, `step` apart.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn tile(
    depth: usize,
    a: Left,
    b: *const u32,
    (rows, columns): (usize, usize),
    c: *mut f32,
    step: usize,
    add: bool,
) {
    let size = (rows, columns);
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (columns <= 16, a.row == 1, rows <= FEW) {
            (true, true, true) => vectors::<1, true, FEW>(depth, a, b, size, c, step, add),
            (true, true, false) => vectors::<1, true, ROWS>(depth, a, b, size, c, step, add),
            (true, false, true) => vectors::<1, false, FEW>(depth, a, b, size, c, step, add),
            (true, false, false) => vectors::<1, false, ROWS>(depth, a, b, size, c, step, add),
            (false, true, true) => vectors::<2, true, FEW>(depth, a, b, size, c, step, add),
            (false, true, false) => vectors::<2, true, ROWS>(depth, a, b, size, c, step, add),
            (false, false, true) => vectors::<2, false, FEW>(depth, a, b, size, c, step, add),
            (false, false, false) => vectors::<2, false, ROWS>(depth, a, b, size, c, step, add),
        }
    }
}

/// [`tile`] of at most `HEIGHT` rows in `VECTORS` vectors of columns; `PANEL` says whether `a` is a
/// panel. All are constants for the compiler, which needs them to address `a` without a
/// multiplication per row.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn vectors<const VECTORS: usize, const PANEL: bool, const HEIGHT: usize>(
    depth: usize,
    a: Left,
    b: *const u32,
    (rows, columns): (usize, usize),
    c: *mut f32,
    step: usize,
    add: bool,
) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; HEIGHT];
    let (a_row, a_step) = if PANEL { (1, ROWS) } else { (a.row, 1) };
    let (mut a, mut b) = (a.start, b);
    for pair in 0..depth {
        if pair < HEIGHT {
            // Prefetches the output lines, one row at a time, because all at once would hold up the
            // reads. The lines may lie beyond the matrix.
            let line = c.wrapping_add(pair * step).cast();
            _mm_prefetch::<_MM_HINT_T0>(line);
            _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(64));
        }
        // SAFETY: the panels have `depth` pairs of rows and columns.
        unsafe {
            let mut columns = [pairs(_mm512_setzero_si512()); VECTORS];
            for (vector, column) in columns.iter_mut().enumerate() {
                *column = pairs(_mm512_loadu_si512(b.add(16 * vector).cast()));
            }
            for (row, sum) in sums.iter_mut().enumerate() {
                let value = pairs(_mm512_set1_epi32(*a.add(row * a_row) as i32));
                for (sum, column) in sum.iter_mut().zip(columns) {
                    *sum = _mm512_dpbf16_ps(*sum, value, column);
                }
            }
        }
        a = a.wrapping_add(a_step);
        b = b.wrapping_add(COLUMNS);
    }
    if rows == HEIGHT && columns == 16 * VECTORS && !add {
        for (row, sum) in sums.iter().enumerate() {
            for (half, &sum) in sum.iter().enumerate() {
                // SAFETY: all rows and columns exist.
                unsafe { _mm512_storeu_ps(c.add(row * step + 16 * half), sum) };
            }
        }
        return;
    }
    let used = [mask(columns), mask(columns.saturating_sub(16))];
    for (row, sum) in sums.iter().enumerate() {
        if row >= rows {
            break;
        }
        for (half, &sum) in sum.iter().enumerate() {
            let to = c.wrapping_add(row * step + 16 * half);
            // SAFETY: masked columns are not touched.
            unsafe {
                let before = _mm512_maskz_loadu_ps(if add { used[half] } else { 0 }, to);
                _mm512_mask_storeu_ps(to, used[half], _mm512_add_ps(before, sum));
            }
        }
    }
}

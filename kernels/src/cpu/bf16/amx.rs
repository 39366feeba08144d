//! Packing for AMX, its micro-kernel, and the same in software.
//!
//! A tile register holds 16 rows of 64 bytes. One instruction multiplies 16 rows by 32 steps of the
//! left matrix with 32 steps by 16 columns of the right one. A micro-tile is two by two of them.
//! Left micro-tiles are \[32 steps\]\[row\]\[16 pairs\], so that each tile is 1 KiB in one piece.
//!
//! Instructions and their arithmetic: Intel 64 and IA-32 Architectures Software Developer's Manual,
//! volume 2, `TDPBF16PS`; use of the state: Linux, `Documentation/arch/x86/xstate.rst`.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use super::micro::{COLUMNS, Left, Micro};
use super::vector::{interleaved, mask, rounded, some_rounded};
use crate::cpu::simd::avx512::transposed;

/// Rows of a tile, and pairs of steps of an instruction.
const SIDE: usize = 16;
/// Rows of a micro-tile.
const ROWS: usize = 2 * SIDE;
/// Steps of an instruction.
const STEPS: usize = 2 * SIDE;
/// Words of a left micro-tile per [`STEPS`].
const WORDS: usize = ROWS * SIDE;
/// Rows that are prefetched while packing.
const AHEAD: usize = 4;

/// Whether this process may use AMX. Asks the system once.
pub(super) fn is_available() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| has_instructions() && permit())
}

fn has_instructions() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    let leaf = (__cpuid(0).eax >= 7).then(|| __cpuid_count(7, 0).edx);
    leaf.is_some_and(|edx| edx & (BF16 | TILE) == BF16 | TILE)
}

/// Asks Linux for the tile registers, which it gives to the whole process.
#[cfg(all(target_os = "linux", not(miri)))]
fn permit() -> bool {
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: the call only sets a permission of this process. An old kernel returns an error.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn permit() -> bool {
    false
}

/// The operand of `ldtilecfg`: all eight tiles have 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Configured tile registers of this thread. Dropping it gives them back, so that the system need
/// not save them.
pub(crate) struct Tiles(PhantomData<*const ()>);

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: a session exists only where AMX is available.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// AMX. Its functions are called only where [`is_available`].
pub(crate) struct Amx;

impl Micro for Amx {
    const ROWS: usize = ROWS;
    const GRAIN: usize = STEPS;
    const DEPTH: usize = 768;
    const BLOCK: usize = 8;
    const LEAST: usize = 2;
    type Session = Tiles;

    fn session() -> Tiles {
        // SAFETY: products choose this micro-kernel only where AMX is available.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack)) };
        Tiles(PhantomData)
    }

    unsafe fn pack_adjacent(
        lanes: usize,
        depth: usize,
        from: *const f32,
        step: usize,
        to: *mut u32,
        panel: usize,
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe { pack_adjacent(lanes, depth, from, step, to, panel) }
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
        Left::panel(to)
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
        unsafe { whole_tiles(depth, a.start, b, size, (c, step), add, hardware) }
    }
}

/// AMX in software, for tests and to repeat results of AMX on another CPU. Slow.
pub(crate) struct Emulated;

impl Micro for Emulated {
    const ROWS: usize = Amx::ROWS;
    const GRAIN: usize = Amx::GRAIN;
    const DEPTH: usize = Amx::DEPTH;
    const BLOCK: usize = Amx::BLOCK;
    const LEAST: usize = Amx::LEAST;
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
        unsafe { pack_adjacent(lanes, depth, from, step, to, panel) }
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
        Left::panel(to)
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
        unsafe { whole_tiles(depth, a.start, b, size, (c, step), add, software) }
    }
}

/// [`Micro::pack_rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn pack_rows(rows: usize, depth: usize, from: *const f32, step: usize, to: *mut u32) {
    let parts = depth.div_ceil(STEPS);
    for row in 0..rows {
        // SAFETY: the row exists, and the micro-tiles have room for it; masked elements are not
        // touched.
        unsafe {
            let from = from.add(row * step);
            let to = to.add(row / ROWS * parts * WORDS + row % ROWS * SIDE);
            for part in 0..parts {
                let (at, left) = (from.add(part * STEPS), depth - part * STEPS);
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD * step).cast());
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD * step + SIDE).cast());
                let words = match left >= STEPS {
                    true => rounded(_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(SIDE))),
                    false => some_rounded(at, left),
                };
                _mm512_storeu_epi32(to.add(part * WORDS).cast(), words);
            }
        }
    }
}

/// [`Micro::pack_adjacent`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn pack_adjacent(
    lanes: usize,
    depth: usize,
    from: *const f32,
    step: usize,
    to: *mut u32,
    panel: usize,
) {
    for part in 0..depth.div_ceil(STEPS) {
        for lane in (0..lanes).step_by(SIDE) {
            let used = mask(lanes - lane);
            let mut square = [_mm512_setzero_ps(); SIDE];
            for (pair, words) in square.iter_mut().enumerate() {
                let first = part * STEPS + 2 * pair;
                let at = from.wrapping_add(first * step + lane);
                let used = |step: usize| if step < depth { used } else { 0 };
                // SAFETY: masked elements are not touched.
                let both = unsafe {
                    let low = _mm512_maskz_loadu_ps(used(first), at);
                    let high = _mm512_maskz_loadu_ps(used(first + 1), at.wrapping_add(step));
                    interleaved(low, high)
                };
                *words = _mm512_castsi512_ps(both);
            }
            // SAFETY: the micro-tiles have room for all rows.
            unsafe {
                let to = to.add(lane / ROWS * panel + part * WORDS + lane % ROWS * SIDE);
                for (row, &words) in transposed(square).iter().enumerate() {
                    _mm512_storeu_ps(to.add(row * SIDE).cast(), words);
                }
            }
        }
    }
}

/// Computes `size` tiles of `c`, rows and columns, over `parts` times [`STEPS`].
type Multiply = unsafe fn(
    parts: usize,
    a: *const u32,
    b: *const u32,
    size: (usize, usize),
    c: (*mut f32, usize),
    add: bool,
);

/// [`Micro::tile`] by a function that writes whole tiles.
///
/// # Safety
///
/// As [`Micro::tile`].
#[inline(always)]
unsafe fn whole_tiles(
    depth: usize,
    a: *const u32,
    b: *const u32,
    (rows, columns): (usize, usize),
    (c, step): (*mut f32, usize),
    add: bool,
    multiply: Multiply,
) {
    let size = (rows.div_ceil(SIDE), columns.div_ceil(SIDE));
    let parts = depth / SIDE;
    // SAFETY: guaranteed by the caller; only whole tiles are written in place, and other ones to
    // an array that has room for them. It is read only where it has been written.
    unsafe {
        if rows.is_multiple_of(SIDE) && columns.is_multiple_of(SIDE) {
            return multiply(parts, a, b, size, (c, step), add);
        }
        let mut whole = MaybeUninit::<[f32; ROWS * COLUMNS]>::uninit();
        let whole = whole.as_mut_ptr().cast::<f32>();
        if add {
            whole.write_bytes(0, ROWS * COLUMNS);
            copy((rows, columns), (c, step), (whole, COLUMNS));
        }
        multiply(parts, a, b, size, (whole, COLUMNS), add);
        copy((rows, columns), (whole, COLUMNS), (c, step));
    }
}

/// Copies part of a micro-tile.
///
/// # Safety
///
/// The CPU has AVX-512; both have the rows and columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn copy(
    (rows, columns): (usize, usize),
    (from, from_step): (*const f32, usize),
    (to, to_step): (*mut f32, usize),
) {
    let (first, second) = (mask(columns), mask(columns.saturating_sub(SIDE)));
    for row in 0..rows {
        // SAFETY: masked columns are not touched.
        unsafe {
            let from = from.add(row * from_step);
            let to = to.add(row * to_step);
            let values = _mm512_maskz_loadu_ps(first, from);
            let more = _mm512_maskz_loadu_ps(second, from.wrapping_add(SIDE));
            _mm512_mask_storeu_ps(to, first, values);
            _mm512_mask_storeu_ps(to.wrapping_add(SIDE), second, more);
        }
    }
}

/// [`Multiply`] by AMX.
///
/// # Safety
///
/// The thread has a session; the memory of the factors and of the tiles of `c` is valid.
unsafe fn hardware(
    parts: usize,
    a: *const u32,
    b: *const u32,
    size: (usize, usize),
    (c, step): (*mut f32, usize),
    add: bool,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match size {
            (1, 1) => one_by_one(parts, a, b, (c, step), add),
            (1, _) => one_by_two(parts, a, b, (c, step), add),
            (_, 1) => two_by_one(parts, a, b, (c, step), add),
            _ => two_by_two(parts, a, b, (c, step), add),
        }
    }
}

/// Defines a function for a number of tiles. `$zero` and `$load` begin the sums, `$body` adds the
/// products of [`STEPS`], `$store` ends them.
macro_rules! tiles {
    (
        $name:ident, zero: [$($zero:literal)*], load: [$($load:literal)*], body: [$($body:literal)*],
        store: [$($store:literal)*]
    ) => {
        unsafe fn $name(
            parts: usize,
            a: *const u32,
            b: *const u32,
            (c, step): (*mut f32, usize),
            add: bool,
        ) {
            // SAFETY: the caller guarantees the session and the memory of the tiles. The last three
            // lines of the loop leave the sums alone.
            unsafe {
                asm!(
                    "test {add}, {add}",
                    "jnz 3f",
                    $($zero,)*
                    "jmp 2f",
                    "3:",
                    $($load,)*
                    "2:",
                    $($body,)*
                    "add {a}, 2048",
                    "add {b}, 2048",
                    "dec {parts}",
                    "jnz 2b",
                    $($store,)*
                    // Some have one row of tiles.
                    "# {low}",
                    a = inout(reg) a => _,
                    b = inout(reg) b => _,
                    parts = inout(reg) parts => _,
                    left = in(reg) 64usize,
                    right = in(reg) 128usize,
                    c = in(reg) c,
                    low = in(reg) c.wrapping_add(SIDE * step),
                    step = in(reg) 4 * step,
                    add = in(reg) usize::from(add),
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

// The prefetches are the lines of the right panel two steps of the loop later, which come from the
// L2 cache. They may lie beyond the panel.
tiles!(
    two_by_two,
    zero: ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
    load: [
        "tileloadd tmm0, [{c}+{step}*1]" "tileloadd tmm1, [{c}+{step}*1+64]"
        "tileloadd tmm2, [{low}+{step}*1]" "tileloadd tmm3, [{low}+{step}*1+64]"
    ],
    body: [
        "tileloadd tmm4, [{a}+{left}*1]"
        "tileloadd tmm6, [{b}+{right}*1]"
        ".irp ahead,4096,4160,4224,4288,4352,4416,4480,4544" "prefetcht0 [{b}+\\ahead]" ".endr"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm7, [{b}+{right}*1+64]"
        ".irp ahead,4608,4672,4736,4800,4864,4928,4992,5056" "prefetcht0 [{b}+\\ahead]" ".endr"
        "tdpbf16ps tmm1, tmm4, tmm7"
        "tileloadd tmm5, [{a}+{left}*1+1024]"
        ".irp ahead,5120,5184,5248,5312,5376,5440,5504,5568" "prefetcht0 [{b}+\\ahead]" ".endr"
        "tdpbf16ps tmm2, tmm5, tmm6"
        ".irp ahead,5632,5696,5760,5824,5888,5952,6016,6080" "prefetcht0 [{b}+\\ahead]" ".endr"
        "tdpbf16ps tmm3, tmm5, tmm7"
    ],
    store: [
        "tilestored [{c}+{step}*1], tmm0" "tilestored [{c}+{step}*1+64], tmm1"
        "tilestored [{low}+{step}*1], tmm2" "tilestored [{low}+{step}*1+64], tmm3"
    ]
);

tiles!(
    one_by_two,
    zero: ["tilezero tmm0" "tilezero tmm1"],
    load: ["tileloadd tmm0, [{c}+{step}*1]" "tileloadd tmm1, [{c}+{step}*1+64]"],
    body: [
        "tileloadd tmm4, [{a}+{left}*1]"
        "tileloadd tmm6, [{b}+{right}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm7, [{b}+{right}*1+64]"
        "tdpbf16ps tmm1, tmm4, tmm7"
    ],
    store: ["tilestored [{c}+{step}*1], tmm0" "tilestored [{c}+{step}*1+64], tmm1"]
);

tiles!(
    two_by_one,
    zero: ["tilezero tmm0" "tilezero tmm2"],
    load: ["tileloadd tmm0, [{c}+{step}*1]" "tileloadd tmm2, [{low}+{step}*1]"],
    body: [
        "tileloadd tmm6, [{b}+{right}*1]"
        "tileloadd tmm4, [{a}+{left}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm5, [{a}+{left}*1+1024]"
        "tdpbf16ps tmm2, tmm5, tmm6"
    ],
    store: ["tilestored [{c}+{step}*1], tmm0" "tilestored [{low}+{step}*1], tmm2"]
);

tiles!(
    one_by_one,
    zero: ["tilezero tmm0"],
    load: ["tileloadd tmm0, [{c}+{step}*1]"],
    body: [
        "tileloadd tmm4, [{a}+{left}*1]"
        "tileloadd tmm6, [{b}+{right}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
    ],
    store: ["tilestored [{c}+{step}*1], tmm0"]
);

/// [`Multiply`] by the rules of `TDPBF16PS`. One instruction sums the products of even steps and
/// those of odd steps by fused multiply-add, then adds both to `c`. It rounds to the nearest and
/// replaces subnormal numbers by zero.
///
/// # Safety
///
/// The CPU has FMA; the memory of the factors and of the tiles of `c` is valid.
#[target_feature(enable = "avx512f,fma")]
unsafe fn software(
    parts: usize,
    a: *const u32,
    b: *const u32,
    (rows, columns): (usize, usize),
    (c, step): (*mut f32, usize),
    add: bool,
) {
    let columns = columns * SIDE;
    for row in 0..rows * SIDE {
        let mut result = [0.0f32; COLUMNS];
        // SAFETY: guaranteed by the caller.
        unsafe {
            let c = c.add(row * step);
            if add {
                result.as_mut_ptr().copy_from_nonoverlapping(c, columns);
                result = result.map(normal);
            }
            for part in 0..parts {
                let a = a.add(part * WORDS + row * SIDE);
                let b = b.add(part * SIDE * COLUMNS);
                let mut sums = [[0.0f32; COLUMNS]; 2];
                for pair in 0..SIDE {
                    let lefts = halves(*a.add(pair));
                    for (column, (even, odd)) in both(&mut sums).enumerate() {
                        let rights = halves(*b.add(pair * COLUMNS + column));
                        *even = normal(lefts[0].mul_add(rights[0], *even));
                        *odd = normal(lefts[1].mul_add(rights[1], *odd));
                    }
                }
                for (sum, (even, odd)) in result.iter_mut().zip(both(&mut sums)) {
                    *sum = normal(*sum + normal(*even + *odd));
                }
            }
            c.copy_from_nonoverlapping(result.as_ptr(), columns);
        }
    }
}

/// Pairs of elements of two arrays.
#[inline(always)]
fn both(sums: &mut [[f32; COLUMNS]; 2]) -> impl Iterator<Item = (&mut f32, &mut f32)> {
    let [even, odd] = sums;
    even.iter_mut().zip(odd)
}

/// Returns the two bf16 values of a word, without subnormal ones.
#[inline(always)]
fn halves(word: u32) -> [f32; 2] {
    [word << 16, word & 0xffff_0000].map(|bits| normal(f32::from_bits(bits)))
}

/// Replaces subnormal numbers by zero.
#[inline(always)]
fn normal(value: f32) -> f32 {
    let sign = f32::from_bits(value.to_bits() & 0x8000_0000);
    if value.abs() < f32::MIN_POSITIVE {
        sign
    } else {
        value
    }
}

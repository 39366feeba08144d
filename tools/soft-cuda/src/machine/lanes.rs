//! Registers of a warp, and functions on whole registers. The functions are compiled for every CPU
//! of this kind, and for wide vectors with fused multiply-add. The best ones are chosen when an
//! instruction is translated.
#![allow(unsafe_code)] // Functions for CPUs that can more are unsafe to call.

/// Lanes of a warp.
pub(super) const LANES: usize = 32;

/// A register of every lane.
pub(super) type Row = [u64; LANES];

/// The registers of a warp.
pub(super) type Registers = [Row];

/// The active lanes.
pub(super) type Mask = u32;

/// All lanes.
pub(super) const ALL: Mask = Mask::MAX;

type Function<const N: usize> = unsafe fn(&mut Registers, [usize; N], Mask);

/// A function of the lanes' registers: its result and `N - 1` sources.
#[derive(Clone, Copy)]
pub(super) struct Map<const N: usize>(Function<N>);

impl<const N: usize> Map<N> {
    /// Creates it from three versions of the same function; the second and third are compiled for
    /// [`Vectors::Wide`] and [`Vectors::Widest`].
    pub fn new(plain: Function<N>, wide: Function<N>, widest: Function<N>) -> Self {
        Self(match vectors() {
            Vectors::Plain => plain,
            Vectors::Wide => wide,
            Vectors::Widest => widest,
        })
    }

    #[inline]
    pub fn run(self, registers: &mut Registers, operands: [usize; N], lanes: Mask) {
        // SAFETY: `new` takes a function for wide vectors only where the CPU has them.
        unsafe { (self.0)(registers, operands, lanes) }
    }
}

/// The vectors that functions are compiled for.
pub(super) enum Vectors {
    /// Vectors of every CPU.
    Plain,
    /// AVX2, with fused multiply-add.
    Wide,
    /// AVX-512.
    Widest,
}

/// The widest vectors that the CPU has.
#[cfg(target_arch = "x86_64")]
pub(super) fn vectors() -> Vectors {
    let wide = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let widest = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (wide, widest) {
        (true, true) => Vectors::Widest,
        (true, false) => Vectors::Wide,
        _ => Vectors::Plain,
    }
}

/// The widest vectors that the CPU has.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn vectors() -> Vectors {
    Vectors::Plain
}

/// Returns the lanes of a mask.
pub(super) fn lanes(mask: Mask) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

/// Returns the lanes for which `holds` is true.
pub(super) fn mask_of(holds: impl Fn(usize) -> bool) -> Mask {
    (0..LANES).fold(0, |mask, lane| mask | Mask::from(holds(lane)) << lane)
}

#[inline(always)]
fn write(registers: &mut Registers, to: usize, mask: Mask, value: impl Fn(usize) -> u64) {
    let row = &mut registers[to];
    if mask == ALL {
        for (lane, slot) in row.iter_mut().enumerate() {
            *slot = value(lane);
        }
    } else {
        for lane in lanes(mask) {
            row[lane] = value(lane);
        }
    }
}

#[inline(always)]
pub(super) fn map1(r: &mut Registers, [to, a]: [usize; 2], m: Mask, f: impl Fn(u64) -> u64) {
    let a = r[a];
    write(r, to, m, |lane| f(a[lane]));
}

#[inline(always)]
pub(super) fn map2(
    registers: &mut Registers,
    [to, a, b]: [usize; 3],
    mask: Mask,
    f: impl Fn(u64, u64) -> u64,
) {
    let (a, b) = (registers[a], registers[b]);
    write(registers, to, mask, |lane| f(a[lane], b[lane]));
}

#[inline(always)]
pub(super) fn map3(
    registers: &mut Registers,
    [to, a, b, c]: [usize; 4],
    mask: Mask,
    f: impl Fn(u64, u64, u64) -> u64,
) {
    let (a, b, c) = (registers[a], registers[b], registers[c]);
    write(registers, to, mask, |lane| f(a[lane], b[lane], c[lane]));
}

/// A [`Map`] of an expression of a lane's numbers, which have the format `$format`.
macro_rules! map {
    (@ $n:literal, $map:ident, $apply:ident, $format:ty, $f:expr) => {{
        use $crate::machine::formats::Format;
        use $crate::machine::lanes::{$map, Map, Mask, Registers};
        #[allow(clippy::redundant_closure_call)]
        fn plain(registers: &mut Registers, operands: [usize; $n], mask: Mask) {
            map!(@ body $map, $apply, $format, $f, registers, operands, mask);
        }
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
        fn wide(registers: &mut Registers, operands: [usize; $n], mask: Mask) {
            map!(@ body $map, $apply, $format, $f, registers, operands, mask);
        }
        #[cfg_attr(
            target_arch = "x86_64",
            target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
        )]
        fn widest(registers: &mut Registers, operands: [usize; $n], mask: Mask) {
            map!(@ body $map, $apply, $format, $f, registers, operands, mask);
        }
        Map::<$n>::new(plain, wide, widest)
    }};
    (@ body map1, $apply:ident, $format:ty, $f:expr, $r:ident, $o:ident, $m:ident) => {
        map1($r, $o, $m, |a| <$format>::$apply(a, $f))
    };
    (@ body map2, $apply:ident, $format:ty, $f:expr, $r:ident, $o:ident, $m:ident) => {
        map2($r, $o, $m, |a, b| <$format>::$apply(a, b, $f))
    };
    (@ body map3, $apply:ident, $format:ty, $f:expr, $r:ident, $o:ident, $m:ident) => {
        map3($r, $o, $m, |a, b, c| <$format>::$apply(a, b, c, $f))
    };
    ($format:ty, |$a:ident| $value:expr) => {
        map!(@ 2, map1, one, $format, |$a| $value)
    };
    ($format:ty, |$a:ident, $b:ident| $value:expr) => {
        map!(@ 3, map2, two, $format, |$a, $b| $value)
    };
    ($format:ty, |$a:ident, $b:ident, $c:ident| $value:expr) => {
        map!(@ 4, map3, three, $format, |$a, $b, $c| $value)
    };
}

pub(super) use map;

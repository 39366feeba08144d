//! Instructions of tensor cores of compute capability 9.0 beyond [`super::tensor_cores`]. With
//! `wgmma` four planes multiply factors in shared memory while they do something else ("PTX ISA",
//! "Asynchronous Warpgroup Level Matrix Instructions"). Only `wgmma` reaches the throughput of the
//! data sheets; `mma` reaches 62 % of it (Luo et al. 2024, <https://arxiv.org/abs/2402.13499>).
//!
//! Factors lie in rows of 64 bytes, whose vectors are exchanged by the instruction's 64-byte
//! swizzle, or in planes without a swizzle. Layouts and descriptors are those of CUTLASS
//! (`make_gmma_desc` in `mma_traits_sm90_gmma.hpp`).
//!
//! Sums are PTX registers without a cubecl variable: cubecl's assembly has at most one result, and
//! these are many. Only the instruction may touch them until it is awaited. They are declared
//! outside of any block of PTX, so that all later code sees them.

use cubecl::client::Client;
use cubecl::features::Tma;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::{generic_to_shared, ptx_mma_ty};

use super::tensor_cores::{DEPTH, LANES, Pair, Sums, VECTOR, VECTOR_BYTES};

/// Planes that multiply together.
pub(super) const PLANES: usize = 4;

/// Rows that an instruction multiplies; each plane has an equal part.
pub(super) const ROWS: usize = 64;

/// Vectors of a row in shared memory: 64 bytes.
pub(super) const IN_ROW: usize = 4;

/// Numbers of a 64-byte row.
pub(super) const NUMBERS: usize = 32;

/// Numbers of the sum in a block of rows, if a row is one of them.
pub(super) const BLOCK: usize = 32;

/// Vectors of eight rows; the layout repeats after these.
const IN_EIGHT: u32 = 8 * IN_ROW as u32;

/// Usually unset. `off` disables the instruction, to see what the device does without it.
/// `unchecked` skips the comparison, for kernels that are compiled and not run.
const ASKED: &str = "BURN_DIST_WGMMA";

fn is_asked_for(what: &str) -> bool {
    std::env::var_os(ASKED).is_some_and(|asked| asked == what)
}

/// Whether the instruction is used without the comparison.
pub(super) fn is_unchecked() -> bool {
    is_asked_for("unchecked")
}

/// Whether the device has the instruction, and it is not disabled.
pub(super) fn has_warpgroups(client: &Client) -> bool {
    // It exists in compute capability 9.0 only. cubecl reports the first feature for 9.0, and both
    // for all later ones.
    let tma = &client.properties().features.tma;
    let is_hopper = tma.contains(Tma::Base) && !tma.contains(Tma::Im2colWide);
    is_hopper && !is_asked_for("off")
}

/// The place of vector `vector` of row `row`, in vectors.
#[cube]
pub(super) fn place(row: u32, vector: u32) -> u32 {
    row * comptime!(IN_ROW as u32) + (vector ^ (row / 2 % 4))
}

/// Returns the number of this unit's warpgroup in its cube.
#[cube]
pub(super) fn group() -> u32 {
    UNIT_POS / comptime!((PLANES * LANES) as u32)
}

/// Layout of a factor in rows of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Major {
    /// A row is one of the first factor, or a column of the second, and holds the numbers of the
    /// sum.
    Depth,
    /// A row is one number of the sum, for [`NUMBERS`] rows of the first factor, or columns of the
    /// second; [`BLOCK`] rows are a block.
    Across,
    /// A row is one of the factor, and holds a vector of the numbers of the sum. Its next vectors
    /// are `plane` vectors further, in the next plane. Eight rows lie one behind the other; the
    /// next eight begin `eights` vectors further.
    Planes { plane: u32, eights: u32 },
}

impl Major {
    /// Returns the vectors between the numbers of one instruction's sum and those of the next.
    pub const fn deeper(self) -> u32 {
        match self {
            Self::Depth => (DEPTH / VECTOR) as u32,
            Self::Across => (DEPTH * IN_ROW) as u32,
            Self::Planes { plane, .. } => (DEPTH / VECTOR) as u32 * plane,
        }
    }

    /// The lower half of a matrix's descriptor without its address: the offset of the leading
    /// dimension, from block to block, or from plane to plane. The first layout ignores it.
    const fn low(self) -> u32 {
        match self {
            Self::Depth => 1 << 16,
            Self::Across => ((BLOCK * IN_ROW) as u32) << 16,
            Self::Planes { plane, .. } => plane << 16,
        }
    }

    /// Returns the upper half: the stride from eight rows to the next, and the swizzle of 64 bytes,
    /// or none.
    const fn high(self) -> u32 {
        match self {
            Self::Depth | Self::Across => IN_EIGHT | 2 << 30,
            Self::Planes { eights, .. } => eights,
        }
    }

    /// Returns the operand for this layout.
    const fn operand(self) -> u32 {
        match self {
            Self::Depth | Self::Planes { .. } => 0,
            Self::Across => 1,
        }
    }
}

/// The lower half of the descriptor of the matrix that begins at a vector of shared memory, which
/// eight rows are a divisor of. Offsets in vectors are added to it.
#[cube]
pub(super) fn descriptor<F: Float, V: Size>(
    stages: &[Vector<F, V>],
    #[comptime] major: Major,
) -> u32 {
    // SAFETY: shared memory has a first vector.
    let address = unsafe { generic_to_shared::<Vector<F, V>>(stages[0..1].as_ptr_unchecked()) };
    address / comptime!(VECTOR_BYTES as u32) + comptime!(major.low())
}

/// Sets the sums to zero. Once in a kernel.
#[cube]
pub(super) fn zero_sums(#[comptime] count: usize) {
    gpu_asm!(".reg .f32 warpgroup_sum<{count}>;", count = const count, options(nomem));
    #[unroll]
    for n in 0..count {
        gpu_asm!("mov.f32 warpgroup_sum{n}, 0f00000000;", n = const n, options(nomem));
    }
}

/// Makes this unit's writes to shared memory visible to products after the next barrier.
#[cube]
pub(super) fn show_to_products() {
    gpu_asm!("fence.proxy.async.shared::cta;");
}

/// Must be called before the first product, and after anything else that touched the sums.
#[cube]
pub(super) fn begin_products() {
    gpu_asm!("wgmma.fence.sync.aligned;");
}

/// Begins to add the product of 64 rows and `count` columns to the sums from number `first` on.
/// Each eight columns have four sums of a lane, two pairs as in [`Sums`]. `rows` and `columns` are
/// lower halves of descriptors, in the layouts `majors`.
#[cube]
pub(super) fn multiply<F: Float>(
    rows: u32,
    columns: u32,
    #[comptime] first: usize,
    #[comptime] count: usize,
    #[comptime] majors: [Major; 2],
) {
    let kind = ptx_mma_ty::<F>().comptime();
    gpu_asm!(
        "{{ .reg .pred always; .reg .b64 rows, columns;
        setp.eq.u32 always, 0, 0;
        mov.b64 rows, {{{rows}, {of_rows}}}; mov.b64 columns, {{{columns}, {of_columns}}};
        wgmma.mma_async.sync.aligned.m64n{count}k16.f32.{kind}.{kind} {{{sums}}}, rows, columns, always, 1, 1, {rows_across}, {columns_across}; }}",
        rows = in(_) rows, columns = in(_) columns, of_rows = const comptime!(majors[0].high()),
        of_columns = const comptime!(majors[1].high()), count = const count, kind = const kind,
        sums = const comptime!(names(first, count / 2)), rows_across = const comptime!(majors[0].operand()),
        columns_across = const comptime!(majors[1].operand()),
    );
}

/// Closes a group of products.
#[cube]
pub(super) fn commit_products() {
    gpu_asm!("wgmma.commit_group.sync.aligned;");
}

/// Waits for all but the last `open` groups of products.
#[cube]
pub(super) fn wait_for_products(#[comptime] open: usize) {
    gpu_asm!("wgmma.wait_group.sync.aligned {open};", open = const open);
}

/// The sums of `count` eights of columns, block after block of rows.
#[cube]
pub(super) fn sums(#[comptime] count: usize) -> Sums {
    let mut sums = Sums::zero(count);
    #[unroll]
    for at in 0..count {
        #[unroll]
        for half in 0..2usize {
            let mut pair = Vector::<f32, Pair>::empty();
            pair.insert(0usize, sum(comptime!(4 * at + 2 * half)));
            pair.insert(1usize, sum(comptime!(4 * at + 2 * half + 1)));
            sums.set(at, half, pair);
        }
    }
    sums
}

#[cube]
fn sum(#[comptime] n: usize) -> f32 {
    let value: f32;
    gpu_asm!("mov.f32 {value}, warpgroup_sum{n};", value = out(_) value, n = const n, options(nomem));
    value
}

/// The names of `count` registers, as an instruction lists them.
fn names(first: usize, count: usize) -> String {
    let names = (first..first + count).map(|n| format!("warpgroup_sum{n}"));
    names.collect::<Vec<_>>().join(", ")
}

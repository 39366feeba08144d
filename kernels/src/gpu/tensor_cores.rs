//! Instructions of NVIDIA's tensor cores since compute capability 8.0: `ldmatrix` and `mma`
//! multiply matrices, and `cp.async` copies to shared memory meanwhile ("PTX ISA", "Warp-Level
//! Matrix Instructions" and "Data Movement and Conversion Instructions").

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use cubecl::client::Client;
use cubecl::features::MmaConfig;
use cubecl::ir::FloatKind;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;

/// Lanes of a plane.
pub(super) const LANES: usize = 32;

/// Numbers of a vector: 16 bytes, which are copied at once.
pub(super) const VECTOR: usize = 8;
pub(super) const VECTOR_BYTES: usize = 16;

/// Size of an instruction: 16 rows by 8 columns, summed over 16 numbers.
pub(super) const ROWS: usize = 16;
pub(super) const COLUMNS: usize = 8;
pub(super) const DEPTH: usize = 16;

/// Numbers of a lane that an instruction reads at once.
pub(super) type Pair = Const<2>;

/// Returns true if the device multiplies matrices of this type from shared memory, and copies into
/// it asynchronously.
pub(super) fn has_instructions(client: &Client, dtype: DType) -> bool {
    let properties = client.properties();
    let elem = dtype_to_storage_type(dtype);
    let product = MmaConfig {
        a_type: elem,
        b_type: elem,
        cd_type: ElemType::Float(FloatKind::F32),
        m: ROWS as u32,
        n: COLUMNS as u32,
        k: DEPTH as u32,
    };
    let (features, hardware) = (&properties.features, &properties.hardware);
    matches!(dtype, DType::F16 | DType::BF16)
        && features.copy_async
        && features.matmul.ldmatrix.contains(&elem)
        && features.matmul.mma.contains(&product)
        && [hardware.plane_size_min, hardware.plane_size_max] == [LANES as u32; 2]
}

/// The caches that keep copied data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Keep {
    /// The SM's cache too: a cube soon copies the same again.
    Near,
    /// Only the cache that all SMs share.
    Far,
}

impl Keep {
    /// Returns the "Cache Operators" of PTX.
    const fn operator(self) -> &'static str {
        match self {
            Self::Near => "ca",
            Self::Far => "cg",
        }
    }
}

/// Begins to copy vector `from` of `source` to vector `to` of `stages`, or to set it to zero.
#[cube]
pub(super) fn copy<F: Float, V: Size>(
    source: &[Vector<F, V>],
    from: u32,
    stages: &mut [Vector<F, V>],
    to: u32,
    is_there: bool,
    #[comptime] keep: Keep,
) {
    let from = select(is_there, from, 0u32) as usize;
    let to = to as usize;
    let bytes = select(is_there, comptime!(VECTOR_BYTES as u32), 0u32);
    // SAFETY: both vectors exist; the launchers of unchecked kernels guarantee it.
    let (from, to) = unsafe {
        (
            source[from..from + 1].as_ptr_unchecked(),
            generic_to_shared::<Vector<F, V>>(stages[to..to + 1].as_ptr_unchecked()),
        )
    };
    gpu_asm!(
        "cp.async.{cache}.shared::cta.global.L2::128B [{to}], [{from}], {all}, {bytes};",
        cache = const comptime!(keep.operator()), to = mem_out(_) to, from = mem_in(_) from,
        all = const VECTOR_BYTES, bytes = in(_) bytes, options(explicit_mem),
    );
}

/// Closes a group of copies.
#[cube]
pub(super) fn commit() {
    gpu_asm!("cp.async.commit_group;");
}

/// Waits for all but the last `open` groups of this unit's copies.
#[cube]
pub(super) fn wait(#[comptime] open: usize) {
    gpu_asm!("cp.async.wait_group {open};", open = const open);
}

/// 2 to the power of each, by `ex2.approx`: an error of at most 2⁻²², without the dozen
/// instructions of the exact exponential.
#[cube]
pub(super) fn powers_of_two(exponents: Vector<f32, Pair>) -> Vector<f32, Pair> {
    let mut powers = Vector::<f32, Pair>::empty();
    #[unroll]
    for one in 0..2usize {
        powers.insert(one, power_of_two(exponents.extract(one)));
    }
    powers
}

/// Returns [`powers_of_two`] of one number.
#[cube]
pub(super) fn power_of_two(exponent: f32) -> f32 {
    let power: f32;
    gpu_asm!(
        "ex2.approx.ftz.f32 {power}, {exponent};",
        power = out(_) power, exponent = in(_) exponent, options(pure, nomem),
    );
    power
}

/// The sums of a plane: for each of its instructions two pairs, of rows `lane / 4` and `8 + lane /
/// 4`, columns `2 (lane % 4)` and the next.
#[derive(CubeType)]
pub(super) struct Sums {
    pub pairs: Sequence<Array<Vector<f32, Pair>>>,
}

#[cube]
impl Sums {
    /// Zeros for `count` instructions.
    pub fn zero(#[comptime] count: usize) -> Self {
        let mut pairs = Sequence::new();
        #[unroll]
        for _ in 0..count {
            let mut pair = Array::<Vector<f32, Pair>>::new(2usize);
            #[unroll]
            for half in 0..2 {
                pair[half] = Vector::new(0.0f32);
            }
            pairs.push(pair);
        }
        Sums { pairs }
    }

    /// Returns the upper or the lower pair of an instruction.
    pub fn pair(&self, #[comptime] at: usize, #[comptime] half: usize) -> Vector<f32, Pair> {
        self.pairs.index(at)[half]
    }

    pub fn set(
        &mut self,
        #[comptime] at: usize,
        #[comptime] half: usize,
        value: Vector<f32, Pair>,
    ) {
        let pair = self.pairs.index_mut(at);
        pair[half] = value;
    }
}

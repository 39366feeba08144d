//! Adds up the parts of the gradient of a convolution's weight, one after the other, and converts
//! it to the order and type of the weight.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::super::column_sums::{ColumnSums, add_columns};
use super::super::matrix::{address, arg};
use super::super::sums::{UNITS, cube};
use super::shape::Slide;

/// Vector length of a part as it is read here.
const VECTOR: usize = 4;

/// Maximum channels of a feature that a cube has at once: with a window of nine places, a vector
/// for almost every unit.
const CHANNELS: usize = 112;

/// Maximum numbers that a cube has in shared memory.
const IN_CUBE: usize = 8192;

/// The division of the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub count: u32,
    pub steps: u32,
}

impl Parts {
    /// At most `count` parts of a sum of `steps` steps.
    pub fn new(steps: u32, count: u32) -> Self {
        let of_part = steps.div_ceil(count.max(1)).max(1);
        Self {
            count: steps.div_ceil(of_part).max(1),
            steps: of_part,
        }
    }
}

/// The conversion from the order of parts, \[features, window, channels\], to the order of the
/// weight, \[outputs, inputs, window\].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Arrangement {
    /// The orders are the same; whole vectors.
    Same,
    /// A cube has `channels` channels of a feature in shared memory, and writes adjacent numbers.
    InCubes { channels: usize },
    /// A unit writes the numbers of a vector one by one: shared memory has no room for the windows
    /// of four channels.
    Scattered,
}

impl Arrangement {
    /// For `depth` channels of a part; the weight has `inputs` of them.
    fn of(window: usize, depth: usize, inputs: usize) -> Self {
        let most = (IN_CUBE / window).min(CHANNELS) / VECTOR;
        // The same number for each cube.
        let mut channels = (1..=most).rev().map(|vectors| vectors * VECTOR);
        let channels = channels.find(|channels| depth.is_multiple_of(*channels));
        match channels {
            _ if window == 1 && inputs.is_multiple_of(VECTOR) => Self::Same,
            Some(channels) => Self::InCubes { channels },
            None => Self::Scattered,
        }
    }

    /// Cubes for these numbers of features, channels and places under the window.
    fn cubes(self, [features, depth, window]: [usize; 3]) -> usize {
        match self {
            Self::InCubes { channels } => features * (depth / channels),
            _ => (features * depth * window / VECTOR).div_ceil(UNITS),
        }
    }

    /// Returns the vector length of the writes.
    const fn written(self) -> usize {
        match self {
            Self::Same => VECTOR,
            _ => 1,
        }
    }
}

/// Adds up `count` parts of `slide` to `out`, \[outputs, inputs, window height, window width\].
/// Features and channels behind `outputs` and `inputs` are left out. The same kernel adds up the
/// parts of a bias's gradient, if its vectors are [`fits_beside`].
pub(super) fn add_up(
    sums: &CubeTensor,
    out: &CubeTensor,
    count: u32,
    slide: Slide,
    [outputs, inputs]: [u32; 2],
    bias: Option<&ColumnSums>,
) {
    let [height, width] = slide.window;
    let (window, depth) = ((height * width) as usize, slide.depth as usize);
    let order = Arrangement::of(window, depth, inputs as usize);
    let cubes = order.cubes([slide.features as usize, depth, window]);
    let cubes_of_bias = bias.map_or(0, |bias| bias.division.cubes_to_finish());
    // SAFETY: each vector of `sums` is read by one unit or one cube; only existing numbers of `out`
    // are written; the columns of the bias are written by units that have checked them.
    unsafe {
        add_parts::launch_unchecked(
            &sums.client,
            CubeCount::Static(cubes as u32 + cubes_of_bias, 1, 1),
            cube(),
            address(&[sums, out]),
            VECTOR,
            order.written(),
            arg(sums),
            arg(out),
            // The kernel needs an argument, even an unused one.
            arg(bias.map_or(sums, |bias| &bias.sums)),
            arg(bias.map_or(sums, |bias| &bias.out)),
            bias.map_or(0, |bias| bias.division.parts),
            bias.map_or(0, |bias| bias.division.columns),
            bias.is_some(),
            cubes,
            count as usize,
            slide.features as usize,
            depth / VECTOR,
            inputs as usize,
            outputs as usize,
            window,
            order,
            dtype_to_storage_type(out.dtype),
        );
    }
}

/// Returns true if one kernel can add a bias's parts and a weight's.
pub(super) fn fits_beside(bias: &ColumnSums) -> bool {
    bias.vector == VECTOR
}

/// Adds the parts, \[features, window, channels\] each.
///
/// With `has_bias`, the cubes after the first `cubes` add the parts of a bias's gradient.
#[cube(launch_unchecked, address_type = "dynamic")]
fn add_parts<F: Float, Q: Size, R: Size>(
    parts: &[Vector<f32, Q>],
    out: &mut [Vector<F, R>],
    bias_sums: &[Vector<f32, Q>],
    bias_out: &mut [Vector<f32, Q>],
    bias_parts: usize,
    bias_columns: usize,
    #[comptime] has_bias: bool,
    cubes: usize,
    count: usize,
    features: usize,
    depth: usize,
    inputs: usize,
    outputs: usize,
    #[comptime] window: usize,
    #[comptime] order: Arrangement,
    #[define(F)] _dtype: ElemType,
) {
    let sizes = Sizes {
        features,
        depth,
        inputs,
        outputs,
        window,
    };
    if comptime!(has_bias) {
        if CUBE_POS < cubes {
            add_in_order::<F, Q, R>(parts, out, count, &sizes, order);
        } else {
            let cube = CUBE_POS - cubes;
            add_columns::<Q>(bias_sums, bias_out, cube, bias_parts, bias_columns);
        }
    } else {
        add_in_order::<F, Q, R>(parts, out, count, &sizes, order);
    }
}

/// Sizes of a part and of the gradient; `depth` in vectors.
#[derive(CubeType)]
struct Sizes {
    features: usize,
    depth: usize,
    inputs: usize,
    outputs: usize,
    #[cube(comptime)]
    window: usize,
}

#[cube]
fn add_in_order<F: Float, Q: Size, R: Size>(
    parts: &[Vector<f32, Q>],
    out: &mut [Vector<F, R>],
    count: usize,
    sizes: &Sizes,
    #[comptime] order: Arrangement,
) {
    match comptime!(order) {
        Arrangement::InCubes { channels } => {
            add_in_cubes::<F, Q, R>(parts, out, count, sizes, channels)
        }
        Arrangement::Same => add_in_units::<F, Q, R>(parts, out, count, sizes, true),
        Arrangement::Scattered => add_in_units::<F, Q, R>(parts, out, count, sizes, false),
    }
}

/// The sum of the vectors at `at` of all parts, which have `vectors` each.
#[cube]
fn sum<Q: Size>(
    parts: &[Vector<f32, Q>],
    count: usize,
    vectors: usize,
    at: usize,
) -> Vector<f32, Q> {
    let mut sum = parts[at];
    for part in 1..count {
        sum += parts[part * vectors + at];
    }
    sum
}

#[cube]
fn add_in_units<F: Float, Q: Size, R: Size>(
    parts: &[Vector<f32, Q>],
    out: &mut [Vector<F, R>],
    count: usize,
    sizes: &Sizes,
    #[comptime] is_same: bool,
) {
    let window = comptime!(sizes.window);
    let vectors = sizes.features * window * sizes.depth;
    let at = ABSOLUTE_POS;
    if at < vectors {
        let sum = sum::<Q>(parts, count, vectors, at);
        let width = Q::value();
        let input = at % sizes.depth * width;
        let in_window = at / sizes.depth % window;
        let output = at / sizes.depth / window;
        let first = (output * sizes.inputs + input) * window + in_window;
        if comptime!(is_same) {
            if output < sizes.outputs && input < sizes.inputs {
                out[first / width] = Vector::<F, R>::cast_from(sum);
            }
        } else {
            #[unroll]
            for i in 0..width {
                if output < sizes.outputs && input + i < sizes.inputs {
                    out[first + i * window] = Vector::new(F::cast_from(sum.extract(i)));
                }
            }
        }
    }
}

/// Adds some channels of a feature in this cube.
#[cube]
fn add_in_cubes<F: Float, Q: Size, R: Size>(
    parts: &[Vector<f32, Q>],
    out: &mut [Vector<F, R>],
    count: usize,
    sizes: &Sizes,
    #[comptime] channels: usize,
) {
    let window = comptime!(sizes.window);
    // Places of the window, which are written next to each other, then lie in different banks.
    let pitch = comptime!(channels + VECTOR);
    let mut exchanged = Shared::<[f32]>::new_slice(comptime!(window * pitch));
    let width = Q::value();
    let of_cube = comptime!(channels / VECTOR);
    let beside = sizes.depth / of_cube;
    let (output, first) = (CUBE_POS / beside, CUBE_POS % beside * of_cube);
    let unit = UNIT_POS as usize;
    let vectors = sizes.features * window * sizes.depth;
    #[unroll]
    for round in 0..comptime!((window * of_cube).div_ceil(UNITS)) {
        let at = unit + comptime!(round * UNITS);
        let (place, vector) = (at / of_cube, at % of_cube);
        if place < window {
            let read = (output * window + place) * sizes.depth + first + vector;
            let sum = sum::<Q>(parts, count, vectors, read);
            #[unroll]
            for i in 0..width {
                exchanged[place * pitch + vector * width + i] = sum.extract(i);
            }
        }
    }
    sync_cube();
    #[unroll]
    for round in 0..comptime!((window * channels).div_ceil(UNITS)) {
        let at = unit + comptime!(round * UNITS);
        let (channel, place) = (at / window, at % window);
        let input = first * width + channel;
        if channel < channels && input < sizes.inputs && output < sizes.outputs {
            let number = exchanged[place * pitch + channel];
            out[(output * sizes.inputs + input) * window + place] =
                Vector::new(F::cast_from(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_step_is_of_one_part(steps in 0u32..100_000, count in 0u32..1000) {
            let parts = Parts::new(steps, count);
            prop_assert!(parts.count <= count.max(1));
            prop_assert!(parts.count * parts.steps >= steps);
            prop_assert!((parts.count - 1) * parts.steps < steps.max(1));
        }

        #[test]
        fn cubes_have_memory_for_their_channels(window in 1usize..100_000, vectors in 1usize..200, less in 0usize..8) {
            let depth = 8 * vectors;
            let inputs = depth - less;
            let order = Arrangement::of(window, depth, inputs);
            if let Arrangement::InCubes { channels } = order {
                prop_assert!(channels.is_multiple_of(VECTOR) && depth.is_multiple_of(channels));
                prop_assert!(channels * window <= IN_CUBE);
            }
            prop_assert_eq!(order == Arrangement::Scattered, window > IN_CUBE / VECTOR);
            prop_assert_eq!(order == Arrangement::Same, window == 1 && inputs.is_multiple_of(VECTOR));
        }
    }
}

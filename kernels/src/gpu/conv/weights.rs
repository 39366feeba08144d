//! The gradient of a convolution's weight, as a product of matrices that are never written out: a row per
//! channel of the result, a column per number under the window, and a sum over all pixels of the result.
//!
//! That sum is long and the product small, so parts of it are taken by cubes of their own, and added up in
//! order: a result is the same bits on every run.

use cubecl::prelude::*;

use super::super::column_sums::add_columns;
use super::super::split::halves_of;
use super::super::tensor_cores::{Keep, ROWS, Sums, VECTOR, copy};
use super::product::{Feed, FeedExpand, product, row_and_column};
use super::shape::Slide;
use super::tile::{STAGE_DEPTH, Tile};

/// How the sum is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub count: u32,
    pub steps: u32,
}

impl Parts {
    /// At most `count` parts of a sum of so many steps.
    pub fn new(steps: u32, count: u32) -> Self {
        let of_part = steps.div_ceil(count.max(1)).max(1);
        Self {
            count: steps.div_ceil(of_part).max(1),
            steps: of_part,
        }
    }
}

/// Writes the sums of the parts, \[part, features, window rows, window columns, channels\].
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn multiply_parts<F: Float, V: Size, P: Size>(
    images: &[Vector<F, V>],
    gradient: &[Vector<F, V>],
    out: &mut [Vector<f32, P>],
    pixels: u32,
    steps: u32,
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
    #[define(F)] _dtype: ElemType,
) {
    let first = CUBE_POS_Z * steps * comptime!(STAGE_DEPTH as u32);
    let end = first + steps * comptime!(STAGE_DEPTH as u32);
    let part = Part {
        first,
        end: select(end < pixels, end, pixels),
        slide,
    };
    let steps = steps * comptime!(slide.terms());
    let sums = product::<F, V, Part>(&part, gradient, images, steps, tile);
    write::<P>(&sums, out, slide, tile);
}

/// The pixels of a part: the gradients of a step's pixels, and what lies under the window there.
#[derive(CubeType)]
struct Part {
    first: u32,
    end: u32,
    #[cube(comptime)]
    slide: Slide,
}

#[cube]
impl Feed for Part {
    fn begin<F: Float, V: Size>(
        &self,
        gradient: &[Vector<F, V>],
        images: &[Vector<F, V>],
        stages: &mut [Vector<F, V>],
        step: u32,
        is_there: bool,
        to: u32,
        #[comptime] copy_number: usize,
        #[comptime] tile: Tile,
    ) {
        let [of_first, _] = comptime!(tile.copies());
        let slide = comptime!(self.slide);
        // All terms of the same pixels one after the other.
        let (term, step) = (
            step % comptime!(slide.terms()),
            step / comptime!(slide.terms()),
        );
        let first = self.first + step * comptime!(STAGE_DEPTH as u32);
        let end = select(is_there, self.end, 0u32);

        if comptime!(copy_number < of_first) {
            let i = comptime!(copy_number);
            let chunks = comptime!((tile.rows() / VECTOR) as u32);
            let vectors = comptime!(slide.features / VECTOR as u32);
            let (half, _) = halves_of(term, vectors);
            let at = UNIT_POS + comptime!((i * tile.units()) as u32);
            let pixel = first + at / chunks;
            let vector = CUBE_POS_Y * chunks + at % chunks;
            let all = comptime!((i + 1) * tile.units() <= STAGE_DEPTH * tile.rows() / VECTOR);
            if all || at < comptime!((STAGE_DEPTH * tile.rows() / VECTOR) as u32) {
                copy::<F, V>(
                    gradient,
                    pixel * comptime!(slide.halves() * vectors) + half + vector,
                    stages,
                    to + at / chunks * comptime!(tile.first_pitch()) + at % chunks,
                    pixel < end && vector < vectors,
                    Keep::Far,
                );
            }
        } else {
            let i = comptime!(copy_number - of_first);
            let chunks = comptime!((tile.columns() / VECTOR) as u32);
            let vectors = comptime!(slide.depth / VECTOR as u32);
            let (_, half) = halves_of(term, vectors);
            let [window_height, window_width] = comptime!(slide.window);
            let [out_height, out_width] = comptime!(slide.result);
            let [height, width] = comptime!(slide.source);
            // Neighbouring parts of the window are over the same pixels.
            let keep = comptime!(if tile.columns() > slide.depth as usize {
                slide.keep()
            } else {
                Keep::Far
            });
            let at = UNIT_POS + comptime!((i * tile.units()) as u32);
            let pixel = first + at / chunks;
            let vector = CUBE_POS_X * chunks + at % chunks;
            let in_window = vector / vectors;
            let image = pixel / comptime!(out_height * out_width);
            // Above and left of an image these are very large.
            let row = pixel / out_width % out_height * comptime!(slide.stride[0])
                + in_window / window_width
                - comptime!(slide.padding[0]);
            let column = pixel % out_width * comptime!(slide.stride[1]) + in_window % window_width
                - comptime!(slide.padding[1]);
            let is_seen = pixel < end
                && in_window < comptime!(window_height * window_width)
                && row < height
                && column < width;
            copy::<F, V>(
                images,
                ((image * height + row) * width + column) * comptime!(slide.halves() * vectors)
                    + half
                    + vector % vectors,
                stages,
                to + comptime!(tile.first_vectors())
                    + at / chunks * comptime!(tile.second_pitch())
                    + at % chunks,
                is_seen,
                keep,
            );
        }
    }
}

#[cube]
fn write<P: Size>(
    sums: &Sums,
    out: &mut [Vector<f32, P>],
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
) {
    let (row, column) = row_and_column(tile);
    let row = CUBE_POS_Y * comptime!(tile.rows() as u32) + row;
    let column = CUBE_POS_X * comptime!(tile.columns() as u32) + column + UNIT_POS % 4 * 2;
    #[unroll]
    for down in 0..comptime!(2 * tile.tiles[0]) {
        let feature = row + comptime!((down * ROWS / 2) as u32);
        #[unroll]
        for beside in 0..comptime!(tile.tiles[1]) {
            let column = column + comptime!((beside * 8) as u32);
            if feature < comptime!(slide.features) && column < comptime!(slide.under_window()) {
                let pair = sums.pair(
                    comptime!(down / 2 * tile.tiles[1] + beside),
                    comptime!(down % 2),
                );
                let mut two = Vector::<f32, P>::empty();
                two.insert(0usize, pair.extract(0usize));
                two.insert(1usize, pair.extract(1usize));
                let at = (CUBE_POS_Z * comptime!(slide.features) + feature)
                    * comptime!(slide.under_window() / 2)
                    + column / 2;
                out[at as usize] = two;
            }
        }
    }
}

/// Adds up the parts, \[features, window, channels\] each, and writes \[outputs, inputs, window\]: whole vectors, if
/// the order is the same in both. Features and channels behind `outputs` and `inputs` are left out.
///
/// With `has_bias` the cubes behind the first `cubes` add up the parts of the gradient of a bias.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn add_parts<F: Float, Q: Size, R: Size>(
    parts: &[Vector<f32, Q>],
    out: &mut [Vector<F, R>],
    bias_sums: &[Vector<f32, Q>],
    bias_out: &mut [Vector<f32, Q>],
    bias_parts: usize,
    bias_columns: usize,
    #[comptime] has_bias: bool,
    cubes: usize,
    count: usize,
    vectors: usize,
    depth: usize,
    window: usize,
    inputs: usize,
    outputs: usize,
    #[comptime] is_in_order: bool,
    #[define(F)] _dtype: ElemType,
) {
    let sizes = Sizes {
        vectors,
        depth,
        window,
        inputs,
        outputs,
    };
    if comptime!(has_bias) {
        if CUBE_POS < cubes {
            add_up::<F, Q, R>(parts, out, count, &sizes, is_in_order);
        } else {
            let cube = CUBE_POS - cubes;
            add_columns::<Q>(bias_sums, bias_out, cube, bias_parts, bias_columns);
        }
    } else {
        add_up::<F, Q, R>(parts, out, count, &sizes, is_in_order);
    }
}

/// Of a part and of the gradient.
#[derive(CubeType)]
struct Sizes {
    vectors: usize,
    depth: usize,
    window: usize,
    inputs: usize,
    outputs: usize,
}

#[cube]
fn add_up<F: Float, Q: Size, R: Size>(
    parts: &[Vector<f32, Q>],
    out: &mut [Vector<F, R>],
    count: usize,
    sizes: &Sizes,
    #[comptime] is_in_order: bool,
) {
    let at = ABSOLUTE_POS;
    if at < sizes.vectors {
        let mut sum = parts[at];
        for part in 1..count {
            sum += parts[part * sizes.vectors + at];
        }
        let width = Q::value();
        let input = at % sizes.depth * width;
        let in_window = at / sizes.depth % sizes.window;
        let output = at / sizes.depth / sizes.window;
        let first = (output * sizes.inputs + input) * sizes.window + in_window;
        if comptime!(is_in_order) {
            if output < sizes.outputs && input < sizes.inputs {
                out[first / width] = Vector::<F, R>::cast_from(sum);
            }
        } else {
            #[unroll]
            for i in 0..width {
                if output < sizes.outputs && input + i < sizes.inputs {
                    out[first + i * sizes.window] = Vector::new(F::cast_from(sum.extract(i)));
                }
            }
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
    }
}

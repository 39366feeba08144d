//! Weights in the layout that products read: in the type of the factors, in another order than the
//! parameters, and padded with zeros to whole vectors of channels. One kernel does all three, for
//! parameters in f32 too.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::super::matrix::{address, arg, memory};
use super::super::split::{HALVES, halves};
use super::super::sums::cube;
use super::super::tensor_cores::VECTOR;
use super::launch::shape;

/// Features that lie together in the order of [`column_of`].
const IN_ORDER: u32 = 16;

/// The column of a product that belongs to row `row` of the second factor. The pairs that a lane
/// sums up in two neighbouring instructions are then four neighbours in the result.
#[cube]
pub(super) fn column_of(row: u32) -> u32 {
    row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2
}

/// The row of this column.
#[cube]
fn row_of(column: u32) -> u32 {
    column / 16 * 16 + column / 2 % 2 * 8 + column % 16 / 4 * 2 + column % 2
}

/// Returns the rows of a weight in [`Layout::Planes`].
pub(super) const fn rows_in_planes(features: u32) -> u32 {
    features.next_multiple_of(IN_ORDER)
}

/// The order of a weight's vectors. Each vector is eight channels of a feature at one place of the
/// window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Layout {
    /// The vectors of a place are adjacent; place by place, feature by feature.
    Features,
    /// The vectors of all features are adjacent, in the order of a stage; by eight channels, then
    /// by `places` places. So the data of a stage lies together.
    Planes { places: u32 },
}

/// Maximum columns that a unit reads at once.
const COLUMNS: u32 = 4;

/// Adjacent matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrices {
    pub count: u32,
    pub rows: u32,
    pub columns: u32,
}

/// `weight`, read as the matrices `given`, transposed and in `dtype`, or split: the first halves of
/// a column's numbers, then the second. `wide` is at least as large as `given`, and its rows are
/// whole vectors; the padding is zero. A column is a place of a feature, all places of one feature
/// after another.
pub(super) fn transposed(
    weight: CubeTensor,
    given: Matrices,
    wide: Matrices,
    (dtype, is_split): (DType, bool),
    layout: Layout,
) -> CubeTensor {
    let weight = into_contiguous(weight);
    let halves = if is_split { HALVES } else { 1 };
    let sizes = match layout {
        Layout::Features => [wide.count, wide.columns, halves, wide.rows],
        Layout::Planes { places } => {
            let features = rows_in_planes(wide.count * wide.columns / places);
            [
                places,
                halves * wide.rows / VECTOR as u32,
                features,
                VECTOR as u32,
            ]
        }
    };
    let out = memory(&weight, shape(sizes), dtype);
    // A vector of columns is then either inside of both or of none.
    let fits =
        |size: &u32| given.columns.is_multiple_of(*size) && wide.columns.is_multiple_of(*size);
    let columns = [COLUMNS, 2].into_iter().find(fits).unwrap_or(1);
    let units = wide.count * (wide.columns / columns) * (wide.rows / VECTOR as u32);
    // SAFETY: a unit reads places that it has checked in `given`, and writes its own rows and
    // columns of `wide`, in either layout.
    unsafe {
        transpose::launch_unchecked(
            &weight.client,
            calculate_cube_count_elemwise(&weight.client, units as usize, cube()),
            cube(),
            address(&[&weight, &out]),
            columns as usize,
            VECTOR,
            arg(&weight),
            arg(&out),
            units as usize,
            given.count as usize,
            given.rows as usize,
            (given.columns / columns) as usize,
            (wide.rows as usize) / VECTOR,
            (wide.columns / columns) as usize,
            out.meta.shape()[2],
            columns as usize,
            is_split,
            layout,
            dtype_to_storage_type(weight.dtype),
            dtype_to_storage_type(dtype),
        );
    }
    out
}

/// Transposes some rows of a vector of columns per unit. `columns` and `wide_columns` are counted
/// in vectors of the source, `wide_rows` in vectors of the destination.
#[cube(launch_unchecked, address_type = "dynamic")]
fn transpose<S: Float, P: Size, F: Float, Q: Size>(
    source: &[Vector<S, P>],
    out: &mut [Vector<F, Q>],
    units: usize,
    count: usize,
    rows: usize,
    columns: usize,
    wide_rows: usize,
    wide_columns: usize,
    rows_of_plane: usize,
    #[comptime] at_once: usize,
    #[comptime] is_split: bool,
    #[comptime] layout: Layout,
    #[define(S)] _from: ElemType,
    #[define(F)] _to: ElemType,
) {
    let unit = ABSOLUTE_POS;
    if unit < units {
        let below = unit % wide_rows;
        let column = unit / wide_rows % wide_columns;
        let matrix = unit / wide_rows / wide_columns;
        let is_there = matrix < count && column < columns;
        let mut read = Array::<Vector<S, P>>::new(VECTOR);
        #[unroll]
        for i in 0..VECTOR {
            let row = below * VECTOR + i;
            read[i] = Vector::new(S::new(0.0f32));
            if is_there && row < rows {
                read[i] = source[(matrix * rows + row) * columns + column];
            }
        }
        #[unroll]
        for beside in 0..at_once {
            let column = (matrix * wide_columns + column) * at_once + beside;
            let mut upper = Vector::<F, Q>::empty();
            let mut lower = Vector::<F, Q>::empty();
            #[unroll]
            for i in 0..VECTOR {
                let (first, second) = halves::<S, F>(read[i].extract(beside));
                upper.insert(i, first);
                lower.insert(i, second);
            }
            if comptime!(is_split) {
                let first = 2 * column * wide_rows + below;
                out[first] = upper;
                out[first + wide_rows] = lower;
            } else {
                match comptime!(layout) {
                    Layout::Features => out[column * wide_rows + below] = upper,
                    Layout::Planes { places } => {
                        let places = comptime!(places as usize);
                        let row = row_of((column / places) as u32) as usize;
                        let plane = column % places * wide_rows + below;
                        out[plane * rows_of_plane + row] = upper;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_is_the_row_that_becomes_it() {
        for row in 0..64 {
            assert_eq!(row_of(column_of(row)), row);
            assert!(column_of(row) < rows_in_planes(row + 1));
        }
        assert_eq!(rows_in_planes(24), 32);
    }
}

//! The gradient of a convolution's bias: the sum over all pixels, in f32 and in an order that depends on the
//! shape alone.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::super::matrix::{Matrix, arg};
use super::super::sums::{
    Division, FINISH_WIDTH, Terms, TermsExpand, Two, add_part, cube, first_over_parts, write_part,
};

/// The gradient of a bias before it is added up: sums of parts of all pixels.
#[derive(Clone, Debug)]
pub(super) struct BiasParts {
    pub sums: CubeTensor,
    /// Memory for the gradient, \[channels\] in f32.
    pub out: CubeTensor,
    /// Numbers of a vector of both.
    pub vector: usize,
    pub division: Division,
}

impl BiasParts {
    /// Of the gradient of the result, \[batch, channels, height, width\].
    pub fn of(dy: CubeTensor) -> Self {
        let dy = Matrix::of_images(dy);
        let division = Division::new(dy.rows(), dy.row_vectors());
        let sums = dy.numbers([division.parts, 2, dy.columns()]);
        // SAFETY: a unit reads rows of its cube's part and a column that it has checked; a part's sums are written by
        // the units that have checked their column.
        unsafe {
            sum_rows::launch_unchecked(
                dy.client(),
                division.cubes(),
                cube(),
                dy.address(),
                dy.vector(),
                dy.arg(),
                arg(&sums),
                dy.rows(),
                division.rows_of_part,
                division.columns,
                division.width,
                division.lanes,
                dy.elem(),
            );
        }
        Self {
            sums,
            out: dy.numbers([dy.columns()]),
            vector: dy.vector(),
            division,
        }
    }

    /// The gradient.
    pub fn add_up(self) -> CubeTensor {
        // SAFETY: each column is written by the units that have checked it.
        unsafe {
            add_bias_parts::launch_unchecked(
                &self.out.client,
                self.division.finish_cubes(),
                cube(),
                AddressType::default(),
                self.vector,
                arg(&self.sums),
                arg(&self.out),
                self.division.parts,
                self.division.columns,
            );
        }
        self.out
    }
}

/// A column's values. There is nothing to be summed up beside them.
#[derive(CubeType)]
struct Values<'a, F: Float, N: Size> {
    dy: &'a [Vector<F, N>],
    column: usize,
    columns: usize,
}

#[cube]
impl<'a, F: Float, N: Size> Values<'a, F, N> {
    fn new(dy: &'a [Vector<F, N>], column: usize, columns: usize) -> Self {
        Values::<'a, F, N> {
            dy,
            column,
            columns,
        }
    }
}

#[cube]
impl<'a, F: Float, N: Size> Terms<F, N> for Values<'a, F, N> {
    fn read(&self, row: usize) -> Two<F, N> {
        let value = self.dy[row * self.columns + self.column];
        Two::new(value, value)
    }

    fn of(&self, read: &Two<F, N>, _row: usize) -> Two<f32, N> {
        let value = Vector::<f32, N>::cast_from(read.first);
        Two::new(value, value)
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_rows<F: Float, N: Size>(
    dy: &[Vector<F, N>],
    sums: &mut [Vector<f32, N>],
    rows: usize,
    rows_of_part: usize,
    columns: usize,
    #[comptime] width: usize,
    #[comptime] lanes: usize,
    #[define(F)] _dtype: ElemType,
) {
    let unit = UNIT_POS as usize;
    let lane = unit / width;
    let column = CUBE_POS_Y as usize * width + unit % width;
    let mut of_lane = Two::<f32, N>::zero();
    if lane < lanes && column < columns {
        let terms = Values::<F, N>::new(dy, column, columns);
        add_part::<F, N, Values<F, N>>(&mut of_lane, &terms, rows, rows_of_part, lane, lanes);
    }
    write_part::<N>(sums, &of_lane, column, columns, width, lanes);
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn add_bias_parts<N: Size>(
    sums: &[Vector<f32, N>],
    out: &mut [Vector<f32, N>],
    parts: usize,
    columns: usize,
) {
    add_columns::<N>(sums, out, CUBE_POS, parts, columns);
}

/// Adds up the parts of as many columns as are for one of the cubes that do so. Every unit of the cube must come here.
#[cube]
pub(super) fn add_columns<N: Size>(
    sums: &[Vector<f32, N>],
    out: &mut [Vector<f32, N>],
    cube: usize,
    parts: usize,
    columns: usize,
) {
    let unit = UNIT_POS as usize;
    let column = cube * FINISH_WIDTH + unit % FINISH_WIDTH;
    let sum = first_over_parts::<N>(sums, column, parts, columns);
    if unit < FINISH_WIDTH && column < columns {
        out[column] = sum;
    }
}

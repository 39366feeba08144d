//! Sums of a matrix's columns, for example the gradient of a bias: in f32, and in an order that
//! depends on the shape alone.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::matrix::{Matrix, arg};
use super::sums::{
    Division, FINISH_WIDTH, Terms, TermsExpand, Two, add_part, cube, first_over_parts, write_part,
};

/// The sums of parts of the rows, before they are added up.
#[derive(Clone, Debug)]
pub(super) struct ColumnSums {
    pub sums: CubeTensor,
    /// Memory for the result, \[columns\] in f32.
    pub out: CubeTensor,
    /// Vector length of both.
    pub vector: usize,
    pub division: Division,
}

impl ColumnSums {
    /// The sums of a matrix with at least one row and column.
    pub fn of(matrix: &Matrix) -> Self {
        let division = Division::new(matrix.rows(), matrix.row_vectors());
        let sums = matrix.numbers([division.parts, 2, matrix.columns()]);
        // SAFETY: a unit reads rows of its cube's part and a column that it has checked; a part's
        // sums are written by the units that have checked their column.
        unsafe {
            sum_rows::launch_unchecked(
                matrix.client(),
                division.cubes(),
                cube(),
                matrix.address(),
                matrix.vector(),
                matrix.arg(),
                arg(&sums),
                matrix.rows(),
                division.rows_of_part,
                division.columns,
                division.width,
                division.lanes,
                matrix.elem(),
            );
        }
        Self {
            sums,
            out: matrix.numbers([matrix.columns()]),
            vector: matrix.vector(),
            division,
        }
    }

    /// Adds the partial sums. Returns the result.
    pub fn add_up(self) -> CubeTensor {
        // SAFETY: each column is written by the units that have checked it.
        unsafe {
            add_parts_of_columns::launch_unchecked(
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

/// A column's values. They have no second sum.
#[derive(CubeType)]
struct Values<'a, F: Float, N: Size> {
    matrix: &'a [Vector<F, N>],
    column: usize,
    columns: usize,
}

#[cube]
impl<'a, F: Float, N: Size> Values<'a, F, N> {
    fn new(matrix: &'a [Vector<F, N>], column: usize, columns: usize) -> Self {
        Values::<'a, F, N> {
            matrix,
            column,
            columns,
        }
    }
}

#[cube]
impl<'a, F: Float, N: Size> Terms<F, N> for Values<'a, F, N> {
    fn read(&self, row: usize) -> Two<F, N> {
        let value = self.matrix[row * self.columns + self.column];
        Two::new(value, value)
    }

    fn of(&self, read: &Two<F, N>, _row: usize) -> Two<f32, N> {
        let value = Vector::<f32, N>::cast_from(read.first);
        Two::new(value, value)
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_rows<F: Float, N: Size>(
    matrix: &[Vector<F, N>],
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
        let terms = Values::<F, N>::new(matrix, column, columns);
        add_part::<F, N, Values<F, N>>(&mut of_lane, &terms, rows, rows_of_part, lane, lanes);
    }
    write_part::<N>(sums, &of_lane, column, columns, width, lanes);
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn add_parts_of_columns<N: Size>(
    sums: &[Vector<f32, N>],
    out: &mut [Vector<f32, N>],
    parts: usize,
    columns: usize,
) {
    add_columns::<N>(sums, out, CUBE_POS, parts, columns);
}

/// Adds up the parts of the columns of one cube. Every unit of the cube must come here.
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

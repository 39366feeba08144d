//! The product behind both kernels. Factors are copied into shared memory while tensor cores
//! compute with the previous ones. Sums stay in the registers of a plane.
//!
//! Stages take turns as in CUTLASS's `MmaMultistage`.

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

use super::super::tensor_cores::{COLUMNS, DEPTH, LANES, Pair, ROWS, Sums, VECTOR, commit, wait};
use super::super::warpgroup::PLANES;
use super::tile::{Instruction, Order, STAGE_DEPTH, Tile};
use super::warpgroups;

/// Copies factors into shared memory.
#[cube]
pub(super) trait Feed {
    /// Begins one of a unit's copies ([`Tile::copies`]) of the factors of a step, from `first` or
    /// `second` to the stage at vector `to` of `stages`, in the order of `tile`. Copies zeros for a
    /// step that does not exist.
    fn begin<F: Float, V: Size>(
        &self,
        first: &[Vector<F, V>],
        second: &[Vector<F, V>],
        stages: &mut [Vector<F, V>],
        step: u32,
        is_there: bool,
        to: u32,
        #[comptime] copy: usize,
        #[comptime] tile: Tile,
    );
}

/// The product of the factors of `feed` in `steps` steps.
#[cube]
pub(super) fn product<F: Float, V: Size, From: Feed + CubeType>(
    feed: &From,
    first: &[Vector<F, V>],
    second: &[Vector<F, V>],
    steps: u32,
    #[comptime] tile: Tile,
) -> Sums {
    match comptime!(tile.instruction) {
        Instruction::Mma => of_planes::<F, V, From>(feed, first, second, steps, tile),
        Instruction::Wgmma => warpgroups::product::<F, V, From>(feed, first, second, steps, tile),
    }
}

/// Begins all copies of a step to its stage, and closes their group.
#[cube]
pub(super) fn begin_step<F: Float, V: Size, From: Feed + CubeType>(
    feed: &From,
    first: &[Vector<F, V>],
    second: &[Vector<F, V>],
    stages: &mut [Vector<F, V>],
    step: u32,
    steps: u32,
    #[comptime] tile: Tile,
) {
    let (is_there, to) = (step < steps, stage_of(step, tile));
    #[unroll]
    for copy in 0..comptime!(tile.all_copies()) {
        feed.begin::<F, V>(first, second, stages, step, is_there, to, copy, tile);
    }
    commit();
}

/// The same by planes that each multiply their own part.
#[cube]
fn of_planes<F: Float, V: Size, From: Feed + CubeType>(
    feed: &From,
    first: &[Vector<F, V>],
    second: &[Vector<F, V>],
    steps: u32,
    #[comptime] tile: Tile,
) -> Sums {
    let mut stages = Shared::<[Vector<F, V>]>::new_aligned_slice(
        comptime!(tile.stage_vectors() as usize * tile.stages),
        16usize,
    );
    let mut sums = Sums::zero(comptime!(tile.tiles[0] * tile.tiles[1]));
    let ahead = comptime!(tile.stages as u32 - 1);
    let copies = comptime!(tile.all_copies());
    #[unroll]
    for step in 0..ahead {
        begin_step::<F, V, From>(
            feed,
            first,
            second,
            &mut stages,
            step.runtime(),
            steps,
            tile,
        );
    }
    let beside = comptime!(tile.tiles[1] / 2);
    let groups = comptime!(STAGE_DEPTH / DEPTH * beside);
    for step in 0..steps {
        // The data of this step has arrived, and no unit still reads the previous step.
        wait(comptime!(tile.stages - 2));
        sync_cube();
        let stage = stage_of(step, tile);
        let next = step + ahead;
        let (is_there, to) = (next < steps, stage_of(next, tile));
        #[unroll]
        for deep in 0..comptime!(STAGE_DEPTH / DEPTH) {
            let rows = rows::<F, V>(&stages, stage, deep, tile);
            #[unroll]
            for two in 0..beside {
                let group = comptime!(deep * beside + two);
                let columns = columns::<F, V>(&stages, stage, deep, two, tile);
                // Among the products, so that addresses are computed while tensor cores compute.
                // Without a branch, because the compiler does not reorder across one.
                #[unroll]
                for copy in
                    comptime!(copies * group / groups)..comptime!(copies * (group + 1) / groups)
                {
                    feed.begin::<F, V>(first, second, &mut stages, next, is_there, to, copy, tile);
                }
                multiply::<F>(&rows, &columns, two, &mut sums, tile);
            }
        }
        commit();
    }
    sums
}

/// Returns the first vector of a step's stage.
#[cube]
pub(super) fn stage_of(step: u32, #[comptime] tile: Tile) -> u32 {
    step % comptime!(tile.stages as u32) * comptime!(tile.stage_vectors())
}

/// Returns the first row and column of this unit's plane in its cube.
#[cube]
fn corner_of_plane(#[comptime] tile: Tile) -> (u32, u32) {
    let plane = UNIT_POS / comptime!(LANES as u32);
    let beside = comptime!(tile.planes[1] as u32);
    let row = match comptime!(tile.instruction) {
        Instruction::Mma => plane / beside * comptime!(tile.plane_rows() as u32),
        // Each plane has sixteen rows of each block of a group; blocks are stacked.
        Instruction::Wgmma => {
            plane / comptime!(PLANES as u32) * comptime!((PLANES * tile.plane_rows()) as u32)
                + plane % comptime!(PLANES as u32) * comptime!(ROWS as u32)
        }
    };
    (row, plane % beside * comptime!(tile.plane_columns() as u32))
}

/// The row of this unit's first pair in its cube, and the column of its plane. The other pairs are
/// [`row_of_pair`] below.
#[cube]
pub(super) fn row_and_column(#[comptime] tile: Tile) -> (u32, u32) {
    let (row, column) = corner_of_plane(tile);
    (row + UNIT_POS % comptime!(LANES as u32) / 4, column)
}

/// Rows from the first pair to the other pairs of a unit, two of each instruction.
pub(super) const fn row_of_pair(pair: usize, tile: Tile) -> u32 {
    (pair / 2 * tile.rows_apart() + pair % 2 * ROWS / 2) as u32
}

/// Reads the rows of this plane in the stage that begins at vector `stage`, at one of its depths.
#[cube]
fn rows<F: Float, V: Size>(
    stages: &[Vector<F, V>],
    stage: u32,
    #[comptime] deep: usize,
    #[comptime] tile: Tile,
) -> Sequence<Array<Vector<F, Pair>>> {
    let definition = MmaDefinition::<F, F, f32>::new(ROWS, COLUMNS, DEPTH);
    let (row, _) = corner_of_plane(tile);
    let mut rows = Sequence::new();
    #[unroll]
    for down in 0..comptime!(tile.tiles[0]) {
        let row = row + comptime!((down * ROWS) as u32);
        let at = (stage + of_first(row, deep, tile)) as usize;
        rows.push(definition.load_matrix::<Vector<F, V>, Pair>(
            &stages[at..at + 1],
            MatrixIdent::A,
            4usize,
            comptime!(tile.order == Order::Across),
        ));
    }
    rows
}

/// The columns of this plane for two adjacent instructions.
#[cube]
fn columns<F: Float, V: Size>(
    stages: &[Vector<F, V>],
    stage: u32,
    #[comptime] deep: usize,
    #[comptime] two: usize,
    #[comptime] tile: Tile,
) -> Array<Vector<F, Pair>> {
    let definition = MmaDefinition::<F, F, f32>::new(ROWS, COLUMNS, DEPTH);
    let (_, column) = corner_of_plane(tile);
    let column = column + comptime!((two * 2 * COLUMNS) as u32);
    let second = stage + comptime!(tile.first_vectors());
    let at = (second + of_second(column, deep, tile)) as usize;
    definition.load_matrix::<Vector<F, V>, Pair>(
        &stages[at..at + 1],
        MatrixIdent::B,
        4usize,
        comptime!(tile.order == Order::Across),
    )
}

/// Adds the products of all rows and the columns of two instructions.
#[cube]
fn multiply<F: Float>(
    rows: &Sequence<Array<Vector<F, Pair>>>,
    columns: &Array<Vector<F, Pair>>,
    #[comptime] two: usize,
    sums: &mut Sums,
    #[comptime] tile: Tile,
) {
    let definition = MmaDefinition::<F, F, f32>::new(ROWS, COLUMNS, DEPTH);
    #[unroll]
    for one in 0..2usize {
        let mut factor = Array::<Vector<F, Pair>>::new(2usize);
        factor[0] = columns[comptime!(2 * one)];
        factor[1] = columns[comptime!(2 * one + 1)];
        #[unroll]
        for down in 0..comptime!(tile.tiles[0]) {
            let at = comptime!(down * tile.tiles[1] + 2 * two + one);
            let sum = sums.pairs.index_mut(at);
            definition.execute_inplace(rows.index(down), &factor, sum);
        }
    }
}

/// Returns the vector of the first factor's stage that this lane passes to `ldmatrix`, for 16 rows
/// from `row` on. The four matrices are both halves of the rows at the first depth, then at the
/// second.
#[cube]
fn of_first(row: u32, #[comptime] deep: usize, #[comptime] tile: Tile) -> u32 {
    let lane = UNIT_POS % comptime!(LANES as u32);
    match comptime!(tile.order) {
        Order::Along => {
            (row + lane % 16) * comptime!(tile.first_pitch())
                + lane / 16
                + comptime!((deep * DEPTH / VECTOR) as u32)
        }
        Order::Across => {
            (lane % 8 + lane / 16 * 8 + comptime!((deep * DEPTH) as u32))
                * comptime!(tile.first_pitch())
                + row / 8
                + lane / 8 % 2
        }
    }
}

/// Returns the vector of the second factor's stage for 16 columns from `column` on. The four
/// matrices are both depths of the first half of the columns, then of the second.
#[cube]
fn of_second(column: u32, #[comptime] deep: usize, #[comptime] tile: Tile) -> u32 {
    let lane = UNIT_POS % comptime!(LANES as u32);
    match comptime!(tile.order) {
        Order::Along => {
            (column + lane % 8 + lane / 16 * 8) * comptime!(tile.second_pitch())
                + lane / 8 % 2
                + comptime!((deep * DEPTH / VECTOR) as u32)
        }
        Order::Across => {
            (lane % 16 + comptime!((deep * DEPTH) as u32)) * comptime!(tile.second_pitch())
                + column / 8
                + lane / 16
        }
    }
}

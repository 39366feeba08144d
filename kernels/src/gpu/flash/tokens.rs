//! Tokens as factors of products. A plane has its own tokens in registers and the others in shared
//! memory. They are copied there while it computes with the previous ones.

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

use super::super::tensor_cores::{
    COLUMNS, DEPTH, Keep, LANES, Pair, ROWS, Sums, VECTOR, commit, copy, wait,
};
use super::tile::{STEP, Tile};

/// Numbers of a pair.
const PAIR: usize = 2;

/// Indices of queries, keys and values in `qkv`, and their number.
pub(super) const QUERY: u32 = 0;
pub(super) const KEY: u32 = 1;
pub(super) const VALUE: u32 = 2;
const PARTS: u32 = 3;

/// The tokens of one head in memory.
#[derive(CubeType, Clone)]
pub(super) struct Tokens {
    /// Vector of the first token.
    first: u32,
    /// Vectors from one token to the next.
    apart: u32,
    /// Vectors from the first halves to the second, if numbers are split.
    further: u32,
    count: u32,
}

#[cube]
impl Tokens {
    /// Returns the first or the second halves of the tokens; all of them if numbers are not split.
    fn half(&self, #[comptime] half: usize) -> Tokens {
        Tokens {
            first: self.first + comptime!(half as u32) * self.further,
            apart: self.apart,
            further: self.further,
            count: self.count,
        }
    }
}

/// The head and image that a cube computes, and the row of this unit's first pair: a token, or one
/// behind the last.
#[derive(CubeType, Clone)]
pub(super) struct Place {
    image: u32,
    head: u32,
    pub row: u32,
}

#[cube]
impl Place {
    pub fn of_unit(tokens: u32, heads: u32, #[comptime] tile: Tile) -> Self {
        let rows = comptime!(tile.rows() as u32);
        let cubes = (tokens + comptime!(tile.rows() as u32 - 1)) / rows;
        let of_plane = UNIT_POS / comptime!(LANES as u32) * comptime!(ROWS as u32);
        Place {
            image: CUBE_POS_X / cubes / heads,
            head: CUBE_POS_X / cubes % heads,
            row: CUBE_POS_X % cubes * rows + of_plane + lane() / 4,
        }
    }

    /// Returns the queries, keys or values of its tokens in \[images, tokens, halves, 3, heads,
    /// depth\].
    pub fn part(
        &self,
        tokens: u32,
        heads: u32,
        #[comptime] part: u32,
        #[comptime] halves: usize,
        #[comptime] tile: Tile,
    ) -> Tokens {
        self.tokens(tokens, heads, part, PARTS, halves, tile)
    }

    /// Returns its tokens in \[images, tokens, halves, heads, depth\].
    pub fn result(
        &self,
        tokens: u32,
        heads: u32,
        #[comptime] halves: usize,
        #[comptime] tile: Tile,
    ) -> Tokens {
        self.tokens(tokens, heads, 0u32, 1u32, halves, tile)
    }

    fn tokens(
        &self,
        tokens: u32,
        heads: u32,
        #[comptime] part: u32,
        #[comptime] parts: u32,
        #[comptime] halves: usize,
        #[comptime] tile: Tile,
    ) -> Tokens {
        let of_head = comptime!(tile.vectors());
        let before = self.image * tokens * comptime!(halves as u32 * parts) + part;
        Tokens {
            first: (before * heads + self.head) * of_head,
            apart: heads * comptime!(halves as u32 * parts * tile.vectors()),
            further: heads * comptime!(parts * tile.vectors()),
            count: tokens,
        }
    }

    /// The index of its tokens' first number in \[images, heads, tokens\].
    pub fn first_number(&self, tokens: u32, heads: u32) -> u32 {
        (self.image * heads + self.head) * tokens
    }
}

/// Returns the lane of this unit in its plane.
#[cube]
fn lane() -> u32 {
    UNIT_POS % comptime!(LANES as u32)
}

/// The first of this unit's columns of each instruction.
#[cube]
pub(super) fn column() -> u32 {
    lane() % 4 * comptime!(PAIR as u32)
}

/// Returns the sum over all units with columns of this unit's rows.
#[cube]
pub(super) fn over_columns(number: f32) -> f32 {
    let two = number + plane_shuffle_xor(number, 1u32);
    two + plane_shuffle_xor(two, 2u32)
}

/// The maximum over all units that have columns of this unit's rows.
#[cube]
pub(super) fn most_of_columns(number: f32) -> f32 {
    let two = number.max(plane_shuffle_xor(number, 1u32));
    two.max(plane_shuffle_xor(two, 2u32))
}

/// Rows of a plane in registers, as the first factor of a product: for each instruction, pairs of
/// rows `row` and `row + 8`, first of its first eight numbers and then of the others. The second
/// halves of the same numbers follow.
#[derive(CubeType)]
pub(super) struct Rows<F: Float> {
    pairs: Sequence<Array<Vector<F, Pair>>>,
}

#[cube]
impl<F: Float> Rows<F> {
    /// The rows of `tokens` from this unit's `row` on; rows behind the last are zero.
    pub fn read(
        source: &[Vector<F, Pair>],
        tokens: &Tokens,
        row: u32,
        #[comptime] halves: usize,
        #[comptime] tile: Tile,
    ) -> Self {
        let mut pairs = Sequence::new();
        #[unroll]
        for deep in 0..comptime!(tile.depth / DEPTH) {
            #[unroll]
            for half in 0..halves {
                let tokens = tokens.half(half);
                let mut four = Array::<Vector<F, Pair>>::new(4usize);
                #[unroll]
                for which in 0..4usize {
                    let row = row + comptime!((which % 2 * ROWS / 2) as u32);
                    let number = column() + comptime!((deep * DEPTH + which / 2 * COLUMNS) as u32);
                    let mut pair = Vector::<F, Pair>::new(F::new(0.0f32));
                    if row < tokens.count {
                        pair = source[pair_of(&tokens, row, number)];
                    }
                    four[which] = pair;
                }
                pairs.push(four);
            }
        }
        Rows::<F> { pairs }
    }

    /// Converts the sums of a product, rounded or split.
    fn of_sums(sums: &Sums, #[comptime] tile: Tile) -> Self {
        let mut pairs = Sequence::new();
        #[unroll]
        for deep in 0..comptime!(STEP / DEPTH) {
            #[unroll]
            for half in 0..comptime!(tile.halves()) {
                let mut four = Array::<Vector<F, Pair>>::new(4usize);
                #[unroll]
                for which in 0..4usize {
                    let pair = sums.pair(comptime!(2 * deep + which / 2), comptime!(which % 2));
                    four[which] = half_of::<F>(pair, half);
                }
                pairs.push(four);
            }
        }
        Rows::<F> { pairs }
    }

    /// Returns this unit's part of the dot product of one of its two rows with the same row of
    /// `other`, which is not split.
    pub fn dot<R: Float>(
        &self,
        other: &Rows<R>,
        #[comptime] half: usize,
        #[comptime] tile: Tile,
    ) -> f32 {
        let mut sum = Vector::<f32, Pair>::new(0.0f32);
        #[unroll]
        for deep in 0..comptime!(tile.depth / DEPTH) {
            #[unroll]
            for which in 0..2usize {
                let at = comptime!(2 * which + half);
                let mut one = Vector::<f32, Pair>::new(0.0f32);
                #[unroll]
                for part in 0..comptime!(tile.halves()) {
                    let pairs = self.pairs.index(comptime!(deep * tile.halves() + part));
                    one += Vector::<f32, Pair>::cast_from(pairs[at]);
                }
                let two = Vector::<f32, Pair>::cast_from(other.pairs.index(deep)[at]);
                sum += one * two;
            }
        }
        sum.extract(0usize) + sum.extract(1usize)
    }
}

/// Returns the first or the second half of both numbers.
#[cube]
fn half_of<F: Float>(pair: Vector<f32, Pair>, #[comptime] half: usize) -> Vector<F, Pair> {
    let first = Vector::<F, Pair>::cast_from(pair);
    if comptime!(half == 0) {
        first
    } else {
        Vector::<F, Pair>::cast_from(pair - Vector::<f32, Pair>::cast_from(first))
    }
}

/// The place of a pair of a token's numbers.
#[cube]
fn pair_of(tokens: &Tokens, row: u32, number: u32) -> usize {
    let vector = tokens.first + row * tokens.apart;
    vector as usize * comptime!(VECTOR / PAIR) + number as usize / PAIR
}

/// Writes this unit's sums of one of its two rows, which is a token, times `factor`.
#[cube]
pub(super) fn write<F: Float>(
    sums: &Sums,
    factor: f32,
    #[comptime] half: usize,
    out: &mut [Vector<F, Pair>],
    tokens: &Tokens,
    row: u32,
    #[comptime] tile: Tile,
) {
    let row = row + comptime!((half * ROWS / 2) as u32);
    if row < tokens.count {
        #[unroll]
        for beside in 0..comptime!(tile.depth / COLUMNS) {
            let number = column() + comptime!((beside * COLUMNS) as u32);
            let pair = sums.pair(beside, half) * Vector::new(factor);
            out[pair_of(tokens, row, number)] = Vector::<F, Pair>::cast_from(pair);
        }
    }
}

/// Two kinds of numbers of the same tokens, which arrive in shared memory in steps, two at a time.
#[derive(CubeType)]
pub(super) struct Steps {
    first: Tokens,
    second: Tokens,
}

#[cube]
impl Steps {
    pub fn new(first: Tokens, second: Tokens) -> Self {
        Steps { first, second }
    }

    /// Number of steps.
    pub fn count(&self) -> u32 {
        (self.first.count + comptime!(STEP as u32 - 1)) / comptime!(STEP as u32)
    }

    /// Begins to copy a step, if it exists.
    pub fn begin<F: Float, V: Size>(
        &self,
        first: &[Vector<F, V>],
        second: &[Vector<F, V>],
        stages: &mut [Vector<F, V>],
        step: u32,
        #[comptime] tile: Tile,
    ) {
        if step < self.count() {
            let stage = stage_of(step, tile);
            #[unroll]
            for half in 0..comptime!(tile.halves()) {
                let stage = stage + comptime!(half as u32 * tile.half_vectors());
                begin::<F, V>(first, &self.first.half(half), stages, step, stage, tile);
                let stage = stage + comptime!(tile.step_vectors());
                begin::<F, V>(second, &self.second.half(half), stages, step, stage, tile);
            }
        }
        commit();
    }

    /// Waits for a step, and begins the next. Returns the vector at which its first numbers begin;
    /// the others follow.
    pub fn arrive<F: Float, V: Size>(
        &self,
        first: &[Vector<F, V>],
        second: &[Vector<F, V>],
        stages: &mut [Vector<F, V>],
        step: u32,
        #[comptime] tile: Tile,
    ) -> u32 {
        wait(0usize);
        // And no unit still computes with the previous step.
        sync_cube();
        self.begin::<F, V>(first, second, stages, step + 1, tile);
        stage_of(step, tile)
    }
}

#[cube]
fn stage_of(step: u32, #[comptime] tile: Tile) -> u32 {
    step % 2 * comptime!(2 * tile.step_vectors())
}

#[cube]
fn begin<F: Float, V: Size>(
    source: &[Vector<F, V>],
    tokens: &Tokens,
    stages: &mut [Vector<F, V>],
    step: u32,
    to: u32,
    #[comptime] tile: Tile,
) {
    let vectors = comptime!(tile.vectors());
    let all = comptime!(STEP * tile.vectors() as usize);
    #[unroll]
    for i in 0..comptime!(all.div_ceil(tile.units())) {
        let at = UNIT_POS + comptime!((i * tile.units()) as u32);
        if comptime!((i + 1) * tile.units() <= all) || at < comptime!(all as u32) {
            let row = at / vectors;
            let token = step * comptime!(STEP as u32) + row;
            copy::<F, V>(
                source,
                tokens.first + token * tokens.apart + at % vectors,
                stages,
                to + row * comptime!(tile.pitch()) + at % vectors,
                token < tokens.count,
                Keep::Far,
            );
        }
    }
}

/// Computes the products of a plane's rows with the tokens of a step, with a column for each token.
#[cube]
pub(super) fn with_each<F: Float, V: Size>(
    rows: &Rows<F>,
    stages: &[Vector<F, V>],
    stage: u32,
    #[comptime] tile: Tile,
) -> Sums {
    let mut sums = Sums::zero(comptime!(STEP / COLUMNS));
    let row = lane() % 8 + lane() / 16 * 8;
    #[unroll]
    for deep in 0..comptime!(tile.depth / DEPTH) {
        #[unroll]
        for two in 0..comptime!(STEP / COLUMNS / 2) {
            let row = row + comptime!((two * 2 * COLUMNS) as u32);
            let at = stage
                + row * comptime!(tile.pitch())
                + lane() / 8 % 2
                + comptime!((deep * DEPTH / VECTOR) as u32);
            multiply::<F, V>(rows, deep, stages, at, false, &mut sums, two, tile);
        }
    }
    sums
}

/// Adds a step's tokens, each times its weight: `shares` has a column for each of them.
#[cube]
pub(super) fn add_shares<F: Float, V: Size>(
    shares: &Sums,
    stages: &[Vector<F, V>],
    stage: u32,
    sums: &mut Sums,
    #[comptime] tile: Tile,
) {
    let shares = Rows::<F>::of_sums(shares, tile);
    let row = lane() % 16;
    #[unroll]
    for deep in 0..comptime!(STEP / DEPTH) {
        #[unroll]
        for two in 0..comptime!(tile.depth / COLUMNS / 2) {
            let row = row + comptime!((deep * DEPTH) as u32);
            let at = stage
                + row * comptime!(tile.pitch())
                + lane() / 16
                + comptime!((two * 2 * COLUMNS / VECTOR) as u32);
            multiply::<F, V>(&shares, deep, stages, at, true, sums, two, tile);
        }
    }
}

/// Runs two adjacent instructions, or for split numbers the two of each of their three large
/// products. `at` is the vector that this lane passes to `ldmatrix`.
#[cube]
fn multiply<F: Float, V: Size>(
    rows: &Rows<F>,
    #[comptime] deep: usize,
    stages: &[Vector<F, V>],
    at: u32,
    #[comptime] turned: bool,
    sums: &mut Sums,
    #[comptime] two: usize,
    #[comptime] tile: Tile,
) {
    let definition = MmaDefinition::<F, F, f32>::new(ROWS, COLUMNS, DEPTH);
    #[unroll]
    for half in 0..comptime!(tile.halves()) {
        let at = (at + comptime!(half as u32 * tile.half_vectors())) as usize;
        let columns = definition.load_matrix::<Vector<F, V>, Pair>(
            &stages[at..at + 1],
            MatrixIdent::B,
            4usize,
            turned,
        );
        #[unroll]
        for of_row in 0..comptime!(tile.halves() - half) {
            #[unroll]
            for one in 0..2usize {
                let mut factor = Array::<Vector<F, Pair>>::new(2usize);
                factor[0] = columns[comptime!(2 * one)];
                factor[1] = columns[comptime!(2 * one + 1)];
                let sum = sums.pairs.index_mut(comptime!(2 * two + one));
                let row = rows.pairs.index(comptime!(deep * tile.halves() + of_row));
                definition.execute_inplace(row, &factor, sum);
            }
        }
    }
}

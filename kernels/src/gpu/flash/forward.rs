//! Forward pass of attention.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::super::tensor_cores::{COLUMNS, Pair, ROWS, Sums, power_of_two, powers_of_two};
use super::tile::{STEP, Tile};
use super::tokens::{
    KEY, Place, QUERY, Rows, Steps, VALUE, add_shares, column, most_of_columns, over_columns,
    with_each, write,
};

/// Writes the result, \[images, tokens, heads, depth\], and the logarithm of the sum of each
/// token's attention weights, \[images, heads, tokens\]. `qkv`, \[images, tokens, 3, heads,
/// depth\], is given in vectors and in pairs. Weights are powers of 2, and so is the logarithm's
/// base: `scale` is the scores' scale times log₂ e. If the result, of type `R`, is in f32, `qkv` is
/// split.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attend<F: Float, R: Float, V: Size>(
    qkv: &[Vector<F, V>],
    pairs: &[Vector<F, Pair>],
    out: &mut [Vector<R, Pair>],
    totals: &mut [f32],
    tokens: u32,
    heads: u32,
    scale: f32,
    #[comptime] tile: Tile,
    #[define(F)] _of_factors: ElemType,
    #[define(R)] _of_result: ElemType,
) {
    let place = Place::of_unit(tokens, heads, tile);
    let halves = comptime!(tile.halves());
    let queries = place.part(tokens, heads, QUERY, halves, tile);
    let queries = Rows::<F>::read(pairs, &queries, place.row, halves, tile);
    let keys = place.part(tokens, heads, KEY, halves, tile);
    let values = place.part(tokens, heads, VALUE, halves, tile);
    let steps = Steps::new(keys, values);

    let mut stages = Shared::<[Vector<F, V>]>::new_aligned_slice(
        comptime!(4 * tile.step_vectors() as usize),
        16usize,
    );
    let mut sums = Sums::zero(comptime!(tile.depth / COLUMNS));
    let mut rows = Softmax::begin();
    steps.begin::<F, V>(qkv, qkv, &mut stages, 0u32.runtime(), tile);
    for step in 0..steps.count() {
        let stage = steps.arrive::<F, V>(qkv, qkv, &mut stages, step, tile);
        let mut scores = with_each::<F, V>(&queries, &stages, stage, tile);
        rows.take(&mut scores, &mut sums, step, tokens, scale, tile);
        let values = stage + comptime!(tile.step_vectors());
        add_shares::<F, V>(&scores, &stages, values, &mut sums, tile);
    }

    let result = place.result(tokens, heads, 1usize, tile);
    let first = place.first_number(tokens, heads);
    #[unroll]
    for half in 0..2usize {
        let total = over_columns(rows.total[half]);
        write::<R>(&sums, 1.0f32 / total, half, out, &result, place.row, tile);
        let row = place.row + comptime!((half * ROWS / 2) as u32);
        if row < tokens && column() == 0 {
            totals[(first + row) as usize] = rows.most[half] * scale + total.ln() * LOG2_E;
        }
    }
}

/// The running softmax of each of a unit's two rows: the largest score, and the sum of all weights
/// in the columns of this unit, relative to the largest.
#[derive(CubeType)]
struct Softmax {
    most: Array<f32>,
    total: Array<f32>,
}

#[cube]
impl Softmax {
    fn begin() -> Self {
        let mut most = Array::<f32>::new(2usize);
        let mut total = Array::<f32>::new(2usize);
        #[unroll]
        for half in 0..2usize {
            most[half] = f32::min_value();
            total[half] = 0.0f32;
        }
        Softmax { most, total }
    }

    /// Turns a step's scores into weights, and scales the previous sums if a new largest score
    /// appears.
    fn take(
        &mut self,
        scores: &mut Sums,
        sums: &mut Sums,
        step: u32,
        tokens: u32,
        scale: f32,
        #[comptime] tile: Tile,
    ) {
        let first = step * comptime!(STEP as u32) + column();
        #[unroll]
        for half in 0..2usize {
            let mut most = self.most[half];
            #[unroll]
            for beside in 0..comptime!(STEP / COLUMNS) {
                let token = first + comptime!((beside * COLUMNS) as u32);
                let mut pair = scores.pair(beside, half);
                #[unroll]
                for one in 0..2usize {
                    let score = pair.extract(one);
                    let is_there = token + comptime!(one as u32) < tokens;
                    let score = select(is_there, score, f32::min_value());
                    pair.insert(one, score);
                    most = most.max(score);
                }
                scores.set(beside, half, pair);
            }
            let most = most_of_columns(most);
            let shrink = power_of_two((self.most[half] - most) * scale);
            let mut total = self.total[half] * shrink;
            #[unroll]
            for beside in 0..comptime!(STEP / COLUMNS) {
                let pair = scores.pair(beside, half);
                let share = powers_of_two((pair - Vector::new(most)) * Vector::new(scale));
                scores.set(beside, half, share);
                total += share.extract(0usize) + share.extract(1usize);
            }
            #[unroll]
            for beside in 0..comptime!(tile.depth / COLUMNS) {
                let pair = sums.pair(beside, half) * Vector::new(shrink);
                sums.set(beside, half, pair);
            }
            self.most[half] = most;
            self.total[half] = total;
        }
    }
}

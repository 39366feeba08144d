//! The gradients of queries, keys and values. Attention weights are computed again from the
//! logarithms of their sums: in one kernel with a plane for some queries, in another with a plane
//! for some keys. So every sum has a fixed order and nothing is added atomically.

use cubecl::prelude::*;

use super::super::tensor_cores::{COLUMNS, Pair, ROWS, Sums, powers_of_two};
use super::tile::{STEP, Tile};
use super::tokens::{
    KEY, Place, QUERY, Rows, Steps, VALUE, add_shares, column, over_columns, with_each, write,
};

/// Writes the gradient of the queries to its part of `out`, which is like `qkv`, and to `dots`,
/// \[images, heads, tokens\], the product of each token's result with its gradient. `to_power` is
/// `scale` times log₂ e, because forward kept powers of 2. If `out` is in f32, `qkv` and `gradient`
/// are split.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn gradient_of_queries<F: Float, R: Float, V: Size>(
    qkv: &[Vector<F, V>],
    pairs: &[Vector<F, Pair>],
    result: &[Vector<R, Pair>],
    gradient: &[Vector<F, Pair>],
    totals: &[f32],
    dots: &mut [f32],
    out: &mut [Vector<R, Pair>],
    tokens: u32,
    heads: u32,
    scale: f32,
    to_power: f32,
    #[comptime] tile: Tile,
    #[define(F)] _of_factors: ElemType,
    #[define(R)] _of_result: ElemType,
) {
    let place = Place::of_unit(tokens, heads, tile);
    let halves = comptime!(tile.halves());
    let of_queries = place.part(tokens, heads, QUERY, halves, tile);
    let queries = Rows::<F>::read(pairs, &of_queries, place.row, halves, tile);
    let of_gradient = place.result(tokens, heads, halves, tile);
    let gradients = Rows::<F>::read(gradient, &of_gradient, place.row, halves, tile);

    let first = place.first_number(tokens, heads);
    let mut total = Array::<f32>::new(2usize);
    let mut dot = Array::<f32>::new(2usize);
    let of_result = place.result(tokens, heads, 1usize, tile);
    let results = Rows::<R>::read(result, &of_result, place.row, 1usize, tile);
    #[unroll]
    for half in 0..2usize {
        dot[half] = over_columns(gradients.dot::<R>(&results, half, tile));
        total[half] = 0.0f32;
        let row = place.row + comptime!((half * ROWS / 2) as u32);
        if row < tokens {
            let at = (first + row) as usize;
            total[half] = totals[at];
            if column() == 0 {
                dots[at] = dot[half];
            }
        }
    }

    let keys = place.part(tokens, heads, KEY, halves, tile);
    let values = place.part(tokens, heads, VALUE, halves, tile);
    let steps = Steps::new(keys, values);
    let mut stages = Shared::<[Vector<F, V>]>::new_aligned_slice(
        comptime!(4 * tile.step_vectors() as usize),
        16usize,
    );
    let mut sums = Sums::zero(comptime!(tile.depth / COLUMNS));
    steps.begin::<F, V>(qkv, qkv, &mut stages, 0u32.runtime(), tile);
    for step in 0..steps.count() {
        let stage = steps.arrive::<F, V>(qkv, qkv, &mut stages, step, tile);
        let mut scores = with_each::<F, V>(&queries, &stages, stage, tile);
        let values = stage + comptime!(tile.step_vectors());
        let to_shares = with_each::<F, V>(&gradients, &stages, values, tile);
        let token = step * comptime!(STEP as u32) + column();
        #[unroll]
        for beside in 0..comptime!(STEP / COLUMNS) {
            let token = token + comptime!((beside * COLUMNS) as u32);
            #[unroll]
            for half in 0..2usize {
                let score = scores.pair(beside, half) * Vector::new(to_power);
                let share = powers_of_two(score - Vector::new(total[half]));
                let mut slope = share * (to_shares.pair(beside, half) - Vector::new(dot[half]));
                // Keys behind the last are zero, and would have a weight.
                #[unroll]
                for one in 0..2usize {
                    let is_there = token + comptime!(one as u32) < tokens;
                    slope.insert(one, select(is_there, slope.extract(one), 0.0f32));
                }
                scores.set(beside, half, slope);
            }
        }
        add_shares::<F, V>(&scores, &stages, stage, &mut sums, tile);
    }
    let to_queries = place.part(tokens, heads, QUERY, 1usize, tile);
    #[unroll]
    for half in 0..2usize {
        write::<R>(&sums, scale, half, out, &to_queries, place.row, tile);
    }
}

/// Writes the gradients of keys and values to their parts of `out`. `gradient` is that of the
/// result, \[images, tokens, heads, depth\]. If `out` is in f32, it and `qkv` are split.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn gradients_of_keys_and_values<F: Float, R: Float, V: Size>(
    qkv: &[Vector<F, V>],
    pairs: &[Vector<F, Pair>],
    gradient: &[Vector<F, V>],
    totals: &[f32],
    dots: &[f32],
    out: &mut [Vector<R, Pair>],
    tokens: u32,
    heads: u32,
    scale: f32,
    to_power: f32,
    #[comptime] tile: Tile,
    #[define(F)] _of_factors: ElemType,
    #[define(R)] _of_result: ElemType,
) {
    let place = Place::of_unit(tokens, heads, tile);
    let halves = comptime!(tile.halves());
    let of_keys = place.part(tokens, heads, KEY, halves, tile);
    let of_values = place.part(tokens, heads, VALUE, halves, tile);
    let keys = Rows::<F>::read(pairs, &of_keys, place.row, halves, tile);
    let values = Rows::<F>::read(pairs, &of_values, place.row, halves, tile);

    let of_queries = place.part(tokens, heads, QUERY, halves, tile);
    let of_gradient = place.result(tokens, heads, halves, tile);
    let steps = Steps::new(of_queries, of_gradient);
    let mut stages = Shared::<[Vector<F, V>]>::new_aligned_slice(
        comptime!(4 * tile.step_vectors() as usize),
        16usize,
    );
    let first = place.first_number(tokens, heads);
    let mut to_keys = Sums::zero(comptime!(tile.depth / COLUMNS));
    let mut to_values = Sums::zero(comptime!(tile.depth / COLUMNS));
    steps.begin::<F, V>(qkv, gradient, &mut stages, 0u32.runtime(), tile);
    for step in 0..steps.count() {
        let stage = steps.arrive::<F, V>(qkv, gradient, &mut stages, step, tile);
        let gradients = stage + comptime!(tile.step_vectors());
        // Both have a row for each key, and a column for each query.
        let mut shares = with_each::<F, V>(&keys, &stages, stage, tile);
        let mut slopes = with_each::<F, V>(&values, &stages, gradients, tile);
        let token = step * comptime!(STEP as u32) + column();
        #[unroll]
        for beside in 0..comptime!(STEP / COLUMNS) {
            let mut total = Vector::<f32, Pair>::new(0.0f32);
            let mut dot = Vector::<f32, Pair>::new(0.0f32);
            let mut is_there = Vector::<f32, Pair>::new(0.0f32);
            #[unroll]
            for one in 0..2usize {
                let token = token + comptime!((beside * COLUMNS + one) as u32);
                if token < tokens {
                    let at = (first + token) as usize;
                    total.insert(one, totals[at]);
                    dot.insert(one, dots[at]);
                    is_there.insert(one, 1.0f32);
                }
            }
            #[unroll]
            for half in 0..2usize {
                let score = shares.pair(beside, half) * Vector::new(to_power);
                let share = powers_of_two(score - total) * is_there;
                let slope = share * (slopes.pair(beside, half) - dot);
                shares.set(beside, half, share);
                slopes.set(beside, half, slope);
            }
        }
        add_shares::<F, V>(&shares, &stages, gradients, &mut to_values, tile);
        add_shares::<F, V>(&slopes, &stages, stage, &mut to_keys, tile);
    }
    let of_keys = place.part(tokens, heads, KEY, 1usize, tile);
    let of_values = place.part(tokens, heads, VALUE, 1usize, tile);
    #[unroll]
    for half in 0..2usize {
        write::<R>(&to_keys, scale, half, out, &of_keys, place.row, tile);
        write::<R>(&to_values, 1.0f32, half, out, &of_values, place.row, tile);
    }
}

//! The product by warpgroups. Tensor cores compute with two stages, one behind the other, while
//! copies go on. So they do not stand still while planes wait for each other.
//!
//! Like CUTLASS's `MainloopSm90CpAsyncGmmaSs`, except for `fence.proxy.async`. PTX demands it
//! between the writes of `cp.async` and `wgmma`, and CUTLASS leaves it out.

use cubecl::prelude::*;

use super::super::tensor_cores::{DEPTH, Sums, wait};
use super::super::warpgroup::{
    IN_ROW, Major, ROWS, begin_products, commit_products, descriptor, group, multiply,
    show_to_products, sums, wait_for_products, zero_sums,
};
use super::product::{Feed, begin_step, stage_of};
use super::tile::{Order, STAGE_DEPTH, Tile};

/// Alignment of swizzled rows, in bytes; 512 would suffice for this swizzle.
pub(super) const ALIGN: usize = 1024;

/// The product of the factors of `feed` in `steps` steps.
#[cube]
pub(super) fn product<F: Float, V: Size, From: Feed + CubeType>(
    feed: &From,
    first: &[Vector<F, V>],
    second: &[Vector<F, V>],
    steps: u32,
    #[comptime] tile: Tile,
) -> Sums {
    let mut stages = Shared::<[Vector<F, V>]>::new_aligned_slice(
        comptime!(tile.stage_vectors() as usize * tile.stages),
        ALIGN,
    );
    let major = comptime!(match tile.order {
        Order::Along => Major::Depth,
        Order::Across => Major::Across,
    });
    let eights = comptime!(tile.tiles[0] * tile.tiles[1]);
    zero_sums(comptime!(4 * eights));
    let described = descriptor::<F, V>(&stages, major);
    // One of the stages is computed with and one may still be.
    let ahead = comptime!(tile.stages as u32 - 2);
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
    wait(comptime!(ahead as usize - 1));
    show_to_products();
    for step in 0..steps {
        // The data of this step has arrived, and all units have waited for the product whose stage
        // is filled below.
        sync_cube();
        begin_products();
        multiply_stage::<F>(described + stage_of(step, tile), major, tile);
        commit_products();
        // Shows the data of the next step before more is copied, because it might wait for that.
        wait(comptime!(ahead as usize - 2));
        show_to_products();
        begin_step::<F, V, From>(feed, first, second, &mut stages, step + ahead, steps, tile);
        wait_for_products(1usize);
    }
    wait_for_products(0usize);
    sums(eights)
}

/// Begins to add the products of blocks of rows and a stage's columns. The arguments are the lower
/// halves of their descriptors.
#[cube]
pub(super) fn multiply_blocks<F: Float>(
    rows: &Array<u32>,
    columns: u32,
    #[comptime] majors: [Major; 2],
    #[comptime] tile: Tile,
) {
    #[unroll]
    for deep in 0..comptime!(STAGE_DEPTH / DEPTH) {
        let [rows_deeper, columns_deeper] =
            comptime!(majors.map(|major| deep as u32 * major.deeper()));
        #[unroll]
        for block in 0..comptime!(tile.tiles[0]) {
            multiply::<F>(
                rows[block] + rows_deeper,
                columns + columns_deeper,
                comptime!(4 * block * tile.tiles[1]),
                comptime!(tile.columns()),
                majors,
            );
        }
    }
}

/// The same for a stage that holds both; the argument is the lower half of its descriptor.
#[cube]
fn multiply_stage<F: Float>(stage: u32, #[comptime] major: Major, #[comptime] tile: Tile) {
    let of_block = comptime!((ROWS * IN_ROW) as u32);
    let blocks = comptime!(tile.tiles[0]);
    let first = stage + group() * comptime!(blocks as u32 * of_block);
    let mut rows = Array::<u32>::new(blocks);
    #[unroll]
    for block in 0..blocks {
        rows[block] = first + comptime!(block as u32 * of_block);
    }
    let columns = stage + comptime!(tile.first_vectors());
    multiply_blocks::<F>(&rows, columns, comptime!([major, major]), tile);
}

//! Divides an f32 product into pieces, each computed by one thread.
//!
//! A piece of the depth is a partial sum, so the shape alone decides about those. Pieces of rows
//! and columns do not change any sum, and depend on the number of threads.

use std::ops::Range;

/// Depth of a partial sum.
const PART: usize = 1024;

/// Maximum number of partial sums.
const PARTS: usize = 32;

/// Maximum number of elements of all partial sums together: they should stay in the cache.
const PARTIAL: usize = 1 << 20;

/// Pieces per thread, so that a slower thread takes fewer.
const PER_THREAD: usize = 2;

/// Minimum numbers of rows and columns of a piece. Both factors are packed for every piece.
/// Smaller ones would also leave `gemm`'s usual path, whose sums run in a different order.
const LEAST: [usize; 2] = [128, 192];

/// Pieces begin at multiples of these: rows and columns of `gemm`'s tiles.
const TILE: [usize; 2] = [12, 64];

/// Multiplications that are worth a second thread.
const WORTH: usize = 1 << 19;

/// A product `[rows, depth] · [depth, columns]`, divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Rows, columns and depth.
    size: [usize; 3],
    /// Number of pieces of each.
    pub(crate) pieces: [usize; 3],
}

/// One piece of a product.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) rows: Range<usize>,
    pub(crate) columns: Range<usize>,
    pub(crate) depth: Range<usize>,
    /// Number of the partial sum.
    pub(crate) part: usize,
}

impl Grid {
    /// Divides a product for a number of threads.
    pub(crate) fn new(size: [usize; 3], threads: usize) -> Self {
        let [rows, columns, depth] = size;
        let mut pieces = [1, 1, parts(size)];
        let volume = rows.saturating_mul(columns).saturating_mul(depth);
        if threads > 1 && volume >= WORTH && rows > 1 && columns > 1 {
            let wanted = (threads * PER_THREAD).div_ceil(pieces[2]);
            while pieces[0] * pieces[1] < wanted {
                // Prefers the longer side, because the other factor is packed once more.
                let side = [0, 1].map(|axis| size[axis] / (pieces[axis] + 1));
                let fits = [0, 1].map(|axis| side[axis] >= LEAST[axis]);
                match fits {
                    [true, true] if side[0] >= side[1] => pieces[0] += 1,
                    [true, false] => pieces[0] += 1,
                    [_, true] => pieces[1] += 1,
                    [false, false] => break,
                }
            }
        }
        Self { size, pieces }
    }

    /// Number of pieces.
    pub(crate) fn count(&self) -> usize {
        self.pieces.iter().product()
    }

    /// Piece `index` below [`Grid::count`].
    pub(crate) fn piece(&self, index: usize) -> Piece {
        let [rows, columns, _] = self.pieces;
        let range = |axis: usize, index: usize, tile: usize| {
            let at = |index: usize| match index == self.pieces[axis] {
                true => self.size[axis],
                false => self.size[axis] * index / self.pieces[axis] / tile * tile,
            };
            at(index)..at(index + 1)
        };
        let part = index / (rows * columns);
        Piece {
            rows: range(0, index % rows, TILE[0]),
            columns: range(1, index / rows % columns, TILE[1]),
            depth: range(2, part, 1),
            part,
        }
    }
}

/// Number of partial sums of a small product of great depth.
fn parts([rows, columns, depth]: [usize; 3]) -> usize {
    if depth < 2 * rows.max(columns) {
        return 1;
    }
    let room = PARTIAL / rows.saturating_mul(columns).max(1);
    (depth / PART).min(PARTS).min(room).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_the_product_once(
            rows in 1usize..6000, columns in 1usize..6000, depth in 1usize..70_000,
            threads in 1usize..70,
        ) {
            let grid = Grid::new([rows, columns, depth], threads);
            let [over_rows, over_columns, parts] = grid.pieces;
            prop_assert_eq!(parts, Grid::new([rows, columns, depth], 1).pieces[2]);
            let mut next = 0;
            for part in 0..parts {
                let mut end = 0;
                for _ in 0..over_columns {
                    let mut bottom = 0;
                    for row in 0..over_rows {
                        let piece = grid.piece(next);
                        next += 1;
                        prop_assert_eq!(piece.part, part);
                        prop_assert_eq!(piece.rows.start, bottom);
                        prop_assert_eq!(piece.columns.start, end);
                        prop_assert!(!piece.depth.is_empty());
                        // Never on a path of `gemm` for small matrices that the whole is not on.
                        prop_assert!(over_rows == 1 || piece.rows.len() > 64);
                        prop_assert!(over_columns == 1 || piece.columns.len() > 64);
                        bottom = piece.rows.end;
                        if row + 1 == over_rows {
                            prop_assert_eq!(bottom, rows);
                            end = piece.columns.end;
                        }
                    }
                }
                prop_assert_eq!(end, columns);
            }
            prop_assert_eq!(next, grid.count());
            prop_assert_eq!(grid.piece(next - 1).depth.end, depth);
        }
    }

    #[test]
    fn the_depth_is_divided_where_the_product_is_small() {
        let pieces = |size, threads| Grid::new(size, threads).pieces;
        assert_eq!(pieces([192, 576, 4160], 2), [1, 1, 4]);
        assert_eq!(pieces([192, 576, 4160], 1), [1, 1, 4]);
        assert_eq!(pieces([4160, 192, 576], 2), [4, 1, 1]);
        assert_eq!(pieces([768, 3072, 12_608], 2)[2], 1);
        assert_eq!(pieces([64, 10, 64], 8), [1, 1, 1]);
    }
}

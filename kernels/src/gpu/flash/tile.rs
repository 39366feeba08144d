//! How attention is divided among cubes and planes.

use super::super::tensor_cores::{LANES, ROWS, VECTOR};

/// Tokens that are in shared memory at once.
pub(super) const STEP: usize = 2 * ROWS;

/// Planes of a cube, at most: as many as have room for their sums in the registers of a processor.
const PLANES: usize = 8;

/// Numbers of a token in one head, at most: more sums than these have no room.
const DEPTH: usize = 128;

/// What one cube computes: some tokens of one head, 16 for each plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tile {
    /// Numbers of a token in one head.
    pub depth: usize,
    pub planes: usize,
}

impl Tile {
    /// If so deep heads can be computed. Cubes are as large as leaves the fewest rows without a token.
    pub fn new(tokens: usize, depth: usize) -> Option<Self> {
        let planes = tokens.div_ceil(ROWS);
        let cubes = planes.div_ceil(PLANES).max(1);
        let fits = depth > 0 && depth.is_multiple_of(ROWS) && depth <= DEPTH;
        fits.then_some(Self {
            depth,
            planes: planes.div_ceil(cubes),
        })
    }

    /// Tokens of a cube.
    pub const fn rows(&self) -> usize {
        self.planes * ROWS
    }

    /// Units of a cube.
    pub const fn units(&self) -> usize {
        self.planes * LANES
    }

    /// Vectors of a token.
    pub const fn vectors(&self) -> u32 {
        (self.depth / VECTOR) as u32
    }

    /// Vectors from one token in shared memory to the next: an odd number, so that eight, which are read at once,
    /// lie in different banks.
    pub const fn pitch(&self) -> u32 {
        self.vectors() + 1
    }

    /// Vectors of a step's tokens in shared memory.
    pub const fn step_vectors(&self) -> u32 {
        STEP as u32 * self.pitch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_without_a_token() {
        for (tokens, planes) in [(1, 1), (16, 1), (65, 5), (128, 8), (129, 5), (197, 7)] {
            assert_eq!(Tile::new(tokens, 64).unwrap().planes, planes, "{tokens}");
        }
    }

    #[test]
    fn heads_that_have_no_room_are_refused() {
        assert_eq!([0, 8, 24, 144].map(|depth| Tile::new(65, depth)), [None; 4]);
        assert!(
            [16, 64, 80, 128]
                .iter()
                .all(|depth| Tile::new(65, *depth).is_some())
        );
    }

    #[test]
    fn shared_memory_is_what_every_device_has() {
        let tile = Tile::new(65, DEPTH).unwrap();
        assert!(4 * tile.step_vectors() as usize * 16 <= 48 << 10);
    }
}

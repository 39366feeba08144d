//! Division of attention among cubes and planes.

use super::super::split::HALVES;
use super::super::tensor_cores::{LANES, ROWS, VECTOR};

/// Tokens in shared memory at once.
pub(super) const STEP: usize = 2 * ROWS;

/// Maximum planes of a cube: the registers of an SM have room for their sums.
const PLANES: usize = 8;

/// Maximum numbers of a token in one head: registers have no room for more sums.
const DEPTH: usize = 128;

/// The same for numbers that are split in halves.
const DEPTH_OF_HALVES: usize = 64;

/// The work of one cube: some tokens of one head, 16 for each plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tile {
    /// Values of a token in one head.
    pub depth: usize,
    pub planes: usize,
    /// True if numbers are split into halves.
    pub split: bool,
}

impl Tile {
    /// `None` for heads that are too deep. Chooses the cube size that leaves the fewest rows
    /// without a token.
    pub fn new(tokens: usize, depth: usize, split: bool) -> Option<Self> {
        let planes = tokens.div_ceil(ROWS);
        let cubes = planes.div_ceil(PLANES).max(1);
        let most = if split { DEPTH_OF_HALVES } else { DEPTH };
        let fits = depth > 0 && depth.is_multiple_of(ROWS) && depth <= most;
        fits.then_some(Self {
            depth,
            planes: planes.div_ceil(cubes),
            split,
        })
    }

    /// Returns the tokens of a cube.
    pub const fn rows(&self) -> usize {
        self.planes * ROWS
    }

    /// Returns the units of a cube.
    pub const fn units(&self) -> usize {
        self.planes * LANES
    }

    /// Parts of a number: 2 if it is split.
    pub const fn halves(&self) -> usize {
        if self.split { HALVES as usize } else { 1 }
    }

    /// Returns the vectors of a token, or of its first halves.
    pub const fn vectors(&self) -> u32 {
        (self.depth / VECTOR) as u32
    }

    /// Vectors from one token in shared memory to the next: an odd number, so that eight tokens,
    /// which are read at once, lie in different banks.
    pub const fn pitch(&self) -> u32 {
        self.vectors() + 1
    }

    /// Returns the vectors of a step's tokens in shared memory, or of their first halves.
    pub const fn half_vectors(&self) -> u32 {
        STEP as u32 * self.pitch()
    }

    /// Returns the vectors of a step's tokens in shared memory.
    pub const fn step_vectors(&self) -> u32 {
        self.halves() as u32 * self.half_vectors()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_without_a_token() {
        for (tokens, planes) in [(1, 1), (16, 1), (65, 5), (128, 8), (129, 5), (197, 7)] {
            assert_eq!(
                Tile::new(tokens, 64, false).unwrap().planes,
                planes,
                "{tokens}"
            );
        }
    }

    #[test]
    fn heads_that_have_no_room_are_refused() {
        let takes = |split: bool| {
            let depths = (0..200).filter(move |depth| Tile::new(65, *depth, split).is_some());
            depths.collect::<Vec<_>>()
        };
        assert_eq!(takes(false), [16, 32, 48, 64, 80, 96, 112, 128]);
        assert_eq!(takes(true), [16, 32, 48, 64]);
    }

    #[test]
    fn shared_memory_is_what_every_device_has() {
        for (depth, split) in [(DEPTH, false), (DEPTH_OF_HALVES, true)] {
            let tile = Tile::new(65, depth, split).unwrap();
            assert!(4 * tile.step_vectors() as usize * 16 <= 48 << 10);
        }
    }
}

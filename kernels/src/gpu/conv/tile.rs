//! How a product of matrices is divided among cubes, planes and instructions.

use super::super::tensor_cores::{COLUMNS, DEPTH, LANES, ROWS, VECTOR, VECTOR_BYTES};

/// How much of the sum is a stage: two instructions deep.
pub(super) const STAGE_DEPTH: usize = 2 * DEPTH;

/// Stages, at most and at least: one is computed with while the others arrive.
const STAGES: [usize; 2] = [2, 4];

/// Planes whose sums fit into the registers of a processor.
const PLANES: usize = 8;

/// Numbers of the result for which a processor's tensor cores take a step's sum in the time in which a row or a
/// column of a step's factors comes from the second-level cache: 5.5 TB/s for the 132 processors of an H100, 550
/// TFLOP/s. An estimate, not measured.
const FACTOR: f64 = 100.0;

/// How the factors lie in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Order {
    /// A row of the stage is a row of the first factor, or a column of the second.
    Along,
    /// A row of the stage is one number of the sum for all rows of the first factor, or all columns of the
    /// second.
    Across,
}

/// What one cube computes: a part of the result that its planes have in their registers, over a sum that
/// comes through shared memory in stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tile {
    /// Planes below and beside one another.
    pub planes: [usize; 2],
    /// Instructions of a plane below and beside one another; an even number beside.
    pub tiles: [usize; 2],
    pub order: Order,
    pub stages: usize,
}

/// Planes and their tiles for products whose columns are the channels of a result.
const FOR_COLUMNS: [([usize; 2], [usize; 2]); 8] = [
    ([4, 2], [4, 10]),
    ([2, 2], [4, 10]),
    ([4, 2], [4, 8]),
    ([2, 2], [4, 8]),
    ([4, 2], [4, 4]),
    ([2, 2], [4, 4]),
    ([4, 1], [4, 4]),
    ([4, 1], [2, 4]),
];

/// Planes and their tiles for products whose rows are the channels of a result.
const FOR_ROWS: [([usize; 2], [usize; 2]); 8] = [
    ([2, 4], [5, 8]),
    ([4, 2], [5, 8]),
    ([2, 2], [5, 8]),
    ([2, 4], [4, 8]),
    ([2, 2], [4, 8]),
    ([2, 2], [2, 8]),
    ([1, 4], [2, 8]),
    ([1, 4], [2, 4]),
];

impl Tile {
    /// All tiles of an order, in as many stages as leave `memory` bytes of shared memory to the cubes that a
    /// processor has at once.
    pub fn all(order: Order, memory: usize) -> impl Iterator<Item = Self> {
        let sizes = match order {
            Order::Along => FOR_COLUMNS,
            Order::Across => FOR_ROWS,
        };
        let [least, most] = STAGES;
        sizes.into_iter().map(move |(planes, tiles)| {
            let tile = Self {
                planes,
                tiles,
                order,
                stages: least,
            };
            let stage = tile.bytes() / tile.stages;
            Self {
                stages: (memory / tile.at_once() as usize / stage).clamp(least, most),
                ..tile
            }
        })
    }

    /// Cubes that a processor has at once: its registers are for eight planes.
    pub const fn at_once(&self) -> u32 {
        (PLANES / self.all_planes()) as u32
    }

    /// What a step of all the cubes that a processor has at once takes: as long as its tensor cores compute, or as
    /// long as the factors take to come from the second-level cache. The unit is the time in which tensor cores
    /// take a step's sum for one number of the result.
    pub fn step_time(&self) -> f64 {
        let [rows, columns] = [self.rows(), self.columns()].map(|n| n as f64);
        f64::from(self.at_once()) * (rows * columns).max(FACTOR * (rows + columns))
    }

    /// The shared memory of a cube.
    pub const fn bytes(&self) -> usize {
        self.stages * self.stage_vectors() as usize * VECTOR_BYTES
    }

    /// Rows of the result.
    pub const fn rows(&self) -> usize {
        self.planes[0] * self.plane_rows()
    }

    /// Columns of the result.
    pub const fn columns(&self) -> usize {
        self.planes[1] * self.plane_columns()
    }

    /// Rows of a plane.
    pub const fn plane_rows(&self) -> usize {
        self.tiles[0] * ROWS
    }

    /// Columns of a plane.
    pub const fn plane_columns(&self) -> usize {
        self.tiles[1] * COLUMNS
    }

    /// Units of a cube.
    pub const fn units(&self) -> usize {
        self.all_planes() * LANES
    }

    /// Vectors of a stage that a unit copies, of the first factor and of the second.
    pub const fn copies(&self) -> [usize; 2] {
        let vectors = STAGE_DEPTH / VECTOR;
        [
            (vectors * self.rows()).div_ceil(self.units()),
            (vectors * self.columns()).div_ceil(self.units()),
        ]
    }

    /// Planes of a cube.
    pub const fn all_planes(&self) -> usize {
        self.planes[0] * self.planes[1]
    }

    /// Vectors from one row of the first factor's stage to the next.
    pub const fn first_pitch(&self) -> u32 {
        self.pitch(self.rows())
    }

    /// Vectors from one row of the second factor's stage to the next.
    pub const fn second_pitch(&self) -> u32 {
        self.pitch(self.columns())
    }

    /// Vectors of a stage before those of the second factor.
    pub const fn first_vectors(&self) -> u32 {
        match self.order {
            Order::Along => self.rows() as u32 * self.first_pitch(),
            Order::Across => STAGE_DEPTH as u32 * self.first_pitch(),
        }
    }

    /// Vectors of a stage.
    pub const fn stage_vectors(&self) -> u32 {
        let second = match self.order {
            Order::Along => self.columns() as u32 * self.second_pitch(),
            Order::Across => STAGE_DEPTH as u32 * self.second_pitch(),
        };
        self.first_vectors() + second
    }

    /// An odd number, so that eight rows, which are read at once, lie in different banks of the memory.
    const fn pitch(&self, width: usize) -> u32 {
        let numbers = match self.order {
            Order::Along => STAGE_DEPTH,
            Order::Across => width,
        };
        (numbers / VECTOR / 2 * 2 + 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shared memory of a cube at most, of compute capabilities 9.0, 8.0 and 8.9.
    const MEMORY: [usize; 3] = [232_448, 166_912, 101_376];

    #[test]
    fn a_processor_has_memory_for_its_cubes() {
        for memory in MEMORY {
            for order in [Order::Along, Order::Across] {
                for tile in Tile::all(order, memory) {
                    let all = tile.bytes() * tile.at_once() as usize;
                    assert!(all <= memory, "{tile:?}: {all}");
                }
            }
        }
    }

    #[test]
    fn neighbouring_rows_lie_in_different_banks() {
        for order in [Order::Along, Order::Across] {
            for tile in Tile::all(order, MEMORY[0]) {
                assert_eq!(tile.first_pitch() % 2, 1, "{tile:?}");
                assert_eq!(tile.second_pitch() % 2, 1, "{tile:?}");
            }
        }
    }
}

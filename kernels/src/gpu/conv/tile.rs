//! Division of a matrix product among cubes, planes and instructions.

use super::super::tensor_cores::{COLUMNS, DEPTH, Keep, LANES, ROWS, VECTOR, VECTOR_BYTES};
use super::super::warpgroup;
use super::halo::Halo;
use super::shape::Slide;

/// Depth of a stage: two instructions.
pub(super) const STAGE_DEPTH: usize = 2 * DEPTH;

/// Minimum and maximum stages: one is computed with while the others arrive; with `wgmma`, two.
const STAGES: [usize; 2] = [2, 4];
const STAGES_OF_WARPGROUPS: [usize; 2] = [4, 5];

/// Bytes of an SM's memory that warpgroups leave to its cache, which keeps data that is copied
/// again.
const CACHE: usize = 64 << 10;

/// Time that a plane of a warpgroup takes to issue a step's instructions, about 170, in the unit of
/// [`Tile::step_time`].
const ISSUED: f64 = 170.0 / 4.0 * 64.0;

/// Time of shared memory and its cache for a row or a column of a step's factors, in the unit of
/// [`Tile::step_time`]: to give it to an instruction; to copy it from the second-level cache, alone
/// or together with its neighbours; to copy it from the SM's own cache. Shared memory moves 128
/// bytes a clock; meanwhile tensor cores take a step's sum for 64 numbers. Copies of 64 bytes use
/// half of the 128 bytes, adjacent copies all of them. Nsight Compute counted them on an H200,
/// except for the last, which is derived from the others.
const GIVEN: f64 = 32.0;
const TAKEN: f64 = 64.0;
const TAKEN_TOGETHER: f64 = 32.0;
const TAKEN_FROM_NEAR: f64 = 120.0;

/// Share of the source that comes from the second-level cache, if it lies under the window several
/// times and rows of pixels follow each other. An estimate, not measured.
const OF_WINDOW: f64 = 0.35;

/// Planes whose sums fit into the registers of an SM.
const PLANES: usize = 8;

/// Registers of an SM, and those of a unit of warpgroups besides its sums, about: with a source in
/// stages, and with one that stays.
const REGISTERS: usize = 65_536;
const BESIDE_SUMS: [usize; 2] = [46, 32];

/// Shared memory that an SM with `wgmma` gives to cubes, in bytes.
const MEMORY: usize = 232_448;

/// The instruction that multiplies matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Instruction {
    /// A plane multiplies factors that it has read from shared memory.
    Mma,
    /// Four planes multiply factors in shared memory.
    Wgmma,
}

impl Instruction {
    /// Numbers of the result for which an SM's tensor cores take a step's sum, in the time in which
    /// the second-level cache delivers a row or a column of a step's factors. It delivers 5.5 TB/s
    /// to the 132 SMs of an H100, which compute 550 or 800 TFLOP/s. Estimates, not measured.
    pub const fn factor(self) -> f64 {
        match self {
            Self::Mma => 100.0,
            Self::Wgmma => 145.0,
        }
    }
}

/// The layout of factors in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Order {
    /// A row of the stage is a row of the first factor, or a column of the second.
    Along,
    /// A row of the stage is one number of the sum for all rows of the first factor, or all columns
    /// of the second.
    Across,
}

/// The work of one cube: a part of the result in the registers of its planes. The factors come
/// through shared memory in stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tile {
    /// Planes down and across.
    pub planes: [usize; 2],
    /// Instructions of a plane down and across; an even number across.
    pub tiles: [usize; 2],
    pub order: Order,
    pub stages: usize,
    pub instruction: Instruction,
    /// Set if the first factor is not in stages.
    pub halo: Option<Halo>,
}

/// Planes and their tiles, down and across.
type Sizes = ([usize; 2], [usize; 2]);

/// Planes and their tiles for products whose columns are the channels of a result.
const FOR_COLUMNS: [Sizes; 8] = [
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
const FOR_ROWS: [Sizes; 8] = [
    ([2, 4], [5, 8]),
    ([4, 2], [5, 8]),
    ([2, 2], [5, 8]),
    ([2, 4], [4, 8]),
    ([2, 2], [4, 8]),
    ([2, 2], [2, 8]),
    ([1, 4], [2, 8]),
    ([1, 4], [2, 4]),
];

/// Planes and their tiles for warpgroups, which are below one another. Their columns are the
/// channels of a result.
const FOR_WARPGROUPS: [Sizes; 10] = [
    ([8, 1], [2, 20]),
    ([4, 1], [2, 20]),
    ([8, 1], [1, 32]),
    ([8, 1], [1, 24]),
    ([8, 1], [2, 16]),
    ([4, 1], [2, 16]),
    ([8, 1], [2, 8]),
    ([4, 1], [2, 8]),
    ([8, 1], [2, 4]),
    ([4, 1], [1, 4]),
];

impl Tile {
    /// All tiles of an order, with as many stages as fit if the cubes of an SM share `memory` bytes
    /// of shared memory.
    pub fn all(
        instruction: Instruction,
        order: Order,
        memory: usize,
    ) -> impl Iterator<Item = Self> {
        let sizes: &[Sizes] = match (instruction, order) {
            (Instruction::Mma, Order::Along) => &FOR_COLUMNS,
            (Instruction::Mma, Order::Across) => &FOR_ROWS,
            (Instruction::Wgmma, _) => &FOR_WARPGROUPS,
        };
        let ([least, most], memory) = match instruction {
            Instruction::Mma => (STAGES, memory),
            Instruction::Wgmma => (STAGES_OF_WARPGROUPS, memory.saturating_sub(CACHE)),
        };
        sizes.iter().map(move |&(planes, tiles)| {
            let tile = Self {
                planes,
                tiles,
                order,
                stages: least,
                instruction,
                halo: None,
            };
            let stage = tile.bytes() / tile.stages;
            Self {
                stages: (memory / tile.at_once() as usize / stage).clamp(least, most),
                ..tile
            }
        })
    }

    /// Cubes that an SM has at once. Registers limit them, and memory does if the stages are not
    /// chosen for that.
    pub const fn at_once(&self) -> u32 {
        match self.instruction {
            Instruction::Mma => (PLANES / self.all_planes()) as u32,
            Instruction::Wgmma => {
                let of_unit = self.sums() + BESIDE_SUMS[self.halo.is_some() as usize];
                let by_registers = (REGISTERS / (self.units() * of_unit)) as u32;
                let by_memory = match self.halo {
                    Some(halo) => (MEMORY / halo.least_bytes(self)) as u32,
                    None => by_registers,
                };
                if by_registers < by_memory {
                    by_registers
                } else {
                    by_memory
                }
            }
        }
    }

    /// Returns the number of sums per unit.
    const fn sums(&self) -> usize {
        self.tiles[0] * self.tiles[1] * ROWS * COLUMNS / LANES
    }

    /// Time of one step of all cubes that an SM has at once. It is the maximum of four times:
    /// tensor cores compute, the second-level cache delivers the factors, shared memory gives and
    /// takes them, instructions are issued. The unit is the time in which tensor cores take a
    /// step's sum for one number of the result.
    pub fn step_time(&self, slide: Slide) -> f64 {
        let [rows, columns] = [self.rows(), self.columns()].map(|n| n as f64);
        let at_once = f64::from(self.at_once());
        let (copied, other) = match self.instruction {
            Instruction::Mma => (rows + columns, 0.0),
            Instruction::Wgmma => {
                let of_columns = if self.shares_columns() { at_once } else { 1.0 };
                let (copied, taken) = match (self.halo, slide.keep()) {
                    (Some(halo), _) => (halo.pixels_of_place(), TAKEN * halo.pixels_of_place()),
                    (None, Keep::Near) => (rows * OF_WINDOW, TAKEN_FROM_NEAR * rows),
                    (None, Keep::Far) => (rows, TAKEN * rows),
                };
                let column = match (self.halo, self.shares_columns()) {
                    (Some(_), _) => TAKEN_TOGETHER,
                    (None, true) => TAKEN_FROM_NEAR,
                    (None, false) => TAKEN,
                };
                // Each instruction reads 64 rows and all columns.
                let given = rows * (columns / 2.0 + GIVEN);
                let in_memory = given + taken + column * columns;
                let issued = self.all_planes() as f64 * ISSUED;
                (copied + columns / of_columns, in_memory.max(issued))
            }
        };
        let from_cache = self.instruction.factor() * copied;
        at_once * (rows * columns).max(from_cache).max(other)
    }

    /// Whether the cubes that an SM has at once copy the same columns at about the same time.
    pub const fn shares_columns(&self) -> bool {
        matches!(self.instruction, Instruction::Wgmma)
            && matches!(self.order, Order::Along)
            && self.at_once() > 1
            // The SM's own cache is read at half the speed, and shared memory has no time for that.
            && self.halo.is_none()
    }

    /// Time of a cube besides its steps, to begin and to end, counted in steps. Other cubes compute
    /// meanwhile, if there are any.
    pub fn beside_steps(&self) -> f64 {
        match self.instruction {
            Instruction::Mma => 8.0,
            Instruction::Wgmma => 8.0 / f64::from(self.at_once()),
        }
    }

    /// Returns the shared memory of a cube in bytes.
    pub const fn bytes(&self) -> usize {
        let of_halo = match self.halo {
            Some(halo) => halo.all_vectors() as usize,
            None => 0,
        };
        (self.stages * self.stage_vectors() as usize + of_halo) * VECTOR_BYTES
    }

    /// Returns the rows of the result.
    pub const fn rows(&self) -> usize {
        self.planes[0] * self.plane_rows()
    }

    /// Returns the columns of the result.
    pub const fn columns(&self) -> usize {
        self.planes[1] * self.plane_columns()
    }

    /// Whether rows are the channels of a result, and columns the numbers under a window, or the
    /// other way round.
    pub const fn has_rows_of_channels(&self) -> bool {
        matches!(self.order, Order::Across) && matches!(self.instruction, Instruction::Mma)
    }

    /// Channels of the result in a tile of a weight's gradient.
    pub const fn channels(&self) -> usize {
        match self.has_rows_of_channels() {
            true => self.rows(),
            false => self.columns(),
        }
    }

    /// Numbers under the window in a tile of a weight's gradient.
    pub const fn under_window(&self) -> usize {
        match self.has_rows_of_channels() {
            true => self.columns(),
            false => self.rows(),
        }
    }

    /// Returns the distance in rows between a plane's instructions.
    pub const fn rows_apart(&self) -> usize {
        match self.instruction {
            Instruction::Mma => ROWS,
            Instruction::Wgmma => warpgroup::ROWS,
        }
    }

    /// Returns the rows of a plane.
    pub const fn plane_rows(&self) -> usize {
        self.tiles[0] * ROWS
    }

    /// Returns the columns of a plane.
    pub const fn plane_columns(&self) -> usize {
        self.tiles[1] * COLUMNS
    }

    /// Returns the units of a cube.
    pub const fn units(&self) -> usize {
        self.all_planes() * LANES
    }

    /// Returns the vectors of a stage that a unit copies, of the first factor and of the second.
    pub const fn copies(&self) -> [usize; 2] {
        let vectors = STAGE_DEPTH / VECTOR;
        [
            (vectors * self.rows()).div_ceil(self.units()),
            (vectors * self.columns()).div_ceil(self.units()),
        ]
    }

    /// Returns the planes of a cube.
    pub const fn all_planes(&self) -> usize {
        self.planes[0] * self.planes[1]
    }

    /// Returns the copies of a step.
    pub const fn all_copies(&self) -> usize {
        let [of_first, of_second] = self.copies();
        of_first + of_second
    }

    /// Returns the vectors from one row of the first factor's stage to the next.
    pub const fn first_pitch(&self) -> u32 {
        self.pitch(self.rows())
    }

    /// Returns the vectors from one row of the second factor's stage to the next.
    pub const fn second_pitch(&self) -> u32 {
        self.pitch(self.columns())
    }

    /// Returns the vectors of a stage before those of the second factor.
    pub const fn first_vectors(&self) -> u32 {
        match self.halo {
            Some(_) => 0,
            None => self.vectors_of(self.rows(), self.first_pitch()),
        }
    }

    /// Returns the vectors of a stage.
    pub const fn stage_vectors(&self) -> u32 {
        self.first_vectors() + self.vectors_of(self.columns(), self.second_pitch())
    }

    /// Vectors of a factor's stage with `numbers` rows or columns; `pitch` vectors from one row of
    /// the stage to the next.
    const fn vectors_of(&self, numbers: usize, pitch: u32) -> u32 {
        match (self.instruction, self.order) {
            (Instruction::Wgmma, _) => (numbers * STAGE_DEPTH / VECTOR) as u32,
            (Instruction::Mma, Order::Along) => numbers as u32 * pitch,
            (Instruction::Mma, Order::Across) => STAGE_DEPTH as u32 * pitch,
        }
    }

    /// Returns an odd number, so that eight rows, which are read at once, lie in different banks.
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

    /// Maximum shared memory of a cube, of compute capabilities 9.0, 8.0 and 8.9.
    const MEMORY: [usize; 3] = [232_448, 166_912, 101_376];

    #[test]
    fn a_processor_has_memory_for_its_cubes() {
        let instructions = [Instruction::Mma, Instruction::Wgmma];
        for (instruction, memory) in instructions
            .into_iter()
            .flat_map(|i| MEMORY.map(|m| (i, m)))
        {
            for order in [Order::Along, Order::Across] {
                // No other SM has `wgmma`.
                let fits = instruction == Instruction::Mma || memory == MEMORY[0];
                for tile in Tile::all(instruction, order, memory).filter(|_| fits) {
                    let all = tile.bytes() * tile.at_once() as usize;
                    assert!(all <= memory, "{tile:?}: {all}");
                }
            }
        }
    }

    #[test]
    fn a_processor_has_memory_for_sources_that_stay() {
        let slide = |size, channels| Slide {
            source: [size; 2],
            depth: channels,
            result: [size; 2],
            features: channels,
            window: [3; 2],
            stride: [1; 2],
            padding: [1; 2],
            back: false,
            split: false,
        };
        let sizes = [8, 16, 32, 64].map(|size| slide(size, 64));
        for tile in Tile::all(Instruction::Wgmma, Order::Along, MEMORY[0]) {
            for slide in sizes {
                let halo = Halo::of(&tile, slide, 256).unwrap();
                let tile = tile.with_halo(halo, MEMORY[0]);
                let all = tile.bytes() * tile.at_once() as usize;
                assert!(all <= MEMORY[0], "{tile:?}: {all}");
            }
        }
    }

    #[test]
    fn what_warpgroups_multiply_is_whole_blocks() {
        for tile in Tile::all(Instruction::Wgmma, Order::Across, MEMORY[0]) {
            assert_eq!(tile.columns() % warpgroup::NUMBERS, 0, "{tile:?}");
            assert_eq!(tile.rows() % warpgroup::ROWS, 0, "{tile:?}");
            // Sums, and the other registers of a unit.
            assert!(tile.sums() <= 160 && tile.at_once() >= 1, "{tile:?}");
            assert_eq!(STAGE_DEPTH, warpgroup::BLOCK);
        }
    }

    #[test]
    fn neighbouring_rows_lie_in_different_banks() {
        for order in [Order::Along, Order::Across] {
            for tile in Tile::all(Instruction::Mma, order, MEMORY[0]) {
                assert_eq!(tile.first_pitch() % 2, 1, "{tile:?}");
                assert_eq!(tile.second_pitch() % 2, 1, "{tile:?}");
            }
        }
    }
}

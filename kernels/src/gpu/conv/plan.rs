//! Chooses tiles for a product by their estimated time on a GPU like an H100.

use super::halo::Halo;
use super::parts::Parts;
use super::shape::Slide;
use super::tile::{Instruction, Order, STAGE_DEPTH, Tile};
use super::tune::CANDIDATES;
use super::weights;

/// Time to write a number of a part and read it again, in the unit of [`Tile::step_time`] per
/// [`Instruction::factor`]: 8 bytes at 3 TB/s. Each of 132 SMs takes 65 units in a nanosecond with
/// `mma`, whose factor is 100. An estimate, not measured.
const NUMBER: f64 = 0.0017;

/// Maximum number of times that the cubes of a gradient fill all SMs.
const WAVES: u32 = 8;

/// Maximum bytes of all parts of a gradient, unless one part takes more. cubecl's memory pages are
/// as large as the largest tensor, so this tensor would decide the memory of all others.
const PARTS: u32 = 64 << 20;

/// The relevant properties of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gpu {
    pub processors: u32,
    /// Maximum shared memory of a cube, in bytes.
    pub memory: usize,
    /// The instruction of its convolutions.
    pub instruction: Instruction,
    /// Whether sources may stay in shared memory.
    pub halos: bool,
}

impl Gpu {
    /// The time of `cubes` cubes with `steps` steps each.
    fn time(self, tile: Tile, slide: Slide, cubes: u32, steps: u32) -> f64 {
        let waves = cubes.div_ceil(self.processors.max(1) * tile.at_once());
        f64::from(waves) * (f64::from(steps) + tile.beside_steps()) * tile.step_time(slide)
    }

    /// For a convolution of `batch` images, or their gradient: the fastest first, by estimate.
    pub fn tiles(self, slide: Slide, batch: u32) -> Vec<Tile> {
        let halo = |tile: Tile| {
            let halo = Halo::of(&tile, slide, batch).filter(|_| self.halos)?;
            Some(tile.with_halo(halo, self.memory))
        };
        let tiles = Tile::all(self.instruction, Order::Along, self.memory);
        let tiles = tiles.flat_map(|tile| [Some(tile), halo(tile)]).flatten();
        self.sorted(tiles, |tile| {
            let cubes = slide.below(*tile, batch) * slide.beside(*tile) * slide.grids();
            let summed = slide.under_window() * slide.terms();
            let steps = summed.div_ceil(STAGE_DEPTH as u32 * slide.grids());
            self.time(*tile, slide, cubes, steps)
        })
    }

    /// For the gradient of a convolution's weight, over `pixels` pixels: the fastest first, in the
    /// best parts for it.
    pub fn tiles_and_parts(self, slide: Slide, pixels: u32) -> (Vec<Tile>, Parts) {
        let numbers = slide.features * slide.under_window();
        let steps = pixels.div_ceil(STAGE_DEPTH as u32);
        let cubes = |tile: &Tile| weights::cubes(slide, *tile).iter().product::<u32>();
        let time = |tile: &Tile, parts: Parts| {
            let written =
                f64::from(numbers) * f64::from(parts.count) * NUMBER * tile.instruction.factor();
            self.time(
                *tile,
                slide,
                cubes(tile) * parts.count,
                parts.steps * slide.terms(),
            ) + written
        };
        // As many parts as fill the SMs once, or twice, and so on.
        let fastest = |tile: Tile| {
            let at_once = self.processors * tile.at_once();
            let most = (PARTS / size_of::<f32>() as u32 / numbers.max(1)).max(1);
            let counts = (1..=WAVES).map(|waves| (waves * at_once / cubes(&tile)).min(most));
            let parts = counts.map(|count| Parts::new(steps, count));
            let timed = parts.map(|parts| (time(&tile, parts), parts));
            timed.min_by(|(a, _), (b, _)| a.total_cmp(b))
        };
        let tiles = || Tile::all(self.instruction, Order::Across, self.memory);
        let timed = self.fitting(tiles()).filter_map(fastest);
        let fastest = timed.min_by(|(a, _), (b, _)| a.total_cmp(b));
        let parts = fastest.map_or(Parts::new(steps, 1), |(_, parts)| parts);
        (self.sorted(tiles(), |tile| time(tile, parts)), parts)
    }

    /// The tiles that fit into memory, the least `time` first, which is computed once for each.
    fn sorted(self, tiles: impl Iterator<Item = Tile>, time: impl Fn(&Tile) -> f64) -> Vec<Tile> {
        let timed = self.fitting(tiles).map(|tile| (time(&tile), tile));
        let mut timed: Vec<(f64, Tile)> = timed.collect();
        timed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        // All of them must use one layout of the weight.
        let has_halo = |tile: &Tile| tile.halo.is_some();
        let best = timed.first().map(|(_, tile)| has_halo(tile));
        let tiles = timed.into_iter().map(|(_, tile)| tile);
        let tiles = tiles.filter(|tile| Some(has_halo(tile)) == best);
        tiles.take(CANDIDATES).collect()
    }

    /// The tiles that fit into memory.
    fn fitting(self, tiles: impl Iterator<Item = Tile>) -> impl Iterator<Item = Tile> {
        tiles.filter(move |tile| tile.bytes() <= self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100: Gpu = Gpu {
        processors: 132,
        memory: 232_448,
        instruction: Instruction::Wgmma,
        halos: true,
    };

    const WITHOUT_WARPGROUPS: Gpu = Gpu {
        instruction: Instruction::Mma,
        halos: false,
        ..H100
    };

    /// Returns a convolution that keeps the image size.
    fn slide(size: u32, depth: u32, features: u32) -> Slide {
        Slide {
            source: [size; 2],
            depth,
            result: [size; 2],
            features,
            window: [3; 2],
            stride: [1; 2],
            padding: [1; 2],
            back: false,
            split: false,
        }
    }

    #[test]
    fn little_is_computed_in_vain() {
        for (size, features, columns) in
            [(32, 160, 160), (16, 320, 160), (32, 64, 64), (32, 16, 32)]
        {
            for gpu in [H100, WITHOUT_WARPGROUPS] {
                let tiles = gpu.tiles(slide(size, features, features), 256);
                assert_eq!(tiles[0].columns(), columns, "{features}: {tiles:?}");
            }
        }
    }

    #[test]
    fn sources_stay_where_windows_overlap() {
        let stays = |slide, batch| H100.tiles(slide, batch)[0].halo.is_some();
        let sizes = [(32, 160), (16, 320), (8, 640), (56, 64), (14, 256)];
        for (size, channels) in sizes {
            assert!(stays(slide(size, channels, channels), 256), "{channels}");
        }
        let one = Slide {
            window: [1; 2],
            padding: [0; 2],
            ..slide(32, 160, 160)
        };
        assert!(!stays(one, 256));
        // Nine of the pixels of a square would be an image's.
        assert!(!stays(slide(3, 64, 64), 1 << 16));
    }

    #[test]
    fn all_processors_compute_a_gradient() {
        let sizes = [(32, 160), (16, 320), (8, 640), (32, 16)];
        let gpus = [H100, WITHOUT_WARPGROUPS].into_iter();
        for (gpu, (size, channels)) in gpus.flat_map(|gpu| sizes.map(|size| (gpu, size))) {
            let slide = slide(size, channels, channels);
            let (tiles, parts) = gpu.tiles_and_parts(slide, 256 * size * size);
            let tile = tiles[0];
            let cubes = weights::cubes(slide, tile).iter().product::<u32>() * parts.count;
            let at_once = gpu.processors * tile.at_once();
            let busy = f64::from(cubes) / f64::from(cubes.next_multiple_of(at_once));
            assert!(busy > 0.8, "{channels}: {tile:?} {parts:?}");
            let bytes = 4 * parts.count * channels * slide.under_window();
            assert!(bytes <= PARTS, "{channels}: {parts:?}");
        }
    }

    #[test]
    fn nothing_is_taken_without_memory() {
        let none = Gpu {
            memory: 16_384,
            ..H100
        };
        assert_eq!(none.tiles(slide(8, 160, 160), 1), []);
    }
}

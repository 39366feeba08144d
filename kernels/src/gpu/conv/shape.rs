//! Sizes of the sliding window: all constants of a kernel except for the number of images.

use super::super::split::{HALVES, TERMS};
use super::super::tensor_cores::Keep;
use super::tile::{STAGE_DEPTH, Tile};

/// A convolution, or the gradient of its images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slide {
    /// Height and width of the source.
    pub source: [u32; 2],
    /// Channels of the source.
    pub depth: u32,
    /// Height and width of the result.
    pub result: [u32; 2],
    /// Channels of the result.
    pub features: u32,
    /// Height and width of the window.
    pub window: [u32; 2],
    /// Stride of the convolution's window.
    pub stride: [u32; 2],
    /// Zeros around the images of the convolution: above and below, left and right.
    pub padding: [u32; 2],
    /// Whether this is the gradient; `source` is then the gradient of the result.
    pub back: bool,
    /// True if numbers are split into halves.
    pub split: bool,
}

impl Slide {
    /// Pixels of the result that see the same part of the window: all pixels of a convolution; the
    /// pixels of its gradient that are a stride apart.
    pub const fn grid(&self) -> [u32; 2] {
        let [height, width] = self.result;
        match self.back {
            true => [
                height.div_ceil(self.stride[0]),
                width.div_ceil(self.stride[1]),
            ],
            false => [height, width],
        }
    }

    /// Number of grids of the result.
    pub const fn grids(&self) -> u32 {
        match self.back {
            true => self.stride[0] * self.stride[1],
            false => 1,
        }
    }

    /// Cubes for the rows of the product of `batch` images, in one grid.
    pub fn below(&self, tile: Tile, batch: u32) -> u32 {
        let [height, width] = self.grid();
        match tile.halo {
            Some(halo) => halo.cubes(*self, batch),
            None => (batch * height * width).div_ceil(tile.rows() as u32),
        }
    }

    /// Returns the cubes along the product's columns.
    pub const fn beside(&self, tile: Tile) -> u32 {
        self.features.div_ceil(tile.columns() as u32)
    }

    /// Returns true if the numbers of a step are channels of one place in the window.
    pub const fn is_divided(&self) -> bool {
        self.depth.is_multiple_of(STAGE_DEPTH as u32)
    }

    /// The caches for the source, which mostly lies under the window several times. CUTLASS's
    /// convolutions keep it near, and weights far.
    pub const fn keep(&self) -> Keep {
        match self.window {
            [1, 1] => Keep::Far,
            _ => Keep::Near,
        }
    }

    /// Parts of a number of the source: 2 if it is split.
    pub const fn halves(&self) -> u32 {
        if self.split { HALVES } else { 1 }
    }

    /// Partial products of a product.
    pub const fn terms(&self) -> u32 {
        if self.split { TERMS } else { 1 }
    }

    /// Returns the number of values under the window.
    pub const fn under_window(&self) -> u32 {
        self.window[0] * self.window[1] * self.depth
    }
}

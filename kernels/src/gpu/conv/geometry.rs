//! All sizes of a convolution, checked.

use super::super::tensor_cores::VECTOR;
use super::ConvOptions;
use super::shape::Slide;

/// Maximum cubes above one another that CUDA launches.
const MOST_GRIDS: u32 = 65_535;

/// All sizes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub batch: u32,
    pub inputs: u32,
    pub outputs: u32,
    /// Height and width of the images, of the window and of the result.
    images: [u32; 2],
    window: [u32; 2],
    result: [u32; 2],
    stride: [u32; 2],
    padding: [u32; 2],
    /// True if numbers are split into halves.
    split: bool,
}

impl Geometry {
    /// `None` if the window does not fit, a size is beyond the range of the kernels, or the stride
    /// is beyond their cubes.
    pub fn new(x: [usize; 4], weight: [usize; 4], options: ConvOptions) -> Option<Self> {
        let [batch, inputs, images @ ..] = narrow(x)?;
        let [outputs, of_weight, window @ ..] = narrow(weight)?;
        let [stride, padding] = [narrow(options.stride)?, narrow(options.padding)?];
        let size = |d: usize| {
            let padded = padding[d].checked_mul(2)?.checked_add(images[d])?;
            let steps = padded.checked_sub(window[d])?.checked_div(stride[d])?;
            steps.checked_add(1)
        };
        let result = [size(0)?, size(1)?];
        // In the gradient of the images, each place of a stride has its own grid of cubes.
        let grids = stride[0].checked_mul(stride[1])?;
        let is_empty = [batch, inputs, outputs, window[0], window[1]].contains(&0);
        let geometry = Self {
            batch,
            inputs,
            outputs,
            images,
            window,
            result,
            stride,
            padding,
            split: false,
        };
        geometry
            .counted()
            .filter(|_| !is_empty && of_weight == inputs && grids <= MOST_GRIDS)
    }

    /// The same with numbers that are split in halves or not.
    pub fn split(self, split: bool) -> Self {
        Self { split, ..self }
    }

    /// Whether numbers are split.
    pub fn is_split(self) -> bool {
        self.split
    }

    /// Returns a copy with channels rounded up to whole vectors.
    pub fn widened(self) -> Option<Self> {
        let widened = |channels: u32| channels.checked_next_multiple_of(VECTOR as u32);
        Self {
            inputs: widened(self.inputs)?,
            outputs: widened(self.outputs)?,
            ..self
        }
        .counted()
    }

    /// `None` if a size is beyond the range of the kernels: 2³² pairs of numbers.
    fn counted(self) -> Option<Self> {
        let numbers = |[height, width]: [u32; 2], channels: u32| {
            let numbers = self.batch.checked_mul(height)?.checked_mul(width)?;
            numbers.checked_mul(channels.div_ceil(2))
        };
        numbers(self.images, self.inputs)?;
        numbers(self.result, self.outputs)?;
        let weight = self.outputs.checked_mul(self.inputs)?;
        weight
            .checked_mul(self.window[0])?
            .checked_mul(self.window[1])?;
        Some(self)
    }

    /// Returns the convolution.
    pub fn slide(self) -> Slide {
        Slide {
            source: self.images,
            depth: self.inputs,
            result: self.result,
            features: self.outputs,
            window: self.window,
            stride: self.stride,
            padding: self.padding,
            back: false,
            split: self.split,
        }
    }

    /// Returns the number of places in the window.
    pub fn in_window(self) -> u32 {
        self.window[0] * self.window[1]
    }

    /// Returns the number of result pixels of all images.
    pub fn pixels(self) -> u32 {
        self.batch * self.result[0] * self.result[1]
    }

    /// Returns the gradient of the convolution's images.
    pub fn slide_back(self) -> Slide {
        Slide {
            source: self.result,
            depth: self.outputs,
            result: self.images,
            features: self.inputs,
            back: true,
            ..self.slide()
        }
    }
}

fn narrow<const N: usize>(sizes: [usize; N]) -> Option<[u32; N]> {
    let mut narrow = [0; N];
    for (narrow, size) in narrow.iter_mut().zip(sizes) {
        *narrow = u32::try_from(size).ok()?;
    }
    Some(narrow)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: ConvOptions = ConvOptions {
        stride: [2, 1],
        padding: [1, 0],
    };

    #[test]
    fn sizes_of_a_result() {
        let geometry = Geometry::new([4, 16, 9, 8], [32, 16, 3, 3], OPTIONS);
        assert_eq!(geometry.unwrap().result, [5, 6]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let cases = [
            ([4, 16, 9, 2], [32, 16, 3, 3], OPTIONS),
            ([4, 16, 9, 8], [32, 8, 3, 3], OPTIONS),
            ([0, 16, 9, 8], [32, 16, 3, 3], OPTIONS),
            ([1 << 20, 16, 1 << 10, 1 << 10], [32, 16, 3, 3], OPTIONS),
            (
                [4, 16, 9, 8],
                [32, 16, 3, 3],
                ConvOptions {
                    stride: [0, 1],
                    ..OPTIONS
                },
            ),
            (
                [4, 16, 9, 8],
                [32, 16, 3, 3],
                ConvOptions {
                    stride: [256, 256],
                    ..OPTIONS
                },
            ),
            (
                [4, 16, 9, 8],
                [32, 16, 3, 3],
                ConvOptions {
                    padding: [usize::MAX, 1],
                    ..OPTIONS
                },
            ),
        ];
        for (x, weight, options) in cases {
            assert_eq!(
                Geometry::new(x, weight, options),
                None,
                "{x:?} {weight:?} {options:?}"
            );
        }
    }
}

//! Resamples a position embedding to another number of patches, so that weights for one image size
//! start a training on another.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::F32;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

/// Largest embedding to create, in elements: a file from anywhere may claim a small grid.
const MOST_NUMBERS: usize = 1 << 27;

/// The position embedding of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Path in the model of the tensor \[1, tokens, dim\].
    pub path: String,
    /// Patches of an image, in rows and columns.
    pub grid: [usize; 2],
    /// Tokens before the patches, which have no position.
    pub prefix: usize,
}

impl Positions {
    /// Side of the square grid of a tensor of `shape`, as in all published weights. `None` if it
    /// cannot be resampled to this grid.
    pub(crate) fn square(&self, shape: &[usize], shape_in_model: &[usize]) -> Option<usize> {
        let ([1, tokens, dim], [1, _, dim_in_model]) = (shape, shape_in_model) else {
            return None;
        };
        let side = tokens.checked_sub(self.prefix)?.isqrt();
        let fits = side > 0 && side * side + self.prefix == *tokens && dim == dim_in_model;
        fits.then_some(side)
    }

    /// Resamples `values` from [1, prefix + side × side, dim] to [1, prefix + rows × columns, dim].
    ///
    /// It uses cubic convolution with a = -1/2 and widens the filter for a reduction, as timm does
    /// (`resample_abs_pos_embed`, and PyTorch's `interpolate(mode="bicubic", antialias=True)`).
    ///
    /// # Errors
    /// Fails if there are more patches than an image may have pixels, or far too many elements.
    pub(crate) fn resample(&self, values: &[f32], side: usize) -> Result<Vec<f32>, String> {
        let [rows, columns] = self.grid;
        let dim = values.len() / (self.prefix + side * side);
        let (prefix, patches) = values.split_at(self.prefix * dim);
        let numbers = rows
            .checked_mul(columns)
            .and_then(|patches| patches.checked_mul(dim));
        let Some(numbers) = numbers.filter(|numbers| *numbers <= MOST_NUMBERS) else {
            return Err(format!(
                "cannot be resampled to {rows}×{columns} patches of width {dim}"
            ));
        };
        let mut resampled = vec![0.0; numbers];
        let mut resizer = Resizer::new();
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom))
            .use_alpha(false);
        for index in 0..dim {
            let plane = patches.iter().skip(index).step_by(dim);
            let plane: Vec<F32> = plane.map(|value| F32::new(*value)).collect();
            let (from, to) = (pixels(side)?, [pixels(columns)?, pixels(rows)?]);
            let plane =
                TypedImageRef::new(from, from, &plane).map_err(|error| error.to_string())?;
            let mut other = TypedImage::<F32>::new(to[0], to[1]);
            let resized = resizer.resize_typed(&plane, &mut other, &options);
            resized.map_err(|error| error.to_string())?;
            let places = resampled.iter_mut().skip(index).step_by(dim);
            for (place, pixel) in places.zip(other.pixels()) {
                *place = pixel.0;
            }
        }
        Ok([prefix, &resampled].concat())
    }
}

fn pixels(side: usize) -> Result<u32, String> {
    u32::try_from(side).map_err(|_| format!("has {side} patches in a row"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(grid: [usize; 2], prefix: usize) -> Positions {
        Positions {
            path: "pos_embed".to_owned(),
            grid,
            prefix,
        }
    }

    /// Results of `torch.nn.functional.interpolate(grid, size, mode="bicubic", antialias=True)` in
    /// PyTorch 2.15.
    #[test]
    fn patches_are_resampled_as_pytorch_does() {
        let value =
            |patch: usize, index: usize| ((patch * 37 + index * 11) % 23) as f32 / 8.0 - 1.0;
        let from = |side: usize| -> Vec<f32> {
            (0..side * side)
                .flat_map(|patch| [value(patch, 0), value(patch, 1)])
                .collect()
        };
        let larger = [
            -1.2819979, 0.4828393, 0.1324969, -0.5663576, 0.5058355, -0.2892294, -0.3960328,
            1.1404885, -0.1833301, 0.2281062, 0.4081746, 0.0969024, 0.1810949, 0.3740305,
            -0.7222099, 0.8857554, 1.4337686, -0.2164179, 0.7488307, 1.0507483, -0.2488307,
            1.3278764, -0.9337687, 0.4412313, 1.2222096, -0.5701576, 0.3189049, 0.7934479,
            0.0918255, 1.070576, 0.6833304, 0.0874916, 0.8960328, -0.7541537, -0.0058355,
            0.5130125, 0.3675031, 0.7901406, 1.7819979, -0.0965045,
        ];
        let smaller = [
            -0.1879778, -0.0044412, 0.4629893, 0.4237602, 0.8837626, 0.6255843, 0.1312997,
            0.2813643, 0.4806301, 0.7913862, 0.684225, -0.3741356,
        ];
        for (side, grid, expected) in [(3, [5, 4], &larger[..]), (5, [2, 3], &smaller)] {
            for prefix in [vec![], vec![7.0, 8.0]] {
                let given = [&prefix[..], &from(side)].concat();
                let found = positions(grid, prefix.len() / 2).resample(&given, side);
                let expected = [&prefix[..], expected].concat();
                let found = found.unwrap();
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(&expected) {
                    assert!((found - expected).abs() < 1e-6, "{found} {expected}");
                }
            }
        }
    }

    #[test]
    fn embeddings_without_bound_are_refused() {
        for grid in [[1 << 14, 1 << 14], [usize::MAX, 2]] {
            let error = positions(grid, 0).resample(&[0.0; 4], 2).unwrap_err();
            assert!(error.contains("cannot be resampled"), "{error}");
        }
        let small = positions([1 << 10, 1], 0).resample(&[1.0; 4], 2).unwrap();
        assert_eq!(small.len(), 1 << 10);
    }

    #[test]
    fn only_squares_of_the_same_width_become_other_grids() {
        let with_token = positions([2, 3], 1);
        let square = |shape: &[usize]| with_token.square(shape, &[1, 7, 8]);
        assert_eq!(square(&[1, 197, 8]), Some(14));
        assert_eq!(square(&[1, 2, 8]), Some(1));
        for other in [
            &[1, 196, 8][..],
            &[1, 197, 9],
            &[2, 197, 8],
            &[197, 8],
            &[1, 1, 8],
            &[1, 0, 8],
        ] {
            assert_eq!(square(other), None, "{other:?}");
        }
        assert_eq!(
            positions([2, 3], 0).square(&[1, 196, 8], &[1, 6, 8]),
            Some(14)
        );
    }
}

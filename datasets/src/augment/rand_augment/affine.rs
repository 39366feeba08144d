//! Shears, translations and rotations: every pixel takes the value of the pixel nearest to where
//! it came from, black where that is outside.

use crate::ImageShape;

/// From a pixel to its source, both measured from the centre of the image:
/// `(xx x + xy y + x0, yx x + yy y + y0)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Affine {
    xx: f32,
    xy: f32,
    x0: f32,
    yx: f32,
    yy: f32,
    y0: f32,
}

const IDENTITY: Affine = Affine {
    xx: 1.0,
    xy: 0.0,
    x0: 0.0,
    yx: 0.0,
    yy: 1.0,
    y0: 0.0,
};

impl Affine {
    /// Rows move to the left by `by` for every row from the upper border on.
    pub(super) fn shear_x(by: f32, shape: ImageShape) -> Self {
        Affine {
            xy: by,
            x0: by * shape.height as f32 / 2.0,
            ..IDENTITY
        }
    }

    /// Columns move up by `by` for every column from the left border on.
    pub(super) fn shear_y(by: f32, shape: ImageShape) -> Self {
        Affine {
            yx: by,
            y0: by * shape.width as f32 / 2.0,
            ..IDENTITY
        }
    }

    /// The image moves by `right` columns and `down` rows.
    pub(super) fn translate(right: f32, down: f32) -> Self {
        Affine {
            x0: -right,
            y0: -down,
            ..IDENTITY
        }
    }

    /// The image turns counter-clockwise around its centre.
    pub(super) fn rotate(radians: f32) -> Self {
        let (sin, cos) = radians.sin_cos();
        Affine {
            xx: cos,
            xy: -sin,
            yx: sin,
            yy: cos,
            ..IDENTITY
        }
    }

    /// Writes the moved image `from` to `to`; both have the same `shape`.
    pub(super) fn apply(&self, shape: ImageShape, from: &[u8], to: &mut [u8]) {
        let ImageShape { height, width, .. } = shape;
        let plane = height * width;
        let (centre_x, centre_y) = ((width as f32 - 1.0) / 2.0, (height as f32 - 1.0) / 2.0);
        for y in 0..height {
            let down = y as f32 - centre_y;
            for x in 0..width {
                let right = x as f32 - centre_x;
                let source_x = self.xx * right + self.xy * down + self.x0 + centre_x;
                let source_y = self.yx * right + self.yy * down + self.y0 + centre_y;
                let source = nearest(source_x, width)
                    .zip(nearest(source_y, height))
                    .map(|(x, y)| y * width + x);
                for (from, to) in from.chunks_exact(plane).zip(to.chunks_exact_mut(plane)) {
                    to[y * width + x] = source.map_or(0, |source| from[source]);
                }
            }
        }
    }
}

/// The position in `0..length` nearest to `position`, if that is one.
fn nearest(position: f32, length: usize) -> Option<usize> {
    // Shifted, so that the conversion, which cuts off towards zero, rounds down.
    let shifted = (position + 0.5 + 1.0) as isize - 1;
    usize::try_from(shifted).ok().filter(|&at| at < length)
}

//! Shears, translations and rotations: every pixel takes the value of the pixel nearest to its
//! source, or black if that is outside.

use crate::ImageShape;

/// Maps a pixel to its source, both measured from the centre of the image: `(xx x + xy y + x0, yx x
/// + yy y + y0)`.
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
    /// Moves each row to the left by `by` times its distance from the upper border.
    pub(super) fn shear_x(by: f32, shape: ImageShape) -> Self {
        Affine {
            xy: by,
            x0: by * shape.height as f32 / 2.0,
            ..IDENTITY
        }
    }

    /// Moves each column up by `by` times its distance from the left border.
    pub(super) fn shear_y(by: f32, shape: ImageShape) -> Self {
        Affine {
            yx: by,
            y0: by * shape.width as f32 / 2.0,
            ..IDENTITY
        }
    }

    /// Moves the image by `right` columns and `down` rows.
    pub(super) fn translate(right: f32, down: f32) -> Self {
        Affine {
            x0: -right,
            y0: -down,
            ..IDENTITY
        }
    }

    /// Rotates the image counter-clockwise around its centre.
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

    /// Writes the source of every pixel of a plane to `sources`, [`OUTSIDE`] if there is none.
    pub(super) fn sources(&self, shape: ImageShape, sources: &mut Vec<u32>) {
        let ImageShape { height, width, .. } = shape;
        let (centre_x, centre_y) = ((width as f32 - 1.0) / 2.0, (height as f32 - 1.0) / 2.0);
        sources.clear();
        for y in 0..height {
            let down = y as f32 - centre_y;
            let row = (0..width).map(|x| {
                let right = x as f32 - centre_x;
                let x = nearest(self.xx * right + self.xy * down + self.x0 + centre_x);
                let y = nearest(self.yx * right + self.yy * down + self.y0 + centre_y);
                let inside = x < width as u32 && y < height as u32;
                if inside {
                    y * width as u32 + x
                } else {
                    OUTSIDE
                }
            });
            sources.extend(row);
        }
    }
}

/// Not the index of a pixel: a plane of this size does not fit into memory.
const OUTSIDE: u32 = u32::MAX;

/// Writes the value of its source in `from` to every pixel of each plane of `to`.
pub(super) fn gather(sources: &[u32], from: &[u8], to: &mut [u8]) {
    let plane = sources.len();
    for (from, to) in from.chunks_exact(plane).zip(to.chunks_exact_mut(plane)) {
        for (to, &source) in to.iter_mut().zip(sources) {
            *to = from.get(source as usize).copied().unwrap_or(0);
        }
    }
}

/// The index nearest to `position`; a negative position becomes larger than all indices.
fn nearest(position: f32) -> u32 {
    // Shifted, because the conversion truncates towards zero and must round down.
    ((position + 1.5) as i32 - 1) as u32
}

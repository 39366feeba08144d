//! Moving an image within its frame and mirroring it, in one pass over its rows.

use crate::ImageShape;
use crate::random::Stream;

/// What comes in where an image was moved away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Border {
    /// Black.
    Zero,
    /// The image, mirrored at the centre of its outermost pixels, which are not repeated.
    Reflect,
}

/// Where an image lands in its frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) down: isize,
    pub(super) right: isize,
    /// Left to right, after the move.
    pub(super) mirrored: bool,
}

impl Placement {
    /// Draws both moves uniformly from `-reach..=reach`.
    pub(super) fn draw_offsets(&mut self, reach: u8, stream: &mut Stream) {
        let mut offset = || stream.below(2 * u64::from(reach) + 1) as isize - isize::from(reach);
        self.down = offset();
        self.right = offset();
    }

    /// Writes the placed image `from` to `to`; both have the same `shape`.
    pub(super) fn apply(&self, border: Border, shape: ImageShape, from: &[u8], to: &mut [u8]) {
        let ImageShape { height, width, .. } = shape;
        let plane = height * width;
        if plane == 0 {
            return;
        }
        for (from, to) in from.chunks_exact(plane).zip(to.chunks_exact_mut(plane)) {
            for (y, to) in to.chunks_exact_mut(width).enumerate() {
                let source = border.source(y as isize - self.down, height);
                match source.and_then(|y| from.get(y * width..(y + 1) * width)) {
                    Some(row) => self.write_row(border, row, to),
                    None => to.fill(0),
                }
                if self.mirrored {
                    to.reverse();
                }
            }
        }
    }

    /// Writes `row`, moved to the right, to `to` of the same length.
    fn write_row(&self, border: Border, row: &[u8], to: &mut [u8]) {
        let width = row.len();
        let moved = self.right.unsigned_abs().min(width);
        let (inner, start) = if self.right >= 0 {
            to[moved..].copy_from_slice(&row[..width - moved]);
            (&mut to[..moved], 0)
        } else {
            to[..width - moved].copy_from_slice(&row[moved..]);
            (&mut to[width - moved..], width - moved)
        };
        match border {
            Border::Zero => inner.fill(0),
            Border::Reflect => {
                for (x, to) in (start as isize..).zip(inner) {
                    *to = row[reflect(x - self.right, width)];
                }
            }
        }
    }
}

impl Border {
    /// Which row of `height` is seen at `y`; none for black.
    fn source(self, y: isize, height: usize) -> Option<usize> {
        match self {
            Border::Zero => usize::try_from(y).ok(),
            Border::Reflect => Some(reflect(y, height)),
        }
    }
}

/// The position in `0..len` that is seen at `position` when the line goes back and forth.
fn reflect(position: isize, len: usize) -> usize {
    let last = len as isize - 1;
    // One reflection is the rule; the division for more is slow.
    let once = position.abs().min(2 * last - position.abs());
    if once >= 0 {
        return once as usize;
    }
    match last {
        0 => 0,
        _ => {
            let phase = position.rem_euclid(2 * last);
            phase.min(2 * last - phase) as usize
        }
    }
}

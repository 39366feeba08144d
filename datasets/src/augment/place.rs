//! Moves an image within its frame and mirrors it, in one pass over its rows.

use crate::ImageShape;
use crate::random::Stream;

/// The pixels that come in when an image is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Border {
    /// Black.
    Zero,
    /// The image, mirrored at the centre of its outermost pixels, which are not repeated.
    Reflect,
}

/// Place of an image in its frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) down: isize,
    pub(crate) right: isize,
    /// Left to right, after the move.
    pub(crate) mirrored: bool,
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
    /// The row among `height` that is visible at `y`; `None` for black.
    fn source(self, y: isize, height: usize) -> Option<usize> {
        match self {
            Border::Zero => usize::try_from(y).ok(),
            Border::Reflect => Some(reflect(y, height)),
        }
    }
}

/// The position in `0..len` that is visible at `position` when the line goes back and forth.
fn reflect(position: isize, len: usize) -> usize {
    let last = len as isize - 1;
    // Usually one reflection is enough; the division for more is slow.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;
    use proptest::prelude::*;

    const SHAPE: ImageShape = ImageShape {
        channels: 2,
        height: 3,
        width: 4,
    };

    fn placed(place: Placement, border: Border, image: &[u8]) -> Vec<u8> {
        let mut out = vec![77; image.len()];
        place.apply(border, SHAPE, image, &mut out);
        out
    }

    #[test]
    fn reflection_is_numpys() {
        // np.pad([0, 1, 2, 3], 7, "reflect"): ends are not repeated, and the pattern is periodic.
        let padded: Vec<usize> = (-7..11).map(|position| reflect(position, 4)).collect();
        let expected = [1, 0, 1, 2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1, 2, 3, 2];
        assert_eq!(padded, expected);
        assert!((-300..300).all(|position| reflect(position, 1) == 0));
    }

    #[test]
    fn every_offset_occurs_and_none_beyond_reach() {
        let mut stream = Stream::new(Purpose::Augment, 5, 6, 7);
        let mut counts = std::collections::HashMap::new();
        for _ in 0..900 {
            let mut place = Placement::default();
            place.draw_offsets(1, &mut stream);
            *counts.entry((place.down, place.right)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 9);
        assert!(counts.values().all(|n| (60..150).contains(n)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn images_are_moved_then_mirrored(image in prop::collection::vec(any::<u8>(), 24),
                                          down in -9isize..10, right in -9isize..10,
                                          mirrored: bool, reflects: bool) {
            let border = if reflects { Border::Reflect } else { Border::Zero };
            let out = placed(Placement { down, right, mirrored }, border, &image);
            for channel in 0..2 {
                for y in 0..3isize {
                    for x in 0..4isize {
                        let framed = if mirrored { 3 - x } else { x };
                        let (y_from, x_from) = (y - down, framed - right);
                        let inside = (0..3).contains(&y_from) && (0..4).contains(&x_from);
                        let (y_from, x_from) = (walk(y_from, 3), walk(x_from, 4));
                        let seen = image[channel * 12 + y_from * 4 + x_from];
                        let expected = if inside || reflects { seen } else { 0 };
                        prop_assert_eq!(out[channel * 12 + (y * 4 + x) as usize], expected);
                    }
                }
            }
        }

        #[test]
        fn mirroring_twice_changes_nothing(image in prop::collection::vec(any::<u8>(), 24)) {
            let mirror = Placement { mirrored: true, ..Placement::default() };
            let once = placed(mirror, Border::Zero, &image);
            prop_assert_eq!(placed(mirror, Border::Zero, &once), image);
        }
    }

    /// Reflection step by step: turns around at every end.
    fn walk(target: isize, len: usize) -> usize {
        let (mut at, mut step) = (0_isize, target.signum());
        for _ in 0..target.abs() {
            if !(0..len as isize).contains(&(at + step)) {
                step = -step;
            }
            at += step;
        }
        at as usize
    }
}

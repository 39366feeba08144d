//! A rectangle of an image's pixels, as parts of its rows.

use std::ops::Range;

use crate::ImageShape;

/// A rectangle of an image's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Number of rows above it.
    pub top: usize,
    /// Number of columns to the left of it.
    pub left: usize,
    /// Number of rows.
    pub height: usize,
    /// Number of columns.
    pub width: usize,
}

impl Area {
    /// `height` rows and `width` columns around the pixel (`y`, `x`), clipped at the borders of an
    /// image. For an even number, the greater half lies before the pixel.
    pub(crate) fn around(y: usize, x: usize, height: usize, width: usize, of: ImageShape) -> Self {
        let (top, height) = clip(y, height, of.height);
        let (left, width) = clip(x, width, of.width);
        Area {
            top,
            left,
            height,
            width,
        }
    }

    /// Whether it lies within an image of this size, with at least one pixel if the image has any.
    pub(crate) fn fits(&self, height: usize, width: usize) -> bool {
        let inside = |start: usize, len: usize, of: usize| {
            start.checked_add(len).is_some_and(|end| end <= of)
        };
        let some = self.height > 0 && self.width > 0;
        let inside = inside(self.top, self.height, height) && inside(self.left, self.width, width);
        inside && (some || height == 0 || width == 0)
    }

    /// Number of pixels.
    pub(crate) fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Its rows in the bytes of an image of this shape, plane after plane.
    pub(crate) fn rows(&self, shape: ImageShape) -> impl Iterator<Item = Range<usize>> {
        let area = *self;
        (0..shape.channels).flat_map(move |channel| {
            (area.top..area.top + area.height).map(move |y| {
                let start = (channel * shape.height + y) * shape.width + area.left;
                start..start + area.width
            })
        })
    }
}

/// Start and length of `length` positions around `centre`, clipped to `0..end`.
fn clip(centre: usize, length: usize, end: usize) -> (usize, usize) {
    let start = centre.saturating_sub(length / 2);
    let stop = (centre + length - length / 2).min(end);
    (start, stop.saturating_sub(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DatasetError;

    const SHAPE: ImageShape = ImageShape {
        channels: 2,
        height: 4,
        width: 5,
    };

    #[test]
    fn rows_of_all_planes() {
        let area = Area::around(2, 1, 2, 3, SHAPE);
        assert_eq!((area.top, area.left, area.pixels()), (1, 0, 6));
        let rows: Vec<_> = area.rows(SHAPE).collect();
        assert_eq!(rows, [5..8, 10..13, 25..28, 30..33]);
    }

    #[test]
    fn what_is_no_part_of_an_image_is_refused() {
        let area = |top, left, height, width| Area {
            top,
            left,
            height,
            width,
        };
        for part in [area(0, 0, 4, 5), area(3, 4, 1, 1), area(1, 0, 3, 2)] {
            assert!(part.fits(4, 5));
        }
        for other in [
            area(0, 0, 5, 5),
            area(0, 1, 4, 5),
            area(4, 0, 1, 1),
            area(usize::MAX, 0, 2, 1),
            area(0, 0, 0, 5),
            area(1, 1, 1, 0),
        ] {
            let error = DatasetError::check_area(other, 4, 5)
                .unwrap_err()
                .to_string();
            assert!(error.contains("4×5"), "{error}");
        }
        assert!(area(0, 0, 0, 5).fits(0, 5));
    }

    #[test]
    fn borders_clip() {
        for (y, x, side, height, width) in [
            (0, 0, 2, 1, 1),
            (3, 4, 2, 2, 2),
            (3, 4, 4, 3, 3),
            (2, 2, 100, 4, 5),
            (1, 1, 0, 0, 0),
        ] {
            let area = Area::around(y, x, side, side, SHAPE);
            assert_eq!((area.height, area.width), (height, width), "{y} {x} {side}");
            assert!(area.rows(SHAPE).all(|row| row.end <= SHAPE.len()));
        }
    }
}

//! Lays out images with captions in one picture.

use image::imageops::{self, FilterType};
use image::{Rgb, RgbImage};

use super::writing::{LINE, Writer};

const MARGIN: u32 = 6;
/// Width to which small images are enlarged, so that pixels and captions are visible.
const COMFORTABLE: u32 = 112;
/// Maximum side of a picture, in pixels.
const LARGEST: u32 = 16_384;
const PAPER: Rgb<u8> = Rgb([255, 255, 255]);

/// One image and the lines below it.
#[derive(Debug)]
pub struct Tile {
    pub image: RgbImage,
    pub lines: Vec<String>,
}

/// Lays out tiles of equal size in about as many columns as rows, with captions by `writer`.
///
/// `None` if the picture gets too large.
pub fn draw(tiles: &[Tile], writer: &mut Writer) -> Option<RgbImage> {
    let (width, height) = tiles.first().map_or((0, 0), |tile| tile.image.dimensions());
    let zoom = (COMFORTABLE / width.max(1)).max(1);
    let (width, height) = (width.checked_mul(zoom)?, height.checked_mul(zoom)?);
    let lines = tiles.iter().map(|tile| tile.lines.len()).max().unwrap_or(0);
    let cell_width = width.checked_add(MARGIN)?;
    let cell_height = height.checked_add(MARGIN + LINE * u32::try_from(lines).ok()?)?;

    let count = u32::try_from(tiles.len()).ok()?;
    let columns = f64::from(count).sqrt().ceil() as u32;
    let rows = count.div_ceil(columns.max(1));
    let side = |cells: u32, cell: u32| {
        let side = cells.checked_mul(cell)?.checked_add(MARGIN)?;
        (side <= LARGEST).then_some(side)
    };
    let mut picture =
        RgbImage::from_pixel(side(columns, cell_width)?, side(rows, cell_height)?, PAPER);
    for (index, tile) in (0..).zip(tiles) {
        let left = MARGIN + (index % columns) * cell_width;
        let top = MARGIN + (index / columns) * cell_height;
        let enlarged = imageops::resize(&tile.image, width, height, FilterType::Nearest);
        imageops::replace(&mut picture, &enlarged, left.into(), top.into());
        for (number, line) in (0..).zip(&tile.lines) {
            let below = top + height + 1 + number * LINE;
            writer.write(&mut picture, line, [left, below], width);
        }
    }
    Some(picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile(side: u32, value: u8, text: &str) -> Tile {
        Tile {
            image: RgbImage::from_pixel(side, side, Rgb([value, 0, 0])),
            lines: vec![text.to_owned()],
        }
    }

    #[test]
    fn tiles_stand_in_reading_order_with_their_captions() {
        let tiles: Vec<Tile> = (0..5).map(|i| tile(56, 50 * i, "cat")).collect();
        let picture = draw(&tiles, &mut Writer::new()).unwrap();
        let cell = (112 + MARGIN, 112 + MARGIN + LINE);
        assert_eq!(
            picture.dimensions(),
            (MARGIN + 3 * cell.0, MARGIN + 2 * cell.1)
        );
        for index in 0..5u32 {
            let (left, top) = (index % 3 * cell.0 + MARGIN, index / 3 * cell.1 + MARGIN);
            let inside = picture.get_pixel(left + 111, top + 111);
            assert_eq!(inside.0, [50 * index as u8, 0, 0]);
            let inked = (0..24 * LINE)
                .filter(|i| picture.get_pixel(left + i % 24, top + 112 + i / 24).0[0] < 128)
                .count();
            assert!((20..150).contains(&inked), "{inked}");
        }
        assert_eq!(*picture.get_pixel(cell.0 * 3 - 20, cell.1 + 50), PAPER);
    }

    #[test]
    fn long_and_strange_captions_stay_below_their_image() {
        let tiles = [
            tile(112, 0, &"w".repeat(1000)),
            tile(112, 0, "\u{4e2d}\u{0}ä"),
        ];
        let picture = draw(&tiles, &mut Writer::new()).unwrap();
        // The margin between the two columns stays clean.
        let between = MARGIN + 112..MARGIN + 112 + MARGIN;
        for (x, y) in between.flat_map(|x| (0..picture.height()).map(move |y| (x, y))) {
            assert_eq!(*picture.get_pixel(x, y), PAPER);
        }
    }

    #[test]
    fn too_large_pictures_are_refused() {
        let tiles: Vec<Tile> = (0..100).map(|_| tile(2000, 0, "")).collect();
        assert!(draw(&tiles, &mut Writer::new()).is_none());
        assert!(draw(&[], &mut Writer::new()).is_some());
    }
}

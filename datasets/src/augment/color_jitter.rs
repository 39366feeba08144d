//! Colour jitter: random brightness, contrast, saturation and hue, in random order.

use super::Pixels;
use super::change::Change;
use super::parse::{Parameters, ParseAugmentError};
use super::rand_augment::blend;
use crate::ImageShape;
use crate::random::{Purpose, Stream};

/// torchvision's `ColorJitter(strength, strength, strength, hue)`, on bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ColorJitter {
    /// Brightness, contrast and saturation are multiplied by a factor in `1 ± strength`, at least
    /// 0.
    pub(super) strength: f32,
    /// Hues turn by up to this share of the circle, to either side.
    pub(super) hue: f32,
}

#[derive(Debug, Clone, Copy)]
enum Part {
    Brightness,
    Contrast,
    Saturation,
    Hue,
}

impl Change<Pixels> for ColorJitter {
    const USAGE: &'static str = "color-jitter[:STRENGTH[:HUE]]";
    const PURPOSE: Purpose = Purpose::ColorJitter;

    fn read(words: &mut Parameters<'_>) -> Result<Self, ParseAugmentError> {
        Ok(Self {
            strength: words.number("STRENGTH", 0.4, 0.0..=10.0)?,
            hue: words.number("HUE", 0.0, 0.0..=0.5)?,
        })
    }

    fn text(&self) -> String {
        format!("color-jitter:{}:{}", self.strength, self.hue)
    }

    fn apply(&self, stream: &mut Stream, shape: ImageShape, pixels: &mut Pixels) {
        if shape.is_empty() {
            return;
        }
        let plane = shape.height * shape.width;
        let mut parts = [
            Part::Brightness,
            Part::Contrast,
            Part::Saturation,
            Part::Hue,
        ];
        stream.shuffle(&mut parts);
        for part in parts {
            let by = match part {
                Part::Hue => stream.around(self.hue),
                _ => stream.around(self.strength).max(-1.0),
            };
            let image = &mut pixels.image;
            match part {
                _ if by == 0.0 => {}
                Part::Brightness => blend::brightness(by, image),
                Part::Contrast => blend::contrast(by, plane, image),
                Part::Saturation => blend::color(by, plane, image),
                Part::Hue => turn(by, plane, image),
            }
        }
    }
}

/// Turns the hue of each pixel by a share of the circle, in HSV. Images other than RGB have no hue
/// and stay.
fn turn(by: f32, plane: usize, image: &mut [u8]) {
    let Some((red, green, blue)) = blend::split(plane, image) else {
        return;
    };
    for ((red, green), blue) in red.iter_mut().zip(green).zip(blue) {
        let [hue, saturation, value] = to_hsv([*red, *green, *blue]);
        let turned = (hue + by).rem_euclid(1.0);
        [*red, *green, *blue] = to_rgb([turned, saturation, value]);
    }
}

/// Hue, saturation and value, each from 0 to 1.
fn to_hsv(rgb: [u8; 3]) -> [f32; 3] {
    let [red, green, blue] = rgb.map(|value| f32::from(value) / 255.0);
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    if most == least {
        return [0.0, 0.0, most];
    }
    let range = most - least;
    let [to_red, to_green, to_blue] = [red, green, blue].map(|value| (most - value) / range);
    let sixths = if most == red {
        to_blue - to_green
    } else if most == green {
        2.0 + to_red - to_blue
    } else {
        4.0 + to_green - to_red
    };
    [(sixths / 6.0 + 1.0) % 1.0, range / most, most]
}

fn to_rgb([hue, saturation, value]: [f32; 3]) -> [u8; 3] {
    let sixths = hue * 6.0;
    let (sector, rest) = (sixths.floor(), sixths - sixths.floor());
    let dark = value * (1.0 - saturation);
    let falling = value * (1.0 - saturation * rest);
    let rising = value * (1.0 - saturation * (1.0 - rest));
    let rgb = match sector as u8 % 6 {
        0 => [value, rising, dark],
        1 => [falling, value, dark],
        2 => [dark, value, rising],
        3 => [dark, falling, value],
        4 => [rising, dark, value],
        _ => [value, dark, falling],
    };
    // As torchvision: the casts saturate and truncate.
    rgb.map(|value| (value.clamp(0.0, 1.0) * 255.999) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ImageShape = ImageShape {
        channels: 3,
        height: 4,
        width: 5,
    };

    fn image() -> Vec<u8> {
        let value = |c: usize, y: usize, x: usize| 40 + 67 * c + 53 * y + 29 * x + 7 * x * y;
        let pixels = (0..60).map(|i| value(i / 20, i / 5 % 4, i % 5) % 256);
        pixels.map(|value| value as u8).collect()
    }

    /// Results of torchvision 0.15's `adjust_hue` for the image. Its f32 arithmetic may differ in
    /// the last bit.
    #[test]
    #[rustfmt::skip]
    fn hues_turn_as_in_torchvision() {
        for (by, expected) in [
            (0.1, [
                53, 82, 111, 13, 42, 106, 15, 51, 201, 237, 32, 189, 232, 32, 75, 199, 249, 56, 106, 29,
                40, 69, 98, 194, 223, 93, 196, 232, 58, 94, 213, 46, 89, 19, 62, 56, 106, 43, 93, 210,
                174, 203, 232, 5, 34, 227, 7, 43, 12, 48, 24, 0, 43, 153, 196, 10, 60, 177, 227, 21,
            ]),
            (-0.35, [
                120, 149, 179, 194, 223, 174, 196, 232, 12, 48, 213, 0, 43, 99, 142, 10, 60, 123, 174, 210,
                174, 203, 232, 5, 34, 227, 7, 43, 98, 134, 24, 86, 129, 153, 196, 96, 146, 177, 227, 21,
                40, 69, 98, 146, 175, 93, 148, 184, 201, 237, 165, 189, 232, 19, 62, 199, 249, 43, 93, 162,
            ]),
            (0.5, [
                174, 203, 232, 72, 101, 227, 74, 110, 12, 48, 91, 0, 43, 153, 196, 10, 60, 177, 227, 88,
                107, 136, 165, 5, 34, 160, 7, 43, 201, 237, 24, 189, 232, 86, 129, 199, 249, 110, 160, 21,
                40, 69, 98, 194, 223, 93, 196, 232, 134, 170, 213, 122, 165, 19, 62, 132, 182, 43, 93, 210,
            ]),
        ] {
            let mut found = image();
            turn(by, 20, &mut found);
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.abs_diff(expected) <= 1, "{by}: {found} {expected}");
            }
        }
    }

    fn jittered(jitter: ColorJitter, seed: u64, image: Vec<u8>) -> Vec<u8> {
        let mut pixels = Pixels::default();
        pixels.resize(SHAPE);
        pixels.image = image;
        jitter.apply(
            &mut Stream::new(Purpose::ColorJitter, seed, 0, 0),
            SHAPE,
            &mut pixels,
        );
        pixels.image
    }

    #[test]
    fn brightness_stays_within_its_range() {
        let jitter = ColorJitter {
            strength: 0.4,
            hue: 0.0,
        };
        let levels = (0..500).map(|seed| jittered(jitter, seed, vec![100; 60])[0]);
        let (low, high) = levels.fold((u8::MAX, 0), |(low, high), level| {
            (low.min(level), high.max(level))
        });
        // Contrast and saturation leave one grey as it is, up to truncation.
        assert!((57..=66).contains(&low), "{low}");
        assert!((134..=140).contains(&high), "{high}");
    }

    #[test]
    fn no_strength_changes_nothing() {
        let idle = ColorJitter {
            strength: 0.0,
            hue: 0.0,
        };
        assert_eq!(jittered(idle, 1, image()), image());
        let turns = ColorJitter {
            strength: 0.0,
            hue: 0.5,
        };
        assert_ne!(jittered(turns, 1, image()), image());
        assert_eq!(jittered(turns, 1, vec![7; 60]), vec![7; 60]);
    }

    #[test]
    fn no_pixels_are_no_trouble() {
        let shape = ImageShape { width: 0, ..SHAPE };
        let jitter = ColorJitter {
            strength: 1.0,
            hue: 0.1,
        };
        let mut stream = Stream::new(Purpose::ColorJitter, 1, 0, 0);
        jitter.apply(&mut stream, shape, &mut Pixels::default());
    }
}

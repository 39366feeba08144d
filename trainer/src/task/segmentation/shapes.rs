//! Drawn shapes: a data set with masks and without files.
//!
//! An image shows one to three shapes of random colours on a noisy background: plain discs,
//! squares with horizontal stripes and triangles with vertical ones. Every image is a function of
//! (seed, split, index). It uses only additions, multiplications and comparisons, which all
//! machines round alike: the images are the same everywhere.

use datasets::Split;

use super::IGNORED;
use super::pictures::Masked;
use crate::error::TrainError;

/// Background, disc, square, triangle.
const CLASSES: usize = 4;
/// Width of the edge whose pixels do not count, in pixels.
const EDGE: f64 = 0.5;

/// A set of drawn shapes.
#[derive(Clone, Debug)]
pub(super) struct Shapes {
    split: Split,
    images: usize,
    side: usize,
    seed: u64,
}

impl Shapes {
    /// Draws `images` images of `side` × `side` pixels. The splits share no image.
    pub fn new(split: Split, images: usize, side: usize, seed: u64) -> Self {
        Self {
            split,
            images,
            side,
            seed,
        }
    }
}

/// A shape around its centre.
struct Shape {
    class: u8,
    center: [f64; 2],
    radius: f64,
    colour: [f64; 3],
}

impl Shape {
    fn draw(random: &mut Random, side: f64) -> Self {
        Self {
            class: 1 + (random.share() * 3.0) as u8,
            center: [random.share() * side, random.share() * side],
            radius: side * (0.12 + 0.2 * random.share()),
            colour: [(); 3].map(|()| 60.0 + 190.0 * random.share()),
        }
    }

    /// Brightness of a pixel inside.
    fn shade(&self, row: usize, column: usize) -> f64 {
        let stripe = match self.class {
            1 => 0,
            2 => row / 2,
            _ => column / 2,
        };
        if stripe.is_multiple_of(2) { 1.0 } else { 0.5 }
    }

    /// Distance of a pixel to the edge, positive inside. Exact only near straight edges.
    fn depth(&self, row: f64, column: f64) -> f64 {
        let (down, right) = (row - self.center[0], column - self.center[1]);
        match self.class {
            1 => {
                // The square of a distance needs no root to be compared.
                let square = down * down + right * right;
                (self.radius * self.radius - square) / (2.0 * self.radius)
            }
            2 => self.radius * 0.85 - down.abs().max(right.abs()),
            _ => {
                let slope = (self.radius + down - 1.8 * right.abs()) / 2.06;
                slope.min(self.radius * 0.8 - down)
            }
        }
    }
}

impl Masked for Shapes {
    fn len(&self) -> usize {
        self.images
    }

    fn classes(&self) -> usize {
        CLASSES
    }

    fn shape(&self) -> [usize; 3] {
        [3, self.side, self.side]
    }

    fn read(&self, index: usize, image: &mut [u8], labels: &mut [u8]) -> Result<(), TrainError> {
        let mut random = Random::new(self.seed, self.split, index);
        let side = self.side as f64;
        let count = 1 + (random.share() * 3.0) as usize;
        let shapes: Vec<Shape> = (0..count).map(|_| Shape::draw(&mut random, side)).collect();
        let background = [(); 3].map(|()| 80.0 * random.share());
        let plane = self.side * self.side;
        for (pixel, label) in labels.iter_mut().enumerate() {
            let (row, column) = (pixel / self.side, pixel % self.side);
            let mut colour = background;
            *label = 0;
            for shape in &shapes {
                let depth = shape.depth(row as f64, column as f64);
                if depth > 0.0 {
                    let shade = shape.shade(row, column);
                    (colour, *label) = (shape.colour.map(|value| shade * value), shape.class);
                }
                if depth.abs() < EDGE {
                    *label = IGNORED;
                }
            }
            for (channel, value) in colour.into_iter().enumerate() {
                let noisy = value + 40.0 * (random.share() - 0.5);
                if let Some(byte) = image.get_mut(channel * plane + pixel) {
                    *byte = noisy.clamp(0.0, 255.0) as u8;
                }
            }
        }
        Ok(())
    }
}

/// SplitMix64 (Steele et al. 2014).
struct Random(u64);

impl Random {
    fn new(seed: u64, split: Split, index: usize) -> Self {
        let split = match split {
            Split::Train => 0,
            Split::Test => 1,
        };
        let mut random = Self(seed);
        for part in [split, index as u64] {
            random.0 = random.next() ^ part;
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to below 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &Shapes, index: usize) -> (Vec<u8>, Vec<u8>) {
        let (mut image, mut labels) = (vec![0; 3 * 32 * 32], vec![0; 32 * 32]);
        set.read(index, &mut image, &mut labels).unwrap();
        (image, labels)
    }

    #[test]
    fn an_image_is_fixed_by_seed_split_and_index() {
        let set = Shapes::new(Split::Train, 10, 32, 1);
        assert_eq!(read(&set, 3), read(&set.clone(), 3));
        for other in [
            read(&set, 4),
            read(&Shapes::new(Split::Test, 10, 32, 1), 3),
            read(&Shapes::new(Split::Train, 10, 32, 2), 3),
        ] {
            assert_ne!(read(&set, 3), other);
        }
    }

    #[test]
    fn all_classes_and_different_numbers_of_pixels_that_do_not_count_occur() {
        let set = Shapes::new(Split::Train, 100, 32, 1);
        let masks: Vec<Vec<u8>> = (0..100).map(|index| read(&set, index).1).collect();
        let count = |mask: &[u8], label: u8| mask.iter().filter(|own| **own == label).count();
        for class in 0..CLASSES as u8 {
            let share = count(&masks.concat(), class) as f64 / (100.0 * 1024.0);
            assert!(share > 0.03, "class {class}: {share}");
        }
        let ignored: Vec<usize> = masks.iter().map(|mask| count(mask, IGNORED)).collect();
        assert!(ignored.iter().any(|count| *count != ignored[0]));
        assert!(ignored.iter().sum::<usize>() < 100 * 256, "{ignored:?}");
    }
}

//! Drawn digits that look handwritten: a data set without files.
//!
//! Each digit has several skeletons. An image takes one, bends it by a smooth random field, slants,
//! rotates, scales and moves it, draws it with a pen of varying pressure, and adds noise. Every
//! image is a function of (seed, split, index) and is drawn when it is read, so a set of any length
//! costs neither memory nor time at the start. It uses only additions, multiplications, divisions
//! and square roots, which all machines round alike: the images are the same everywhere.

mod glyphs;
mod pen;

use crate::random::{Purpose, Stream};
use crate::{Dataset, DatasetError, ImageShape, Normalization, Split, check_read};

const SHAPE: ImageShape = ImageShape {
    channels: 1,
    height: pen::SIDE,
    width: pen::SIDE,
};

/// A set of drawn 28x28 grey digits; all classes are equally frequent.
#[derive(Debug, Clone)]
pub struct Digits {
    split: Split,
    len: usize,
    seed: u64,
    class_names: Vec<String>,
}

impl Digits {
    /// Creates `len` digits of `split`; another `seed` gives other digits.
    ///
    /// The splits share no image. A longer set begins with the images of a shorter one. Image `i`
    /// shows the digit `i % 10`.
    pub fn new(split: Split, len: usize, seed: u64) -> Self {
        let names = (0..glyphs::GLYPHS.len()).map(|digit| digit.to_string());
        Digits {
            split,
            len,
            seed,
            class_names: names.collect(),
        }
    }
}

impl Dataset for Digits {
    fn len(&self) -> usize {
        self.len
    }

    fn shape(&self) -> ImageShape {
        SHAPE
    }

    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// Statistics of the training images of seed 0.
    fn normalization(&self) -> Normalization {
        Normalization {
            mean: vec![0.1216],
            std: vec![0.2544],
        }
    }

    fn label(&self, index: usize) -> Result<u32, DatasetError> {
        match index < self.len {
            true => Ok((index % glyphs::GLYPHS.len()) as u32),
            false => Err(DatasetError::Index {
                index,
                len: self.len,
            }),
        }
    }

    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        check_read(index, self.len, image, SHAPE)?;
        let class = index % glyphs::GLYPHS.len();
        let split = match self.split {
            Split::Train => 0,
            Split::Test => 1,
        };
        let mut stream = Stream::new(Purpose::Digits, self.seed, split, index as u64);
        if let Some(ways) = glyphs::GLYPHS.get(class) {
            let way = stream.below(ways.len() as u64) as usize;
            pen::draw(
                ways.get(way).copied().unwrap_or_default(),
                &mut stream,
                image,
            );
        }
        Ok(class as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(set: &Digits, index: usize) -> (Vec<u8>, u32) {
        let mut image = vec![0; SHAPE.len()];
        let label = set.read(index, &mut image).unwrap();
        (image, label)
    }

    #[test]
    fn an_image_is_fixed_by_seed_split_and_index() {
        let set = Digits::new(Split::Train, 50, 1);
        let first = image(&set, 20);
        assert_eq!(first, image(&Digits::new(Split::Train, 21, 1), 20));
        assert_ne!(first, image(&Digits::new(Split::Test, 50, 1), 20));
        assert_ne!(first, image(&Digits::new(Split::Train, 50, 2), 20));
        assert_ne!(first, image(&set, 30));
    }

    #[test]
    fn classes_are_balanced() {
        let set = Digits::new(Split::Train, 1000, 1);
        let mut counts = [0; 10];
        (0..set.len()).for_each(|index| counts[image(&set, index).1 as usize] += 1);
        assert_eq!(counts, [100; 10]);
        assert_eq!(set.class_names().len(), 10);
    }

    #[test]
    fn the_images_are_the_same_on_every_machine() {
        let set = Digits::new(Split::Train, 2000, 42);
        let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
        for index in 0..set.len() {
            for byte in image(&set, index).0 {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        assert_eq!(hash, 0x57d4_95bf_8378_3385, "{hash:#x}");
    }

    #[test]
    fn the_statistics_are_those_of_the_images() {
        let set = Digits::new(Split::Train, 5000, 0);
        let (mut sum, mut squares) = (0.0, 0.0);
        for index in 0..set.len() {
            for byte in image(&set, index).0 {
                let value = f64::from(byte) / 255.0;
                sum += value;
                squares += value * value;
            }
        }
        let count = (set.len() * SHAPE.len()) as f64;
        let mean = sum / count;
        let std = (squares / count - mean * mean).sqrt();
        let stated = set.normalization();
        assert!((mean - f64::from(stated.mean[0])).abs() < 0.002, "{mean}");
        assert!((std - f64::from(stated.std[0])).abs() < 0.002, "{std}");
    }

    #[test]
    fn every_image_has_ink_and_paper() {
        let set = Digits::new(Split::Test, 2000, 3);
        for index in 0..set.len() {
            let (image, label) = image(&set, index);
            let ink = image.iter().filter(|&&byte| byte > 128).count();
            assert!(
                (15..350).contains(&ink),
                "image {index} of a {label}: {ink}"
            );
        }
    }

    #[test]
    fn skeletons_fit_the_pen() {
        for stroke in glyphs::GLYPHS.iter().copied().flatten().copied().flatten() {
            assert!((2..=pen::MAX_POINTS).contains(&stroke.len()));
            let inside = |&(x, y): &(i8, i8)| (0..=100).contains(&x) && (0..=100).contains(&y);
            assert!(stroke.iter().all(inside), "{stroke:?}");
        }
    }

    #[test]
    fn bad_requests_are_refused() {
        let set = Digits::new(Split::Train, 5, 0);
        let index = set.read(5, &mut [0; 784]).unwrap_err();
        assert!(matches!(index, DatasetError::Index { index: 5, len: 5 }));
        let buffer = set.read(0, &mut [0; 10]).unwrap_err();
        assert!(matches!(buffer, DatasetError::Buffer { given: 10, .. }));
    }
}

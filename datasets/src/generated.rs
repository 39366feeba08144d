//! Generated images of any size at almost no cost, for benchmarks of everything after the data.
//!
//! Each class has a few patterns; an image is one of them plus noise. A pattern is the sum of a
//! smooth row profile and a smooth column profile, and noise is taken from one table at random
//! places. So an image costs two additions per byte, and memory grows with the sides of the image
//! instead of its area. It uses integers only: the images are the same on every machine.

use crate::random::{Purpose, Stream};
use crate::{Dataset, DatasetError, ImageShape, Normalization, Split, check_read};

/// Patterns per class.
const PATTERNS: usize = 3;
/// Number of points of a profile.
const KNOTS: usize = 5;
/// Upper bound of profiles; two of them and the noise fit into a byte.
const PROFILE: u64 = 97;
/// Upper bound of the noise: the lowest bits of random bytes.
const NOISE: u8 = 64;
/// Least length of the table of noise.
const NOISE_LEN: usize = 1 << 16;
/// Distance of the places where consecutive rows take their noise: odd and irregular.
const NOISE_STEP: usize = 0x9E3B;
/// Largest memory for profiles and noise; larger sides or classes are a mistake.
const MAX_BYTES: usize = 1 << 30;

/// Generated images of any shape with learnable classes, all equally frequent.
///
/// Each image is a function of (seed, split, index) and is generated when it is read.
#[derive(Debug, Clone)]
pub struct Generated {
    shape: ImageShape,
    len: usize,
    seed: u64,
    split: Split,
    class_names: Vec<String>,
    /// By class, pattern, channel: the row profile, then the column profile.
    profiles: Vec<u8>,
    noise: Vec<u8>,
}

impl Generated {
    /// Creates `len` training images of `shape` in `classes` classes.
    ///
    /// Another `seed` gives other patterns. Image `i` has class `i % classes`; a longer set begins
    /// with the images of a shorter one.
    ///
    /// # Errors
    /// [`DatasetError::Settings`] if a size is zero or the patterns would need more than 1 GiB.
    pub fn new(
        shape: ImageShape,
        classes: usize,
        len: usize,
        seed: u64,
    ) -> Result<Self, DatasetError> {
        let unusable = |reason: String| DatasetError::Settings {
            what: "generated data",
            reason,
        };
        if shape.is_empty() || classes == 0 {
            return Err(unusable(format!(
                "{classes} classes of images of {}x{}x{} (channels, height, width): all numbers \
                 must be at least 1",
                shape.channels, shape.height, shape.width
            )));
        }
        let noise_len = shape.width.saturating_add(NOISE_LEN);
        let table = profiles_len(shape).saturating_mul(classes);
        if table.saturating_add(noise_len) > MAX_BYTES || u32::try_from(classes).is_err() {
            return Err(unusable(format!(
                "{classes} classes of images of {}x{}x{} need patterns of more than {MAX_BYTES} \
                 bytes. Use fewer or smaller ones",
                shape.channels, shape.height, shape.width
            )));
        }
        let mut profiles = Vec::with_capacity(table);
        for class in 0..classes {
            let mut stream = Stream::new(Purpose::Patterns, seed, class as u64, 0);
            for _ in 0..PATTERNS * shape.channels {
                profile(shape.height, &mut stream, &mut profiles);
                profile(shape.width, &mut stream, &mut profiles);
            }
        }
        let mut noise = vec![0; noise_len];
        Stream::new(Purpose::Patterns, seed, 0, 1).bytes(&mut noise);
        noise.iter_mut().for_each(|byte| *byte %= NOISE);
        Ok(Generated {
            shape,
            len,
            seed,
            split: Split::Train,
            class_names: (0..classes).map(|class| format!("class {class}")).collect(),
            profiles,
            noise,
        })
    }

    /// Selects `split`: the same patterns with other noise.
    pub fn split(mut self, split: Split) -> Self {
        self.split = split;
        self
    }
}

/// Bytes of the profiles of one class.
fn profiles_len(shape: ImageShape) -> usize {
    shape
        .height
        .saturating_add(shape.width)
        .saturating_mul(shape.channels)
        .saturating_mul(PATTERNS)
}

/// Appends `len` values on straight lines between random points.
fn profile(len: usize, stream: &mut Stream, profiles: &mut Vec<u8>) {
    let mut knots = [0u64; KNOTS];
    knots
        .iter_mut()
        .for_each(|knot| *knot = stream.below(PROFILE));
    let last = (len - 1).max(1);
    for place in 0..len {
        let along = place * (KNOTS - 1);
        let (knot, fraction) = (along / last, (along % last) as u64);
        let knot_at = |index: usize| knots.get(index).copied().unwrap_or_default();
        let (low, high, last) = (knot_at(knot), knot_at(knot + 1), last as u64);
        profiles.push(((low * (last - fraction) + high * fraction) / last) as u8);
    }
}

impl Dataset for Generated {
    fn len(&self) -> usize {
        self.len
    }

    fn shape(&self) -> ImageShape {
        self.shape
    }

    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// Approximate statistics of the images, the same in every channel.
    fn normalization(&self) -> Normalization {
        Normalization {
            mean: vec![0.5; self.shape.channels],
            std: vec![0.15; self.shape.channels],
        }
    }

    fn label(&self, index: usize) -> Result<u32, DatasetError> {
        match index < self.len {
            true => Ok((index % self.class_names.len()) as u32),
            false => Err(DatasetError::Index {
                index,
                len: self.len,
            }),
        }
    }

    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        check_read(index, self.len, image, self.shape)?;
        let ImageShape { height, width, .. } = self.shape;
        let split = match self.split {
            Split::Train => 0,
            Split::Test => 1,
        };
        let mut stream = Stream::new(Purpose::Generated, self.seed, split, index as u64);
        let class = index % self.class_names.len();
        let pattern = stream.below(PATTERNS as u64) as usize;
        let mut place = stream.below(NOISE_LEN as u64) as usize;

        let pattern_len = profiles_len(self.shape) / PATTERNS;
        let mut patterns = self.profiles.chunks_exact(pattern_len);
        let profiles = patterns.nth(class * PATTERNS + pattern).unwrap_or_default();
        let planes = image.chunks_exact_mut(height * width);
        for (plane, profiles) in planes.zip(profiles.chunks_exact(height + width)) {
            let (rows, columns) = profiles.split_at(height);
            for (line, &row) in plane.chunks_exact_mut(width).zip(rows) {
                let noise = self.noise.get(place..).unwrap_or_default();
                for ((byte, &column), &noise) in line.iter_mut().zip(columns).zip(noise) {
                    *byte = row.wrapping_add(column).wrapping_add(noise);
                }
                place = (place + NOISE_STEP) % NOISE_LEN;
            }
        }
        Ok(class as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CIFAR: ImageShape = ImageShape {
        channels: 3,
        height: 32,
        width: 32,
    };

    fn image(set: &Generated, index: usize) -> Vec<u8> {
        let mut image = vec![0; set.shape().len()];
        let label = set.read(index, &mut image).unwrap();
        assert_eq!(label as usize, index % set.class_names().len());
        image
    }

    #[test]
    fn images_depend_on_seed_split_and_index_alone() {
        let set = Generated::new(CIFAR, 10, 100, 1).unwrap();
        let longer = Generated::new(CIFAR, 10, 1000, 1).unwrap();
        let other = Generated::new(CIFAR, 10, 100, 2).unwrap();
        let test = set.clone().split(Split::Test);
        assert_eq!(image(&set, 17), image(&longer, 17));
        assert_ne!(image(&set, 17), image(&set, 27));
        assert_ne!(image(&set, 17), image(&other, 17));
        assert_ne!(image(&set, 17), image(&test, 17));
    }

    #[test]
    fn the_normalisation_fits() {
        let set = Generated::new(CIFAR, 100, 1000, 3).unwrap();
        let bytes: Vec<f64> = (0..1000)
            .flat_map(|index| image(&set, index))
            .map(|byte| f64::from(byte) / 255.0)
            .collect();
        let mean = bytes.iter().sum::<f64>() / bytes.len() as f64;
        let variance = bytes.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / bytes.len() as f64;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!((variance.sqrt() - 0.15).abs() < 0.02, "{}", variance.sqrt());
    }

    /// A lesson from training images must hold for test images.
    #[test]
    fn the_nearest_training_image_tells_the_class() {
        let train = Generated::new(CIFAR, 10, 200, 4).unwrap();
        let test = Generated::new(CIFAR, 10, 50, 4).unwrap().split(Split::Test);
        let known: Vec<Vec<u8>> = (0..train.len()).map(|index| image(&train, index)).collect();
        let right = (0..test.len()).filter(|&index| {
            let asked = image(&test, index);
            let distance = |known: &Vec<u8>| -> u64 {
                let pairs = known.iter().zip(&asked);
                pairs.map(|(&a, &b)| u64::from(a.abs_diff(b)).pow(2)).sum()
            };
            let nearest = (0..known.len())
                .min_by_key(|&k| distance(&known[k]))
                .unwrap();
            nearest % 10 == index % 10
        });
        let right = right.count();
        assert!(right >= 45, "{right} of 50");
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let shape = |channels, height, width| ImageShape {
            channels,
            height,
            width,
        };
        for (shape, classes) in [
            (shape(0, 32, 32), 10),
            (shape(3, 0, 32), 10),
            (shape(3, 32, 32), 0),
            (shape(3, usize::MAX, 32), 10),
            (shape(3, 32, 32), usize::MAX),
            (shape(1, 1, 1 << 40), 1),
        ] {
            let error = Generated::new(shape, classes, 1, 1).unwrap_err();
            assert!(matches!(error, DatasetError::Settings { .. }), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_shape_is_filled(
            channels in 1usize..5, height in 1usize..70, width in 1usize..70,
            classes in 1usize..7, index in 0usize..1000,
        ) {
            let set = Generated::new(ImageShape { channels, height, width }, classes, 1000, 5).unwrap();
            // Sums stay within a byte, so an image is never darker than its profiles.
            let mut bytes = vec![0; channels * height * width];
            set.read(index, &mut bytes).unwrap();
            let again = image(&set, index);
            prop_assert_eq!(bytes, again);
        }
    }
}

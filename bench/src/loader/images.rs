//! A data set of noise in memory: reading an image is one copy.

use datasets::{Dataset, DatasetError, ImageShape, Normalization};

/// Images as bytes, one after another.
#[derive(Debug)]
pub struct Images {
    bytes: Vec<u8>,
    shape: ImageShape,
    classes: Vec<String>,
}

impl Images {
    /// Makes `count` images of this shape in 100 classes.
    pub fn new(count: usize, shape: ImageShape) -> Self {
        // Marsaglia's xorshift: cheap and portable.
        let mut state = 0x9e37_79b9_u32;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 24) as u8
        };
        Self {
            bytes: (0..count * shape.len()).map(|_| byte()).collect(),
            shape,
            classes: (0..100).map(|class| class.to_string()).collect(),
        }
    }
}

impl Dataset for Images {
    fn len(&self) -> usize {
        self.bytes.len() / self.shape.len().max(1)
    }

    fn shape(&self) -> ImageShape {
        self.shape
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn normalization(&self) -> Normalization {
        Normalization {
            mean: vec![0.5; self.shape.channels],
            std: vec![0.25; self.shape.channels],
        }
    }

    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        let needed = self.shape.len();
        if image.len() != needed {
            let given = image.len();
            return Err(DatasetError::Buffer { given, needed });
        }
        let start = index.saturating_mul(needed);
        let bytes = self.bytes.get(start..start.saturating_add(needed));
        let len = self.len();
        image.copy_from_slice(bytes.ok_or(DatasetError::Index { index, len })?);
        Ok((index % self.classes.len()) as u32)
    }
}

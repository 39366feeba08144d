//! Generated images of any size, for benchmarks.

use std::sync::Arc;

use datasets::{Generated, ImageShape, Split};

use super::{AnyDataSet, Opened};
use crate::config::error::Fault;
use crate::config::section::keys;
use crate::config::validate::{MOST_PIXELS, given_in_range};

keys! {
    /// `generated`: images of any size drawn by a generator, for benchmarks; 50000 to train and
    /// 10000 to test.
    GeneratedConfig {
        /// Side of the images. Default 32.
        #[schemars(extend("unit" = "pixels"))]
        size: Option<usize> = None,
        /// Channels. Default 3.
        channels: Option<usize> = None,
        /// Classes. Default 10.
        classes: Option<usize> = None,
    }
}

impl AnyDataSet for GeneratedConfig {
    fn check(&self) -> Result<(), Fault> {
        given_in_range("data.size", self.size, MOST_PIXELS)?;
        given_in_range("data.channels", self.channels, 4)?;
        given_in_range("data.classes", self.classes, 1_000_000)
    }

    fn open(&self, split: Split, samples: Option<usize>, seed: u64) -> Opened {
        // Sizes and classes default to those of CIFAR-10.
        let usual = match split {
            Split::Train => 50_000,
            Split::Test => 10_000,
        };
        let side = self.size.unwrap_or(32);
        let shape = ImageShape {
            channels: self.channels.unwrap_or(3),
            height: side,
            width: side,
        };
        let (classes, samples) = (self.classes.unwrap_or(10), samples.unwrap_or(usual));
        let images = Generated::new(shape, classes, samples, seed)?;
        Ok(Arc::new(images.split(split)))
    }
}

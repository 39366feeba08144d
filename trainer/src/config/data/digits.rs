//! Generated digits.

use std::sync::Arc;

use datasets::{Digits, Split};

use super::{AnyDataSet, Opened};
use crate::config::section::keys;

keys! {
    /// `digits`: 28×28 digits drawn by a generator, 8192 to train and 2048 to test; needs no files.
    DigitsConfig {}
}

impl AnyDataSet for DigitsConfig {
    fn open(&self, split: Split, samples: Option<usize>, seed: u64) -> Opened {
        let usual = match split {
            Split::Train => 8192,
            Split::Test => 2048,
        };
        Ok(Arc::new(Digits::new(split, samples.unwrap_or(usual), seed)))
    }
}

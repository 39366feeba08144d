//! Images of the program itself.

use datasets::{DatasetError, Split};

use super::{AnyDataSet, Opened};
use crate::config::section::keys;

keys! {
    /// `own`: the images of a program that trains with this library and gives them to its
    /// `Trainer`.
    OwnConfig {}
}

impl AnyDataSet for OwnConfig {
    fn open(&self, _split: Split, _samples: Option<usize>, _seed: u64) -> Opened {
        Err(DatasetError::Settings {
            what: "data.name",
            reason: "\"own\" stands for images that a program gives to the library's `Trainer`, and here are none"
                .into(),
        })
    }

    fn is_stored(&self) -> bool {
        false
    }
}

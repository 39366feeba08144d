//! The program's own images.

use datasets::{DatasetError, Split};

use super::{AnyDataSet, Opened};
use crate::config::section::keys;

keys! {
    /// `own`: images that a program passes to the library's `Trainer`.
    OwnConfig {}
}

impl AnyDataSet for OwnConfig {
    fn open(&self, _split: Split, _samples: Option<usize>, _seed: u64) -> Opened {
        Err(DatasetError::Settings {
            what: "data.name",
            reason:
                "\"own\" means images that a program passes to the library's `Trainer`, but none \
                 were passed"
                    .into(),
        })
    }

    fn is_stored(&self) -> bool {
        false
    }
}

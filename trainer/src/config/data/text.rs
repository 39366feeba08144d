//! Text files.

use std::path::{Path, PathBuf};

use super::AnyDataSet;
use crate::config::error::Fault;
use crate::config::section::keys;
use crate::config::validate::{ensure, in_range};

keys! {
    /// `text`: text for the task `language`. Its bytes are the tokens.
    TextConfig {
        /// Text file, or folder of text files (`.txt`, `.md`) with its subfolders. Windows do not
        /// cross files. Default: three chapters of "Alice in Wonderland" that the program contains.
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<PathBuf> = None,
        /// Text file, or folder of text files, for evaluation. Default: the last part of every
        /// file of `path`, see `test_share`.
        #[serde(skip_serializing_if = "Option::is_none")]
        test_path: Option<PathBuf> = None,
        /// Share of every file that is for evaluation, without `test_path`, in (0, 1). Default 0.1.
        test_share: f64 = 0.1,
        /// Tokens in a window: the model sees at most this many. Default 128.
        #[schemars(extend("unit" = "tokens"))]
        context: usize = 128,
    }
}

impl AnyDataSet for TextConfig {
    fn task(&self) -> &'static str {
        "language"
    }

    fn check(&self) -> Result<(), Fault> {
        in_range("data.context", self.context as u64, 1, 65_536)?;
        let good = self.test_share > 0.0 && self.test_share < 1.0;
        ensure(good, "data.test_share", self.test_share, "between 0 and 1")
    }

    fn paths(&mut self) -> Vec<(&'static str, &mut Option<PathBuf>)> {
        vec![
            ("data.path", &mut self.path),
            ("data.test_path", &mut self.test_path),
        ]
    }

    fn dir(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

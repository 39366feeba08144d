//! Arguments shared by several commands.

use std::path::PathBuf;

use clap::Args;

use crate::config::paths;
use crate::config::{ConfigError, DEFAULT, Loaded};
use crate::tools::trained::{FindError, Trained, Which};

/// Which configuration.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Reads this configuration, a file or a built-in one (see `trainer configs`). Defaults to the
    /// built-in digits.
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// Sets a configuration key, for example train.epochs=2. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl ConfigArgs {
    /// Loads the configuration.
    ///
    /// # Errors
    /// The error in the configuration, with its place.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        Loaded::load(self.config.as_deref().unwrap_or(DEFAULT), &self.set)
    }
}

/// Which trained model.
#[derive(Debug, Args)]
pub struct TrainedArgs {
    /// Uses this run folder, checkpoint, or weights file of `trainer export` or PyTorch.
    #[arg(value_name = "RUN|CHECKPOINT|WEIGHTS", value_parser = paths::argument())]
    path: PathBuf,
    /// Uses the last good checkpoint of a run folder instead of the best.
    #[arg(long)]
    last: bool,
    /// Reads this configuration. Defaults to the run's, else the one embedded in the weights file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// Sets a configuration key, for example data.dir=/path. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl TrainedArgs {
    /// Finds and verifies the model.
    ///
    /// # Errors
    /// Fails if no model is found, it is damaged, or its configuration is wrong.
    pub fn find(&self) -> Result<Trained, FindError> {
        let which = match self.last {
            true => Which::Last,
            false => Which::Best,
        };
        Trained::find(&self.path, which, self.config.as_deref(), &self.set)
    }
}

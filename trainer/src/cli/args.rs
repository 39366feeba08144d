//! Arguments that several commands share.

use std::path::PathBuf;

use clap::Args;

use crate::config::paths;
use crate::config::{ConfigError, DEFAULT, Loaded};
use crate::tools::trained::{FindError, Trained, Which};

/// Which configuration.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Configuration: a file, or one of those inside this program (see `trainer configs`).
    /// Without it the built-in digits are used.
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// Sets one configuration key, for example train.epochs=2; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl ConfigArgs {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        Loaded::load(self.config.as_deref().unwrap_or(DEFAULT), &self.set)
    }
}

/// Which trained model.
#[derive(Debug, Args)]
pub struct TrainedArgs {
    /// A run folder, a checkpoint in it, or a file of weights that `trainer export` or PyTorch
    /// wrote.
    #[arg(value_name = "RUN|CHECKPOINT|WEIGHTS", value_parser = paths::argument())]
    path: PathBuf,
    /// Of a run folder, takes the last good checkpoint rather than the best.
    #[arg(long)]
    last: bool,
    /// Configuration. Without it, that of the run folder, or of the model that the file says it is.
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// Sets one configuration key, for example data.dir=/path; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl TrainedArgs {
    /// Finds and verifies it.
    ///
    /// # Errors
    /// If there is none, it is damaged, or its configuration is wrong.
    pub fn find(&self) -> Result<Trained, FindError> {
        let which = match self.last {
            true => Which::Last,
            false => Which::Best,
        };
        Trained::find(&self.path, which, self.config.as_deref(), &self.set)
    }
}

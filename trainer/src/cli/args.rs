//! Arguments that several commands share.

use clap::Args;

use crate::config::{ConfigError, DEFAULT, Loaded};

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

//! Errors of the program, and how it prints them.

use std::io::{self, IsTerminal};

use burn_dist::world::{Launch, World};

use crate::config::ConfigError;
use crate::error::TrainError;
use crate::report::ReportError;
use crate::system::output::complain;
use crate::tools::preview::PreviewError;
use crate::tools::trained::FindError;
use crate::{FAILED, USAGE};

/// Reason for a nonzero exit code.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The arguments or the environment are wrong.
    #[error("{0}")]
    Usage(String),
    /// The run or tool failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The system refuses resources that a rank needs.
    #[error("{0}")]
    NotStarted(io::Error),
    /// The preview failed.
    #[error(transparent)]
    Preview(PreviewError),
    /// The output was lost on its way to the reader.
    #[error("cannot write to standard output: {0}")]
    Unsaid(&'static str),
    /// The report failed.
    #[error(transparent)]
    Report(#[from] ReportError),
}

impl From<burn_dist::launch::LaunchError> for Failure {
    fn from(error: burn_dist::launch::LaunchError) -> Self {
        Self::Train(TrainError::Dist(error.into()))
    }
}

impl From<PreviewError> for Failure {
    fn from(error: PreviewError) -> Self {
        match error {
            PreviewError::Train(error) => Self::Train(error),
            other => Self::Preview(other),
        }
    }
}

impl From<FindError> for Failure {
    fn from(error: FindError) -> Self {
        match error {
            FindError::Config(error) => Self::Config(error),
            FindError::Checkpoint(error) => Self::Train(error.into()),
            FindError::Weights(error) => Self::Train(error.into()),
            nothing @ FindError::Nothing { .. } => Self::Usage(nothing.to_string()),
        }
    }
}

impl Failure {
    /// Exit code for scripts.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Config(_) | Self::Usage(_) => USAGE,
            Self::Report(
                ReportError::NoRun(_) | ReportError::NoMetrics(_) | ReportError::TooMany(_),
            ) => USAGE,
            Self::Train(error) if error.is_usage() => USAGE,
            Self::Train(_)
            | Self::NotStarted(_)
            | Self::Preview(_)
            | Self::Unsaid(_)
            | Self::Report(_) => FAILED,
        }
    }
}

/// Prints the failure: in full on the main rank, in one line with the rank on others.
///
/// A rank that only repeats another rank's error prints nothing.
pub fn report(world: &World, failure: &Failure) {
    let rank = world.rank();
    match failure {
        Failure::Config(error)
        | Failure::Train(TrainError::Config(error) | TrainError::Misfit(error))
            if rank == 0 =>
        {
            complain(&render(error));
        }
        _ if rank == 0 => complain(&format!("error: {failure}")),
        Failure::Train(error) if error.is_same_on_all_ranks() => {}
        // The own launcher names the rank that failed first.
        Failure::Train(error) if error.is_of_another_rank() && world.launch() == Launch::Local => {}
        _ => complain(&format!("error on rank {rank}: {failure}")),
    }
}

/// Renders the error with the source line it refers to.
fn render(error: &ConfigError) -> String {
    let terminal = std::io::stderr().is_terminal();
    let theme = match terminal {
        true => miette::GraphicalTheme::unicode(),
        false => miette::GraphicalTheme::unicode_nocolor(),
    };
    let handler = miette::GraphicalReportHandler::new_themed(theme)
        .with_wrap_lines(false)
        .with_links(false);
    let mut text = String::new();
    match handler.render_report(&mut text, error) {
        Ok(()) => format!("error: invalid configuration\n{}", text.trim_end()),
        Err(_) => format!("error: {error}"),
    }
}

//! Why the program ends without having done what it was asked, and how it says so.

use std::io::{self, IsTerminal};

use burn_dist::world::{Launch, World};

use crate::config::ConfigError;
use crate::error::TrainError;
use crate::report::ReportError;
use crate::system::output::complain;
use crate::tools::preview::PreviewError;
use crate::tools::trained::FindError;
use crate::{FAILED, USAGE};

/// Why the program ends without having done what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The arguments or the environment are wrong.
    #[error("{0}")]
    Usage(String),
    /// What was started failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The system does not give a rank what it takes.
    #[error("{0}")]
    NotStarted(io::Error),
    /// There is no preview.
    #[error(transparent)]
    Preview(PreviewError),
    /// What was found out did not get to who wants to know it.
    #[error("cannot write to standard output: {0}")]
    Unsaid(&'static str),
    /// There is no report.
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
    /// The exit code that tells scripts.
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

/// The main rank shows all there is to show; the others one line with their rank, and nothing
/// where it would only repeat what somebody else says.
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
        // Our launcher names the rank that failed first.
        Failure::Train(error) if error.is_of_another_rank() && world.launch() == Launch::Local => {}
        _ => complain(&format!("error on rank {rank}: {failure}")),
    }
}

/// The error with the place in the source that it is about.
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

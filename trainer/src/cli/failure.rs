//! Errors of the program, and how it prints them.

use std::io;
use std::thread;
use std::time::Duration;

use burn_dist::launch::NodesError;
use burn_dist::world::{Launch, World};

use crate::config::ConfigError;
use crate::error::{Elsewhere, TrainError};
use crate::report::ReportError;
use crate::run::group::speaks_alone;
use crate::system::output::{complain, style};
use crate::system::signals;
use crate::tools::preview::PreviewError;
use crate::tools::trained::FindError;
use crate::{FAILED, USAGE};

/// Time for the rank that tells a failure, before another one ends all ranks.
const TELLING: Duration = Duration::from_secs(3);

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
    /// This node cannot take part in a launch on several nodes.
    #[error("{0}")]
    Nodes(NodesError),
    /// The search found no learning rate.
    #[error("{0}")]
    Unclear(String),
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
            // Other options, or another secret, than the other agents.
            Self::Nodes(NodesError::Refused(_) | NodesError::Environment(_)) => USAGE,
            Self::Train(_)
            | Self::NotStarted(_)
            | Self::Nodes(_)
            | Self::Unclear(_)
            | Self::Preview(_)
            | Self::Unsaid(_)
            | Self::Report(_) => FAILED,
        }
    }
}

/// Prints the failure: in full on the main rank, in one line with the rank on others.
///
/// Only the rank that has the cause tells it. The others give it time under launchers that end all
/// ranks after one: MPI, torchrun, and srun with `--kill-on-bad-exit`.
pub fn report(world: &World, failure: &Failure) {
    let rank = world.rank();
    if let Failure::Train(error) = failure
        && let Some(elsewhere) = error.elsewhere()
    {
        match elsewhere_in_words(world, &elsewhere) {
            Some(text) => complain(&text),
            None => let_another_tell(world, failure),
        }
        return;
    }
    match failure {
        Failure::Config(error)
        | Failure::Train(TrainError::Config(error) | TrainError::Misfit(error))
            if rank == 0 =>
        {
            complain(&render(error));
        }
        _ if rank == 0 => complain(&format!("error: {failure}")),
        Failure::Train(error) if error.is_same_on_all_ranks() && !speaks_alone() => {
            let_another_tell(world, failure);
        }
        _ => complain(&format!("error on rank {rank}: {failure}")),
    }
}

/// Waits until another rank has told the failure, if the end of this one could end that one. A
/// launcher that ends this one meanwhile gets the exit code of the failure.
fn let_another_tell(world: &World, failure: &Failure) {
    if matches!(
        world.launch(),
        Launch::Mpi | Launch::Slurm | Launch::Torchrun
    ) {
        signals::end_with(failure.exit_code());
        thread::sleep(TELLING);
    }
}

/// The words of this rank about the failure of another, if it is the one to say them.
fn elsewhere_in_words(world: &World, elsewhere: &Elsewhere) -> Option<String> {
    // The own launcher names a rank that ended without a word.
    if world.is_of_own_launcher() {
        return None;
    }
    let label = match (world.rank(), elsewhere.rank) {
        (0, _) => "error",
        // The main rank may be unable to speak.
        (1, None | Some(0)) => "error on rank 1",
        _ => return None,
    };
    Some(match elsewhere.rank {
        Some(rank) if is_own_message(rank, &elsewhere.told) => {
            format!("{label}: rank {rank} failed; its own message says why")
        }
        _ => format!("{label}: {}", elsewhere.told),
    })
}

/// Whether the words about `rank` are the error that it has printed itself, not what others saw of
/// its end or the signal that ended it.
fn is_own_message(rank: usize, told: &str) -> bool {
    let reason = told.strip_prefix(&format!("rank {rank} failed: "));
    reason.is_some_and(|reason| {
        let by_others = ["it ", "its ", "the store ", signals::STOPPED_BY];
        !by_others.iter().any(|start| reason.starts_with(start))
    })
}

/// Renders all errors of a configuration with the source lines that they refer to.
fn render(error: &ConfigError) -> String {
    let theme = match style::has_colors() {
        true => miette::GraphicalTheme::unicode(),
        false => miette::GraphicalTheme::unicode_nocolor(),
    };
    let handler = miette::GraphicalReportHandler::new_themed(theme)
        .with_wrap_lines(false)
        .with_links(false);
    let count = error.flaws().count();
    let mut text = match count {
        1 => "error: invalid configuration".to_owned(),
        count => format!("error: invalid configuration, {count} errors"),
    };
    for flaw in error.flaws() {
        let mut rendered = String::new();
        if handler.render_report(&mut rendered, flaw).is_err() {
            rendered = flaw.to_string();
        }
        let gap = if count > 1 { "\n\n" } else { "\n" };
        text += &format!("{gap}{}", rendered.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_said_itself_is_known() {
        for (told, own) in [
            ("rank 2 failed: a/3.png cannot be used", true),
            ("rank 2 failed: rank 2 panicked: no", true),
            ("rank 2 failed: its connection closed unexpectedly", false),
            ("rank 2 failed: it was killed by signal 9", false),
            ("rank 2 failed: stopped by SIGINT", false),
            ("rank 3 failed: a/3.png cannot be used", false),
            ("the launcher is gone", false),
        ] {
            assert_eq!(is_own_message(2, told), own, "{told}");
        }
    }
}

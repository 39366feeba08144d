//! Processes of a command that runs on several ranks: starts them, or is one.

use std::io::IsTerminal;
use std::path::Path;

use burn_dist::launch::LocalLauncher;
use burn_dist::world::{Launch, World};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::failure::Failure;
use crate::console::{complain, not_said};
use crate::{prepare_process, run_log};

/// How many ranks there are: a launcher's word, else `--nproc`, else `default`.
///
/// # Errors
/// If a launcher and `--nproc` contradict each other.
pub fn world_size(nproc: Option<u16>, default: usize, world: &World) -> Result<usize, Failure> {
    match (world.launch(), nproc) {
        (Launch::Single, Some(ranks)) => Ok(ranks.into()),
        (Launch::Single, None) => Ok(default),
        // Ranks of our own launcher get its arguments.
        (Launch::Local, _) | (_, None) => Ok(world.size()),
        (launch, Some(_)) => Err(Failure::Usage(format!(
            "--nproc starts ranks, but this process was started by {launch} as {}; leave --nproc \
             out, or unset RANK, LOCAL_RANK and WORLD_SIZE",
            world.describe()
        ))),
    }
}

/// Refuses a configuration that the ranks which this process starts could not read once more.
///
/// # Errors
/// If it is a pipe, such as `<(…)` of a shell.
pub fn check_readable(config: Option<&str>, size: usize, world: &World) -> Result<(), Failure> {
    let read_again = size > 1 && world.launch() == Launch::Single;
    let file = config.filter(|_| read_again).map(Path::new);
    match file.filter(|file| file.exists() && !file.is_file()) {
        None => Ok(()),
        Some(file) => Err(Failure::Usage(format!(
            "every rank reads the configuration, and {} is not a regular file: write it to one",
            file.display()
        ))),
    }
}

/// Starts `size` ranks with the arguments of this process if there are to be several and nobody
/// else has started them; otherwise is the rank that `world` says, and does `work`.
///
/// # Errors
/// Those of `work`; ranks that cannot be started.
pub fn on_ranks(
    size: usize,
    world: &World,
    work: impl FnOnce() -> Result<i32, Failure>,
) -> Result<i32, Failure> {
    if size > 1 && world.launch() == Launch::Single {
        return start_ranks(size);
    }
    log_warnings();
    if let Some(advice) = world.advice() {
        complain(&format!("warning: {advice}"));
    }
    prepare_process(world)
        .map_err(|error| Failure::Usage(format!("cannot listen for signals: {error}")))?;
    work()
}

/// Starts `size` processes of this program with the same arguments, and waits for them.
fn start_ranks(size: usize) -> Result<i32, Failure> {
    let outcome = LocalLauncher::new(size).run()?;
    outcome.unwritten().into_iter().for_each(not_said);
    match outcome.failure() {
        // What it told the others it has also written itself.
        Some(failure) => {
            let (rank, exit) = (failure.rank(), failure.exit());
            complain(&format!("error: rank {rank} {exit}"));
        }
        None if !outcome.is_success() => complain(&outcome.to_string()),
        None => {}
    }
    Ok(outcome.exit_code().into())
}

/// Shows what the libraries warn of; `RUST_LOG` asks for more. The log of a run has more of it.
fn log_warnings() {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::WARN.into())
        .from_env_lossy();
    let shown = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .with_filter(filter);
    // Fails only where somebody listens already, which is as good.
    let _ = tracing_subscriber::registry()
        .with(shown)
        .with(run_log::events())
        .try_init();
}

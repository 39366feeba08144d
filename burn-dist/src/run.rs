//! Runs a training function on all ranks: starts them or is one, connects, reports, ends.

use std::error::Error;
use std::fmt::Display;
use std::panic::{self, AssertUnwindSafe};
use std::process::{ExitCode, Termination};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::error::CollectiveError;
use crate::group::{Abort, GroupOptions, ProcessGroup};
use crate::launch::{LocalLauncher, RankExit, RankFailure};
use crate::parallel::ParallelError;
use crate::thread_pool::PoolSize;
use crate::world::{Launch, World};

/// Exit code of a program that panicked.
const PANICKED: u8 = 101;
/// Time for a rank to end by itself after the run has failed.
const ABORT_AFTER: Duration = Duration::from_secs(30);

/// Runs `work` on every rank, and returns the exit code of the program.
///
/// `work` returns nothing or an [`ExitCode`]. `--nproc N` among the program's arguments starts N
/// ranks on this machine. Under Slurm, MPI or torchrun this process is one of the ranks that were
/// started. Without either there is one rank.
///
/// ```no_run
/// use burn::optim::AdamWConfig;
/// use burn::{nn::LinearConfig, tensor::Tensor};
/// use burn_dist::parallel::{Parallel, Strategy};
///
/// fn main() -> std::process::ExitCode {
///     burn_dist::run(|world, group| {
///         let device = world.device()?.autodiff();
///         let model = LinearConfig::new(10, 1).init(&device);
///         let mut parallel = Parallel::new(model, AdamWConfig::new(), Strategy::Ddp, group)?;
///         let batch = Tensor::<2>::ones([32, 10], &device);
///         let loss = parallel.model().forward(batch).square().mean();
///         parallel.backward(loss)?;
///         parallel.step(1e-3)?;
///         Ok(())
///     })
/// }
/// ```
///
/// Rayon's pool gets this rank's share of the CPUs, or `RAYON_NUM_THREADS` threads. With two or
/// more, the calling thread becomes one of them ([`PoolSize::join`]), so tasks in the pool must not
/// wait for it. A pool that the program has started before stays as it is.
///
/// If `work` fails or panics, all other ranks end with its reason, and the error is printed with
/// its causes. A rank that hangs after the run has failed is ended after 30 s. To choose the number
/// of ranks or the options of the group in the program, use [`Run`].
pub fn run<T: Termination>(
    work: impl FnOnce(&World, &ProcessGroup) -> Result<T, Box<dyn Error + Send + Sync>>,
) -> ExitCode {
    Run::new().start(work)
}

/// Options of a [`run`].
#[derive(Debug, Default)]
pub struct Run {
    nproc: Option<usize>,
    options: Option<GroupOptions>,
}

impl Run {
    /// Takes the number of ranks from `--nproc`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of ranks to start on this machine, instead of `--nproc`.
    pub fn nproc(mut self, nproc: usize) -> Self {
        self.nproc = Some(nproc);
        self
    }

    /// Sets the options of the group.
    pub fn options(mut self, options: GroupOptions) -> Self {
        self.options = Some(options);
        self
    }

    /// As [`run`].
    pub fn start<T: Termination>(
        self,
        work: impl FnOnce(&World, &ProcessGroup) -> Result<T, Box<dyn Error + Send + Sync>>,
    ) -> ExitCode {
        match self.start_ranks_or_be_one(work) {
            Ok(code) => code,
            Err(error) => {
                eprintln!("error: {}", with_causes(error.as_ref()));
                ExitCode::FAILURE
            }
        }
    }

    fn start_ranks_or_be_one<T: Termination>(
        self,
        work: impl FnOnce(&World, &ProcessGroup) -> Result<T, Box<dyn Error + Send + Sync>>,
    ) -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
        let nproc = match self.nproc {
            Some(nproc) => Some(nproc),
            None => asked(std::env::args().skip(1))?,
        };
        let world = World::from_env()?;
        match (world.launch(), nproc) {
            (Launch::Single, Some(nproc)) if nproc != 1 => {
                let outcome = LocalLauncher::new(nproc).run()?;
                if outcome
                    .failure()
                    .is_some_and(|failure| !has_spoken(failure))
                {
                    eprintln!("error: {outcome}");
                }
                return Ok(outcome.exit_code().into());
            }
            (Launch::Slurm | Launch::Mpi | Launch::Torchrun, Some(_)) => {
                let launch = world.launch();
                return Err(format!(
                    "--nproc starts ranks, but {launch} already started this process. Omit --nproc"
                )
                .into());
            }
            _ => {}
        }
        Ok(be_rank(&world, self.options.unwrap_or_else(options), work))
    }
}

/// The number after `--nproc`.
fn asked(args: impl Iterator<Item = String>) -> Result<Option<usize>, String> {
    let mut args = args.skip_while(|arg| arg != "--nproc" && !arg.starts_with("--nproc="));
    let Some(found) = args.next() else {
        return Ok(None);
    };
    let value = match found.split_once('=') {
        Some((_, value)) => value.to_owned(),
        None => args.next().unwrap_or_default(),
    };
    match value.parse() {
        Ok(nproc) => Ok(Some(nproc)),
        Err(_) => Err(format!(
            "--nproc is {value:?}; it must be a number of ranks"
        )),
    }
}

fn options() -> GroupOptions {
    GroupOptions {
        abort: Some(Abort::after(ABORT_AFTER)),
        ..GroupOptions::default()
    }
}

fn be_rank<T: Termination>(
    world: &World,
    options: GroupOptions,
    work: impl FnOnce(&World, &ProcessGroup) -> Result<T, Box<dyn Error + Send + Sync>>,
) -> ExitCode {
    let say = |error: &dyn Display| match world.size() {
        1 => eprintln!("error: {error}"),
        _ => eprintln!("error on rank {}: {error}", world.rank()),
    };
    let size = PoolSize::of_rank(world);
    if let Some(warning) = size.warning().filter(|_| world.local_rank() == 0) {
        eprintln!("warning: {warning}");
    }
    if let Err(error) = size.join() {
        say(&error);
        return ExitCode::FAILURE;
    }
    let group = match ProcessGroup::connect_with(world, options) {
        Ok(group) => group,
        Err(error) => {
            say(&with_causes(&error));
            return ExitCode::FAILURE;
        }
    };
    let watched = Arc::new(Mutex::new(Some(group.clone())));
    let told = Arc::clone(&watched);
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // The others learn it before anything is printed, which may block.
        if let Ok(group) = told.lock()
            && let Some(group) = &*group
            && !contained::is_running()
        {
            group.abort(&format!("panicked: {info}"));
        }
        print(info);
    }));
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| work(world, &group)));
    // The hook outlives the rank. A group that it kept would never say goodbye to the others.
    drop(watched.lock().map(|mut group| group.take()));
    match outcome {
        Ok(Ok(done)) => done.report(),
        Ok(Err(error)) => {
            // The rank that caused it has printed it.
            let of_another = is_of_another_rank(error.as_ref());
            let error = with_causes(error.as_ref());
            group.abort(&error);
            if !of_another || !world.is_of_own_launcher() {
                say(&error);
            }
            ExitCode::FAILURE
        }
        Err(_) => PANICKED.into(),
    }
}

/// Whether the rank has printed the error that it told the others.
fn has_spoken(failure: &RankFailure) -> bool {
    let by_itself = failure.exit() == RankExit::Code(1) && !failure.held_others_up();
    by_itself && failure.reason().is_some()
}

/// Whether a collective failed because of another rank.
fn is_of_another_rank(error: &(dyn Error + 'static)) -> bool {
    let own = error.downcast_ref::<CollectiveError>();
    let library = error.downcast_ref::<crate::Error>();
    let parallel = error.downcast_ref::<ParallelError>();
    let found = own
        .or_else(|| library?.collective())
        .or_else(|| parallel?.collective());
    match found {
        Some(error) => error.of_another_rank().is_some(),
        None => error.source().is_some_and(is_of_another_rank),
    }
}

/// An error and its causes on one line, without repeating a cause that the error already tells.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = error.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_ranks_is_read_in_both_forms() {
        let asked = |args: &[&str]| asked(args.iter().map(|arg| (*arg).to_owned()));
        assert_eq!(asked(&["--epochs", "3"]), Ok(None));
        assert_eq!(asked(&["--nproc", "4", "x"]), Ok(Some(4)));
        assert_eq!(asked(&["x", "--nproc=2"]), Ok(Some(2)));
        for wrong in [&["--nproc"][..], &["--nproc", "many"], &["--nproc=-1"]] {
            assert!(asked(wrong).unwrap_err().contains("--nproc is"));
        }
    }

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read the data")]
        struct Outer(#[source] std::io::Error);
        #[derive(Debug, thiserror::Error)]
        #[error(transparent)]
        struct Through(#[from] Outer);
        let error = Through(Outer(std::io::Error::other("no such disk")));
        assert_eq!(with_causes(&error), "cannot read the data: no such disk");
    }
}

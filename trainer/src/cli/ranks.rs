//! Processes of a command on several ranks: starts them, or is one.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;

use burn_dist::launch::{self, LaunchOutcome, LocalLauncher, RankExit, RankFailure};
use burn_dist::world::{Launch, World};

use super::failure::Failure;
use crate::system::output::{complain, not_said};
use crate::{FAILED, USAGE, prepare_process};

/// Ranks of a command.
#[derive(Clone, Copy, Debug)]
pub struct Ranks {
    /// Number of ranks.
    pub size: usize,
    /// Maximum number of restarts after a failure.
    pub restarts: u16,
    /// Whether rank 0 writes to this process's standard output itself, for output that must arrive
    /// byte for byte.
    pub direct_output: bool,
}

impl Ranks {
    /// This number of ranks, whose output lines are passed on.
    pub fn without_restarts(size: usize) -> Self {
        Self {
            size,
            restarts: 0,
            direct_output: false,
        }
    }

    /// Whether this process starts the ranks: several, or one with restarts.
    fn are_ours(self, world: &World) -> bool {
        world.launch() == Launch::Single && (self.size > 1 || self.restarts > 0)
    }
}

/// Number of ranks: that of the launcher, else `--nproc`, else `default`.
///
/// # Errors
/// Fails if a launcher and `--nproc` contradict each other.
pub fn world_size(nproc: Option<u16>, default: usize, world: &World) -> Result<usize, Failure> {
    match (world.launch(), nproc) {
        (Launch::Single, Some(ranks)) => Ok(ranks.into()),
        (Launch::Single, None) => Ok(default),
        // Ranks of the own launcher have its arguments.
        (Launch::Local | Launch::Agent, _) | (_, None) => Ok(world.size()),
        (launch, Some(_)) => Err(Failure::Usage(format!(
            "--nproc starts ranks, but {launch} already started this process as {}. Omit --nproc, \
             or unset {}",
            world.describe(),
            listed(&launch::variables(launch))
        ))),
    }
}

/// Lists names as in `a, b and c`.
pub fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [names @ .., last] => format!("{} and {last}", names.join(", ")),
    }
}

/// Rejects a configuration that the ranks started by this process could not read again.
///
/// # Errors
/// Fails for a pipe, such as `<(…)` of a shell.
pub fn check_readable(config: Option<&str>, ranks: Ranks, world: &World) -> Result<(), Failure> {
    let read_again = ranks.are_ours(world);
    let file = config.filter(|_| read_again).map(Path::new);
    match file.filter(|file| file.exists() && !file.is_file()) {
        None => Ok(()),
        Some(file) => Err(Failure::Usage(format!(
            "every rank reads the configuration, but {} is not a regular file. Save the \
             configuration to a file",
            file.display()
        ))),
    }
}

/// Starts the ranks with this process's arguments, or does `work` as the rank in `world`.
///
/// It starts ranks if no launcher has and the command needs them. If the system may have killed a
/// rank for its memory, `shortage` gives the explanation.
///
/// # Errors
/// Errors of `work`, and of starting the ranks.
pub fn on_ranks(
    ranks: Ranks,
    world: &World,
    shortage: impl Fn() -> Option<String>,
    work: impl FnOnce() -> Result<i32, Failure>,
) -> Result<i32, Failure> {
    if let Some(advice) = world.advice().filter(|_| world.is_main()) {
        complain(&format!("warning: {advice}"));
    }
    if ranks.are_ours(world) {
        return start(ranks, &shortage);
    }
    prepare_process(world).map_err(Failure::NotStarted)?;
    work()
}

/// Starts processes of this program with the same arguments, and waits for them. After a failure,
/// restarts all of them from the last good checkpoint of the run folder.
fn start(ranks: Ranks, shortage: &dyn Fn() -> Option<String>) -> Result<i32, Failure> {
    let Ranks { size, restarts, .. } = ranks;
    let mut restart = 0;
    let mut said_before = None;
    loop {
        let goes_on = match restart {
            0 => &[][..],
            _ => &["--resume", "auto"],
        };
        let arguments = std::env::args_os().skip(1);
        let arguments = arguments.chain(goes_on.iter().map(OsString::from));
        let launcher = LocalLauncher::new(size).args(arguments);
        let outcome = launcher.direct_output(ranks.direct_output).run()?;
        tell(&outcome, shortage);
        if restart == restarts || !may_succeed_again(&outcome) {
            return Ok(outcome.exit_code().into());
        }
        let said = error_of(&outcome);
        if said.is_some() && said == said_before {
            complain("the same error again; the ranks are not restarted");
            return Ok(outcome.exit_code().into());
        }
        said_before = said;
        restart += 1;
        complain(&format!(
            "restarting all ranks, restart {restart} of {restarts}"
        ));
    }
}

fn tell(outcome: &LaunchOutcome, shortage: &dyn Fn() -> Option<String>) {
    outcome.unwritten().into_iter().for_each(not_said);
    match outcome.failure() {
        Some(failure) if has_spoken(failure) => {}
        Some(failure) => {
            let (rank, exit) = (failure.rank(), failure.exit());
            let reason = failure.reason().map(|reason| format!(": {reason}"));
            let reason = reason.unwrap_or_default();
            let why = match failure.may_lack_memory() {
                true => {
                    "; it may be out of memory (`trainer check` estimates the memory of each rank)"
                }
                false => "",
            };
            complain(&match failure.held_others_up() {
                true => format!("error: {failure}"),
                false => format!("error: rank {rank} {exit}{why}{reason}"),
            });
            if let Some(shortage) = failure.may_lack_memory().then(shortage).flatten() {
                complain(&format!("estimate: {shortage}"));
            }
        }
        None if !outcome.is_success() => complain(&outcome.to_string()),
        None => {}
    }
}

/// Whether a rank has printed the cause of this failure.
fn has_spoken(failure: &RankFailure) -> bool {
    let by_itself = matches!(failure.exit(), RankExit::Code(FAILED | USAGE));
    if failure.held_others_up() || !by_itself {
        return false;
    }
    // Ranks print the error that they tell the others. Before the ranks are connected, they only
    // print it.
    let of_error = |line: &String| {
        anstream::adapter::strip_str(line)
            .to_string()
            .starts_with("error")
    };
    let unheard = failure.rank() == 0 && std::io::stderr().is_terminal();
    failure.reason().is_some() || unheard || failure.last_words().iter().any(of_error)
}

/// Message of the failed rank, if it ended by itself. The same message twice at the same step means
/// that a restart does not help.
fn error_of(outcome: &LaunchOutcome) -> Option<String> {
    let failure = outcome
        .failure()
        .filter(|failure| matches!(failure.exit(), RankExit::Code(_)))?;
    let said = match failure.reason() {
        Some(reason) => reason.to_owned(),
        None => failure.last_words().join("\n"),
    };
    Some(said).filter(|said| !said.is_empty())
}

/// Whether a restart may help: a rank failed, unintended, and not for wrong arguments.
fn may_succeed_again(outcome: &LaunchOutcome) -> bool {
    let is_usage = i32::from(outcome.exit_code()) == USAGE;
    outcome.failure().is_some() && !outcome.told_to_stop() && !is_usage
}

//! Detects that a rank's launcher is gone, so that the rank does not run on for hours.
//!
//! A launcher that a signal kills (`torchrun` by SIGUSR1 or SIGKILL) tells its ranks nothing, and
//! the ranks still have each other.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, getsid};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::Vars;
use super::ancestors::{self, Ancestor};
use super::variables::GENERATION;
use super::{mpi, slurm, torchrun};
use crate::process::Process;
use crate::rendezvous;
use crate::world::{Launch, World};

/// Pause between looks if the system sends no event.
const LOOK: Duration = Duration::from_millis(500);

/// Calls `then` when the process that started this rank is gone, or one between them.
///
/// `then` gets a few words that name the process, and runs in its own thread. Does nothing without
/// a launcher: a script may start ranks and end on purpose.
///
/// Any process that sets the variables of `torchrun` counts as a launcher, unless it is a shell or
/// the rank is in its own session (`setsid`). Ranks of
/// [`LocalLauncher`](crate::launch::LocalLauncher) learn it from the store once they are connected,
/// and then have 10 minutes to end. Ranks of an agent watch both their agent and the store.
///
/// # Errors
/// Fails if the thread cannot be started.
pub fn when_launcher_is_gone(
    world: &World,
    then: impl FnOnce(String) + Send + 'static,
) -> io::Result<()> {
    let then = Once::new(then);
    if world.is_of_own_launcher() {
        let then = then.clone();
        let gone = match world.launch() {
            Launch::Local => "the launcher",
            _ => "the first agent",
        };
        rendezvous::when_launcher_is_gone(move || then.call(gone.into()));
    }
    let vars: Vars = &|name| std::env::var(name).ok();
    let watched: Vec<(Process, Ancestor)> = launchers(world.launch(), vars)
        .into_iter()
        .map(|ancestor| (Process::new(ancestor.pid), ancestor))
        .collect();
    if watched.is_empty() {
        return Ok(());
    }
    let thread = thread::Builder::new().name("launcher-watch".into());
    let watch = move || {
        let gone = wait_for_first(&watched);
        then.call(format!("{} (process {})", gone.name, gone.pid));
    };
    thread.spawn(watch).map(drop)
}

/// A callback that two events may call; the first does.
struct Once<F>(Arc<Mutex<Option<F>>>);

impl<F: FnOnce(String)> Once<F> {
    fn new(then: F) -> Self {
        Self(Arc::new(Mutex::new(Some(then))))
    }

    fn call(&self, gone: String) {
        let then = self.0.lock().take();
        if let Some(then) = then {
            then(gone);
        }
    }
}

impl<F> Clone for Once<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Number of CPUs of the launcher, if this rank's CPUs are among them.
///
/// All ranks that the launcher started here share them.
pub fn cpus_of_launcher(world: &World) -> Option<usize> {
    let vars: Vars = &|name| std::env::var(name).ok();
    let launcher = ancestors::up_to_who_set(variable(world.launch(), vars)?).pop()?;
    let own = sched_getaffinity(None).ok()?;
    let all = sched_getaffinity(Some(launcher.pid)).ok()?;
    // Slurm may bind its own daemon to CPUs that no task gets.
    let is_part = (0..CpuSet::MAX_CPU).all(|cpu| !own.is_set(cpu) || all.is_set(cpu));
    is_part.then_some(all.count() as usize)
}

/// A variable that the launcher has set.
fn variable(launch: Launch, vars: Vars) -> Option<&'static str> {
    match launch {
        Launch::Local => None,
        Launch::Agent => Some(GENERATION),
        // The only task or rank is alone, and has a launcher nevertheless.
        Launch::Single => match slurm::step_of_srun(vars) {
            Some(_) => Some(slurm::STEP_NUM_TASKS),
            None => mpi::rank_variables(vars).next(),
        },
        Launch::Slurm => Some(slurm::STEP_NUM_TASKS),
        Launch::Mpi => mpi::rank_variables(vars).next(),
        Launch::Torchrun => torchrun::variables(vars).next(),
    }
}

/// The launcher, and the processes between it and this one.
fn launchers(launch: Launch, vars: Vars) -> Vec<Ancestor> {
    let Some(variable) = variable(launch, vars) else {
        return Vec::new();
    };
    let found = ancestors::up_to_who_set(variable);
    let Some(last) = found.last() else {
        return Vec::new();
    };
    let is_launcher = match launch {
        Launch::Single => last.starts_ranks(),
        Launch::Torchrun if !torchrun::is_parent(vars) => {
            let session = |pid: Option<Pid>| getsid(pid).ok();
            !last.is_shell() && session(None) == session(Some(last.pid))
        }
        _ => true,
    };
    // The first process of a machine does not end before the others.
    let found = found.into_iter().filter(|found| found.pid != Pid::INIT);
    found.filter(|_| is_launcher).collect()
}

/// Waits until one of them has ended.
fn wait_for_first(watched: &[(Process, Ancestor)]) -> &Ancestor {
    let all_tell = watched
        .iter()
        .all(|(process, _)| process.handle().is_some());
    let limit = LOOK.try_into().ok();
    loop {
        let told = watched.iter().filter_map(|(process, _)| process.handle());
        let mut told: Vec<PollFd<'_>> = told
            .map(|handle| PollFd::new(handle, PollFlags::IN))
            .collect();
        // Interrupted by a signal, for example.
        if poll(&mut told, limit.as_ref().filter(|_| !all_tell)).is_err() {
            thread::sleep(LOOK);
        }
        let ended = watched.iter().find(|(process, _)| process.has_ended());
        if let Some((_, ancestor)) = ended {
            return ancestor;
        }
    }
}

//! What a process needs that is one rank of a training.

use std::io;
use std::sync::Once;

use burn_dist::launch;
use burn_dist::thread_limit::NoThreads;
use burn_dist::world::{Launch, World};

use crate::system::{panics, signals, threads};

/// Prepares this process to be the rank that `world` says, as the program `trainer` does: SIGTERM,
/// SIGUSR1, SIGXCPU and the end of its launcher end a training with a checkpoint, a panic ends all
/// ranks rather than leave the others waiting, and the calling thread becomes one of those that
/// compute. To be called before the first tensor is made; a second call does nothing.
///
/// # Errors
/// If the system refuses the handlers of signals, or as many threads as it takes.
pub fn prepare_process(world: &World) -> io::Result<()> {
    static ONCE: Once = Once::new();
    let mut outcome = Ok(());
    ONCE.call_once(|| {
        panics::end_on_panic(world.rank());
        outcome = prepare(world);
    });
    outcome
}

fn prepare(world: &World) -> io::Result<()> {
    // Our launcher reports by itself what ended the run.
    let speaks = world.is_main() && world.launch() != Launch::Local;
    signals::listen(speaks).map_err(of_limit)?;
    let gone = move |who| signals::launcher_is_gone(who, speaks);
    launch::when_launcher_is_gone(world, gone).map_err(of_limit)?;
    // Where that is only assumed, other ranks may be on other machines.
    let ranks = match world.assumes_local_size() {
        true => 1,
        false => world.local_size(),
    };
    let of_launcher = launch::cpus_of_launcher(world);
    threads::start_pool(ranks, of_launcher, world.local_rank() == 0)
}

/// What it means that the system refused to listen.
fn of_limit(error: io::Error) -> io::Error {
    let other = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot listen for signals: {error}"))
    };
    NoThreads::of(&error).map_or_else(|| other(error), io::Error::from)
}

//! Prepares a process to be a rank of a training.

use std::io;
use std::sync::Once;

use burn_dist::launch;
use burn_dist::thread_limit::NoThreads;
use burn_dist::thread_pool::PoolSize;
use burn_dist::world::World;

use crate::system::output::complain;
use crate::system::{panics, signals};

/// Prepares this process to be the rank in `world`, as the program `trainer` does.
///
/// - SIGINT, SIGTERM, SIGUSR1, SIGXCPU and the end of the launcher end a training with a
///   checkpoint.
/// - A panic ends all ranks rather than leave the others waiting.
/// - The calling thread joins the compute pool.
///
/// Call it before the first tensor is made; a second call does nothing.
///
/// # Errors
/// Fails if the system refuses signal handlers or the required threads.
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
    // The own launcher reports the reason itself.
    let speaks = world.is_main() && !world.is_of_own_launcher();
    signals::listen(world).map_err(of_limit)?;
    let gone = move |who| signals::launcher_is_gone(who, speaks);
    launch::when_launcher_is_gone(world, gone).map_err(of_limit)?;
    let size = PoolSize::of_rank(world);
    if let Some(warning) = size.warning().filter(|_| world.local_rank() == 0) {
        complain(&format!("warning: {warning}"));
    }
    size.join()
}

/// Adds advice on the thread limit to an error of the signal handlers.
fn of_limit(error: io::Error) -> io::Error {
    let other = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot listen for signals: {error}"))
    };
    NoThreads::of(&error).map_or_else(|| other(error), io::Error::from)
}

//! What a process needs that is one rank of a training.

use std::io;
use std::sync::Once;

use burn_dist::launch;
use burn_dist::world::{Launch, World};

use crate::{panics, signals, threads};

/// Prepares this process to be the rank that `world` says, as the program `trainer` does: SIGTERM,
/// SIGUSR1 and SIGXCPU end a training with a checkpoint, a panic ends all ranks rather than leave the others
/// waiting, and the calling thread becomes one of those that compute. To be called before the first
/// tensor is made; a second call does nothing.
///
/// # Errors
/// If the system refuses the handlers of signals.
pub fn prepare_process(world: &World) -> io::Result<()> {
    static ONCE: Once = Once::new();
    let mut outcome = Ok(());
    ONCE.call_once(|| {
        // Where that is only assumed, other ranks may be on other machines.
        threads::join_pool(match world.assumes_local_size() {
            true => 1,
            false => world.local_size(),
        });
        panics::end_on_panic(world.rank());
        // Our launcher reports by itself what ended the run.
        let speaks = world.is_main() && world.launch() != Launch::Local;
        let gone = move |who| signals::launcher_is_gone(who, speaks);
        outcome = signals::listen(speaks).and_then(|()| launch::when_launcher_is_gone(world, gone));
    });
    outcome
}

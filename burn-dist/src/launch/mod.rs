//! How ranks come to life: one file per kind of launch, each of which turns an environment into a
//! [`World`](crate::world::World) or starts the ranks itself.

mod decide;
mod devices;
pub mod local;
mod mpi;
mod ports;
pub mod slurm;
mod torchrun;
mod user_key;
mod variables;

pub(crate) use decide::decide;
pub(crate) use devices::visible;
pub use local::{LaunchError, LaunchOutcome, LocalLauncher, RankExit, RankFailure};
pub use slurm::HostlistError;
pub use user_key::KeyError;

use crate::world::Launch;

/// Whether the ranks of such a launch are copies of one program by construction.
pub(crate) fn program_is_shared(launch: Launch) -> bool {
    matches!(launch, Launch::Single | Launch::Local)
}

/// Ends all ranks at once with exit code `code` where MPI started them, and returns where it did not:
/// there the store tells the other ranks when this one is gone.
///
/// For a process that is about to end with an error. MPI's own end waits for every rank, so one that
/// leaves early would leave the others hanging until their launcher notices.
pub fn abort_all(code: i32) {
    #[cfg(feature = "mpi")]
    crate::mpi::abort(code);
    #[cfg(not(feature = "mpi"))]
    let _ = code;
}

//! How ranks come to life: one file per kind of launch, each of which turns an environment into a
//! [`World`](crate::world::World) or starts the ranks itself.

mod ancestors;
mod decide;
mod devices;
mod environment;
mod error;
pub mod local;
mod mpi;
mod orphan;
mod ports;
pub mod slurm;
mod torchrun;
mod user_key;
mod variables;

pub use error::WorldError;
pub use local::{LaunchError, LaunchOutcome, LocalLauncher, RankExit, RankFailure};
pub use orphan::{cpus_of_launcher, when_launcher_is_gone};
pub use slurm::HostlistError;
pub use user_key::KeyError;

use crate::world::Launch;

/// How variables are looked up: the process's environment, or a map in tests.
pub type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Names of the variables that are set and make this process a rank of such a launch: those to
/// unset for one that is to be none.
pub fn variables(launch: Launch) -> Vec<&'static str> {
    let vars: Vars = &|name| std::env::var_os(name).map(|value| value.to_string_lossy().into());
    match launch {
        Launch::Single | Launch::Local => Vec::new(),
        Launch::Mpi => mpi::rank_variables(vars).collect(),
        Launch::Slurm => vec![slurm::STEP_ID],
        Launch::Torchrun => torchrun::variables(vars).collect(),
    }
}

/// Whether the ranks of such a launch are copies of one program by construction.
pub(crate) fn program_is_shared(launch: Launch) -> bool {
    matches!(launch, Launch::Single | Launch::Local)
}

/// Ends all ranks at once with exit code `code` where MPI started them, and returns where it did
/// not: there the store tells the other ranks when this one is gone.
///
/// For a process that is about to end with an error. MPI's own end waits for every rank, so one
/// that leaves early would leave the others hanging until their launcher notices.
pub fn abort_all(code: i32) {
    crate::backend::mpi::abort(code);
}

//! Launchers: one file for each kind. Each turns an environment into a
//! [`World`](crate::world::World) or starts the ranks itself.

pub mod agent;
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

pub use agent::{Generation, NodeLauncher, NodesError, NodesOutcome, tell_saved};
pub use error::WorldError;
pub use local::{LaunchError, LaunchOutcome, LocalLauncher, RankExit, RankFailure};
pub use orphan::{cpus_of_launcher, when_launcher_is_gone};
pub use slurm::HostlistError;
pub use user_key::KeyError;

use crate::world::Launch;

/// Looks up a variable: in the process's environment, or in a map in tests.
pub type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Names of the set variables that make this process a rank of this kind of launch.
///
/// Unset them for a process that should not be a rank.
pub fn variables(launch: Launch) -> Vec<&'static str> {
    let vars: Vars = &|name| std::env::var_os(name).map(|value| value.to_string_lossy().into());
    match launch {
        Launch::Single | Launch::Local | Launch::Agent => Vec::new(),
        Launch::Mpi => mpi::rank_variables(vars).collect(),
        Launch::Slurm => vec![slurm::STEP_ID],
        Launch::Torchrun => torchrun::variables(vars).collect(),
    }
}

/// Whether all ranks of this kind of launch run the same program by construction.
pub(crate) fn program_is_shared(launch: Launch) -> bool {
    matches!(launch, Launch::Single | Launch::Local)
}

/// Ends all ranks at once with exit code `code` if MPI started them; otherwise returns.
///
/// For a process that is about to end with an error. MPI's own end waits for every rank, so the
/// others would hang until their launcher notices. Without MPI the store tells the other ranks.
pub fn abort_all(code: i32) {
    crate::backend::mpi::abort(code);
}

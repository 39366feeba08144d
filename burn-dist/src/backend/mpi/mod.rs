//! MPI as a launcher, a transport and a set of collectives.
//!
//! MPI starts the ranks and tells each its rank. The run's secret and the store's address travel
//! over it. After that the store watches the ranks as under other launchers: most MPI libraries
//! hang for ever on a dead peer, so every wait here checks the clock and the store.

#[cfg(not(feature = "mpi"))]
mod absent;
#[cfg(feature = "mpi")]
mod bootstrap;
#[cfg(feature = "mpi")]
mod call;
#[cfg(feature = "mpi")]
mod collectives;
#[cfg(feature = "mpi")]
mod guard;
#[cfg(feature = "mpi")]
mod request;
#[cfg(feature = "mpi")]
mod session;
#[cfg(feature = "mpi")]
mod streams;

#[cfg(not(feature = "mpi"))]
pub(crate) use absent::{Collectives, Session, abort, library, note_failure};
#[cfg(feature = "mpi")]
pub(crate) use collectives::Collectives;
#[cfg(feature = "mpi")]
pub(crate) use session::{Session, abort, library, note_failure};

/// Whether this build includes MPI.
pub(crate) const BUILT: bool = cfg!(feature = "mpi");

/// The reason why MPI does not run.
#[derive(Debug)]
pub(crate) struct NoSession {
    /// The action that failed.
    pub action: &'static str,
    /// The library's message.
    pub reason: String,
}

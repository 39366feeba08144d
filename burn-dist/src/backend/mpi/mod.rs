//! MPI as a launcher, a transport and a set of collectives.
//!
//! MPI starts the ranks and tells each who it is, and the run's secret and the address of the store
//! travel over it. From then on the store watches over the ranks as it does everywhere: a dead peer
//! hangs most MPI libraries for ever, so every wait here looks at the clock and at the store.

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

/// Whether the program contains it.
pub(crate) const BUILT: bool = cfg!(feature = "mpi");

/// Why MPI does not run.
#[derive(Debug)]
pub(crate) struct NoSession {
    /// What was tried.
    pub action: &'static str,
    /// What the library said.
    pub reason: String,
}

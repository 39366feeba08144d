//! Authenticated byte streams between the processes of a run, and the board with their failures.
//!
//! | file | task |
//! |---|---|
//! | `auth` | both ends prove that they know the run's [`Secret`] |
//! | `seal` | authenticates the frames of a connection afterwards |
//! | `strangers` | listens to connections that have not authenticated yet |
//! | `net` | opens and configures sockets |
//! | `fault` | the board of failures |
//!
//! Rendezvous, transports and MPI use this module.

pub mod auth;
mod fault;
pub(crate) mod net;
pub(crate) mod seal;
mod secret;
pub(crate) mod strangers;

pub use fault::{Fault, FaultBoard};
pub use secret::{MAX_SECRET_BYTES, MIN_SECRET_BYTES, Secret, SecretError};

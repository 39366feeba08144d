//! Authenticated byte streams between the processes of a run, and the board on which they find what
//! went wrong.
//!
//! Rendezvous, transports and MPI stand on this. `auth` has both ends prove that they know the
//! run's [`Secret`], `seal` authenticates the frames of a connection afterwards, `strangers`
//! listens to those who have yet to prove themselves, and `net` opens and configures sockets.

pub mod auth;
mod fault;
pub(crate) mod net;
pub(crate) mod seal;
mod secret;
pub(crate) mod strangers;

pub use fault::{Fault, FaultBoard};
pub use secret::{MAX_SECRET_BYTES, MIN_SECRET_BYTES, Secret, SecretError};

//! MPI as a launcher, a transport and a set of collectives; the feature `mpi`.
//!
//! MPI starts the ranks and tells each who it is, and the run's secret and the address of the store
//! travel over it. From then on the store watches over the ranks as it does everywhere: a dead peer
//! hangs most MPI libraries for ever, so every wait here looks at the clock and at the store.

mod bootstrap;
mod call;
mod collectives;
mod request;
mod session;
mod streams;

pub(crate) use bootstrap::{join, meet};
pub(crate) use collectives::Collectives;
pub(crate) use session::{Communicator, abort, failure};
pub use session::{Session, library};
pub(crate) use streams::Streams;

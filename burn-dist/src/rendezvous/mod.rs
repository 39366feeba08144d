//! How ranks find each other and learn of each other's failures.
//!
//! Every rank keeps one authenticated control connection to the *store* open for the whole run.
//! Ranks exchange the data that connects their transports over it, and the store tells all ranks
//! when a rank fails, leaves or falls silent. The local launcher hosts the store, or rank 0 under
//! other launchers. Gradients never pass through it.

mod client;
mod connect;
mod error;
mod protocol;
mod reform;
mod roster;
mod server;
mod waiting_room;

pub use client::Store;
pub(crate) use client::when_launcher_is_gone;
pub use error::RendezvousError;
pub use protocol::{MAX_PAYLOAD, MAX_TAG};
pub(crate) use server::FILES_PER_RANK;
pub use server::StoreServer;

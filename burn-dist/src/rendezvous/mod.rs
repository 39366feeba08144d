//! How ranks find each other and learn of each other's fate.
//!
//! Every rank keeps one authenticated control connection to the *store* open for the whole run.
//! Over it ranks exchange what they need to connect their transports, and the store tells everybody
//! when a rank fails, leaves or falls silent. The store is hosted by the local launcher, or by
//! rank 0 where something else started the ranks. Gradients never pass through it.

mod client;
mod connect;
mod error;
mod protocol;
mod roster;
mod server;

pub use client::Store;
pub(crate) use client::when_launcher_is_gone;
pub use error::RendezvousError;
pub use protocol::{MAX_PAYLOAD, MAX_TAG};
pub(crate) use server::FILES_PER_RANK;
pub use server::StoreServer;

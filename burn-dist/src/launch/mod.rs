//! How ranks come to life: one file per kind of launch, each of which turns an environment into a
//! [`World`](crate::world::World) or starts the ranks itself.

pub mod local;
pub(crate) mod torchrun;

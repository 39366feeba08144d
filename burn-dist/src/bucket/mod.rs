//! Gradients on their way between ranks, in buckets.
//!
//! | file | task |
//! |---|---|
//! | `layout` | assigns parameters to buckets and places within them, once at the start |
//! | `partition` | says which rank owns what |
//! | `reducer` | called by the gradient hooks; starts a bucket's reduction when the bucket is full |
//! | `store` | holds gradients in host memory or on a device |

mod agreement;
mod error;
mod layout;
mod partition;
mod reducer;
mod store;

pub use error::BucketError;
pub use layout::{BucketSizes, ParameterSpec};

pub(crate) use agreement::Agreement;
pub(crate) use layout::BucketLayout;
pub(crate) use partition::{KeptGradients, Partition, VirtualGroup};
pub(crate) use reducer::Reducer;
pub(crate) use store::{
    Alone, DeviceCollectives, DeviceHandle, DeviceStore, FusedStep, Gathering, GradientStore,
    HostStore, Resident, burn_dtype, gradient_dtype, take_parts,
};

#[cfg(test)]
mod tests;

//! Gradients on their way between ranks: which of them travel together, and when.
//!
//! `layout` decides at start which parameters share a bucket and where each one lies in it, and
//! `partition` what of it is whose. The reducer in `reducer` is what the gradient hooks call: it
//! has finished gradients put into their place and starts the all-reduce of a bucket as soon as the
//! bucket is full. Where gradients lie meanwhile, in host memory or on a device, is the business of
//! `store`.

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
pub(crate) use partition::{KeptGradients, Partition};
pub(crate) use reducer::Reducer;
pub(crate) use store::{
    Alone, DeviceCollectives, DeviceHandle, DeviceStore, FusedStep, Gathering, GradientStore,
    HostStore, Resident, burn_dtype, gradient_dtype, take_parts,
};

#[cfg(test)]
mod tests;

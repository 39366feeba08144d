//! Gradients on their way between ranks: which of them travel together, and when.
//!
//! `layout` decides at start which parameters share a bucket and where each one lies in it,
//! `storage` reads and writes that memory, and the reducer in `reducer` is what the gradient hooks
//! call: it copies finished gradients into place and starts the all-reduce of a bucket as soon as
//! the bucket is full. Gradients on a GPU stay there meanwhile, in `resident`.

mod error;
mod layout;
mod reducer;
mod resident;
mod storage;

pub use error::BucketError;
pub use layout::{BucketSizes, ParameterSpec};

pub(crate) use layout::{BucketLayout, Slot};
pub(crate) use reducer::{Gradients, Reducer};
pub(crate) use resident::{
    Alone, DeviceCollectives, DeviceHandle, Resident, TOGETHER, assemble, take_parts,
};
pub(crate) use storage::{burn_dtype, gradient_dtype};

#[cfg(test)]
mod tests;

//! Tests of `Parallel` from the user's side: in one process, and on several ranks that are threads.

mod adapters;
mod buffers;
mod checkpoint;
mod compression;
mod ema;
mod faults;
mod foreign;
mod frozen_part;
mod gradients;
mod groups;
mod hybrid;
mod losses;
mod memory_copies;
mod models;
mod nodes;
mod precision;
mod rank_sums;
mod ranks;
mod single;
mod types;
mod virtual_ranks;
mod weighted;
mod whole;
mod writer;
mod zero;

/// Steps of a training that is compared with another.
const STEPS: u64 = 12;

/// Returns the tolerance for sums in another order, relative to the largest value.
fn rounding() -> f32 {
    1e-5
}

/// Returns the device of all models.
fn device() -> burn::tensor::Device {
    burn::tensor::Device::flex()
}

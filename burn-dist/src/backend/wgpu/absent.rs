//! Stands in for wgpu in builds without it.

use burn::tensor::Device;

use crate::backend::Availability;

pub(crate) fn found() -> Availability {
    Availability::NotBuilt
}

pub(crate) fn gpus() -> Vec<Device> {
    Vec::new()
}

pub(crate) fn software() -> Option<Device> {
    None
}

//! Stands in for wgpu in builds without it.

use burn::tensor::Device;

use crate::backend::Found;

pub(crate) fn found() -> Found {
    Found::NotBuilt
}

pub(crate) fn gpus() -> Vec<Device> {
    Vec::new()
}

pub(crate) fn software() -> Option<Device> {
    None
}

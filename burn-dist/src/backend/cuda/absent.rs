//! Stands in for CUDA in builds without it.

use burn::tensor::Device;

use crate::backend::Availability;

pub(crate) fn found() -> Availability {
    Availability::NotBuilt
}

pub(crate) fn device(_index: usize) -> Option<Device> {
    None
}

pub(crate) fn index(_device: &Device) -> Option<usize> {
    None
}

pub(crate) fn unique_name(_index: usize) -> Option<String> {
    None
}

pub(crate) fn memory(_index: usize) -> Option<u64> {
    None
}

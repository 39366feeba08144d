//! Stands in for NCCL in builds without CUDA.

use burn::tensor::Tensor;

use super::{ABSENT, Nccl, NcclError, UniqueId};
use crate::Cuts;
use crate::collective::Descriptor;

/// No NCCL.
pub(crate) enum Library {}

/// No device memory.
pub(crate) enum Memory {}

/// No communicator.
pub(crate) enum Connected {}

fn absent() -> NcclError {
    NcclError::NoLibrary {
        reason: ABSENT.unwrap_or_default().to_owned(),
    }
}

impl Library {
    pub fn open(_device: usize) -> Result<Self, NcclError> {
        Err(absent())
    }
}

pub(crate) fn version() -> Result<i32, NcclError> {
    Err(absent())
}

pub(crate) fn memory(_flat: Tensor<1>) -> Result<Memory, NcclError> {
    Err(absent())
}

pub(crate) fn tensor(memory: Memory) -> Tensor<1> {
    match memory {}
}

impl Nccl for Library {
    type Communicator = Connected;
    type Memory = Memory;

    fn unique_id(&self) -> Result<UniqueId, NcclError> {
        match *self {}
    }

    fn connect(&self, _: &UniqueId, _: usize, _: usize) -> Result<Connected, NcclError> {
        match *self {}
    }

    fn make_ready(&self, _: &mut Memory) -> Result<(), NcclError> {
        match *self {}
    }

    fn enqueue(
        &self,
        _: &mut Connected,
        _: &Descriptor,
        _: &Cuts,
        _: &mut Memory,
    ) -> Result<(), NcclError> {
        match *self {}
    }

    fn is_done(&self, _: &mut Connected) -> Result<bool, NcclError> {
        match *self {}
    }

    fn asynchronous_error(&self, _: &mut Connected) -> Result<(), NcclError> {
        match *self {}
    }

    fn abort(&self, connected: Connected) {
        match connected {}
    }

    fn close(&self, connected: Connected) {
        match connected {}
    }
}

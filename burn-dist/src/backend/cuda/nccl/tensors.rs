//! Burn's CUDA tensors as memory for NCCL.
//!
//! The thread that computes requests a tensor's buffer and a fence behind its queued work, because
//! another thread has another stream. The buffer's guard travels along, since cubecl may otherwise
//! move or reuse the memory. After the collective the host has waited for NCCL's stream, so work
//! queued next on the compute stream comes after it.

use burn::backend::Cube;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use cubecl::cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::server::ServerStorage;
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};

use super::NcclError;
use super::library::{Cuda, DeviceMemory, Functions};

type Storage = <<CudaRuntime as Runtime>::Server as ServerStorage>::Storage;
type Guard = ManagedResource<<Storage as ComputeStorage>::Resource>;

/// NCCL on one CUDA device.
pub(crate) type Library = Cuda<Kept>;

/// The elements of a tensor.
pub(crate) type Memory = DeviceMemory<Kept>;

/// Objects that must live as long as the collective runs.
pub(crate) struct Kept {
    tensor: CubeTensor,
    _guard: Guard,
}

/// The version of the library.
pub(crate) fn version() -> Result<i32, NcclError> {
    Functions::load()?.version()
}

/// The memory of a tensor without other owners.
pub(crate) fn memory(flat: Tensor<1>) -> Result<Memory, NcclError> {
    let refused = |reason: String| NcclError::Call {
        call: "use of a tensor",
        code: -1,
        reason,
    };
    let tensor = flat
        .try_into_primitive::<Cube>()
        .map_err(|error| refused(format!("{error:?}")))?;
    let guard = tensor
        .client
        .get_resource::<<CudaRuntime as Runtime>::Server>(tensor.handle.clone())
        .map_err(|error| refused(format!("{error:?}")))?;
    let done = tensor.client.sync();
    let fence = Box::pin(async move { done.await.map_err(|error| format!("{error:?}")) });
    Ok(DeviceMemory {
        address: guard.resource().ptr,
        fence: Some(fence),
        keep: Kept {
            tensor,
            _guard: guard,
        },
    })
}

/// The tensor in that memory.
pub(crate) fn tensor(memory: Memory) -> Tensor<1> {
    Tensor::from_primitive::<Cube>(memory.keep.tensor)
}

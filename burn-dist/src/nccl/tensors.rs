//! Burn's CUDA tensors as NCCL's memory.
//!
//! A tensor's buffer is asked for on the thread that computes, together with a fence behind what it
//! has queued so far: another thread has another stream. The buffer's guard travels along, since
//! cubecl may otherwise move or reuse the memory. After the collective the host has waited for
//! NCCL's stream, so whatever is queued next on the compute stream comes after it.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::Cube;
use burn::tensor::{Device, Tensor};
use burn_cubecl::tensor::CubeTensor;
use cubecl::cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::server::ServerStorage;
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};

use super::NcclError;
use super::communicator::{Call, Communicator, Started};
use super::decide::{Offer, Verdict, decide};
use super::lane::Lane;
use super::library::{Cuda, DeviceMemory, Library};
use crate::bucket::{DeviceCollectives, DeviceHandle, gradient_dtype};
use crate::collective::Kind;
use crate::{Cuts, DType, Error, ProcessGroup, ReduceOp};

type Storage = <<CudaRuntime as Runtime>::Server as ServerStorage>::Storage;
type Guard = ManagedResource<<Storage as ComputeStorage>::Resource>;

/// What must live as long as the collective runs.
struct Kept {
    tensor: CubeTensor,
    _guard: Guard,
}

/// The thread and stream of the one device of a rank, once there is something for them to do.
#[derive(Default)]
pub(crate) struct OwnLane(Option<Arc<Lane<Cuda<Kept>>>>);

impl OwnLane {
    /// The lane, which is that of this device.
    fn on(&mut self, index: usize) -> Result<Arc<Lane<Cuda<Kept>>>, NcclError> {
        match &self.0 {
            Some(lane) => Ok(lane.clone()),
            None => Ok(self.0.insert(Lane::start(Cuda::open(index)?)?).clone()),
        }
    }
}

/// Connects the ranks of `group` through NCCL if each of them computes on a CUDA device of its own;
/// else says why not. Groups that are given the same `lane` take turns. A collective call.
pub(crate) fn connect(
    device: &Device,
    group: &ProcessGroup,
    lane: &mut OwnLane,
) -> Result<Result<NcclTensors, String>, Error> {
    let index = cuda_index(device);
    let offer = Offer {
        device: index.and_then(crate::device::unique_name),
        version: Library::load()
            .and_then(Library::version)
            .map_err(|error| error.to_string()),
    };
    let own = serde_json::to_vec(&offer).unwrap_or_default();
    let version = match decide(&group.gather_bytes(&own)?, group.world_ranks()) {
        Verdict::Use(version) => version,
        Verdict::Stage(reason) => return Ok(Err(reason)),
    };
    let Some(index) = index else {
        return Ok(Err("this rank has no CUDA device".to_owned()));
    };
    let communicator = lane
        .on(index)
        .map_err(Error::from)
        .and_then(|lane| Communicator::connect(&lane, group))
        .inspect_err(|error| group.abort(&error.to_string()))?;
    Ok(Ok(NcclTensors {
        communicator,
        version,
    }))
}

/// The number of a CUDA device among those that this process sees.
fn cuda_index(device: &Device) -> Option<usize> {
    let probe = Tensor::<1>::zeros([1], &device.clone().inner());
    match probe.try_into_primitive::<Cube>().ok()?.device {
        cubecl::Device::Cuda(device) => Some(device.index),
        _ => None,
    }
}

/// NCCL's collectives for tensors.
#[derive(Debug)]
pub(crate) struct NcclTensors {
    communicator: Communicator<Cuda<Kept>>,
    version: String,
}

impl NcclTensors {
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Starts a collective, of whose result a part may be all that is wanted.
    fn start(
        &self,
        (kind, op, bucket): (Kind, Option<ReduceOp>, u32),
        flat: Tensor<1>,
        cuts: &Cuts,
        part: Option<Range<usize>>,
    ) -> Waiting {
        let len = flat.shape().num_elements();
        let dtype = gradient_dtype(flat.dtype()).unwrap_or(DType::F32);
        let call = Call {
            kind,
            op,
            dtype,
            len,
            root: 0,
            bucket,
            cuts: cuts.clone(),
        };
        match memory(flat) {
            Ok(memory) => Waiting::For(self.communicator.start(call, memory), part),
            Err(error) => Waiting::Failed(error),
        }
    }
}

const MEAN: Option<ReduceOp> = Some(ReduceOp::Mean);

impl DeviceCollectives for NcclTensors {
    fn start_mean(&self, flat: Tensor<1>) -> Box<dyn DeviceHandle> {
        Box::new(self.start((Kind::AllReduce, MEAN, 0), flat, &Cuts::Even, None))
    }

    fn start_mean_of_shard(&self, flat: Tensor<1>, cuts: &Cuts) -> Box<dyn DeviceHandle> {
        let len = flat.shape().num_elements();
        let group = self.communicator.group();
        let own = cuts.shard(len, group.size(), group.rank());
        Box::new(self.start((Kind::ReduceScatter, MEAN, 0), flat, cuts, Some(own)))
    }

    fn start_gather(&self, flat: Tensor<1>, number: u32, cuts: &Cuts) -> Box<dyn DeviceHandle> {
        let what = (Kind::AllGather, None, number);
        Box::new(self.start(what, flat, cuts, None))
    }
}

/// A collective on a tensor and the part of it that is wanted, or why it was not started.
enum Waiting {
    For(Started<DeviceMemory<Kept>>, Option<Range<usize>>),
    Failed(NcclError),
}

impl DeviceHandle for Waiting {
    fn wait(self: Box<Self>) -> Result<Tensor<1>, Error> {
        match *self {
            Self::For(started, part) => {
                let memory = started.wait()?;
                let all = Tensor::from_primitive::<Cube>(memory.keep.tensor);
                Ok(match part {
                    Some(part) => own_memory(all, part),
                    None => all,
                })
            }
            Self::Failed(error) => Err(error.into()),
        }
    }
}

/// A copy of a part, so that the rest can be given back; of an empty one something, since devices have
/// no empty memory.
fn own_memory(all: Tensor<1>, part: Range<usize>) -> Tensor<1> {
    let len = part.len().max(1);
    let own = Tensor::empty([len], (&all.device(), all.dtype()));
    match part.is_empty() {
        true => own,
        false => own.slice_assign(0..len, all.slice(part)),
    }
}

/// The memory of a tensor that nobody else holds.
fn memory(flat: Tensor<1>) -> Result<DeviceMemory<Kept>, NcclError> {
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

/// Runs every collective on the CUDA device `device` in a world of one rank and compares what comes
/// out with what went in: whether driver, NCCL and memory work together.
///
/// # Errors
/// What went wrong.
pub fn self_test(device: &Device) -> Result<String, Error> {
    let index = cuda_index(device).ok_or(NcclError::NoLibrary {
        reason: format!("{device:?} is not a CUDA device"),
    })?;
    let version = super::version()?;
    let group = ProcessGroup::single();
    let communicator = Communicator::connect(&Lane::start(Cuda::open(index)?)?, &group)?;
    let nccl = NcclTensors {
        communicator,
        version: version.clone(),
    };
    let calls = [
        (Kind::AllReduce, Some(ReduceOp::Sum)),
        (Kind::AllReduce, Some(ReduceOp::Mean)),
        (Kind::ReduceScatter, Some(ReduceOp::Sum)),
        (Kind::AllGather, None),
        (Kind::Broadcast, None),
        (Kind::Barrier, None),
    ];
    for len in [1usize, 1000, 1 << 20] {
        for (kind, op) in calls {
            let values: Vec<f32> = (0..len).map(|i| (i % 1000) as f32).collect();
            let sent = Tensor::<1>::from_floats(values.as_slice(), &device.clone().inner());
            let started = nccl.start((kind, op, 0), sent, &Cuts::Even, None);
            let got = Box::new(started).wait()?.into_data();
            if got.as_slice::<f32>().ok() != Some(values.as_slice()) {
                let reason = format!("wrong result for {len} elements");
                return Err(NcclError::Call {
                    call: "self test",
                    code: -1,
                    reason,
                }
                .into());
            }
        }
    }
    Ok(version)
}

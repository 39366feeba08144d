//! NCCL's collectives for Burn's CUDA tensors.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};

use super::NcclError;
use super::communicator::{Communicator, DeviceCall, Started};
use super::decide::{Decision, NcclOffer, decide};
use super::lane::Lane;
use crate::backend::cuda;
use crate::backend::cuda::nccl::{self, Library, Memory};
use crate::bucket::{DeviceCollectives, DeviceHandle, gradient_dtype};
use crate::collective::Kind;
use crate::{Cuts, DType, Error, ProcessGroup, ReduceOp};

/// Thread and stream of a rank's device, once they are needed.
#[derive(Default)]
pub(crate) struct OwnLane(Option<Arc<Lane<Library>>>);

impl OwnLane {
    /// The lane of this device.
    fn on(&mut self, index: usize) -> Result<Arc<Lane<Library>>, NcclError> {
        match &self.0 {
            Some(lane) => Ok(lane.clone()),
            None => Ok(self.0.insert(Lane::start(Library::open(index)?)?).clone()),
        }
    }
}

/// Connects the ranks of `group` through NCCL if each has its own CUDA device; otherwise returns
/// the reason. Groups with the same `lane` take turns. A collective call.
pub(crate) fn connect(
    device: &Device,
    group: &ProcessGroup,
    lane: &mut OwnLane,
) -> Result<Result<NcclTensors, String>, Error> {
    if let Some(reason) = nccl::ABSENT {
        return Ok(Err(reason.to_owned()));
    }
    let index = cuda::index(device);
    let offer = NcclOffer {
        device: index.and_then(cuda::unique_name),
        version: nccl::version().map_err(|error| error.to_string()),
    };
    let own = serde_json::to_vec(&offer).unwrap_or_default();
    let version = match decide(&group.gather_bytes(&own)?, group.world_ranks()) {
        Decision::Use(version) => version,
        Decision::Stage(reason) => return Ok(Err(reason)),
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

/// NCCL's collectives for tensors.
pub(crate) struct NcclTensors {
    communicator: Communicator<Library>,
    version: String,
}

impl NcclTensors {
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Starts a collective; `part` is the wanted part of its result.
    fn start(
        &self,
        (kind, op, bucket): (Kind, Option<ReduceOp>, u32),
        flat: Tensor<1>,
        cuts: &Cuts,
        part: Option<Range<usize>>,
    ) -> Waiting {
        let len = flat.shape().num_elements();
        let dtype = gradient_dtype(flat.dtype()).unwrap_or(DType::F32);
        let call = DeviceCall {
            kind,
            op,
            dtype,
            len,
            root: 0,
            bucket,
            cuts: cuts.clone(),
        };
        let started = nccl::memory(flat).map(|memory| self.communicator.start(call, memory));
        Waiting { started, part }
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

/// A collective on a tensor, or the reason why it did not start.
struct Waiting {
    started: Result<Started<Memory>, NcclError>,
    /// The wanted part of the tensor, if not all of it.
    part: Option<Range<usize>>,
}

impl DeviceHandle for Waiting {
    fn wait(self: Box<Self>) -> Result<Tensor<1>, Error> {
        let all = nccl::tensor(self.started?.wait()?);
        Ok(match self.part {
            Some(part) => own_memory(all, part),
            None => all,
        })
    }
}

/// A copy of a part, so that the rest can be freed. An empty part returns one element, since
/// devices have no empty memory.
fn own_memory(all: Tensor<1>, part: Range<usize>) -> Tensor<1> {
    let len = part.len().max(1);
    let own = Tensor::empty([len], (&all.device(), all.dtype()));
    match part.is_empty() {
        true => own,
        false => own.slice_assign(0..len, all.slice(part)),
    }
}

/// Runs every collective on CUDA device `device` with one rank, and compares the results.
///
/// It tests that driver, NCCL and memory work together.
///
/// # Errors
/// Describes the failure.
pub fn self_test(device: &Device) -> Result<String, Error> {
    let index = cuda::index(device).ok_or(NcclError::NoLibrary {
        reason: format!("{device:?} is not a CUDA device"),
    })?;
    let version = super::version()?;
    let group = ProcessGroup::single();
    let communicator = Communicator::connect(&Lane::start(Library::open(index)?)?, &group)?;
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

//! Chooses the device of a rank from the request and the devices of this machine, with a reason.
//!
//! A program contains the devices of its cargo features (`cuda`, `wgpu`) and always the CPU. Which
//! ones exist is found out at run time, so one program serves machines with and without a GPU.

mod choose;
mod error;
mod found;
mod memory;
mod narrowed;
mod staged;

use std::collections::BTreeSet;
use std::sync::Arc;

use burn::tensor::Device;

pub use crate::backend::is_host;
pub use error::DeviceError;
pub use memory::{MemoryShortage, device_memory, reserved};

use crate::backend::{self, cuda, wgpu};
use crate::bucket::{Alone, DeviceCollectives};
use crate::named::named;
use crate::nccl::{self, OwnLane};
use crate::world::World;
use crate::{Compression, Error, ProcessGroup};
use choose::{Pick, choose};
pub(crate) use staged::Staged;

/// A kind of device to request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A CUDA device, else a GPU through wgpu, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU through CUDA.
    Cuda,
    /// A GPU through wgpu, or a software renderer.
    Wgpu,
}

impl DeviceChoice {
    /// Whether this build supports the kind. Whether a device exists is found out later.
    pub fn is_built(self) -> bool {
        match self {
            Self::Auto | Self::Cpu => true,
            Self::Cuda => cuda::BUILT,
            Self::Wgpu => wgpu::BUILT,
        }
    }
}

named! {
    DeviceChoice { Auto = "auto", Cpu = "cpu", Cuda = "cuda", Wgpu = "wgpu", }
    parsed as "device"
}

/// The device of a rank.
#[derive(Clone, Debug)]
pub struct ChosenDevice {
    /// The device, without autodiff.
    pub device: Device,
    /// The choice and its reason, in one line.
    pub reason: String,
    /// The driver's name of the device.
    pub name: String,
    /// Index among the CUDA devices that this process sees; `None` for other devices.
    pub cuda: Option<usize>,
}

/// How ranks share devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Number of ranks on this rank's device, including itself.
    pub ranks: usize,
    /// Number of devices of all ranks together.
    pub devices: usize,
}

impl ChosenDevice {
    /// How the ranks of `group` share their devices. A collective call.
    ///
    /// Ranks know this only together, since a launcher may show each of them one device, and all of
    /// them a different one.
    ///
    /// # Errors
    /// Fails if a rank fails.
    pub fn sharing(&self, group: &ProcessGroup) -> Result<Sharing, Error> {
        let own = self.identity(group.node());
        let all = group.gather_bytes(own.as_bytes())?;
        Ok(Sharing {
            ranks: all.iter().filter(|name| **name == own.as_bytes()).count(),
            devices: all.iter().collect::<BTreeSet<_>>().len(),
        })
    }

    /// A name that no other device of the run has.
    fn identity(&self, node: usize) -> String {
        self.cuda
            .and_then(cuda::unique_name)
            .unwrap_or_else(|| format!("{:?} of node {node}", self.device))
    }
}

impl World {
    /// The device of this rank: the best kind available, by local rank.
    ///
    /// # Errors
    /// See [`choose_device`](Self::choose_device).
    pub fn device(&self) -> Result<Device, DeviceError> {
        Ok(self.choose_device(DeviceChoice::Auto)?.device)
    }

    /// The device of the kind `wanted` for this rank.
    ///
    /// Ranks of a node take the devices that they see one after the other, and share if there are
    /// more ranks than devices ([`ChosenDevice::sharing`]).
    ///
    /// # Errors
    /// Fails if the build lacks this kind or the machine has none. [`DeviceChoice::Auto`] always
    /// finds the CPU.
    pub fn choose_device(&self, wanted: DeviceChoice) -> Result<ChosenDevice, DeviceError> {
        let (pick, reason) = choose(wanted, cuda::found, wgpu::found, self.local_rank())?;
        let device = found::device(&pick);
        let untuned = !backend::AUTOTUNES && matches!(pick, Pick::Cuda(_) | Pick::Wgpu(_));
        let reason = match untuned {
            true => format!("{reason}; built without autotune, so Burn's kernels are not tuned"),
            false => reason,
        };
        Ok(ChosenDevice {
            name: found::name(&device),
            device,
            reason,
            cuda: match pick {
                Pick::Cuda(index) => Some(index),
                _ => None,
            },
        })
    }
}

/// Lists all devices that this program can use here, one line each, and why kinds are missing.
pub fn list() -> Vec<String> {
    found::list()
}

/// State that the groups of one rank share on its device; see [`collectives`].
#[derive(Default)]
pub(crate) struct Shared {
    lane: OwnLane,
}

/// The collectives of `group` on `device`, which is not a CPU: NCCL if all ranks can use it, else
/// through host memory. A collective call.
///
/// Collectives of groups with the same `shared` run in the order in which they were started, which
/// must be the same on all ranks.
pub(crate) fn collectives(
    device: &Device,
    group: &ProcessGroup,
    compression: Compression,
    shared: &mut Shared,
) -> Result<Arc<dyn DeviceCollectives>, Error> {
    if group.size() == 1 {
        return Ok(Arc::new(Alone));
    }
    let reason = match nccl::connect(device, group, &mut shared.lane)? {
        Ok(nccl) => {
            tracing::info!("buckets stay on the device, NCCL {}", nccl.version());
            return Ok(match compression {
                Compression::None => Arc::new(nccl),
                _ => Arc::new(narrowed::Narrowed::new(nccl, compression)),
            });
        }
        Err(reason) => reason,
    };
    if group.rank() == 0 {
        tracing::info!("buckets go through host memory, no NCCL: {reason}");
    }
    Ok(Arc::new(Staged {
        group: group.clone(),
        device: device.clone(),
        compression,
    }))
}

//! Which device a rank computes on: what is asked for, what this machine has, and why it came out
//! as it did.
//!
//! A program contains the devices whose cargo features it was built with (`cuda`, `wgpu`; the
//! processor always). Which of them there are is found out at run time, so one program serves
//! machines with and without a GPU.

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
use crate::nccl::{self, OwnLane};
use crate::world::World;
use crate::{Compression, Error, ProcessGroup};
use choose::{Pick, choose};
pub(crate) use staged::Staged;

/// Which kind of device is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A CUDA device, else a GPU through wgpu, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// An NVIDIA GPU through CUDA.
    Cuda,
    /// A GPU through wgpu, or what software there is in its place.
    Wgpu,
}

impl DeviceChoice {
    /// Whether this program is built for such a device; whether there is one is found out later.
    pub fn is_built(self) -> bool {
        match self {
            Self::Auto | Self::Cpu => true,
            Self::Cuda => cuda::BUILT,
            Self::Wgpu => wgpu::BUILT,
        }
    }

    /// All of them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Cpu, Self::Cuda, Self::Wgpu];

    /// The name used in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        }
    }
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for DeviceChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|known| known.name() == name);
        let known = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("there is no device {name:?}: use one of {}", known()))
    }
}

/// The device of a rank.
#[derive(Clone, Debug)]
pub struct ChosenDevice {
    /// The device, without autodiff.
    pub device: Device,
    /// What was picked and why, in one line.
    pub reason: String,
    /// What its driver calls it.
    pub name: String,
    /// Its number among the CUDA devices that this process sees, if it is one.
    pub cuda: Option<usize>,
}

/// How ranks share devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Ranks that compute on this rank's device, itself included.
    pub ranks: usize,
    /// Devices that all ranks together compute on.
    pub devices: usize,
}

impl ChosenDevice {
    /// How the ranks of `group` share their devices. A collective call: only together do ranks
    /// know, since a launcher may show each of them one device and all of them another one.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn sharing(&self, group: &ProcessGroup) -> Result<Sharing, Error> {
        let own = self.identity(group.node());
        let all = group.gather_bytes(own.as_bytes())?;
        Ok(Sharing {
            ranks: all.iter().filter(|name| **name == own.as_bytes()).count(),
            devices: all.iter().collect::<BTreeSet<_>>().len(),
        })
    }

    /// What no other device of the run is called.
    fn identity(&self, node: usize) -> String {
        self.cuda
            .and_then(cuda::unique_name)
            .unwrap_or_else(|| format!("{:?} of node {node}", self.device))
    }
}

impl World {
    /// The device this rank computes on: the best there is, by local rank.
    ///
    /// # Errors
    /// See [`choose_device`](Self::choose_device).
    pub fn device(&self) -> Result<Device, DeviceError> {
        Ok(self.choose_device(DeviceChoice::Auto)?.device)
    }

    /// The device of the wanted kind that is this rank's: ranks of a node take one after the other
    /// of those that they see, and share where there are more ranks than devices
    /// ([`ChosenDevice::sharing`]).
    ///
    /// # Errors
    /// When the program is built without that kind of device, or the machine has none. With
    /// [`DeviceChoice::Auto`] there is always the processor.
    pub fn choose_device(&self, wanted: DeviceChoice) -> Result<ChosenDevice, DeviceError> {
        let (pick, reason) = choose(wanted, cuda::found, wgpu::found, self.local_rank())?;
        let device = found::device(&pick);
        let untuned = !backend::AUTOTUNES && matches!(pick, Pick::Cuda(_) | Pick::Wgpu(_));
        let reason = match untuned {
            true => format!("{reason}; built without autotune, which tries Burn's kernels out"),
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

/// All devices that this program can compute on here, one line each, and why kinds are missing.
pub fn list() -> Vec<String> {
    found::list()
}

/// What the groups of one rank share on its device; see [`collectives`].
#[derive(Default)]
pub(crate) struct Shared {
    lane: OwnLane,
}

/// The collectives of `group` on `device`, whose memory the processor does not share: NCCL's if all
/// ranks can, else through host memory. Those of groups with the same `shared` are carried out in
/// the order in which they were started, which has to be the same on all ranks. A collective call.
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
            tracing::info!("buckets stay on the device: NCCL {}", nccl.version());
            return Ok(match compression {
                Compression::None => Arc::new(nccl),
                _ => Arc::new(narrowed::Narrowed::new(nccl, compression)),
            });
        }
        Err(reason) => reason,
    };
    if group.rank() == 0 {
        tracing::info!("buckets go through host memory, without NCCL: {reason}");
    }
    Ok(Arc::new(Staged {
        group: group.clone(),
        device: device.clone(),
        compression,
    }))
}

//! Chooses the device of a rank, and tells how much of its memory the rank may use.

use burn::tensor::Device;
use burn_dist::device::{ChosenDevice, DeviceError, device_memory, is_host};
use burn_dist::parallel::{ParameterState, Strategy};
use burn_dist::world::World;

use crate::config::Config;
use crate::error::TrainError;
use crate::system::free_memory;

/// Returns the device that the configuration selects.
pub(crate) fn choose(config: &Config, world: &World) -> Result<ChosenDevice, TrainError> {
    Ok(world.choose_device(config.train.device)?)
}

/// Rejects a device that this program was not built for, before any rank starts.
pub(crate) fn check_built(config: &Config) -> Result<(), DeviceError> {
    let wanted = config.train.device;
    match wanted.is_built() {
        true => Ok(()),
        false => Err(DeviceError::NotBuilt { wanted }),
    }
}

/// Whether the configuration selects the CPU here. False if that is unknown.
pub(crate) fn is_on_host(config: &Config) -> bool {
    choose(config, &World::single()).is_ok_and(|chosen| is_host(&chosen.device))
}

/// The part of each parameter's state on a GPU. Excludes optimizer state that is in host memory.
pub(crate) fn on_device(config: &Config, states: &[ParameterState]) -> Vec<ParameterState> {
    let averages = config.averages();
    let on_device = |state: &ParameterState| match config.parallel.offload_optimizer {
        true => ParameterState {
            kept: if averages { state.elements } else { 0 },
            ..*state
        },
        false => *state,
    };
    states.iter().map(on_device).collect()
}

/// Memory that a rank may use, with hints for messages.
pub(crate) struct Room {
    /// Unknown if the device is not here or does not tell.
    pub bytes: Option<u64>,
    pub words: Option<String>,
    /// Whether it is GPU memory.
    pub on_gpu: bool,
}

/// Memory for each of `size` ranks on `nodes` nodes like this one.
pub(crate) fn room(config: &Config, size: usize, nodes: usize) -> Room {
    let unknown = |reason: String| Room {
        bytes: None,
        words: Some(format!("whether it fits is unknown: {reason}")),
        on_gpu: true,
    };
    let chosen = match choose(config, &World::single()) {
        Ok(chosen) => chosen,
        Err(error) => return unknown(error.to_string()),
    };
    if is_host(&chosen.device) {
        let free = free_memory::free();
        let limit = "memory available on this host under the limit of this job or container";
        return Room {
            bytes: free.map(|free| free.bytes / size.max(1) as u64),
            words: free
                .is_some_and(|free| free.limited)
                .then(|| limit.to_owned()),
            on_gpu: false,
        };
    }
    let all: Vec<u64> = (0..).map_while(device_memory).collect();
    let Some(least) = all.iter().min().filter(|_| chosen.cuda.is_some()) else {
        return unknown(format!("the memory of {} is unknown", chosen.name));
    };
    let sharing = size.div_ceil(nodes.max(1)).div_ceil(all.len()).max(1);
    let shared = match sharing {
        1 => String::new(),
        _ => format!(", shared by {sharing} ranks"),
    };
    Room {
        bytes: Some(least / sharing as u64),
        words: Some(format!(
            "memory of {}{shared}; activations are measured on the CPU, those on a GPU differ",
            chosen.name
        )),
        on_gpu: true,
    }
}

/// `device` with autodiff. If parameters are gathered, neither they nor values derived from them
/// may be kept for backward.
pub(crate) fn autodiff(device: &Device, config: &Config) -> Device {
    let device = device.clone().autodiff();
    if config.train.recompute || config.parallel.strategy == Strategy::Zero3 {
        device.gradient_checkpointing()
    } else {
        device
    }
}

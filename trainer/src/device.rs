//! What a rank computes on, and whether the state of the training fits there.

use burn_dist::device::{ChosenDevice, DeviceChoice, DeviceError, MemoryShortage, device_memory};
use burn_dist::parallel::{MemoryEstimate, ParameterState};
use burn_dist::world::World;

use crate::config::{Config, DeviceName};
use crate::error::TrainError;
use crate::run::Session;
use crate::train::parallel_options;

/// The device that the configuration asks for.
pub(crate) fn choose(config: &Config, world: &World) -> Result<ChosenDevice, TrainError> {
    Ok(world.choose_device(wanted(config))?)
}

/// Refuses what no rank can have, before any is started.
pub(crate) fn check_built(config: &Config) -> Result<(), DeviceError> {
    let wanted = wanted(config);
    let lacks_cuda = wanted == DeviceChoice::Cuda && cfg!(not(feature = "cuda"));
    let lacks_wgpu = wanted == DeviceChoice::Wgpu && cfg!(not(feature = "wgpu"));
    if lacks_cuda || lacks_wgpu {
        return Err(DeviceError::NotBuilt { wanted });
    }
    Ok(())
}

fn wanted(config: &Config) -> DeviceChoice {
    match config.train.device {
        DeviceName::Auto => DeviceChoice::Auto,
        DeviceName::Cpu => DeviceChoice::Cpu,
        DeviceName::Cuda => DeviceChoice::Cuda,
        DeviceName::Wgpu => DeviceChoice::Wgpu,
    }
}

/// Refuses a training whose state is larger than the memory of its device, where that is known.
/// Activations come on top and are not known beforehand.
pub(crate) fn check_memory(
    session: &Session<'_>,
    states: &[ParameterState],
) -> Result<(), TrainError> {
    let (chosen, group) = (&session.device, session.group);
    let Some(total) = chosen.cuda.and_then(device_memory) else {
        return Ok(());
    };
    let whole = states.iter().any(|state| state.whole);
    let options = parallel_options(session.config, 1);
    let options = options.carried_out(&chosen.device, whole, group.size());
    let ranks = options.shard_within.ranks(group.size(), group.nodes());
    let averages = options.ema.is_some();
    let on_device = |state: &ParameterState| match options.offload_optimizer {
        true => ParameterState {
            kept: if averages { state.elements } else { 0 },
            ..*state
        },
        false => *state,
    };
    let states: Vec<ParameterState> = states.iter().map(on_device).collect();
    let needed = MemoryEstimate::of(options.strategy, &states, ranks).total();
    Ok(MemoryShortage::check(
        needed,
        states.iter().map(|state| state.elements).sum(),
        total,
        session.sharing,
    )?)
}

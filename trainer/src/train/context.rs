//! Everything a training loop needs: ranks, device, data, and the checkpoint to continue from.

use std::sync::OnceLock;

use burn::tensor::Device;
use burn_dist::ProcessGroup;
use burn_dist::device::{ChosenDevice, Sharing};
use burn_dist::world::World;

use crate::config::{Batching, Config};
use crate::data::device_data::{self, DeviceData, place};
use crate::data::input::Input;
use crate::error::TrainError;
use crate::run::environment::Initial;
use crate::run::resume::Start;
use crate::system::device::autodiff;

/// Everything a training loop needs, made by [`Trainer`].
pub(crate) struct TrainContext<'a> {
    pub config: &'a Config,
    /// Name of the run.
    pub name: &'a str,
    pub start: Start,
    pub world: &'a World,
    pub group: &'a ProcessGroup,
    pub batching: Batching,
    /// Whether to show the dashboard.
    pub dashboard: bool,
    /// The device without autodiff, and the reason for its choice.
    pub device: ChosenDevice,
    /// How the ranks share their devices.
    pub sharing: Sharing,
    pub data: Input,
    /// The weights that the run started from, and messages about them. Only on the main rank.
    pub initial: OnceLock<(Initial, Vec<String>)>,
    /// The images kept on the device.
    pub resident: Resident,
}

/// The splits that are kept on the device.
#[derive(Default)]
pub(crate) struct Resident {
    pub train: Option<DeviceData>,
    pub test: Option<DeviceData>,
}

/// Copies the images that belong on the device. Training images go to `device`, which has autodiff.
pub(crate) fn bring_data(
    context: &TrainContext<'_>,
    device: &Device,
) -> Result<Resident, TrainError> {
    let (plain, data) = (&context.device.device, &context.data);
    let (train, test) = (data.splits.train.as_ref(), data.splits.test.as_ref());
    let total = context
        .device
        .cuda
        .and_then(burn_dist::device::device_memory)
        .map(|total| total / context.sharing.ranks.max(1) as u64);
    let possible = data.train_loader.only_moves();
    let on_device = context.config.data.on_device;
    if on_device == Some(true) && !possible {
        return Err(TrainError::DataOnDevice);
    }
    let is_gpu = !burn_dist::device::is_host(plain);
    // A folder of images would have to be decoded as a whole before the first step.
    let is_stored = context.config.data.kind.is_stored();
    let bytes = [train, test].map(|images| device_data::size(images, plain));
    let usual = is_gpu && is_stored;
    let [brings_train, brings_test] = place(on_device, usual, possible, bytes, total);
    let train = || DeviceData::upload(train, &data.train_loader, device);
    let test = || DeviceData::upload(test, &data.eval_loader, plain);
    Ok(Resident {
        train: brings_train.then(train).transpose()?,
        test: brings_test.then(test).transpose()?,
    })
}

/// The autodiff device in the configured precision and with recomputation.
pub(crate) fn training_device(context: &TrainContext<'_>) -> Device {
    autodiff(&context.device.device, context.config)
}

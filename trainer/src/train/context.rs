//! Everything a training loop needs beside its task: ranks, device, and the checkpoint to continue
//! from.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use burn::tensor::Device;
use burn_dist::ProcessGroup;
use burn_dist::device::{ChosenDevice, Sharing, device_memory};
use burn_dist::world::World;

use crate::config::{Batching, Config};
use crate::error::TrainError;
use crate::run::environment::{Environment, FILE, Initial};
use crate::run::lock::RunLock;
use crate::run::resume::Start;
use crate::system::device::autodiff;
use crate::system::output::complain;
use crate::task::open::Place;
use crate::train::Summary;
use crate::train::copies::Copies;

/// Everything a training loop needs beside its task, made by [`Trainer`].
pub(crate) struct TrainContext<'a> {
    pub config: &'a Config,
    /// Name of the run.
    pub name: &'a str,
    pub start: Start,
    /// Copies in the memory of agents, until the training takes them.
    pub copies: Cell<Option<Copies>>,
    pub world: &'a World,
    pub group: &'a ProcessGroup,
    pub batching: Batching,
    /// Whether to show the dashboard.
    pub dashboard: bool,
    /// The device without autodiff, and the reason for its choice.
    pub device: ChosenDevice,
    /// How the ranks share their devices.
    pub sharing: Sharing,
    /// The weights that the run started from, and messages about them. Only on the main rank.
    pub initial: OnceLock<(Initial, Vec<String>)>,
    /// The run folder and its lock, once the folder records this process. Only on the main rank.
    pub recorded: OnceLock<(PathBuf, Arc<RunLock>)>,
}

impl TrainContext<'_> {
    /// Records how this process ended. A failure only warns: the run is over.
    pub fn note_end(&self, outcome: &Result<Summary, TrainError>) {
        match outcome {
            Ok(summary) => self.note_summary(summary),
            Err(error) => self.note(format!("failed: {error}"), None),
        }
    }

    /// Records how the training ended, so that the report has it.
    pub fn note_summary(&self, summary: &Summary) {
        self.note(summary.end.to_string(), Some(summary.steps));
    }

    fn note(&self, status: String, step: Option<u64>) {
        let Some((folder, lock)) = self.recorded.get() else {
            return;
        };
        let note = || Environment::note_end(folder, status, step);
        let noted = lock
            .check_held()
            .and_then(|()| self.group.busy().during(note));
        if let Err(error) = noted {
            complain(&format!(
                "warning: {FILE} does not say how the run ended: {error}"
            ));
        }
    }

    /// The devices that data may go to; `device` has autodiff.
    pub fn place<'d>(&'d self, device: &'d Device) -> Place<'d> {
        let total = self.device.cuda.and_then(device_memory);
        Place {
            plain: &self.device.device,
            training: device,
            memory: total.map(|total| total / self.sharing.ranks.max(1) as u64),
        }
    }
}

/// The autodiff device in the configured precision and with recomputation.
pub(crate) fn training_device(context: &TrainContext<'_>) -> Device {
    autodiff(&context.device.device, context.config)
}

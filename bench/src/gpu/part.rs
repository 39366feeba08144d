//! The hidden subcommand that runs one part in a separate process.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Device;
use burn_dist::device::{self, ChosenDevice, DeviceChoice};
use burn_dist::world::World;
use serde_json::{Value, json};
use trainer::Trainer;
use trainer::config::Loaded;
use trainer::run::metrics::TrainLine;
use trainer::train::callback::{Action, Callback, CallbackError};

use super::child::Left;
use super::{Precision, parity};
use crate::error::BenchError;
use crate::report;

/// Name of the hidden subcommand.
pub const COMMAND: &str = "gpu-part";

/// Steps between two reads of the memory.
const LOOK: u64 = 100;

/// Does one part of `bench gpu`.
#[derive(Debug, clap::Args)]
pub struct PartArgs {
    /// `devices`, `nccl`, `memory` or `parity`.
    name: String,
    #[arg(long)]
    device: DeviceChoice,
    #[arg(long, default_value_t = 0)]
    memory_steps: u32,
    #[arg(long)]
    precision: Option<Precision>,
    #[arg(long)]
    golden: Option<PathBuf>,
    #[arg(long)]
    out: PathBuf,
}

/// Runs the subcommand.
///
/// # Errors
/// Any error that prevents a result.
pub fn run(args: &PartArgs) -> Result<(), BenchError> {
    let chosen = World::single().choose_device(args.device)?;
    let left = match args.name.as_str() {
        "nccl" if chosen.cuda.is_none() => Left {
            good: None,
            words: format!("NCCL is for CUDA devices, not for {}", chosen.name),
            values: Value::Null,
        },
        "nccl" => nccl(&chosen)?,
        "memory" => memory(args, &chosen.device)?,
        "parity" => parity::run(
            args.golden
                .as_deref()
                .unwrap_or("models/tests/golden".as_ref()),
            args.precision.unwrap_or(Precision::F32),
            &chosen.device,
            |left| report::write(&args.out, left),
        )?,
        _ => devices(&chosen),
    };
    report::write(&args.out, &left)
}

fn devices(chosen: &ChosenDevice) -> Left {
    let lines = device::list();
    let memory = chosen.cuda.and_then(device::device_memory);
    let nccl = burn_dist::nccl::version().unwrap_or_else(|error| error.to_string());
    let words = format!(
        "{}; picked {} ({})\nNCCL: {nccl}",
        lines.join("\n"),
        chosen.name,
        chosen.reason
    );
    Left {
        good: Some(true),
        words,
        values: json!({
            "devices": lines,
            "picked": chosen.name,
            "memory_bytes": memory,
            "nccl": nccl,
        }),
    }
}

fn nccl(chosen: &ChosenDevice) -> Result<Left, BenchError> {
    if !DeviceChoice::Cuda.is_built() {
        return Ok(Left {
            good: Some(false),
            words: "this program is built without cuda".to_owned(),
            values: Value::Null,
        });
    }
    let version = burn_dist::nccl::self_test(&chosen.device)?;
    Ok(Left {
        good: Some(true),
        words: format!("NCCL {version}: every collective right in a world of one rank"),
        values: json!({ "version": version }),
    })
}

/// Trains a small network for many steps and watches the device's reserved memory.
fn memory(args: &PartArgs, device: &Device) -> Result<Left, BenchError> {
    let text = format!(
        "[model]\nname = \"cnn\"\nfilters = [8, 16]\nhidden = 32\n\
         [data]\nname = \"digits\"\ntrain_samples = 2048\ntest_samples = 64\naugment = \"shift:2\"\n\
         [optimizer]\nname = \"sgd\"\nlr = 0.01\nmomentum = 0.9\n\
         [train]\nepochs = 100000\nmax_steps = {}\nbatch_size = 64\ndevice = \"{}\"\n\
         [checkpoint]\nevery_epochs = 0\nbest = false\n",
        args.memory_steps, args.device
    );
    let loaded = Loaded::parse("memory", "memory", &text, &[])?;
    let folder = tempfile::tempdir().map_err(BenchError::Folder)?;
    let looks = Arc::new(Mutex::new(Vec::new()));
    let watch = Watch {
        device: device.clone(),
        looks: looks.clone(),
    };
    let world = World::single();
    let trainer = Trainer::new(&loaded, &world).run_dir(folder.path().join("run"));
    trainer.callback(watch).run()?;
    let looks = looks.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(((first_step, first), (last_step, last))) =
        looks.first().copied().zip(looks.last().copied())
    else {
        return Ok(Left {
            good: None,
            words: "this device does not say what it reserves".to_owned(),
            values: Value::Null,
        });
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let good = last <= first + first / 100;
    Ok(Left {
        good: Some(good),
        words: format!(
            "{:.1} MiB reserved after {first_step} steps, {:.1} after {last_step}{}",
            mib(first),
            mib(last),
            if good { "" } else { ": it grows" }
        ),
        values: json!({ "looks": looks }),
    })
}

/// Watches the device's memory.
struct Watch {
    device: Device,
    looks: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Callback for Watch {
    fn on_step(&mut self, step: &TrainLine) -> Result<Action, CallbackError> {
        if step.step.is_multiple_of(LOOK)
            && let Some(reserved) = device::reserved(&self.device)
        {
            let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
            looks.push((step.step, reserved));
        }
        Ok(Action::Continue)
    }
}

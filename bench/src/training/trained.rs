//! The trainer's own loop, through its library, in separate processes.
//!
//! The first process starts the ranks, if there are several, and gathers the seconds of each step
//! from their files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use burn::tensor::Device;
use burn_dist::device::reserved;
use burn_dist::launch::LocalLauncher;
use burn_dist::world::{Launch, World};
use serde::{Deserialize, Serialize};
use trainer::Trainer;
use trainer::config::Loaded;
use trainer::run::metrics;
use trainer::run::metrics::TrainLine;
use trainer::train::callback::{Action, Callback, CallbackError};

use super::workload::{Optimizer, Sizes, Workload};
use crate::error::BenchError;
use crate::report;

/// Name of the hidden subcommand.
pub const COMMAND: &str = "training-trained";

/// Arguments of the hidden sub-command.
#[derive(Clone, Debug, clap::Args)]
pub struct TrainedArgs {
    /// The model to train.
    #[arg(long)]
    model: Workload,
    /// World size.
    #[arg(long)]
    ranks: usize,
    /// Images per step over all ranks.
    #[arg(long)]
    batch: usize,
    /// Steps to take.
    #[arg(long)]
    steps: usize,
    /// The optimizer.
    #[arg(long, default_value = "sgd")]
    optimizer: Optimizer,
    /// Further settings of the configuration.
    #[arg(long)]
    set: Vec<String>,
    /// File for the seconds of each step: a JSON list of every rank's own list.
    #[arg(long)]
    out: PathBuf,
    /// File for the loss of every step.
    #[arg(long)]
    losses: Option<PathBuf>,
    /// File for the Unix time, in seconds, at which the first rank's first step ended.
    #[arg(long)]
    first_step: Option<PathBuf>,
    /// Training images, which may be fewer than the steps take; then they come again.
    #[arg(long)]
    images: Option<usize>,
    /// Folder in which every rank leaves what memory it took.
    #[arg(long)]
    memory: Option<PathBuf>,
    /// Folder of the run; the first process makes it.
    #[arg(long)]
    run_dir: Option<PathBuf>,
}

/// Trains and writes the seconds of each step.
///
/// # Errors
/// Fails if training fails or the result cannot be written.
pub fn run(args: &TrainedArgs) -> Result<(), BenchError> {
    let world = World::from_env()?;
    if let (Launch::Local, Some(folder)) = (world.launch(), &args.run_dir) {
        return train(args, &world, folder);
    }
    let folder = tempfile::tempdir().map_err(BenchError::Folder)?;
    let run_dir = folder.path().join("run");
    if args.ranks == 1 {
        train(args, &World::single(), &run_dir)?;
    } else {
        start_ranks(args.ranks, &run_dir)?;
    }
    if let Some(file) = &args.losses {
        let losses = lines(&run_dir)?.into_iter().filter_map(|line| line.loss);
        report::write(file, &losses.collect::<Vec<f64>>())?;
    }
    let seconds = (0..args.ranks).map(|rank| report::read(&seconds_file(&run_dir, rank)));
    let seconds: Vec<Vec<f64>> = seconds.collect::<Result<_, _>>()?;
    report::write(&args.out, &seconds)
}

/// File for the seconds of a rank's steps, beside the run folder.
fn seconds_file(run_dir: &Path, rank: usize) -> PathBuf {
    run_dir.with_file_name(format!("seconds-{rank}.json"))
}

fn start_ranks(ranks: usize, run_dir: &Path) -> Result<(), BenchError> {
    let mut args: Vec<_> = std::env::args_os().skip(1).collect();
    args.extend(["--run-dir".into(), run_dir.into()]);
    let outcome = LocalLauncher::new(ranks).args(args).run()?;
    if outcome.is_success() {
        return Ok(());
    }
    Err(BenchError::Ranks(outcome.to_string()))
}

fn train(args: &TrainedArgs, world: &World, run_dir: &Path) -> Result<(), BenchError> {
    let sizes = Sizes {
        batch: args.batch,
        train: args.images.unwrap_or(args.batch.saturating_mul(args.steps)),
        test: args.ranks,
    };
    let mut sets = args.set.clone();
    if args.images.is_some() {
        sets.push("train.epochs=1000000".to_owned());
        sets.push(format!("train.max_steps={}", args.steps));
    }
    let loaded = args.model.config_with(sizes, args.optimizer, &sets)?;
    let seconds = Arc::new(Mutex::new(Vec::new()));
    let clock = Clock {
        batch: args.batch,
        seconds: seconds.clone(),
        first_step: args.first_step.clone().filter(|_| world.rank() == 0),
    };
    let trainer = Trainer::new(&loaded, world)
        .run_dir(run_dir)
        .callback(clock);
    run_and_watch(args, world, &loaded, trainer)?;
    let seconds = seconds.lock().unwrap_or_else(PoisonError::into_inner);
    report::write(&seconds_file(run_dir, world.rank()), &*seconds)
}

/// Trains, and writes the memory used if requested.
fn run_and_watch(
    args: &TrainedArgs,
    world: &World,
    loaded: &Loaded,
    trainer: Trainer<'_>,
) -> Result<(), BenchError> {
    let before = Memory::now();
    let Some(folder) = &args.memory else {
        trainer.run()?;
        return Ok(());
    };
    let most = Arc::new(AtomicU64::new(0));
    match device_of(loaded, world) {
        Some(device) => {
            let most = most.clone();
            trainer.callback(Peak { device, most }).run()?
        }
        None => trainer.run()?,
    };
    if let (Some(before), Some(after)) = (before, Memory::now()) {
        let most = most.load(Ordering::Relaxed);
        let taken = Taken {
            start_mib: before.resident,
            peak_mib: after.peak,
            device_mib: (most > 0).then(|| most as f64 / f64::from(1 << 20)),
        };
        report::write(&Taken::file(folder, world.rank()), &taken)?;
    }
    Ok(())
}

/// The device of a training.
fn device_of(loaded: &Loaded, world: &World) -> Option<Device> {
    let wanted = loaded.config.train.device.to_string().parse().ok()?;
    Some(world.choose_device(wanted).ok()?.device)
}

/// Callback that keeps the time of each step, from the end of the step before.
///
/// The first counts from the epoch's begin. A step ends when this rank reads its loss, and so when
/// the device is done with it.
struct Clock {
    /// Images per step over all ranks.
    batch: usize,
    seconds: Arc<Mutex<Vec<f64>>>,
    /// File for the Unix time at the end of the first step, until written.
    first_step: Option<PathBuf>,
}

impl Callback for Clock {
    fn on_step(&mut self, step: &TrainLine) -> Result<Action, CallbackError> {
        if let Some(file) = self.first_step.take() {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            report::write(&file, &now.as_secs_f64())?;
        }
        let mut seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        seconds.push(self.batch as f64 / step.throughput.per_second);
        Ok(Action::Continue)
    }
}

/// Callback that reads the device's allocated memory after every step.
///
/// Pools may free some of it before the end.
struct Peak {
    device: Device,
    most: Arc<AtomicU64>,
}

impl Callback for Peak {
    fn on_step(&mut self, _step: &TrainLine) -> Result<Action, CallbackError> {
        if let Some(reserved) = reserved(&self.device) {
            self.most.fetch_max(reserved, Ordering::Relaxed);
        }
        Ok(Action::Continue)
    }
}

/// Memory used by one rank, in MiB.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Taken {
    /// Resident memory at the start.
    pub start_mib: f64,
    /// Peak resident memory.
    pub peak_mib: f64,
    /// Peak of the device memory allocated from the driver after a step. `None` if the device is no
    /// GPU or does not tell.
    pub device_mib: Option<f64>,
}

impl Taken {
    /// The memory file of a rank.
    pub fn file(folder: &Path, rank: usize) -> PathBuf {
        folder.join(format!("memory-{rank}.json"))
    }
}

/// Memory of this process as the system reports it, in MiB.
struct Memory {
    resident: f64,
    peak: f64,
}

impl Memory {
    fn now() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/self/status").ok()?;
        let mib = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
            Some(kib / 1024.0)
        };
        Some(Self {
            resident: mib("VmRSS:")?,
            peak: mib("VmHWM:")?,
        })
    }
}

/// The needed fields of a line of metrics.
#[derive(Deserialize)]
struct Line {
    kind: String,
    loss: Option<f64>,
}

/// Reads the metrics of each step.
fn lines(run_dir: &Path) -> Result<Vec<Line>, BenchError> {
    let path = run_dir.join(metrics::FILE);
    let failed = |source| BenchError::Unread {
        path: path.clone(),
        source,
    };
    let text = std::fs::read_to_string(&path).map_err(failed)?;
    let mut lines = Vec::new();
    for line in text.lines() {
        let line: Line = serde_json::from_str(line).map_err(|error| failed(error.into()))?;
        if line.kind == "train" {
            lines.push(line);
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_come_from_the_lines_of_steps() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let text = "{\"kind\":\"train\",\"step\":1,\"loss\":2.5}\n\
                    {\"kind\":\"eval\",\"loss\":0.5}\n\
                    {\"kind\":\"train\",\"step\":2,\"loss\":2.0}\n";
        std::fs::write(folder.path().join(metrics::FILE), text)?;
        let losses: Vec<_> = lines(folder.path())?.iter().map(|line| line.loss).collect();
        assert_eq!(losses, [Some(2.5), Some(2.0)]);
        std::fs::write(folder.path().join(metrics::FILE), "{")?;
        assert!(matches!(
            lines(folder.path()),
            Err(BenchError::Unread { .. })
        ));
        Ok(())
    }
}

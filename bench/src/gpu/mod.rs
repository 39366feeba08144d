//! `bench gpu`: a complete check of a GPU, which needs only this program, its golden files and a
//! driver.
//!
//! It covers devices, agreement with PyTorch and between ranks that share the GPU, NCCL, training
//! speed against PyTorch, and memory growth. Every part runs in a process with a time limit: a part
//! that fails or crashes the driver becomes a row, and its output is kept. Results are written
//! after each row, so that a stopped check keeps them.

mod child;
pub mod parity;
pub mod part;
mod ranks;
mod speed;

use std::path::PathBuf;

use burn_dist::device::DeviceChoice;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use crate::error::BenchError;
use crate::report::Report;
use crate::table::Table;
use child::Child;

/// A GPU's devices, agreement with PyTorch and between ranks, NCCL, speed and memory.
#[derive(Debug, clap::Args)]
pub struct GpuArgs {
    /// `cuda`, `wgpu` or `cpu`.
    #[arg(long, default_value = "cuda")]
    pub(crate) device: DeviceChoice,
    /// Only these parts. Default: all but `start`.
    #[arg(long, value_delimiter = ',', default_values_t = Part::DEFAULT, hide_default_value = true)]
    parts: Vec<Part>,
    /// Folder of the golden files.
    #[arg(long, default_value = "models/tests/golden")]
    golden: PathBuf,
    /// The recipes to train for speed.
    #[arg(long, value_delimiter = ',', default_values_t = speed::Recipe::ALL)]
    recipes: Vec<speed::Recipe>,
    /// In which number formats.
    #[arg(long, value_delimiter = ',', default_values_t = Precision::ALL)]
    precisions: Vec<Precision>,
    /// Images per step.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: u16,
    /// Steps that are counted.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    steps: u16,
    /// Steps before those: kernels are compiled and chosen.
    #[arg(long, default_value_t = 10)]
    warm_up: u16,
    /// Steps of the training whose device memory is watched.
    #[arg(long, default_value_t = 2000)]
    memory_steps: u32,
    /// Seconds that one part, one recipe in one number format, may take.
    #[arg(long, default_value_t = 240)]
    limit: u64,
    /// A Python with PyTorch; `python3` if it has one and is not given.
    #[arg(long)]
    python: Option<PathBuf>,
    /// The script that trains with PyTorch.
    #[arg(long, default_value = "bench/torch/train.py")]
    torch_script: PathBuf,
    /// Compares with PyTorch compiled (`torch.compile`), too, and not as it is used by default
    /// alone.
    #[arg(long)]
    torch_compile: bool,
    /// File for the results instead of a new one in results/.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// Which devices there are.
    Devices,
    /// NCCL's collectives in a world of one rank.
    Nccl,
    /// Every model against its golden files.
    Parity,
    /// Two ranks that share the device against one.
    Ranks,
    /// Images per second of the recipes.
    Speed,
    /// The same with PyTorch.
    Torch,
    /// Whether device memory grows.
    Memory,
    /// Seconds to the first step of the recipes.
    Start,
}

impl Part {
    const DEFAULT: [Self; 7] = [
        Self::Devices,
        Self::Nccl,
        Self::Parity,
        Self::Ranks,
        Self::Speed,
        Self::Torch,
        Self::Memory,
    ];
}

/// A number format, as `train.precision` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Precision {
    F32,
    Bf16,
    F16,
}

impl Precision {
    const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];
}

macro_rules! display_as_value {
    ($($type:ty),*) => {
        $(impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let value = self.to_possible_value();
                f.write_str(value.as_ref().map_or("", |value| value.get_name()))
            }
        })*
    };
}
display_as_value!(Part, Precision, speed::Recipe);

/// One row of the results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    part: Part,
    what: String,
    /// Whether the result is good. `None` if it could not be determined.
    good: Option<bool>,
    /// The result in words.
    words: String,
    /// The numbers.
    #[serde(skip_serializing_if = "Value::is_null")]
    values: Value,
}

impl Row {
    pub(crate) fn new(part: Part, what: impl Into<String>, outcome: Result<Found, String>) -> Self {
        let (good, words, values) = match outcome {
            Ok(found) => (found.good, found.words, found.values),
            Err(reason) => (Some(false), reason, Value::Null),
        };
        Self {
            part,
            what: what.into(),
            good,
            words,
            values,
        }
    }
}

/// Result of a part.
pub(crate) struct Found {
    /// Whether it is good. `None` if it could not be determined, for the reason in the words.
    pub good: Option<bool>,
    pub words: String,
    pub values: Value,
}

/// State of a check.
pub(crate) struct Check<'a> {
    pub args: &'a GpuArgs,
    pub child: Child,
    pub rows: Vec<Row>,
    /// The result file.
    path: PathBuf,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if the results cannot be written, a result is bad, or a signal stops the check.
pub fn run(args: &GpuArgs) -> Result<(), BenchError> {
    // Without rows at first: even the first failing part has a place beside it.
    let path = report(args, &[]).write(args.json.as_deref())?;
    let mut check = Check {
        args,
        child: Child::new(args.limit, path.with_extension("logs"))?,
        rows: Vec::new(),
        path,
    };
    check.child.listen()?;
    let outcome = check.all();
    println!("{}", check.table());
    eprintln!("results in {}", check.path.display());
    outcome?;
    let bad = |row: &&Row| row.good == Some(false);
    match check.rows.iter().filter(bad).count() {
        0 => Ok(()),
        bad => Err(BenchError::Gpu { bad }),
    }
}

/// The results so far and how they were measured.
fn report<'a>(args: &GpuArgs, rows: &'a [Row]) -> Report<&'a [Row]> {
    let protocol = vec![
        "every row in a process of its own; images per second through the trainer, its metrics and \
         hooks included, over the time of all counted steps"
            .to_owned(),
        "a step ends when its loss is read, which the trainer and PyTorch's script both do when the \
         device has the next step to do"
            .to_owned(),
        format!(
            "batch {}, {} steps counted after {}, SGD with momentum, generated images that lie on the \
             device",
            args.batch, args.steps, args.warm_up
        ),
        "PyTorch in eager mode, channels last, cudnn.benchmark, TensorFloat-32 in f32, autocast in half precision; rows \
         that say so with torch.compile"
            .to_owned(),
        "as many images, here and in PyTorch, as the steps take, so that no epoch ends within them, but \
         at most 4 GiB; the ratio of memory is without them"
            .to_owned(),
    ];
    Report::new("gpu", vec![1, 2], protocol, rows)
}

impl Check<'_> {
    fn all(&mut self) -> Result<(), BenchError> {
        let args = self.args;
        for part in &args.parts {
            eprintln!("gpu: {part}");
            match part {
                Part::Devices => self.simple(*part, "devices")?,
                Part::Nccl => self.simple(*part, "nccl")?,
                Part::Memory => self.simple(*part, "memory")?,
                Part::Parity => self.parity()?,
                Part::Ranks => self.ranks()?,
                Part::Speed => self.speed()?,
                Part::Torch => self.torch()?,
                Part::Start => self.start()?,
            }
            let failed = self.rows.iter().any(|row| row.good == Some(false));
            if *part == Part::Devices && failed {
                eprintln!("gpu: without the device there is nothing else to check");
                break;
            }
        }
        Ok(())
    }

    /// Adds, prints and writes a row.
    pub(crate) fn tell(
        &mut self,
        part: Part,
        what: impl Into<String>,
        found: Result<Found, String>,
    ) -> Result<(), BenchError> {
        let row = Row::new(part, what, found);
        eprintln!("gpu:   {part}: {}: {}", row.what, row.words);
        self.rows.push(row);
        report(self.args, &self.rows).write(Some(&self.path))?;
        match self.child.is_stopped() {
            true => Err(BenchError::Stopped {
                path: self.path.clone(),
            }),
            false => Ok(()),
        }
    }

    /// Runs a part that is one hidden subcommand.
    fn simple(&mut self, part: Part, name: &str) -> Result<(), BenchError> {
        let device = self.args.device.to_string();
        let steps = self.args.memory_steps.to_string();
        let arguments = [
            part::COMMAND,
            name,
            "--device",
            &device,
            "--memory-steps",
            &steps,
        ];
        let found = self.child.found(name, &arguments);
        self.tell(part, name, found)
    }

    fn parity(&mut self) -> Result<(), BenchError> {
        let device = self.args.device.to_string();
        let golden = self.args.golden.display().to_string();
        for precision in &self.args.precisions {
            let name = precision.to_string();
            let arguments = [
                part::COMMAND,
                "parity",
                "--device",
                &device,
                "--precision",
                &name,
                "--golden",
                &golden,
            ];
            let found = self.child.found(&format!("parity {name}"), &arguments);
            self.tell(Part::Parity, name, found)?;
        }
        Ok(())
    }

    fn table(&self) -> Table {
        let mut table = Table::new(["part", "what", "", "result"]);
        for row in &self.rows {
            let mark = match row.good {
                Some(true) => "ok",
                Some(false) => "FAILED",
                None => "skipped",
            };
            let mut lines = row.words.lines();
            let first = lines.next().unwrap_or_default().to_owned();
            let part = row.part.to_string();
            table.row([part, row.what.clone(), mark.to_owned(), first]);
            for line in lines {
                let empty = String::new;
                table.row([empty(), empty(), empty(), line.to_owned()]);
            }
        }
        table
    }
}

//! `bench training`: images per second of a model by ranks and threads, with the trainer's loop and
//! a bare one.

pub mod bare;
pub mod trained;

pub(crate) mod process;
pub(crate) mod workload;

use std::path::PathBuf;

use serde::Serialize;

use crate::error::BenchError;
use crate::report::{self, Report};
use crate::stats;
use crate::table::{Table, number};
use process::Processes;
use workload::{Optimizer, Workload};

// The same seed for both loops.
const SEED: u64 = 1;
const LEARNING_RATE: f64 = 0.01;
const MOMENTUM: f64 = 0.9;

/// Uncounted steps at the beginning, which touch memory first and fill the loader.
const WARM_UP: usize = 3;
const FEWEST_STEPS: usize = 8;
const MOST_STEPS: usize = 10_000;

/// Images per second of a model: 1 and 2 ranks, 1 and 2 threads, the loop without the trainer, and
/// PyTorch.
#[derive(Debug, clap::Args)]
pub struct TrainingArgs {
    /// The model to train.
    #[arg(long, default_value = "cnn")]
    model: Workload,
    /// Seconds that one rank with one thread trains in each round; the others take as many steps.
    #[arg(long, default_value_t = 4.0, value_parser = seconds)]
    seconds: f64,
    /// Rounds in which all settings take turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Images per rank and step.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: u16,
    /// Number format of forward and backward.
    #[arg(long, default_value = "f32")]
    precision: Precision,
    /// Further settings of the configuration, such as train.kernels=burn.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Python with PyTorch, to be measured in the same rounds.
    #[arg(long, value_name = "PYTHON")]
    torch: Option<PathBuf>,
    /// File for the results instead of a new one in results/.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds from 0.1 to 600".to_owned()),
    }
}

/// Implementation of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Loop {
    /// Forward, loss, backward and Burn's optimizer, nothing else.
    Bare,
    /// The trainer's library: loader, hooks, buckets, metrics.
    Trainer,
    /// PyTorch, with DDP over gloo for several ranks.
    PyTorch,
}

impl Loop {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Trainer => "trainer",
            Self::PyTorch => "PyTorch",
        }
    }
}

/// Number format of forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Precision {
    /// IEEE single precision.
    F32,
    /// bfloat16 with f32 master weights; PyTorch's autocast.
    Bf16,
}

impl Precision {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

/// One measured configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    pub(crate) by: Loop,
    pub(crate) ranks: usize,
    /// Compute threads of each rank.
    pub(crate) threads: usize,
}

const BARE_1: Setting = setting(Loop::Bare, 1, 1);
const BARE_2: Setting = setting(Loop::Bare, 1, 2);
const TRAINER_1: Setting = setting(Loop::Trainer, 1, 1);
pub(crate) const TRAINER_2: Setting = setting(Loop::Trainer, 1, 2);
pub(crate) const RANKS_2: Setting = setting(Loop::Trainer, 2, 1);
/// Order of a round: compared settings are adjacent.
const SETTINGS: [Setting; 5] = [BARE_1, TRAINER_1, RANKS_2, TRAINER_2, BARE_2];

/// Placed beside the settings that they are compared with.
const TORCH_2: Setting = setting(Loop::PyTorch, 1, 2);
const TORCH_RANKS_2: Setting = setting(Loop::PyTorch, 2, 1);
const WITH_TORCH: [Setting; 7] = [
    BARE_1,
    TRAINER_1,
    RANKS_2,
    TORCH_RANKS_2,
    TRAINER_2,
    TORCH_2,
    BARE_2,
];

const fn setting(by: Loop, ranks: usize, threads: usize) -> Setting {
    Setting { by, ranks, threads }
}

/// Images per second of one setting.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    setting: Setting,
    /// Median of the rounds.
    images_per_second: Option<f64>,
    rounds: Vec<f64>,
}

/// Ratio of two settings, computed per round.
#[derive(Debug, Serialize)]
struct Ratio {
    name: &'static str,
    meaning: &'static str,
    /// Median of the rounds.
    median: Option<f64>,
    rounds: Vec<f64>,
}

/// All results.
#[derive(Debug, Serialize)]
struct Results {
    settings: Vec<Row>,
    ratios: Vec<Ratio>,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if a training process fails or the results cannot be written.
pub fn run(args: &TrainingArgs) -> Result<(), BenchError> {
    report::check(args.json.as_deref())?;
    let processes =
        Processes::new(args.model, args.batch.into())?.settings(args.precision, &args.set);
    for ranks in [1, 2] {
        processes.check_settings(ranks, Optimizer::Sgd, &args.set)?;
    }
    let processes = processes.torch(args.torch.as_deref())?;
    let steps = steps_in(args.seconds, &processes)?;
    let settings = match args.torch {
        Some(_) => &WITH_TORCH[..],
        None => &SETTINGS[..],
    };
    let row = |setting: &Setting| Row {
        setting: *setting,
        images_per_second: None,
        rounds: Vec::new(),
    };
    let mut rows: Vec<Row> = settings.iter().map(row).collect();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}, {steps} steps each", args.rounds);
        for row in &mut rows {
            row.rounds
                .push(processes.images_per_second(row.setting, steps)?);
        }
    }
    for row in &mut rows {
        row.images_per_second = stats::median(&row.rounds);
    }
    let mut ratios = ratios(&rows);
    // Leaves out ratios that were not measured.
    ratios.retain(|ratio| ratio.median.is_some());
    print(&rows, &ratios);
    let results = Results {
        settings: rows,
        ratios,
    };
    let report = Report::new("training", vec![1, 2], rules(args, steps), results);
    let path = report.write(args.json.as_deref())?;
    eprintln!("results in {}", path.display());
    Ok(())
}

/// Number of steps that take one rank with one thread about `seconds`, from a short run.
fn steps_in(seconds: f64, processes: &Processes) -> Result<usize, BenchError> {
    let rate = processes.images_per_second(BARE_1, FEWEST_STEPS)?;
    let steps = seconds * rate / processes.batch() as f64;
    // A float-to-integer cast saturates.
    Ok((steps as usize).clamp(FEWEST_STEPS, MOST_STEPS))
}

fn rules(args: &TrainingArgs, steps: usize) -> Vec<String> {
    vec![
        format!(
            "{}; {} per rank and step: the global batch grows with the ranks (weak scaling)",
            args.model.describe(),
            args.batch
        ),
        format!(
            "SGD with momentum; {}; the loss of every step is read",
            args.precision.name()
        ),
        format!("{steps} steps counted after {WARM_UP} that are not; evaluation is not counted"),
        "trainer: generated images through its loader, one line of metrics per step; bare: images \
         that are in memory, Burn's optimizer, no loader, no hooks"
            .to_owned(),
        "PyTorch: the bare loop in eager mode, channels last for convolutions; ranks through DDP \
         with gloo"
            .to_owned(),
        "seconds of several ranks: those of the rank that took longest for all counted steps"
            .to_owned(),
        format!(
            "{} rounds in which all settings take turns, each in processes of its own with \
             RAYON_NUM_THREADS set; ratios per round, then the median of the rounds",
            args.rounds
        ),
    ]
}

/// Compares the settings, round by round.
fn ratios(rows: &[Row]) -> Vec<Ratio> {
    let ratio = |name, meaning, above, below, factor: f64| {
        let rounds: Vec<f64> = rounds_of(rows, above)
            .iter()
            .zip(rounds_of(rows, below))
            .map(|(above, below)| above / (factor * below))
            .collect();
        Ratio {
            name,
            meaning,
            median: stats::median(&rounds),
            rounds,
        }
    };
    vec![
        ratio(
            "scaling",
            "2 ranks x 1 thread / (2 x (1 rank x 1 thread)), same batch per rank",
            RANKS_2,
            TRAINER_1,
            2.0,
        ),
        ratio(
            "threads",
            "1 rank x 2 threads / (2 x (1 rank x 1 thread))",
            TRAINER_2,
            TRAINER_1,
            2.0,
        ),
        ratio(
            "overhead, 1 thread",
            "bare loop / trainer, 1 rank x 1 thread",
            BARE_1,
            TRAINER_1,
            1.0,
        ),
        ratio(
            "overhead, 2 threads",
            "bare loop / trainer, 1 rank x 2 threads",
            BARE_2,
            TRAINER_2,
            1.0,
        ),
        ratio(
            "PyTorch, 2 threads",
            "trainer / PyTorch, 1 rank x 2 threads",
            TRAINER_2,
            TORCH_2,
            1.0,
        ),
        ratio(
            "PyTorch, 2 ranks",
            "trainer / PyTorch's DDP with gloo, 2 ranks x 1 thread",
            RANKS_2,
            TORCH_RANKS_2,
            1.0,
        ),
    ]
}

fn rounds_of(rows: &[Row], setting: Setting) -> &[f64] {
    let row = rows.iter().find(|row| row.setting == setting);
    row.map_or(&[], |row| &row.rounds)
}

fn print(rows: &[Row], ratios: &[Ratio]) {
    let mut table = Table::new([
        "loop",
        "ranks",
        "threads per rank",
        "images/s",
        "best round",
    ]);
    for row in rows {
        let best = row.rounds.iter().copied().max_by(f64::total_cmp);
        table.row([
            row.setting.by.name().to_owned(),
            row.setting.ranks.to_string(),
            row.setting.threads.to_string(),
            number(row.images_per_second),
            number(best),
        ]);
    }
    println!("{table}");
    let mut table = Table::new(["ratio", "median", "of"]);
    for ratio in ratios {
        table.row([
            ratio.name.to_owned(),
            number(ratio.median),
            ratio.meaning.to_owned(),
        ]);
    }
    print!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_per_round() {
        let row = |setting, rounds: &[f64]| Row {
            setting,
            images_per_second: None,
            rounds: rounds.to_vec(),
        };
        // The machine was half as fast in the second round.
        let rows = [row(TRAINER_1, &[100.0, 50.0]), row(RANKS_2, &[190.0, 95.0])];
        let ratios = ratios(&rows);
        assert_eq!(ratios[0].rounds, [0.95, 0.95]);
        assert_eq!(ratios[0].median, Some(0.95));
        assert_eq!(ratios[2].median, None, "nothing to compare with");
    }
}

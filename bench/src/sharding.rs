//! `bench sharding`: memory and time of each strategy.

use std::path::PathBuf;

use burn_dist::parallel::{MemoryEstimate, Strategy};
use serde::Serialize;

use crate::error::BenchError;
use crate::report::{self, Report};
use crate::stats;
use crate::table::{Table, number};
use crate::training::process::Processes;
use crate::training::workload::{Optimizer, Workload};
use crate::training::{Loop, Setting};

const MIB: f64 = 1048576.0;

/// PyTorch's strategies, by the names in its script.
const TORCH: [&str; 3] = ["ddp", "zero-1", "fsdp2"];

/// Memory of each rank, and seconds of a step, under each strategy.
#[derive(Debug, clap::Args)]
pub struct ShardingArgs {
    /// The model to train, with AdamW in f32.
    #[arg(long, default_value = "vit-tiny")]
    model: Workload,
    /// World sizes, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "2", value_parser = clap::value_parser!(u8).range(1..=64))]
    ranks: Vec<u8>,
    /// Steps that are counted.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    steps: u16,
    /// Rounds in which all strategies take turns.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Images per rank and step.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: u16,
    /// Parameters of the model, from which the formula's bytes are computed: `trainer --dry-run`
    /// says how many there are.
    #[arg(long)]
    parameters: Option<u64>,
    /// Further settings of the trainer's configuration.
    #[arg(long)]
    set: Vec<String>,
    /// A Python with PyTorch: its DDP, `ZeroRedundancyOptimizer` and FSDP2 take their turns, over
    /// gloo.
    #[arg(long, value_name = "PYTHON")]
    torch: Option<PathBuf>,
    /// File for the results instead of a new one in results/.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One strategy with one world size.
#[derive(Debug, Serialize)]
struct Row {
    ranks: usize,
    by: Loop,
    strategy: &'static str,
    /// Per round: the largest peak resident memory of a rank, and the part of it after the start.
    peak_mib: Vec<f64>,
    above_start_mib: Vec<f64>,
    /// Parameters, gradients and optimizer state by the formula.
    formula_mib: Option<f64>,
    /// Median of each round.
    step_seconds: Vec<f64>,
    /// Time of a step as a multiple of the same program's DDP: median over the rounds.
    times_ddp: Option<f64>,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if a training process fails or the results cannot be written.
pub fn run(args: &ShardingArgs) -> Result<(), BenchError> {
    report::check(args.json.as_deref())?;
    let processes = Processes::new(args.model, args.batch.into())?.torch(args.torch.as_deref())?;
    for &ranks in &args.ranks {
        for strategy in Strategy::ALL {
            processes.check_settings(
                ranks.into(),
                Optimizer::AdamW,
                &sets(strategy.name(), &args.set),
            )?;
        }
    }
    let mut rows = Vec::new();
    for &ranks in &args.ranks {
        rows.extend(measure(args, &processes, ranks.into())?);
    }
    print!("{}", table(&rows));
    let mut rules = vec![
        format!(
            "{}; {} images per rank and step; AdamW in f32; one thread per rank",
            args.model.describe(),
            args.batch
        ),
        format!("{} steps counted; all strategies in turns; medians", args.steps),
        "memory: the rank with the highest peak of resident memory, of which what was resident before \
         the run is taken off"
            .to_owned(),
        "formula: parameters, gradients and optimizer state alone".to_owned(),
        "x ddp: seconds per step as a multiple of those of the same program's DDP".to_owned(),
    ];
    rules.extend(args.set.iter().map(|set| format!("--set {set}")));
    let world = args.ranks.iter().map(|&ranks| ranks.into()).collect();
    let path = Report::new("sharding", world, rules, rows).write(args.json.as_deref())?;
    eprintln!("results in {}", path.display());
    Ok(())
}

fn measure(
    args: &ShardingArgs,
    processes: &Processes,
    ranks: usize,
) -> Result<Vec<Row>, BenchError> {
    let mut rows: Vec<Row> = Strategy::ALL
        .map(|strategy| Row {
            formula_mib: args.parameters.map(|parameters| {
                MemoryEstimate::new(strategy, parameters, 2, ranks).total() as f64 / MIB
            }),
            ..Row::new(ranks, strategy.name(), Loop::Trainer)
        })
        .into();
    if args.torch.is_some() && ranks > 1 {
        rows.extend(TORCH.map(|strategy| Row::new(ranks, strategy, Loop::PyTorch)));
    }
    for round in 1..=args.rounds {
        eprintln!("{ranks} ranks, round {round} of {}", args.rounds);
        for row in &mut rows {
            row.take_turn(args, processes)?;
        }
    }
    compare(&mut rows);
    Ok(rows)
}

/// Compares every strategy with the DDP of the same program.
fn compare(rows: &mut [Row]) {
    for by in [Loop::Trainer, Loop::PyTorch] {
        let is_ddp = |row: &&Row| row.by == by && row.strategy == "ddp";
        let ddp = rows.iter().find(is_ddp);
        let ddp = ddp.map_or_else(Vec::new, |row| row.step_seconds.clone());
        for row in rows.iter_mut().filter(|row| row.by == by) {
            let ratios: Vec<f64> = row
                .step_seconds
                .iter()
                .zip(&ddp)
                .map(|(own, ddp)| own / ddp)
                .collect();
            row.times_ddp = stats::median(&ratios);
        }
    }
}

impl Row {
    fn new(ranks: usize, strategy: &'static str, by: Loop) -> Self {
        Self {
            ranks,
            by,
            strategy,
            peak_mib: Vec::new(),
            above_start_mib: Vec::new(),
            formula_mib: None,
            step_seconds: Vec::new(),
            times_ddp: None,
        }
    }

    /// Trains once.
    fn take_turn(&mut self, args: &ShardingArgs, processes: &Processes) -> Result<(), BenchError> {
        let setting = Setting {
            by: self.by,
            ranks: self.ranks,
            threads: 1,
        };
        let mut more = vec!["--optimizer".to_owned(), "adamw".to_owned()];
        if self.by == Loop::PyTorch {
            more.extend(["--strategy".to_owned(), self.strategy.to_owned()]);
        } else {
            for set in sets(self.strategy, &args.set) {
                more.extend(["--set".to_owned(), set]);
            }
        }
        let (seconds, taken) = processes.seconds_and_memory(setting, args.steps.into(), &more)?;
        self.step_seconds.extend(stats::median(&seconds));
        let most = taken
            .iter()
            .max_by(|a, b| a.peak_mib.total_cmp(&b.peak_mib));
        self.peak_mib.extend(most.map(|taken| taken.peak_mib));
        let above = most.map(|taken| taken.peak_mib - taken.start_mib);
        self.above_start_mib.extend(above);
        Ok(())
    }
}

/// The trainer's settings for a strategy.
fn sets(strategy: &str, more: &[String]) -> Vec<String> {
    let strategy = format!("parallel.strategy={strategy}");
    std::iter::once(strategy)
        .chain(more.iter().cloned())
        .collect()
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        "ranks",
        "by",
        "strategy",
        "peak MiB",
        "above start",
        "formula",
        "s per step",
        "x ddp",
    ]);
    for row in rows {
        table.row([
            row.ranks.to_string(),
            row.by.name().to_owned(),
            row.strategy.to_owned(),
            number(stats::median(&row.peak_mib)),
            number(stats::median(&row.above_start_mib)),
            number(row.formula_mib),
            number(stats::median(&row.step_seconds)),
            number(row.times_ddp),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_is_compared_with_its_own_ddp() {
        let row = |strategy, by, seconds: &[f64]| Row {
            step_seconds: seconds.to_vec(),
            ..Row::new(2, strategy, by)
        };
        let mut rows = [
            row("ddp", Loop::Trainer, &[1.0, 2.0]),
            row("zero-3", Loop::Trainer, &[1.5, 3.0]),
            row("ddp", Loop::PyTorch, &[4.0, 8.0]),
            row("fsdp2", Loop::PyTorch, &[5.0, 10.0]),
        ];
        compare(&mut rows);
        let times = rows.map(|row| row.times_ddp);
        assert_eq!(times, [Some(1.0), Some(1.5), Some(1.0), Some(1.25)]);
    }
}

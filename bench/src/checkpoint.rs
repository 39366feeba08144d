//! `bench checkpoint`: the cost of background checkpoints for the steps that go on meanwhile.

use std::path::PathBuf;

use serde::Serialize;

use crate::error::BenchError;
use crate::report::{self, Report};
use crate::stats;
use crate::table::{Table, number};
use crate::training::process::Processes;
use crate::training::workload::Workload;
use crate::training::{RANKS_2, Setting, TRAINER_2};

/// Images per second with a checkpoint every N steps, and without.
#[derive(Debug, clap::Args)]
pub struct CheckpointArgs {
    /// The model to train.
    #[arg(long, default_value = "vit-tiny")]
    model: Workload,
    /// Steps from one checkpoint to the next.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    every: u16,
    /// Checkpoints that are written while steps are counted.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    checkpoints: u16,
    /// Rounds in which all settings take turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Images per rank and step.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: u16,
    /// File for the results instead of a new one in results/.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Images per second of one strategy, with and without checkpoints.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    setting: Setting,
    /// Per round, without checkpoints.
    without: Vec<f64>,
    /// Per round, with checkpoints.
    with: Vec<f64>,
    /// Extra time of a step, as a fraction of its time: median over the rounds.
    overhead: Option<f64>,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if a training process fails or the results cannot be written.
pub fn run(args: &CheckpointArgs) -> Result<(), BenchError> {
    report::check(args.json.as_deref())?;
    let processes = Processes::new(args.model, args.batch.into())?;
    let steps = usize::from(args.every) * usize::from(args.checkpoints);
    let adamw = ["--optimizer", "adamw"].map(str::to_owned);
    let every = format!("checkpoint.every_steps={}", args.every);
    let saving = [adamw.to_vec(), vec!["--set".to_owned(), every]].concat();
    let mut rows = [TRAINER_2, RANKS_2].map(|setting| Row {
        setting,
        without: Vec::new(),
        with: Vec::new(),
        overhead: None,
    });
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}, {steps} steps each", args.rounds);
        for row in &mut rows {
            let rate = |more| processes.images_per_second_with(row.setting, steps, more);
            row.without.push(rate(&adamw)?);
            row.with.push(rate(&saving)?);
        }
    }
    let mut table = Table::new([
        "ranks",
        "threads per rank",
        "without",
        "with",
        "overhead, %",
    ]);
    for row in &mut rows {
        let overheads: Vec<f64> = row
            .without
            .iter()
            .zip(&row.with)
            .map(|(without, with)| without / with - 1.0)
            .collect();
        row.overhead = stats::median(&overheads);
        table.row([
            row.setting.ranks.to_string(),
            row.setting.threads.to_string(),
            number(stats::median(&row.without)),
            number(stats::median(&row.with)),
            number(row.overhead.map(|share| 100.0 * share)),
        ]);
    }
    print!("{table}");
    let rules = vec![
        format!(
            "{}; {} per rank and step",
            args.model.describe(),
            args.batch
        ),
        "AdamW: parameters and two moments are saved".to_owned(),
        format!(
            "{steps} steps counted, a checkpoint after every {} written to a temporary folder while \
             training goes on",
            args.every
        ),
        "images per second of both, in turns; the overhead is that of each round, then the median"
            .to_owned(),
    ];
    let path = Report::new("checkpoint", vec![1, 2], rules, rows).write(args.json.as_deref())?;
    eprintln!("results in {}", path.display());
    Ok(())
}

//! `bench loader`: images per second of the loader by augmentation and workers.

mod images;
mod python;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use datasets::{Augment, Dataset, ImageShape, Loader, TrainSampler};
use serde::Serialize;

use crate::error::BenchError;
use crate::report::{self, Report};
use crate::stats;
use crate::table::{Table, number};
use images::Images;
use python::{Python, PythonError, Round};

const SEED: u64 = 1;
/// Loader threads; 0 loads on the thread that takes the batches.
const WORKERS: [usize; 3] = [0, 1, 2];
/// Images of the Python programs. An epoch takes a second or two; a shorter one would mostly fill
/// and drain their workers.
const PYTHON_IMAGES: usize = 25_000;
/// Augmentation that the Python programs do as well.
const COMPARED: &str = "crop+flip";

const CIFAR: ImageShape = ImageShape {
    channels: 3,
    height: 32,
    width: 32,
};
const MNIST: ImageShape = ImageShape {
    channels: 1,
    height: 28,
    width: 28,
};
const PIPELINES: [(&str, ImageShape); 9] = [
    ("none", CIFAR),
    (COMPARED, CIFAR),
    ("crop:4:reflect+flip", CIFAR),
    ("crop+flip+cutout:8", CIFAR),
    ("crop+flip+erase", CIFAR),
    ("crop+flip+rand-augment", CIFAR),
    ("crop+flip+mixup+cutmix", CIFAR),
    ("resized-crop+flip", CIFAR),
    ("shift", MNIST),
];

/// Images per second of the loader: augmentations, 0, 1 and 2 workers, torchvision on request.
#[derive(Debug, clap::Args)]
pub struct LoaderArgs {
    /// Seconds that each setting works in each round.
    #[arg(long, default_value_t = 0.3, value_parser = seconds)]
    seconds: f64,
    /// Rounds in which all settings take turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Images per batch.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: u16,
    /// Images in memory.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(4096..=1_000_000))]
    images: u32,
    /// A Python interpreter with torchvision to measure for comparison.
    #[arg(long)]
    python: Option<PathBuf>,
    /// File for the results instead of a new one in results/.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds from 0.001 to 60".to_owned()),
    }
}

/// Images per second of one augmentation.
#[derive(Debug, Serialize)]
struct Row {
    augment: String,
    /// Channels, rows, columns.
    shape: [usize; 3],
    workers: Vec<Rate>,
    /// 2 workers / 1 worker: median of the ratios of all rounds.
    scaling: Option<f64>,
    /// Best round of 2 workers / best round of 1: the ratio for two free CPUs on a shared machine.
    best_scaling: Option<f64>,
}

/// Images per second of one augmentation with a number of workers.
#[derive(Debug, Serialize)]
struct Rate {
    workers: usize,
    /// Median of the rounds.
    images_per_second: Option<f64>,
    rounds: Vec<f64>,
}

/// Images per second of a program in Python.
#[derive(Debug, Default, Serialize)]
struct Compared {
    /// Median of the rounds.
    images_per_second: Option<f64>,
    rounds: Vec<f64>,
    /// This loader on its own thread / this program: median of the ratios of all rounds.
    ratio: Option<f64>,
}

/// All results.
#[derive(Debug, Serialize)]
struct Results {
    rows: Vec<Row>,
    /// Versions of the compared programs.
    python: String,
    /// Python programs by name.
    compared: BTreeMap<String, Compared>,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if the loader fails or the results cannot be written.
pub fn run(args: &LoaderArgs) -> Result<(), BenchError> {
    report::check(args.json.as_deref())?;
    let bench = Bench::new(args)?;
    let mut python = Reference::new(args);
    let mut results = Results {
        rows: bench.loaders.iter().map(Setting::row).collect(),
        python: String::new(),
        compared: BTreeMap::new(),
    };
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for (row, setting) in results.rows.iter_mut().zip(&bench.loaders) {
            for rate in &mut row.workers {
                rate.rounds.push(bench.rate(setting, rate.workers)?);
            }
        }
        results.add(python.round());
    }
    results.finish();
    print(&results);
    let report = Report::new("loader", vec![1], rules(args), results);
    let path = report.write(args.json.as_deref())?;
    eprintln!("results in {}", path.display());
    Ok(())
}

/// Sizes and time of the measurement.
struct Bench {
    loaders: Vec<Setting>,
    sampler: TrainSampler,
    seconds: f64,
}

/// An augmentation of images in memory.
struct Setting {
    augment: Augment,
    images: Arc<Images>,
}

impl Bench {
    fn new(args: &LoaderArgs) -> Result<Self, BenchError> {
        let (count, batch) = (args.images as usize, args.batch.into());
        let [cifar, mnist] = [CIFAR, MNIST].map(|shape| Arc::new(Images::new(count, shape)));
        let setting = |(text, shape): (&str, ImageShape)| {
            let images = if shape == CIFAR { &cifar } else { &mnist };
            Ok(Setting {
                augment: text.parse()?,
                images: Arc::clone(images),
            })
        };
        let loaders = PIPELINES.into_iter().map(setting);
        Ok(Self {
            loaders: loaders.collect::<Result<_, BenchError>>()?,
            sampler: TrainSampler::new(count, batch, batch, 0, 1, SEED)?,
            seconds: args.seconds,
        })
    }

    /// Images per second of whole epochs. Batches are not recycled by the loader, as in training,
    /// where tensors take over their memory.
    fn rate(&self, setting: &Setting, workers: usize) -> Result<f64, BenchError> {
        let loader = Loader::new(setting.images.clone())?
            .workers(workers)
            .augment(setting.augment.clone(), SEED);
        let (mut images, mut seconds) = (0, 0.0);
        for number in 0.. {
            let epoch = self.sampler.epoch(number);
            let start = Instant::now();
            for batch in loader.iter(epoch) {
                images += std::hint::black_box(batch?).labels.len();
            }
            seconds += start.elapsed().as_secs_f64();
            if seconds >= self.seconds {
                break;
            }
        }
        Ok(images as f64 / seconds)
    }
}

impl Setting {
    fn row(&self) -> Row {
        let shape = self.images.shape();
        let rate = |workers| Rate {
            workers,
            images_per_second: None,
            rounds: Vec::new(),
        };
        Row {
            augment: self.augment.to_string(),
            shape: [shape.channels, shape.height, shape.width],
            workers: WORKERS.map(rate).into(),
            scaling: None,
            best_scaling: None,
        }
    }
}

/// The Python programs, until they fail.
struct Reference<'a> {
    python: Option<Python>,
    args: &'a LoaderArgs,
}

impl<'a> Reference<'a> {
    fn new(args: &'a LoaderArgs) -> Self {
        let python = args.python.as_deref().map(Python::new);
        Self {
            python: python.and_then(|python| python.map_err(say).ok()),
            args,
        }
    }

    fn round(&mut self) -> Option<Round> {
        let (images, batch) = (PYTHON_IMAGES, self.args.batch.into());
        let round = self.python.as_ref()?;
        let round = round.round(images, batch, self.args.seconds);
        let round = round.map_err(say).ok();
        if round.is_none() {
            self.python = None;
        }
        round
    }
}

/// Reports that the comparison failed; the other results still count.
fn say(error: PythonError) {
    eprintln!("no comparison with torchvision: {error}");
}

impl Results {
    fn add(&mut self, round: Option<Round>) {
        let Some(round) = round else {
            return;
        };
        self.python = round.versions;
        for (name, rate) in round.rates {
            self.compared.entry(name).or_default().rounds.push(rate);
        }
    }

    fn finish(&mut self) {
        for row in &mut self.rows {
            for rate in &mut row.workers {
                rate.images_per_second = stats::median(&rate.rounds);
            }
            let (one, two) = (row.rounds_with(1), row.rounds_with(2));
            let best = |rounds: &[f64]| rounds.iter().copied().max_by(f64::total_cmp);
            let best_scaling = best(two).zip(best(one)).map(|(two, one)| two / one);
            let scaling = stats::median(&ratios(two, one));
            (row.scaling, row.best_scaling) = (scaling, best_scaling);
        }
        let compared: Option<Augment> = COMPARED.parse().ok();
        let name = compared.map(|augment| augment.to_string());
        let row = self
            .rows
            .iter()
            .find(|row| Some(&row.augment) == name.as_ref());
        let ours = row.map_or(&[][..], |row| row.rounds_with(0));
        for other in self.compared.values_mut() {
            other.images_per_second = stats::median(&other.rounds);
            other.ratio = stats::median(&ratios(ours, &other.rounds));
        }
    }
}

impl Row {
    fn rounds_with(&self, workers: usize) -> &[f64] {
        let rate = self.workers.iter().find(|rate| rate.workers == workers);
        rate.map_or(&[], |rate| &rate.rounds)
    }
}

fn ratios(above: &[f64], below: &[f64]) -> Vec<f64> {
    let pairs = above.iter().zip(below);
    pairs.map(|(above, below)| above / below).collect()
}

fn rules(args: &LoaderArgs) -> Vec<String> {
    vec![
        format!(
            "{} images of noise in memory, batches of {}, shuffled anew in every epoch; read, \
             augmented, normalised to f32; nobody computes with them, their memory is not given back",
            args.images, args.batch
        ),
        format!(
            "{} rounds in which all settings take turns, each for whole epochs until {} s have \
             passed; threads start with the epoch; ratios per round, then the median of the rounds; \
             beside it the ratio of the best rounds",
            args.rounds, args.seconds
        ),
        "workers: threads of the loader; 0 is the thread that takes the batches".to_owned(),
        format!(
            "python: {COMPARED} and normalise; {PYTHON_IMAGES} images in memory, after one epoch that is not \
             counted; torchvision: RandomCrop(32, 4), RandomHorizontalFlip, ToTensor, Normalize of \
             PIL images through a DataLoader; numpy gather: whole batches at once, one thread"
        ),
    ]
}

fn print(results: &Results) {
    let mut table = Table::new([
        "augmentation",
        "image",
        "images/s, 0 workers",
        "1 worker",
        "2 workers",
        "2 / 1",
        "2 / 1, best rounds",
    ]);
    for row in &results.rows {
        let [channels, height, width] = row.shape;
        let mut cells = vec![row.augment.clone(), format!("{channels}x{height}x{width}")];
        cells.extend(
            row.workers
                .iter()
                .map(|rate| number(rate.images_per_second)),
        );
        cells.push(number(row.scaling));
        cells.push(number(row.best_scaling));
        table.row(cells);
    }
    print!("{table}");
    if results.compared.is_empty() {
        return;
    }
    println!("\n{} ({})", COMPARED, results.python);
    let mut table = Table::new(["program", "images/s", "this loader, 0 workers / program"]);
    for (name, other) in &results.compared {
        table.row([
            name.clone(),
            number(other.images_per_second),
            number(other.ratio),
        ]);
    }
    print!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_augmentation_is_one() {
        for (text, _) in PIPELINES {
            text.parse::<Augment>().unwrap();
        }
    }

    #[test]
    fn ratios_are_taken_per_round() {
        // The machine was half as fast in the second round.
        assert_eq!(ratios(&[190.0, 95.0], &[100.0, 50.0]), [1.9, 1.9]);
        assert_eq!(ratios(&[1.0], &[]), [0.0; 0]);
    }
}

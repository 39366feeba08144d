//! Trains with the trainer's loop on a custom task: a regression.
//!
//! `cargo run --release --example own_task -- digits.toml runs/mine train.epochs=1`: the
//! configuration, the run folder, and any number of settings.

use std::error::Error;
use std::sync::OnceLock;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use burn_dist::world::World;
use burn_dist::{ProcessGroup, WeightedMean};
use datasets::{Epoch, EvalSampler, TrainSampler};
use trainer::config::Loaded;
use trainer::task::{
    Evaluation, Facts, Items, Loss, Measure, Opening, Pass, Plain, Sums, Task, Words,
};
use trainer::{TrainError, Trainer, prepare_process};

/// Two hidden layers.
#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        let sizes = [(1, 32), (32, 32), (32, 1)];
        let layer = |(inputs, outputs)| LinearConfig::new(inputs, outputs).init(device);
        Self {
            layers: sizes.into_iter().map(layer).collect(),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let (last, hidden) = self.layers.split_last().expect("three layers");
        let x = hidden.iter().fold(x, |x, layer| tanh(layer.forward(x)));
        last.forward(x)
    }
}

/// Learns the sine of numbers from -3 to 3. A number counts by its distance from zero.
struct Sine {
    train: TrainSampler,
    test: EvalSampler,
    items: Items,
}

/// Numbers, and how much each counts.
type Batch = (Tensor<2>, Tensor<2>);

impl Sine {
    fn open(opening: &Opening<'_>) -> Result<Self, TrainError> {
        let (batching, seed) = (opening.batching, opening.config.train.seed);
        let (rank, size) = (opening.rank, opening.size);
        let items = Items {
            train: 1200,
            eval: 101,
        };
        let (global, micro) = (batching.global, batching.micro);
        Ok(Self {
            train: TrainSampler::new(items.train, global, micro, rank, size, seed)?,
            test: EvalSampler::new(items.eval, 16, rank, size)?,
            items,
        })
    }
}

/// Batches of numbers.
struct Numbers {
    epoch: Epoch,
    items: usize,
    next: usize,
}

impl Iterator for Numbers {
    type Item = Result<Vec<f32>, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        let indices = self.epoch.get(self.next)?;
        self.next += 1;
        let number = |index: &usize| 6.0 * *index as f32 / self.items as f32 - 3.0;
        Some(Ok(indices.iter().map(number).collect()))
    }
}

impl Task for Sine {
    type Model = Mlp;
    type HostBatch = Vec<f32>;
    type Batch = Batch;
    type Batches = Numbers;
    type Sums = Errors;
    type Details = Plain;

    const NAME: &'static str = "sine";
    const WEIGHTED: bool = true;
    const WORDS: Words = Words {
        items: "numbers",
        units: "numbers",
        evaluated: "numbers",
    };

    fn measures(&self) -> &[Measure] {
        static MEASURES: OnceLock<[Measure; 1]> = OnceLock::new();
        MEASURES.get_or_init(|| [Measure::cost("rmse", "root mean square error")])
    }

    fn items(&self) -> Items {
        self.items
    }

    fn facts(&self) -> Facts {
        Facts::new()
    }

    fn train_batches(&self, epoch: usize, from_step: usize) -> Numbers {
        Numbers {
            epoch: self.train.epoch(epoch).from_step(from_step),
            items: self.items.train,
            next: 0,
        }
    }

    fn to_device(&self, batch: Vec<f32>, device: &Device) -> Result<Batch, TrainError> {
        let shape = [batch.len(), 1];
        let x = Tensor::from_data(TensorData::new(batch, shape), device);
        let weights = Tensor::abs(Tensor::clone(&x));
        Ok((x, weights))
    }

    fn loss(&self, model: &Mlp, (x, weights): Batch, dtype: FloatDType) -> Loss {
        let y = model.forward(x.clone().cast(dtype)).cast(FloatDType::F32);
        let errors = (y - x.sin()).square() * weights.clone();
        Loss {
            value: errors.sum(),
            weight: weights.inner().sum().into_scalar::<f32>().into(),
        }
    }

    fn blank(&self, items: usize) -> Vec<f32> {
        vec![1.0; items]
    }

    fn eval_batches(&self) -> (usize, Numbers) {
        let epoch = self.test.epoch();
        let items = self.items.eval;
        (
            epoch.batches(),
            Numbers {
                epoch,
                items,
                next: 0,
            },
        )
    }

    fn sums(&self) -> Errors {
        Errors::default()
    }

    fn score(&self, model: &Mlp, batch: Vec<f32>, on: Pass<'_>) -> Result<Scored, TrainError> {
        let shape = [batch.len(), 1];
        let x = Tensor::<2>::from_data(TensorData::new(batch.clone(), shape), on.device);
        let y = model.forward(x.cast(on.dtype)).into_data();
        Ok(batch.into_iter().zip(y.iter::<f32>()).collect())
    }

    fn details(
        &self,
        _sums: Errors,
        evaluation: &Evaluation,
        _group: &ProcessGroup,
    ) -> Result<Plain, TrainError> {
        Ok(Plain::of(evaluation))
    }
}

/// Numbers and the model's results.
type Scored = Vec<(f32, f32)>;

/// The mean square error, and how many numbers it is of.
#[derive(Default)]
struct Errors {
    weighted: WeightedMean,
    plain: WeightedMean,
}

impl Sums for Errors {
    type Scored = Scored;

    fn add(&mut self, scored: Scored) -> Result<(), TrainError> {
        for (x, y) in scored {
            let (x, y) = (f64::from(x), f64::from(y));
            let error = (y - x.sin()).powi(2);
            self.weighted.add_mean(error, x.abs());
            self.plain.add_mean(error, 1.0);
        }
        Ok(())
    }

    fn reduce(&mut self, group: &ProcessGroup) -> Result<(), TrainError> {
        self.weighted = self.weighted.reduce(group)?;
        self.plain = self.plain.reduce(group)?;
        Ok(())
    }

    fn finish(&self) -> Evaluation {
        let loss = self.weighted.mean().unwrap_or(f64::NAN);
        let rmse = self.plain.mean().unwrap_or(f64::NAN).sqrt();
        Evaluation::new(loss, self.plain.weight() as u64, [("rmse", rmse)])
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let config = args.next().unwrap_or("digits.toml".into());
    let run_dir = args.next().unwrap_or("runs/own-task".into());
    let mut settings = vec![
        "task.name=own".to_owned(),
        "checkpoint.monitor=rmse".to_owned(),
    ];
    settings.extend(args);
    let loaded = Loaded::load(&config, &settings)?;
    let world = World::from_env()?;
    prepare_process(&world)?;
    let trainer = Trainer::new(&loaded, &world).run_dir(run_dir);
    let summary = trainer.run_task(Sine::open, |_, device| Ok(Mlp::new(device)))?;
    std::process::exit(summary.exit_code())
}

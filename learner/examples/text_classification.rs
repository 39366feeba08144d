//! Trains a small transformer to tell two word grammars apart with burn-train's `Learner`, on any
//! number of ranks, with the training state sharded (ZeRO).
//!
//!   cargo run --release -p burn-dist-learner --example text_classification -- --nproc 2 \
//!     --strategy zero-2
//!
//! Sentences of both grammars have the same words; only their order tells them apart. Further
//! arguments: `--folder` for logs and checkpoints (runs/text), `--epochs` (5), `--batch` per rank
//! (16), `--sentences` for training (512), `--resume` with the epoch to go on from.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_core::data::dataloader::batcher::Batcher;
use burn_core::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn_core::data::dataset::InMemDataset;
use burn_dist::ProcessGroup;
use burn_dist::parallel::Strategy;
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::{
    ClassificationOutput, InferenceStep, Learner, LearningResult, SupervisedTraining, TrainOutput,
    TrainStep,
};
use learner::{Distribute, Distributed};

/// Words of each kind.
const WORDS: usize = 6;
const KINDS: usize = 4;
/// Token that fills up short sentences.
const PAD: i64 = 0;
const VOCABULARY: usize = 1 + KINDS * WORDS;
const LONGEST: usize = 8;
const WIDTH: usize = 32;

/// The order of article, adjective, noun and verb in each grammar.
const GRAMMARS: [[i64; KINDS]; 2] = [[0, 1, 2, 3], [3, 0, 2, 1]];

/// A sentence and its grammar.
#[derive(Clone, Debug)]
pub struct Sentence {
    words: Vec<i64>,
    grammar: i64,
}

/// `count` sentences that depend on `seed` alone: four or eight words, in one of the grammars.
pub fn sentences(count: usize, seed: u64) -> Vec<Sentence> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut random = |below: i64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as i64 % below
    };
    let mut sentence = || {
        let grammar = random(2);
        let clauses = 1 + random(2);
        let order = GRAMMARS[grammar as usize];
        let kinds = (0..clauses).flat_map(|_| order);
        let words = kinds.map(|kind| 1 + kind * WORDS as i64 + random(WORDS as i64));
        Sentence {
            words: words.collect(),
            grammar,
        }
    };
    (0..count).map(|_| sentence()).collect()
}

/// Words, `[batch, words]`, where words are missing, and grammars, `[batch]`.
#[derive(Clone, Debug)]
pub struct Batch {
    words: Tensor<2, Int>,
    missing: Tensor<2, Bool>,
    grammars: Tensor<1, Int>,
}

/// Fills sentences up to the longest of the batch.
#[derive(Clone)]
pub struct Pad;

impl Batcher<Sentence, Batch> for Pad {
    fn batch(&self, sentences: Vec<Sentence>, device: &Device) -> Batch {
        let (count, len) = (
            sentences.len(),
            sentences.iter().map(|s| s.words.len()).max().unwrap_or(0),
        );
        let grammars: Vec<i64> = sentences.iter().map(|s| s.grammar).collect();
        let padded = |sentence: Sentence| {
            let mut words = sentence.words;
            words.resize(len, PAD);
            words
        };
        let words: Vec<i64> = sentences.into_iter().flat_map(padded).collect();
        let words = Tensor::<2, Int>::from_data(TensorData::new(words, [count, len]), device);
        Batch {
            missing: words.clone().equal_scalar(PAD),
            words,
            grammars: Tensor::from_data(TensorData::new(grammars, [count]), device),
        }
    }
}

/// A transformer encoder over words and their places.
#[derive(Module, Debug)]
pub struct Classifier {
    words: Embedding,
    places: Embedding,
    encoder: TransformerEncoder,
    out: Linear,
}

impl Classifier {
    /// A classifier with new weights.
    pub fn new(dropout: f64, device: &Device) -> Self {
        let encoder = TransformerEncoderConfig::new(WIDTH, 2 * WIDTH, 2, 2)
            .with_norm_first(true)
            .with_dropout(dropout);
        Self {
            words: EmbeddingConfig::new(VOCABULARY, WIDTH).init(device),
            places: EmbeddingConfig::new(LONGEST, WIDTH).init(device),
            encoder: encoder.init(device),
            out: LinearConfig::new(WIDTH, GRAMMARS.len()).init(device),
        }
    }

    /// Loss, scores and grammars of a batch.
    pub fn classify(&self, batch: Batch) -> ClassificationOutput {
        let [count, len] = batch.words.dims();
        let places = Tensor::arange(0..len as i64, &batch.words.device());
        let places = places.reshape([1, len]).repeat_dim(0, count);
        let x = self.words.forward(batch.words) + self.places.forward(places);
        let input = TransformerEncoderInput::new(x).mask_pad(batch.missing.clone());
        let encoded = self.encoder.forward(input);
        // The mean over the words that are there.
        let present = batch.missing.bool_not().float().unsqueeze_dim::<3>(2);
        let words = present.clone().sum_dim(1);
        let mean = ((encoded * present).sum_dim(1) / words).reshape([count, WIDTH]);
        let scores = self.out.forward(mean);
        let loss = CrossEntropyLossConfig::new()
            .init(&scores.device())
            .forward(scores.clone(), batch.grammars.clone());
        ClassificationOutput::new(loss, scores, batch.grammars)
    }
}

impl TrainStep for Classifier {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Classifier {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// The optimizer's settings.
pub fn optimizer() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.01)
}

/// The arguments.
pub struct Options {
    /// Folder for logs and checkpoints.
    pub folder: String,
    /// Passes over the training set.
    pub epochs: usize,
    /// Sentences in a batch of a rank.
    pub batch: usize,
    /// Sentences for training; half as many are for validation.
    pub sentences: usize,
    /// Epoch to go on from.
    pub resume: Option<usize>,
}

/// A loader of sentences.
pub fn loader(
    sentences: Vec<Sentence>,
    batch: usize,
    shuffle: Option<u64>,
) -> Arc<dyn DataLoader<Batch>> {
    let builder = DataLoaderBuilder::new(Pad).batch_size(batch);
    let builder = match shuffle {
        Some(seed) => builder.shuffle(seed),
        None => builder,
    };
    builder.build(InMemDataset::new(sentences))
}

/// Trains on all ranks of `group`.
pub fn train(
    group: &ProcessGroup,
    device: &Device,
    strategy: Strategy,
    options: &Options,
) -> Result<LearningResult<Classifier>, Box<dyn Error + Send + Sync>> {
    device.seed(1);
    let (train, valid) = (
        loader(sentences(options.sentences, 1), options.batch, Some(1)),
        loader(sentences(options.sentences / 2, 2), options.batch, None),
    );
    let schedule = NoamLrSchedulerConfig::new(0.3)
        .with_warmup_steps(20)
        .with_model_size(WIDTH)
        .init()?;
    let learner = Learner::new(Classifier::new(0.1, device), optimizer().init(), schedule);
    let distributed = Distributed::new(group).seed(1);
    let distributed = match strategy {
        Strategy::Ddp => distributed,
        sharded => distributed
            .strategy(sharded)
            .optimizer(optimizer())
            .state_folder(format!("{}/state", options.folder), 2),
    };
    let mut training = SupervisedTraining::new(&options.folder, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_default_checkpointers()
        .num_epochs(options.epochs);
    if let Some(epoch) = options.resume {
        training = training.checkpoint(epoch);
    }
    Ok(training.distribute(distributed).launch(learner))
}

fn main() -> ExitCode {
    burn_dist::run(|world, group| {
        let argument = |name: &str| {
            let mut arguments = std::env::args().skip_while(|argument| argument != name);
            arguments.nth(1)
        };
        let number = |name: &str, default: usize| match argument(name) {
            Some(number) => number.parse(),
            None => Ok(default),
        };
        let strategy = match argument("--strategy") {
            Some(name) => name.parse()?,
            None => Strategy::Ddp,
        };
        let options = Options {
            folder: argument("--folder").unwrap_or_else(|| "runs/text".to_owned()),
            epochs: number("--epochs", 5)?,
            batch: number("--batch", 16)?,
            sentences: number("--sentences", 512)?,
            resume: argument("--resume")
                .map(|epoch| epoch.parse())
                .transpose()?,
        };
        let result = train(group, &world.device()?.autodiff(), strategy, &options)?;
        match result.error {
            Some(error) => Err(error.to_string().into()),
            None => Ok(()),
        }
    })
}

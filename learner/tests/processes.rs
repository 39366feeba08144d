//! Trainings of burn-train's `Learner` on two processes, compared with one process.

#[allow(dead_code)] // The examples have a `main`.
#[path = "../examples/mnist.rs"]
mod mnist;
mod support;
#[allow(dead_code)]
#[path = "../examples/text_classification.rs"]
mod text_classification;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use burn::lr_scheduler::constant::ConstantLr;
use burn::tensor::Device;
use burn_core::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn_core::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn_dist::parallel::{Parallel, Strategy};
use burn_dist::{ProcessGroup, Run, WeightedMean, shard};
use burn_train::metric::store::{Aggregate, Direction, Split};
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::{Learner, MetricEarlyStoppingStrategy, StoppingCondition, SupervisedTraining};
use learner::{Distribute, Distributed};
use support::{Ranks, all_logged, logged};
use text_classification::{Batch, Classifier, Pad, Sentence, loader, optimizer, sentences};

const EPOCHS: usize = 3;
/// Sentences in a batch of one of two ranks.
const BATCH: usize = 8;
const RATE: f64 = 0.01;
/// Sentences for training: one more than two ranks have whole batches for.
const UNEVEN: usize = 49;
/// Both ranks have the same number of batches, and the last ones are of unequal size.
const EVEN: usize = 53;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Not a test. The tests below start this executable to run it: first as the launcher, then as its
/// ranks.
#[test]
fn parts() {
    let Some(part) = support::part() else { return };
    let code = Run::new().nproc(part.nproc).start(|_, group| {
        let (folder, argument) = (part.folder.as_path(), part.argument.as_str());
        match part.name.as_str() {
            "plain" => plain(folder, argument),
            "parallel" => parallel(folder, group),
            "learner" => trained(folder, group, argument),
            "example" => example(folder, group, argument),
            "digits" => digits(folder, group),
            "broken" => broken(folder, group),
            "stopped" => stopped(folder, group),
            "early" => early(folder, group),
            other => Err(format!("no part {other}").into()),
        }
    });
    support::leave(code);
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn model() -> Classifier {
    device().seed(7);
    Classifier::new(0.0, &device())
}

fn learner() -> Learner<Classifier> {
    Learner::new(model(), optimizer().init(), ConstantLr::new(RATE))
}

/// A training with metrics and checkpoints, as users write it.
fn training(
    folder: &Path,
    train: Arc<dyn DataLoader<Batch>>,
    valid: Arc<dyn DataLoader<Batch>>,
) -> SupervisedTraining<Classifier> {
    SupervisedTraining::new(folder, train, valid)
        .metrics((LossMetric::new(), AccuracyMetric::new()))
        .with_default_checkpointers()
        .num_epochs(EPOCHS)
}

fn valid_set() -> Vec<Sentence> {
    sentences(21, 4)
}

/// The order in which one rank has the global batches of two.
fn as_two_ranks(set: Vec<Sentence>) -> Vec<Sentence> {
    let halves = [0, 1].map(|rank| set[shard(set.len(), 2, rank)].to_vec());
    let batches = halves.each_ref().map(|half| half.chunks(BATCH));
    let [first, mut second] = batches;
    first
        .flat_map(|batch| [batch, second.next().unwrap_or_default()].concat())
        .collect()
}

fn finish(result: burn_train::LearningResult<impl Sized>) -> Outcome {
    match result.error {
        Some(error) => Err(error.to_string().into()),
        None => Ok(()),
    }
}

/// One process without burn-dist. The arguments are the number of sentences and of micro-batches.
fn plain(folder: &Path, arguments: &str) -> Outcome {
    let (count, accumulate) = arguments.split_once(' ').ok_or("two arguments")?;
    let train = as_two_ranks(sentences(count.parse()?, 3));
    let train = loader(train, 2 * BATCH, None);
    let valid = loader(as_two_ranks(valid_set()), 2 * BATCH, None);
    let mut training = training(folder, train, valid);
    if accumulate != "1" {
        training = training.grads_accumulation(accumulate.parse()?);
    }
    finish(training.launch(learner()))
}

/// Two processes with burn-train. The arguments are those of `plain` and a strategy.
fn trained(folder: &Path, group: &ProcessGroup, arguments: &str) -> Outcome {
    let mut arguments = arguments.split(' ');
    let mut argument = || arguments.next().ok_or("three arguments");
    let (count, accumulate, strategy) = (argument()?, argument()?, argument()?);
    let train = loader(sentences(count.parse()?, 3), BATCH, None);
    let mut training = training(folder, train, loader(valid_set(), BATCH, None));
    if accumulate != "1" {
        training = training.grads_accumulation(accumulate.parse()?);
    }
    let distributed = Distributed::new(group);
    let distributed = match strategy {
        "learner" => distributed,
        "without-optimizer" => distributed.strategy(Strategy::Zero2),
        strategy => distributed
            .strategy(strategy.parse()?)
            .optimizer(optimizer())
            .state_folder(folder.join("state"), 1),
    };
    finish(training.distribute(distributed).launch(learner()))
}

/// The same training as a loop over `Parallel`. Rank 0 writes the losses.
fn parallel(folder: &Path, group: &ProcessGroup) -> Outcome {
    let own = shard(EVEN, group.size(), group.rank());
    let batches = loader(sentences(EVEN, 3)[own].to_vec(), BATCH, None).to_device(&device());
    let mut parallel = Parallel::new(model(), optimizer(), Strategy::Ddp, group)?;
    let mut lines = String::new();
    for _ in 0..EPOCHS {
        let mut batches = batches.iter();
        let mut before = 0;
        while let Some(batch) = batches.next() {
            let done = batches.progress().items_processed;
            let samples = (done - before) as f64;
            before = done;
            let loss = parallel.model().classify(batch?).loss;
            let mut mean = WeightedMean::default();
            mean.add_mean(loss.clone().try_into_scalar::<f64>()?, samples);
            parallel.backward_weighted(loss.mul_scalar(samples), samples)?;
            parallel.step(RATE)?;
            let mean = mean.reduce(group)?.mean().ok_or("no samples")?;
            lines += &format!("{mean}\n");
        }
    }
    if group.rank() == 0 {
        std::fs::write(folder.join("losses"), lines)?;
    }
    Ok(())
}

/// The text example. The arguments are a strategy, epochs, and the epoch to go on from.
fn example(folder: &Path, group: &ProcessGroup, arguments: &str) -> Outcome {
    let mut arguments = arguments.split(' ');
    let mut argument = || arguments.next().ok_or("three arguments");
    let (strategy, epochs, resume) = (argument()?, argument()?, argument()?);
    let options = text_classification::Options {
        folder: folder.to_string_lossy().into_owned(),
        epochs: epochs.parse()?,
        batch: 8,
        sentences: 64,
        resume: resume.parse().ok(),
    };
    let strategy = strategy.parse()?;
    finish(text_classification::train(
        group,
        &device(),
        strategy,
        &options,
    )?)
}

fn digits(folder: &Path, group: &ProcessGroup) -> Outcome {
    let data = std::env::var_os("BURN_DIST_DATA").map(|data| Path::new(&data).join("mnist"));
    let options = mnist::Options {
        data: data.map(|data| data.to_string_lossy().into_owned()),
        folder: folder.to_string_lossy().into_owned(),
        epochs: 1,
        batch: 8,
        samples: 1024,
    };
    finish(mnist::train(group, &device(), &options)?)
}

/// A data set whose last sentence cannot be read.
struct Damaged(InMemDataset<Sentence>);

impl Dataset<Sentence> for Damaged {
    fn get(&self, index: usize) -> Result<Sentence, DatasetError> {
        match index + 1 == self.0.len() {
            true => Err(DatasetError::new(std::io::Error::other("bad sector"))),
            false => self.0.get(index),
        }
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

fn broken(folder: &Path, group: &ProcessGroup) -> Outcome {
    let damaged = Damaged(InMemDataset::new(sentences(40, 3)));
    let train = DataLoaderBuilder::new(Pad).batch_size(BATCH).build(damaged);
    let training = training(folder, train, loader(valid_set(), BATCH, None));
    let training = training.distribute(Distributed::new(group));
    finish(training.launch(learner()))
}

fn stopped(folder: &Path, group: &ProcessGroup) -> Outcome {
    let train = loader(sentences(EVEN, 3), BATCH, None);
    let training = training(folder, train, loader(valid_set(), BATCH, None));
    let training = training.distribute(Distributed::new(group));
    if group.rank() == 1 {
        training.interrupter().stop(Some("the user asked"));
    }
    let result = training.launch(learner());
    let reason = result.interrupted.and_then(|stop| stop.reason);
    println!("rank {} stopped: {reason:?}", group.rank());
    Ok(())
}

/// Stops early, because a learning rate of 0 improves nothing.
fn early(folder: &Path, group: &ProcessGroup) -> Outcome {
    let train = loader(sentences(EVEN, 3), BATCH, None);
    let patience = MetricEarlyStoppingStrategy::new(
        &LossMetric::new(),
        Aggregate::Mean,
        Direction::Lowest,
        Split::Valid,
        StoppingCondition::NoImprovementSince { n_epochs: 1 },
    );
    let training = training(folder, train, loader(valid_set(), BATCH, None))
        .num_epochs(20)
        .early_stopping(patience)
        .distribute(Distributed::new(group));
    let learner = Learner::new(model(), optimizer().init(), ConstantLr::new(0.0));
    finish(training.launch(learner))
}

fn assert_same(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / expected.abs().max(1e-3);
        assert!(
            error <= tolerance,
            "{what}, value {at}: {found} and not {expected}"
        );
    }
}

/// All values of loss and accuracy in the logs.
fn curves(folder: &Path) -> Vec<(String, Vec<f64>)> {
    let epochs = 1..=EPOCHS;
    let logs = epochs.flat_map(|epoch| {
        ["train", "valid"]
            .into_iter()
            .flat_map(move |split| ["Loss", "Accuracy"].map(|name| (split, epoch, name)))
    });
    logs.map(|(split, epoch, name)| {
        let what = format!("{split} {name} of epoch {epoch}");
        (what, logged(folder, split, epoch, name))
    })
    .collect()
}

#[test]
fn two_ranks_log_the_values_of_one_rank_with_the_global_batch() {
    for (count, accumulate, strategies) in [
        (UNEVEN, 1, &["learner", "ddp", "zero-1", "zero-2"][..]),
        (UNEVEN, 3, &["learner"]),
        (EVEN, 1, &["zero-3"]),
    ] {
        let expected = Ranks::run(1, "plain", &format!("{count} {accumulate}")).good();
        let expected = curves(expected.folder());
        for strategy in strategies {
            let argument = format!("{count} {accumulate} {strategy}");
            let ranks = Ranks::run(2, "learner", &argument).good();
            for ((what, found), (_, expected)) in curves(ranks.folder()).iter().zip(&expected) {
                assert_same(found, expected, 1e-5, &format!("{argument}: {what}"));
            }
            // Other ranks show nothing and save nothing.
            assert_eq!(ranks.output().matches("Starting training").count(), 1);
            assert!(ranks.folder().join("checkpoint/model-3.bpk").exists());
        }
    }
}

#[test]
fn the_losses_are_those_of_parallel_on_the_same_batches() {
    let ranks = Ranks::run(2, "parallel", "").good();
    let losses = std::fs::read_to_string(ranks.folder().join("losses")).unwrap();
    let expected: Vec<f64> = losses.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(expected.len(), EPOCHS * 4);
    for strategy in ["learner", "ddp", "zero-2"] {
        let ranks = Ranks::run(2, "learner", &format!("{EVEN} 1 {strategy}")).good();
        let epochs = 1..=EPOCHS;
        let found = epochs.flat_map(|epoch| {
            let mut found = logged(ranks.folder(), "train", epoch, "Loss");
            // The last one is the mean of the epoch.
            found.pop();
            found
        });
        assert_same(&found.collect::<Vec<_>>(), &expected, 1e-6, strategy);
    }
}

#[test]
fn a_resumed_training_logs_the_same_bits() {
    for strategy in ["ddp", "zero-2"] {
        let whole = Ranks::run(2, "example", &format!("{strategy} 4 -")).good();
        let first = Ranks::run(2, "example", &format!("{strategy} 2 -")).good();
        let second = first.again(2, "example", &format!("{strategy} 4 2"));
        let second = second.good();
        for split in ["train", "valid"] {
            for epoch in 1..=4 {
                let found = all_logged(second.folder(), split, epoch);
                assert_eq!(found.len(), 2, "{found:?}");
                let expected = all_logged(whole.folder(), split, epoch);
                assert_eq!(found, expected, "{strategy}, {split}, epoch {epoch}");
            }
        }
    }
}

#[test]
fn a_sharded_state_resumes_on_another_number_of_ranks() {
    let first = Ranks::run(2, "example", "zero-2 2 -").good();
    let second = first.again(3, "example", "zero-2 3 2").good();
    let losses = |epoch| {
        *logged(second.folder(), "train", epoch, "Loss")
            .last()
            .unwrap()
    };
    // New weights would begin at the loss of a guess.
    assert!(losses(3) < losses(1), "{} {}", losses(3), losses(1));
    let missing = second.again(2, "example", "zero-2 4 1");
    assert!(!missing.is_good());
    let told = "has no state of epoch 1; it has the epochs [2, 3]";
    assert!(missing.output().contains(told), "{}", missing.output());
}

#[test]
fn the_digits_example_learns_on_two_ranks() {
    let ranks = Ranks::run(2, "digits", "").good();
    let accuracy = *logged(ranks.folder(), "valid", 1, "Accuracy")
        .last()
        .unwrap();
    assert!(accuracy > 70.0, "{accuracy} %");
}

#[test]
fn a_rank_without_data_ends_all_with_its_name() {
    let ranks = Ranks::run(2, "broken", "");
    assert!(!ranks.is_good(), "{}", ranks.output());
    let named = ranks
        .output()
        .contains("error on rank 1: Dataset error: bad sector");
    assert!(named, "{}", ranks.output());
    let told = "error on rank 0: training worker on device 1 failed";
    assert!(ranks.output().contains(told), "{}", ranks.output());
}

#[test]
fn a_stop_on_one_rank_stops_all() {
    let ranks = Ranks::run(2, "stopped", "").good();
    for (rank, reason) in [(0, "rank 1 stopped the training"), (1, "the user asked")] {
        let line = format!("rank {rank} stopped: Some(\"{reason}\")");
        assert!(ranks.output().contains(&line), "{}", ranks.output());
    }
}

#[test]
fn rank_0_stops_all_ranks_early() {
    let ranks = Ranks::run(2, "early", "").good();
    let epochs = |epoch| ranks.folder().join(format!("valid/epoch-{epoch}")).exists();
    assert!(epochs(2) && !epochs(4));
}

#[test]
fn a_sharded_strategy_needs_an_optimizer() {
    let ranks = Ranks::run(2, "learner", &format!("{EVEN} 1 without-optimizer"));
    assert!(!ranks.is_good());
    let told = "zero-2 shards the optimizer's state";
    assert!(ranks.output().contains(told), "{}", ranks.output());
}

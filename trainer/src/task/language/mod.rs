//! Causal language models: each token of a text is predicted from those before it.
//!
//! Tokens are bytes. A loss is a sum over tokens, and its weight is their number.

mod sums;
mod text;
mod texts;

use std::marker::PhantomData;

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use burn_dist::ProcessGroup;
use models::LanguageModel;

use crate::config::metric::Measure;
use crate::config::{AnyTask, EvalSet, LanguageConfig};
use crate::error::TrainError;
use crate::task::loss::{RowTargets, row_losses};
use crate::task::open::Input;
use crate::task::reading::Reading;
use crate::task::{Evaluation, Facts, Items, Loss, Pass, Plain, Task, Words, not_computed};
use sums::{Scored, Sums};
pub(crate) use texts::Texts;
use texts::{Batches, HostBatch};

/// Models text with a model of type `M`.
pub struct Language<M> {
    texts: Texts,
    model: PhantomData<fn() -> M>,
}

impl<M> Language<M> {
    /// Models these texts.
    pub(crate) fn new(texts: Texts) -> Self {
        Self {
            texts,
            model: PhantomData,
        }
    }
}

/// A batch on the device.
pub struct Batch {
    /// \[windows, tokens\].
    inputs: Tensor<2, Int>,
    /// The token that follows each, \[windows × tokens\].
    targets: RowTargets,
}

impl Batch {
    fn new(batch: HostBatch, device: &Device) -> Self {
        Self {
            inputs: Tensor::from_data(TensorData::new(batch.inputs, batch.shape), device),
            targets: RowTargets::new(batch.targets, batch.counts, device),
        }
    }
}

impl<M: LanguageModel> Task for Language<M> {
    type Model = M;
    type HostBatch = HostBatch;
    type Batch = Batch;
    type Batches = Batches;
    type Sums = Sums;
    type Details = Plain;

    const NAME: &'static str = "language";
    const WEIGHTED: bool = true;
    const WORDS: Words = Words {
        items: "windows",
        units: "tokens",
        evaluated: "tokens",
    };

    fn measures(&self) -> &[Measure] {
        LanguageConfig::default().measures().unwrap_or_default()
    }

    fn items(&self) -> Items {
        Items {
            train: self.texts.train().len(),
            eval: self.texts.eval().len(),
        }
    }

    fn evaluated(&self) -> EvalSet {
        self.texts.evaluated()
    }

    fn units_per_item(&self) -> usize {
        self.texts.train().context()
    }

    fn facts(&self) -> Facts {
        let (train, eval) = (self.texts.train(), self.texts.eval());
        let mut facts = Facts::from_iter([
            ("data.context".to_owned(), train.context().into()),
            ("data.path".to_owned(), train.checksum().into()),
        ]);
        // Windows for validation are of the text for training.
        if self.evaluated() == EvalSet::Test {
            facts.insert("data.test_path".to_owned(), eval.checksum().into());
        }
        facts
    }

    fn check_same(&self, group: &ProcessGroup) -> Result<(), TrainError> {
        self.texts.check_same(group)
    }

    fn flops(&self, model: &M) -> Option<u64> {
        model.flops(self.texts.train().context())
    }

    fn train_batches(&self, epoch: usize, from_step: usize) -> Batches {
        self.texts.train_batches(epoch, from_step)
    }

    fn to_device(&self, batch: HostBatch, device: &Device) -> Result<Batch, TrainError> {
        Ok(Batch::new(batch, device))
    }

    fn loss(&self, model: &M, batch: Batch, dtype: FloatDType) -> Loss {
        let logits = model.forward(batch.inputs, dtype).flatten(0, 1);
        batch.targets.loss(logits)
    }

    fn blank(&self, items: usize) -> HostBatch {
        HostBatch::blank(items, self.texts.train().context())
    }

    fn eval_batches(&self) -> (usize, Batches) {
        self.texts.eval_batches()
    }

    fn sums(&self) -> Sums {
        Sums::default()
    }

    fn score(&self, model: &M, batch: HostBatch, on: Pass<'_>) -> Result<Scored, TrainError> {
        let counts = batch.counts.clone();
        let batch = Batch::new(batch, on.device);
        let logits = model.forward(batch.inputs, on.dtype).flatten(0, 1);
        let losses = row_losses(logits, batch.targets.classes);
        Ok(Scored {
            losses: Reading::start(vec![losses]).map_err(not_computed)?,
            counts,
        })
    }

    fn details(
        &self,
        _sums: Sums,
        evaluation: &Evaluation,
        _group: &ProcessGroup,
    ) -> Result<Plain, TrainError> {
        Ok(Plain::of(evaluation))
    }
}

//! Texts of a run, and a rank's batches of windows.

use burn::tensor::Device;
use burn_dist::ProcessGroup;
use models::{ModelError, TransformerConfig};

use super::Language;
use super::text::{START, TOKENS, Text, VOCABULARY};
use crate::config::{Config, DataKind, EvalSet, ModelKind};
use crate::data::validation;
use crate::error::TrainError;
use crate::task::batches::{Collate, Collated};
use crate::task::open::{Input, Opening, WithTask};
use crate::task::same::check_same;
use crate::task::split::{Shares, Split};

/// Minimum windows in a batch of an evaluation.
const EVAL_BATCH: usize = 32;

/// The batches of an epoch or an evaluation.
pub(super) type Batches = Collated<Text>;

/// Text for training and evaluation.
pub(crate) struct Texts {
    shares: Shares<Text>,
}

/// Windows in host memory. Shorter ones are filled up.
pub struct HostBatch {
    pub(super) inputs: Vec<i32>,
    pub(super) targets: Vec<i32>,
    /// Whether a target counts.
    pub(super) counts: Vec<bool>,
    /// Windows, and tokens of the longest one.
    pub(super) shape: [usize; 2],
}

impl HostBatch {
    /// Windows of any tokens.
    pub(super) fn blank(windows: usize, tokens: usize) -> Self {
        Self {
            inputs: vec![START; windows * tokens],
            targets: vec![0; windows * tokens],
            counts: vec![true; windows * tokens],
            shape: [windows, tokens],
        }
    }
}

impl Split for Text {
    fn len(&self) -> usize {
        self.len()
    }

    fn pick(&self, indices: &[usize]) -> Self {
        self.pick(indices)
    }

    /// The last windows of the documents are for validation, whatever the seed: those before and
    /// after a window of the middle would tell about it.
    fn divide(self, share: f64, _seed: u64) -> Result<[Self; 2], TrainError> {
        let parts = self.divided(share);
        match parts.iter().any(|part| part.len() == 0) {
            true => Err(validation::too_few(share).into()),
            false => Ok(parts),
        }
    }
}

impl Collate for Text {
    type Batch = HostBatch;

    fn collate(&self, indices: &[usize]) -> Result<HostBatch, TrainError> {
        let windows: Vec<_> = indices
            .iter()
            .filter_map(|index| self.window(*index))
            .collect();
        let longest = windows.iter().map(|(inputs, _)| inputs.len()).max();
        let tokens = longest.unwrap_or_default();
        let mut batch = HostBatch {
            shape: [windows.len(), tokens],
            ..HostBatch::blank(0, 0)
        };
        for (inputs, targets) in windows {
            let missing = tokens - inputs.len();
            let counted = inputs.len();
            batch.inputs.extend(inputs);
            batch.inputs.extend(std::iter::repeat_n(START, missing));
            batch.targets.extend(targets);
            batch.targets.extend(std::iter::repeat_n(0, missing));
            batch.counts.extend(std::iter::repeat_n(true, counted));
            batch.counts.extend(std::iter::repeat_n(false, missing));
        }
        Ok(batch)
    }
}

impl Texts {
    /// Opens the configured text.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or the batch sizes do not fit.
    pub fn open(opening: &Opening<'_>) -> Result<Self, TrainError> {
        let DataKind::Text(config) = &opening.config.data.kind else {
            return Err(TrainError::OtherData("text"));
        };
        let (train, test) = Text::open(config)?;
        Ok(Self {
            shares: Shares::new(opening, train, |_| Ok(test()?), EVAL_BATCH)?,
        })
    }

    pub(super) fn train(&self) -> &Text {
        &self.shares.train
    }

    pub(super) fn eval(&self) -> &Text {
        &self.shares.eval
    }

    pub(super) fn evaluated(&self) -> EvalSet {
        self.shares.evaluated
    }

    pub(super) fn train_batches(&self, epoch: usize, from_step: usize) -> Batches {
        self.shares.train_batches(epoch, from_step)
    }

    pub(super) fn eval_batches(&self) -> (usize, Batches) {
        self.shares.eval_batches()
    }

    /// Builds the configured model, and passes it to `then`.
    ///
    /// # Errors
    /// Fails if the model cannot have its sizes.
    pub fn build<W: WithTask>(
        self,
        config: &Config,
        device: &Device,
        then: W,
    ) -> Result<W::Output, ModelError> {
        match &config.model.kind {
            ModelKind::Transformer(own) => {
                let model = TransformerConfig::new(TOKENS, VOCABULARY, self.train().context())
                    .with_width(own.width)
                    .with_layers(own.layers)
                    .with_heads(own.heads)
                    .with_dropout(own.dropout);
                let model = model.init(device)?;
                Ok(then.call(Language::<models::Transformer>::new(self), model))
            }
            other => Err(ModelError::OtherTask {
                of: other.task(),
                task: "language",
            }),
        }
    }
}

impl Input for Texts {
    fn check_same(&self, group: &ProcessGroup) -> Result<(), TrainError> {
        let facts = [self.train(), self.eval()].map(|text| {
            let (windows, checksum) = (text.len(), text.checksum());
            format!("{windows} windows of a text with the checksum {checksum:08x}")
        });
        check_same(&facts, group)
    }
}

//! Causal transformers.

use super::AnyModel;
use crate::config::error::Fault;
use crate::config::section::keys;
use crate::config::validate::{fraction, in_range};

keys! {
    /// `transformer`: a causal transformer for the task `language`, pre-norm as GPT-2.
    TransformerConfig {
        /// Width of the tokens. Default 128.
        width: usize = 128,
        /// Number of blocks. Default 4.
        layers: usize = 4,
        /// Number of attention heads; it must divide `width`. Default 4.
        heads: usize = 4,
        /// Probability of zeroing a value after the embedding and after each branch of a block, in
        /// [0, 1). Default 0.
        dropout: f64 = 0.0,
    }
}

impl AnyModel for TransformerConfig {
    fn task(&self) -> &'static str {
        "language"
    }

    fn check(&self) -> Result<(), Fault> {
        in_range("model.width", self.width as u64, 1, 65_536)?;
        in_range("model.layers", self.layers as u64, 1, 1000)?;
        in_range("model.heads", self.heads as u64, 1, 1024)?;
        if !self.width.is_multiple_of(self.heads) {
            return Err(Fault::in_key(
                "model.heads",
                format!(
                    "`model.heads` = {} does not divide `model.width` = {}",
                    self.heads, self.width
                ),
            ));
        }
        fraction("model.dropout", self.dropout)
    }
}

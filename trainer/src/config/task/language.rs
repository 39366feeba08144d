//! Causal language models.

use super::AnyTask;
use crate::config::metric::Measure;
use crate::config::section::keys;

keys! {
    /// `language`: the next token of a text. Tokens are bytes.
    LanguageConfig {}
}

/// Metrics beside the loss, which is in nats per token.
static MEASURES: [Measure; 2] = [
    Measure::cost("perplexity", "perplexity"),
    Measure::cost("bits_per_byte", "bits per byte"),
];

impl AnyTask for LanguageConfig {
    fn measures(&self) -> Option<&'static [Measure]> {
        Some(&MEASURES)
    }

    fn monitor(&self) -> &'static str {
        "loss"
    }
}

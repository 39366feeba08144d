//! Names of a model's tensors in a file.

use regex::Regex;

use super::WeightsError;

/// Translates names of a model's tensors to names in a file.
///
/// A name in the model is the path of field names, as PyTorch would write it: `conv1.weight`,
/// `blocks.0.norm1.bias`. Normalization layers have `weight` and `bias`, not gamma and beta. The
/// rules apply one after the other, each to the result of the previous one, for loading and for
/// saving alike.
///
/// ```
/// # use models::weights::{KeyMap, WeightsError};
/// # fn main() -> Result<(), WeightsError> {
/// let keys = KeyMap::same().rule(r"^fc\.", "classifier.")?.rule(r"^layer(\d)\.", "stages.$1.")?;
/// assert_eq!(keys.key("layer2.0.conv1.weight"), "stages.2.0.conv1.weight");
/// assert_eq!(keys.key("fc.bias"), "classifier.bias");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyMap {
    rules: Vec<(Regex, String)>,
    native: bool,
}

impl KeyMap {
    /// Uses the names of the model.
    pub fn same() -> Self {
        Self::default()
    }

    /// Uses Burn's own names and layouts: gamma and beta, linear weights \[inputs, outputs\], no
    /// counters.
    ///
    /// Files saved like this say so in their metadata, and are loaded like this whatever the key
    /// map.
    pub fn native() -> Self {
        Self {
            native: true,
            ..Self::default()
        }
    }

    pub(super) fn is_native(&self) -> bool {
        self.native
    }

    /// Adds a rule that replaces matches of the regular expression `pattern` by `replacement`.
    ///
    /// In `replacement`, `$1` or `${1}` is the first group of the pattern.
    ///
    /// # Errors
    ///
    /// Fails if `pattern` is not a regular expression.
    pub fn rule(
        mut self,
        pattern: &str,
        replacement: impl Into<String>,
    ) -> Result<Self, WeightsError> {
        let regex = Regex::new(pattern).map_err(|error| WeightsError::Pattern {
            pattern: pattern.to_owned(),
            reason: error.to_string(),
        })?;
        self.rules.push((regex, replacement.into()));
        Ok(self)
    }

    /// The name in the file of the model's tensor `name`.
    pub fn key(&self, name: &str) -> String {
        self.rules
            .iter()
            .fold(name.to_owned(), |name, (pattern, replacement)| {
                pattern.replace_all(&name, replacement).into_owned()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_pattern_is_named() {
        let error = KeyMap::same().rule("(", "").unwrap_err().to_string();
        assert!(
            error.starts_with("`(` is not a regular expression"),
            "{error}"
        );
    }
}

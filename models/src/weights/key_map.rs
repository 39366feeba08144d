//! How tensors of a model are called in a file.

use regex::Regex;

use super::WeightsError;

/// Translates names of a model's tensors into those of a file.
///
/// A name in the model is the path of field names, as PyTorch would write it: `conv1.weight`,
/// `blocks.0.norm1.bias`; normalisation layers have `weight` and `bias` there too, not gamma and
/// beta. The rules are applied one after the other, each to what the one before made of the name,
/// for loading and for saving alike.
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
    /// Names in the file are those of the model.
    pub fn same() -> Self {
        Self::default()
    }

    /// Names and layouts are Burn's own: gamma and beta, linear weights of \[inputs, outputs\], no
    /// counters. Files that are saved so say it in their metadata, and are loaded so whatever the
    /// key map.
    pub fn native() -> Self {
        Self {
            native: true,
            ..Self::default()
        }
    }

    pub(super) fn is_native(&self) -> bool {
        self.native
    }

    /// Adds a rule: what matches the regular expression `pattern` is replaced by `replacement`,
    /// in which `$1` or `${1}` is the first group of the pattern.
    ///
    /// # Errors
    ///
    /// A pattern that is no regular expression.
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

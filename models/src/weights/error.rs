//! Errors of weight files.

use std::fmt;
use std::path::PathBuf;

/// Number of names listed for each kind of mismatch; the others are counted.
const LISTED: usize = 10;

/// An error in reading or writing weights, or in loading them into a model.
#[derive(thiserror::Error)]
pub enum WeightsError {
    /// A file cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is damaged, or differs from what its first bytes or its name claim.
    #[error("{}: not a valid {format} file: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The format that was assumed.
        format: &'static str,
        /// The error.
        reason: String,
    },
    /// The values of a tensor cannot be read.
    #[error("{}: cannot read tensor `{key}`: {reason}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name in the file.
        key: String,
        /// The error.
        reason: String,
    },
    /// The checkpoint lacks the requested part.
    #[error("{}: nothing is stored under `{part}`; the names begin with: {found}", path.display())]
    NoSuchPart {
        /// The file.
        path: PathBuf,
        /// The part.
        part: String,
        /// First components of the names in the file.
        found: String,
    },
    /// The tensors of file and model do not match.
    #[error("{}: does not fit the model{mismatches}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// All mismatches.
        mismatches: Box<Mismatches>,
    },
    /// No tensor of the model has the prefix that should be left out.
    #[error("no tensor of the model begins with `{prefix}`, whose weights are to be kept")]
    NothingWithout {
        /// The prefix.
        prefix: String,
    },
    /// A pattern is not a regular expression.
    #[error("`{pattern}` is not a regular expression: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The error.
        reason: String,
    },
    /// Two tensors of the model have the same name in the file.
    #[error("the key map assigns both `{first}` and `{second}` of the model to `{key}`")]
    SameKey {
        /// Path of the first in the model.
        first: String,
        /// Path of the second in the model.
        second: String,
        /// Their name in the file.
        key: String,
    },
    /// A state dict of weights cannot hold this tensor of the model.
    #[error("`{path}` of the model is not a floating-point tensor, so it cannot be a weight")]
    NotAWeight {
        /// Its path in the model.
        path: String,
    },
    /// The device cannot return the values of a tensor.
    #[error("cannot read the values of `{path}` from the device: {reason}")]
    Device {
        /// Its path in the model.
        path: String,
        /// The device's error.
        reason: String,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
}

burn_dist::debug_is_display!(WeightsError);

/// All differences between a model and a file, by name in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatches {
    /// Common prefix of the names in the file.
    pub prefix: String,
    /// Tensors that the model needs and the file lacks, with their shapes.
    pub missing: Vec<(String, Vec<usize>)>,
    /// Tensors of the file that the model has no place for, by full name, with their shapes.
    pub unexpected: Vec<(String, Vec<usize>)>,
    /// Tensors with different shapes: name, shape in the model, shape in the file.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Tensors of the file that are not floating-point, with their element type.
    pub not_float: Vec<(String, String)>,
}

impl Mismatches {
    /// Whether file and model match.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.misshapen.is_empty()
            && self.not_float.is_empty()
    }
}

impl Mismatches {
    /// The name in the file most similar to that of a model's tensor: the most common trailing
    /// components, then the same shape.
    fn most_like(&self, key: &str, shape: &[usize]) -> Option<&(String, Vec<usize>)> {
        let common = |other: &str| {
            let pairs = key.rsplit('.').zip(other.rsplit('.'));
            pairs.take_while(|(one, other)| one == other).count()
        };
        let likeness = |(other, of_other): &&(String, Vec<usize>)| {
            (common(other), of_other.as_slice() == shape)
        };
        let best = self.unexpected.iter().max_by_key(likeness)?;
        let (components, same_shape) = likeness(&best);
        (components > 1 || components == 1 && same_shape).then_some(best)
    }
}

impl fmt::Display for Mismatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.prefix.is_empty() {
            write!(f, "; looked for its tensors under `{}`", self.prefix)?;
        }
        section(
            f,
            "missing in the file",
            &self.missing,
            |(key, shape)| match self.most_like(key, shape) {
                Some((other, of_other)) => {
                    format!("{key} {shape:?}; the file has {other} {of_other:?}")
                }
                None => format!("{key} {shape:?}"),
            },
        )?;
        section(
            f,
            "not part of the model",
            &self.unexpected,
            |(key, shape)| format!("{key} {shape:?}"),
        )?;
        section(
            f,
            "of another shape",
            &self.misshapen,
            |(key, model, file)| match self.prefix.as_str() {
                "" => format!("{key}: {model:?} in the model, {file:?} in the file"),
                prefix => {
                    format!("{key}: {model:?} in the model, {prefix}{key} {file:?} in the file")
                }
            },
        )?;
        section(
            f,
            "not floating-point",
            &self.not_float,
            |(key, element)| format!("{key}: {element}"),
        )
    }
}

fn section<T>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    items: &[T],
    line: impl Fn(&T) -> String,
) -> fmt::Result {
    if items.is_empty() {
        return Ok(());
    }
    write!(f, "\n  {title}:")?;
    for item in items.iter().take(LISTED) {
        write!(f, "\n    {}", line(item))?;
    }
    match items.len().saturating_sub(LISTED) {
        0 => Ok(()),
        more => write!(f, "\n    and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut_and_counted() {
        let mismatches = Mismatches {
            missing: (0..12).map(|i| (format!("layer{i}"), vec![i, 3])).collect(),
            misshapen: vec![("pos_embed".into(), vec![1, 65, 192], vec![1, 197, 768])],
            ..Mismatches::default()
        };
        let text = mismatches.to_string();
        assert!(text.contains("layer9 [9, 3]\n    and 2 more"), "{text}");
        assert!(!text.contains("layer10"), "{text}");
        assert!(
            text.contains("pos_embed: [1, 65, 192] in the model, [1, 197, 768] in the file"),
            "{text}"
        );
        assert!(!text.contains("not part"), "{text}");
    }
}

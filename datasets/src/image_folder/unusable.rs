//! The reason why a file cannot be used.

use std::fmt;

/// The reason why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unusable {
    /// It may be intact, but its kind is not decoded correctly here: the kind.
    Unsupported(String),
    /// Any other reason.
    Other(String),
}

impl From<String> for Unusable {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(what) => write!(f, "it is not supported: {what}"),
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

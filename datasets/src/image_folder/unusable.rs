//! Why a file cannot be used.

use std::fmt;

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unusable {
    /// It may be whole, but nothing here reads its kind rightly: what that is.
    Unsupported(String),
    /// Anything else.
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

//! What a wrong configuration tells its author: what, where in which text, and what to do.

use std::ops::Range;

use miette::{Diagnostic, NamedSource, SourceSpan};

/// A configuration that cannot be used. Its `Display` form ends in the line and column; printed
/// as a [`miette::Report`] it also shows the source.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{message}")]
pub struct ConfigError {
    message: String,
    #[help]
    help: Option<String>,
    #[source_code]
    source_code: Option<NamedSource<String>>,
    #[label]
    span: Option<SourceSpan>,
}

impl ConfigError {
    /// An error that belongs to no place in a text.
    pub fn new(message: String, help: Option<String>) -> Self {
        Self {
            message,
            help,
            source_code: None,
            span: None,
        }
    }

    /// An error at bytes `span` of `text`.
    pub fn at(
        message: String,
        help: Option<String>,
        name: &str,
        text: &str,
        span: Range<usize>,
    ) -> Self {
        let (line, column) = line_and_column(text, span.start);
        let place = if name == "--set" {
            format!("column {column} of --set {text}")
        } else {
            format!("line {line}, column {column} of {name}")
        };
        Self {
            message: format!("{message} ({place})"),
            help,
            source_code: Some(NamedSource::new(name, text.to_owned()).with_language("TOML")),
            span: Some(SourceSpan::from(span)),
        }
    }

    /// What to do about it, where there is more to say than the message.
    pub fn help_text(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

/// Line and column of a byte, both counted from one, columns in characters.
fn line_and_column(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let last = before.rsplit('\n').next().unwrap_or_default();
    (line, last.chars().count() + 1)
}

/// Something wrong in a configuration, before it is known which text it stands in.
#[derive(Debug, Default)]
pub struct Fault {
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// Where, as positions of [`Sources`](super::source::Sources).
    pub span: Option<Range<usize>>,
    /// The `section.key` it is about, to find the place when `span` is not known.
    pub key: Option<String>,
}

impl Fault {
    /// A fault without a place.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
    }

    /// A fault in the value of `section.key`.
    pub fn in_key(key: &str, message: impl Into<String>) -> Self {
        Self {
            key: Some(key.to_owned()),
            ..Self::new(message)
        }
    }

    /// A parser's error; its positions move by `base`.
    pub fn from_toml(error: &toml::de::Error, base: usize) -> Self {
        Self {
            span: error.span().map(|span| span.start + base..span.end + base),
            ..Self::new(error.message())
        }
    }

    /// Sets the place.
    pub fn at(mut self, span: Range<usize>) -> Self {
        self.span = Some(span);
        self
    }

    /// Sets what to do.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

//! Errors of configurations: the fault, its place in the text, and advice.

use std::fmt::Display;
use std::ops::Range;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

/// A configuration error.
///
/// Its `Display` form ends in line and column. Printed as a [`miette::Report`], it also shows the
/// source.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    message: String,
    help: Option<String>,
    // Boxed because every function that reads configurations returns this error by value.
    place: Option<Box<Place>>,
}

/// A place in a text.
#[derive(Debug)]
struct Place {
    source: NamedSource<String>,
    span: Range<usize>,
}

impl Diagnostic for ConfigError {
    fn help<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        let help = self.help.as_ref()?;
        Some(Box::new(help))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|place| &place.source as _)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.place.as_ref()?.span.clone();
        Some(Box::new(std::iter::once(LabeledSpan::underline(span))))
    }
}

impl ConfigError {
    /// Makes an error without a place.
    pub fn new(message: String, help: Option<String>) -> Self {
        Self {
            message,
            help,
            place: None,
        }
    }

    /// Makes an error at bytes `span` of `text`.
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
            place: Some(Box::new(Place {
                source: NamedSource::new(name, text.to_owned()).with_language("TOML"),
                span,
            })),
        }
    }

    /// Advice, if the message has none.
    pub fn help_text(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

/// Line and column of a byte, both from one, with columns in characters.
fn line_and_column(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let last = before.rsplit('\n').next().unwrap_or_default();
    (line, last.chars().count() + 1)
}

/// A fault in a configuration, before its source text is known.
#[derive(Debug, Default)]
pub struct Fault {
    /// Description of the fault.
    pub message: String,
    /// Advice.
    pub help: Option<String>,
    /// Place, as positions of [`Sources`](super::source::Sources).
    pub span: Option<Range<usize>>,
    /// The `section.key` at fault, which gives the place if `span` is unknown.
    pub key: Option<String>,
}

impl Fault {
    /// Makes a fault without a place.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
    }

    /// Makes a fault in the value of `section.key`.
    pub fn in_key(key: &str, message: impl Into<String>) -> Self {
        Self {
            key: Some(key.to_owned()),
            ..Self::new(message)
        }
    }

    /// Converts a parser's error, with its positions moved by `base`.
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

    /// Sets the advice.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

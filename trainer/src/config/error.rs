//! What a wrong configuration tells its author: what, where in which text, and what to do.

use std::fmt::Display;
use std::ops::Range;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

/// A configuration that cannot be used. Its `Display` form ends in the line and column; printed
/// as a [`miette::Report`] it also shows the source.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    message: String,
    help: Option<String>,
    // On the heap: every function that reads configurations returns this error by value.
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
    /// An error that belongs to no place in a text.
    pub fn new(message: String, help: Option<String>) -> Self {
        Self {
            message,
            help,
            place: None,
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
            place: Some(Box::new(Place {
                source: NamedSource::new(name, text.to_owned()).with_language("TOML"),
                span,
            })),
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

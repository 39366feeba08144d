//! Errors of configurations: the fault, its place in the text, and advice.

use std::fmt::Display;
use std::ops::Range;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

/// The errors in a configuration, at least one, in the order of their places.
///
/// Its `Display` form has a line for each, which ends in line and column. Printed as a
/// [`miette::Report`], it also shows the source of the first.
#[derive(Debug)]
pub struct ConfigError {
    first: Flaw,
    more: Vec<Flaw>,
}

impl Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.first)?;
        self.more.iter().try_for_each(|flaw| write!(f, "\n{flaw}"))
    }
}

impl std::error::Error for ConfigError {}

/// One error in a configuration.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Flaw {
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

impl Diagnostic for Flaw {
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

impl Diagnostic for ConfigError {
    fn help<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        self.first.help()
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.first.source_code()
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.first.labels()
    }
}

impl ConfigError {
    /// Makes an error without a place.
    pub fn new(message: String, help: Option<String>) -> Self {
        Self::from(Flaw {
            message,
            help,
            place: None,
        })
    }

    /// Adds the error `flaw` of the same configuration.
    pub(super) fn and(mut self, flaw: Flaw) -> Self {
        self.more.push(flaw);
        self
    }

    /// All errors.
    pub fn flaws(&self) -> impl Iterator<Item = &Flaw> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Advice on the first error, if its message has none.
    pub fn help_text(&self) -> Option<&str> {
        self.first.help_text()
    }
}

impl From<Flaw> for ConfigError {
    fn from(first: Flaw) -> Self {
        Self {
            first,
            more: Vec::new(),
        }
    }
}

impl Flaw {
    /// Makes an error of `fault`, without a place.
    pub(super) fn new(fault: Fault) -> Self {
        Self {
            message: fault.message,
            help: fault.help,
            place: None,
        }
    }

    /// Makes an error of `fault` at bytes `span` of `text`.
    pub(super) fn at(fault: Fault, name: &str, text: &str, span: Range<usize>) -> Self {
        let (line, column) = line_and_column(text, span.start);
        let place = if name == "--set" {
            format!("column {column} of --set {text}")
        } else {
            format!("line {line}, column {column} of {name}")
        };
        Self {
            message: format!("{} ({place})", fault.message),
            help: fault.help,
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

    /// Sets the `section.key` at fault.
    pub fn of(mut self, section: &str, key: &str) -> Self {
        self.key = Some(format!("{section}.{key}"));
        self
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

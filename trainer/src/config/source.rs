//! Sources of configuration values, so that errors can show the line and column that the user
//! typed.
//!
//! The file and each `--set` form one text with common positions.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::error::{ConfigError, Fault, Flaw};

/// Maximum size of a configuration file, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Maximum number of errors to report.
const MAX_ERRORS: usize = 20;
/// Maximum dots on one line. Dotted keys could nest without bound, and dropping nested tables takes
/// stack for every level.
const MAX_DOTS: usize = 64;
/// Maximum depth of a key in `--set`; section and key make two.
const MAX_SET_SEGMENTS: usize = 4;

/// One source text.
#[derive(Clone, Debug)]
struct Part {
    name: String,
    text: String,
    /// Position of its first byte in the common position space.
    base: usize,
}

/// The configuration file and the `--set` arguments, in order.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    parts: Vec<Part>,
}

impl Sources {
    /// Takes the text of a file, and one text for each `--set key=value`.
    pub fn new(name: &str, text: &str, sets: &[String]) -> Self {
        let mut sources = Self::default();
        sources.push(name, text);
        for set in sets {
            sources.push("--set", set);
        }
        sources
    }

    fn push(&mut self, name: &str, text: &str) {
        // Leaves one position free between two texts, so that a span at the end of one is not at
        // the start of the next.
        let base = self
            .parts
            .last()
            .map_or(0, |part| part.base + part.text.len() + 1);
        self.parts.push(Part {
            name: name.to_owned(),
            text: text.to_owned(),
            base,
        });
    }

    /// The text of the file.
    pub fn file(&self) -> &str {
        self.parts.first().map_or("", |part| &part.text)
    }

    /// Parses all texts, and overrides values of the file by `--set`.
    ///
    /// Spans in the result are positions in the common space. Returns all syntax errors.
    pub fn parse(&self) -> Result<DeTable<'_>, Vec<Fault>> {
        let mut parts = self.parts.iter();
        let Some(file) = parts.next() else {
            return Ok(DeTable::new());
        };
        let (mut root, mut faults) = match parse_file(file) {
            Ok(root) => (root, Vec::new()),
            Err(faults) => (DeTable::new(), faults),
        };
        for set in parts {
            match parse_set(set) {
                Ok(table) => merge(&mut root, table),
                Err(fault) => faults.push(fault),
            }
        }
        match faults.is_empty() {
            true => Ok(root),
            false => Err(faults),
        }
    }

    /// Whether a span is in one of the `--set` arguments.
    pub fn is_set(&self, span: &Range<usize>) -> bool {
        self.parts.get(1).is_some_and(|set| span.start >= set.base)
    }

    /// Converts a fault in these texts for the user. `spans` has the places of keys.
    pub fn error(&self, fault: Fault, spans: &BTreeMap<String, Range<usize>>) -> ConfigError {
        self.flaw(fault, spans).1.into()
    }

    /// Converts several faults, in the order of their places; those without one come last. `None`
    /// if there are none.
    pub fn errors(
        &self,
        faults: Vec<Fault>,
        spans: &BTreeMap<String, Range<usize>>,
    ) -> Option<ConfigError> {
        let mut flaws: Vec<(usize, Flaw)> = faults
            .into_iter()
            .map(|fault| self.flaw(fault, spans))
            .collect();
        flaws.sort_by_key(|(place, _)| *place);
        let left = flaws.len().saturating_sub(MAX_ERRORS);
        flaws.truncate(MAX_ERRORS);
        let mut flaws = flaws.into_iter().map(|(_, flaw)| flaw);
        let first = ConfigError::from(flaws.next()?);
        let all = flaws.fold(first, ConfigError::and);
        Some(match left {
            0 => all,
            left => all.and(Flaw::new(Fault::new(format!("and {left} more errors")))),
        })
    }

    /// Converts a fault, and tells its position in the common space.
    fn flaw(&self, fault: Fault, spans: &BTreeMap<String, Range<usize>>) -> (usize, Flaw) {
        let key = fault.key.as_ref();
        let span = fault.span.clone();
        let span = span.or_else(|| key.and_then(|key| spans.get(key).cloned()));
        let located = span.and_then(|span| {
            let mut parts = self.parts.iter().rev();
            let part = parts.find(|part| part.base <= span.start)?;
            let start = (span.start - part.base).min(part.text.len());
            let end = (span.end.saturating_sub(part.base)).clamp(start, part.text.len());
            Some((part, start..end))
        });
        match located {
            Some((part, place)) => {
                let position = part.base + place.start;
                (position, Flaw::at(fault, &part.name, &part.text, place))
            }
            None => (usize::MAX, Flaw::new(fault)),
        }
    }
}

/// Places of all `section.key`s.
pub fn spans(root: &DeTable<'_>) -> BTreeMap<String, Range<usize>> {
    let mut spans = BTreeMap::new();
    for (section, value) in root {
        let section_name = section.get_ref();
        spans.insert(section_name.to_string(), section.span());
        let DeValue::Table(table) = value.get_ref() else {
            continue;
        };
        for (key, value) in table {
            spans.insert(format!("{section_name}.{}", key.get_ref()), value.span());
        }
    }
    spans
}

fn parse_file(part: &Part) -> Result<DeTable<'_>, Vec<Fault>> {
    if part.text.len() > MAX_BYTES {
        return Err(vec![Fault::new(format!(
            "{} is too long; a configuration may have at most {MAX_BYTES} bytes",
            part.name
        ))]);
    }
    let mut start = part.base;
    for line in part.text.split('\n') {
        if line.bytes().filter(|byte| *byte == b'.').count() > MAX_DOTS {
            let fault = Fault::new(format!("more than {MAX_DOTS} dots in one line"));
            return Err(vec![fault.at(start..start + 1)]);
        }
        start += line.len() + 1;
    }
    let (table, mut errors) = DeTable::parse_recoverable(&part.text);
    if errors.is_empty() {
        return Ok(shift(table.into_inner(), part.base));
    }
    // What follows on the same line is often only a consequence.
    let line = |error: &toml::de::Error| {
        let before = error.span().and_then(|span| part.text.get(..span.start));
        before.map(|before| before.matches('\n').count())
    };
    errors.truncate(MAX_ERRORS);
    errors.dedup_by_key(|error| line(error));
    let faults = errors.iter();
    Err(faults
        .map(|error| Fault::from_toml(error, part.base))
        .collect())
}

/// Parses `section.key=value`. A value that is not TOML is a bare string, so that paths and names
/// need no quotes inside the shell's.
fn parse_set(part: &Part) -> Result<DeTable<'_>, Fault> {
    let whole = part.base..part.base + part.text.len();
    let Some((key, value)) = part.text.split_once('=') else {
        return Err(Fault::new(format!("`--set {}` lacks `=`", part.text))
            .at(whole)
            .help("write it as --set section.key=value"));
    };
    let text = value.trim();
    let value_start = part.base + key.len() + 1 + value.len() - value.trim_start().len();
    let mut value = parse_value(text).map_or_else(
        || {
            let bare = DeValue::String(DeString::Borrowed(text));
            Spanned::new(value_start..value_start + text.len(), bare)
        },
        |parsed| shift_value(parsed, value_start),
    );

    let mut segments = Vec::new();
    let mut start = part.base;
    for segment in key.split('.') {
        let name = segment.trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(plain) || segments.len() == MAX_SET_SEGMENTS {
            return Err(
                Fault::new(format!("`{}` is not a configuration key", key.trim()))
                    .at(part.base..part.base + key.len())
                    .help("write it as --set section.key=value"),
            );
        }
        let offset = start + segment.len() - segment.trim_start().len();
        segments.push(Spanned::new(
            offset..offset + name.len(),
            DeString::Borrowed(name),
        ));
        start += segment.len() + 1;
    }

    for segment in segments.into_iter().rev() {
        let span = segment.span();
        let mut table = DeTable::new();
        table.insert(segment, value);
        value = Spanned::new(span, DeValue::Table(table));
    }
    match value.into_inner() {
        DeValue::Table(table) => Ok(table),
        _ => Err(Fault::new("`--set` lacks a key").at(whole)),
    }
}

/// Parses one TOML value. `None` if the text is none.
fn parse_value(text: &str) -> Option<Spanned<DeValue<'_>>> {
    if text.len() > MAX_BYTES || text.bytes().filter(|byte| *byte == b'.').count() > MAX_DOTS {
        return None;
    }
    DeValue::parse(text).ok()
}

fn merge<'a>(into: &mut DeTable<'a>, from: DeTable<'a>) {
    for (key, value) in from {
        let inner = match (into.get_mut(&key), value) {
            (Some(old), value) if old.get_ref().is_table() && value.get_ref().is_table() => {
                let DeValue::Table(inner) = value.into_inner() else {
                    continue;
                };
                inner
            }
            (_, value) => {
                // Remove first: a plain insert keeps the old key and its old position.
                into.remove(&key);
                into.insert(key, value);
                continue;
            }
        };
        if let Some(DeValue::Table(old)) = into.get_mut(&key).map(Spanned::get_mut) {
            merge(old, inner);
        }
    }
}

fn shift(table: DeTable<'_>, by: usize) -> DeTable<'_> {
    if by == 0 {
        return table;
    }
    table
        .into_iter()
        .map(|(key, value)| {
            let span = key.span();
            let key = Spanned::new(span.start + by..span.end + by, key.into_inner());
            (key, shift_value(value, by))
        })
        .collect()
}

fn shift_value(value: Spanned<DeValue<'_>>, by: usize) -> Spanned<DeValue<'_>> {
    let span = value.span();
    let inner = match value.into_inner() {
        DeValue::Table(table) => DeValue::Table(shift(table, by)),
        DeValue::Array(mut array) => {
            for item in array.iter_mut() {
                let taken = std::mem::replace(item, Spanned::new(0..0, DeValue::Boolean(false)));
                *item = shift_value(taken, by);
            }
            DeValue::Array(array)
        }
        plain => plain,
    };
    Spanned::new(span.start + by..span.end + by, inner)
}

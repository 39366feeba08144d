//! Values of a wrong type, in the words of a user.

use serde_json::Value;
use toml::Spanned;
use toml::de::DeValue;

use super::error::Fault;
use super::reference::{self, Key};
use super::suggest::nearest;

/// Types in the messages of serde, and in words.
const TYPES: [(&str, &str); 8] = [
    ("expected f64", "expected a number"),
    ("expected u64", "expected an integer"),
    ("expected usize", "expected an integer"),
    ("expected i64", "expected an integer"),
    ("expected a boolean", "expected `true` or `false`"),
    ("expected path string", "expected a string"),
    ("expected a sequence", "expected an array"),
    ("floating point", "number"),
];

/// The fault of a `value` that does not fit the key. `error` is the parser's.
///
/// `of` is the key's section, the section's `name` if the key depends on it, and the key.
pub(super) fn mistyped(
    of: (&str, Option<&str>, &str),
    value: &Spanned<DeValue<'_>>,
    error: &toml::de::Error,
) -> Fault {
    let (section, variant, name) = of;
    let span = error.span().unwrap_or_else(|| value.span());
    let fault = |message: String| Fault::new(message).of(section, name).at(span.clone());
    let path = format!("{section}.{name}");
    let message = error.message();
    if let Some((what, help)) = message.split_once("; ") {
        return fault(format!("`{path}`: {what}")).help(help);
    }
    let is_key =
        |key: &Key| key.section == section && key.name == name && key.variant.as_deref() == variant;
    let key = reference::keys().into_iter().find(is_key);
    let known = key.and_then(|key| words(&key.kind).map(|wanted| (key, wanted)));
    let Some((key, wanted)) = known else {
        let plain = TYPES
            .iter()
            .fold(message.to_owned(), |text, (theirs, ours)| {
                text.replace(theirs, ours)
            });
        return fault(format!("`{path}`: {plain}"));
    };
    if key.kind == "string" && matches!(value.get_ref(), DeValue::String(_)) {
        // It has the right type and another fault.
        return fault(format!("`{path}`: {message}"));
    }
    let wrong = match value.get_ref() {
        DeValue::Integer(number) if message.starts_with("invalid value") => {
            let sign = number.as_str().starts_with('-');
            let reason = if sign {
                "must not be negative"
            } else {
                "is too large"
            };
            return fault(format!("`{path}` = {} {reason}", number.as_str()));
        }
        DeValue::Array(items) => {
            let item = items.iter().find(|item| item.span() == span);
            item.map(|item| format!("contains {}", found(item.get_ref())))
        }
        _ => None,
    };
    let wrong = wrong.unwrap_or_else(|| format!("is {}", found(value.get_ref())));
    let told = match message.contains(" values, found ") {
        true => fault(format!("`{path}`: {message}")),
        false => fault(format!("`{path}` must be {wanted}, but {wrong}")),
    };
    match (meant(&key, value.get_ref()), example(&key)) {
        (Some(value), _) => told.help(format!("write `{name} = {value}`")),
        (None, Some(value)) => told.help(format!("for example `{name} = {value}`")),
        (None, None) => told,
    }
}

/// A type of the reference in words.
fn words(kind: &str) -> Option<String> {
    Some(match kind {
        "integer" => "an integer".to_owned(),
        "number" => "a number".to_owned(),
        "boolean" => "`true` or `false`".to_owned(),
        "string" => "a string in quotes".to_owned(),
        "numbers" | "integers" | "strings" => format!("an array of {kind}"),
        array if array.starts_with(|c: char| c.is_ascii_digit()) => format!("an array of {array}"),
        _ => return None,
    })
}

/// A value in words.
fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string {text:?}"),
        DeValue::Integer(number) => format!("the integer {}", number.as_str()),
        DeValue::Float(number) => format!("the number {}", number.as_str()),
        DeValue::Boolean(value) => format!("`{value}`"),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// The value that the author means, as TOML, if that is clear.
fn meant(key: &Key, value: &DeValue<'_>) -> Option<String> {
    let one = match value {
        DeValue::Array(items) if items.len() == 1 => items.iter().next().map(Spanned::get_ref),
        _ => None,
    };
    let text = match one.unwrap_or(value) {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Array(items) if key.name == "augment" => {
            let steps: Option<Vec<&str>> =
                items.iter().map(|item| item.get_ref().as_str()).collect();
            steps?.join("+")
        }
        _ => return None,
    };
    let text = text.trim();
    let number = || text.parse::<f64>().ok().filter(|number| number.is_finite());
    match key.kind.as_str() {
        "integer" => {
            let whole = number().filter(|number| *number >= 0.0 && number.fract() == 0.0);
            whole
                .filter(|number| *number < 1e15)
                .map(|number| format!("{number}"))
        }
        "number" => number().map(|_| text.to_owned()),
        "boolean" => match text.to_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some("true".to_owned()),
            "false" | "no" | "off" | "0" | "none" => Some("false".to_owned()),
            _ => None,
        },
        "string" if matches!(value, DeValue::String(_)) => None,
        "string" if !key.values.is_empty() => {
            let values: Vec<&str> = key.values.iter().map(|(value, _)| value.as_str()).collect();
            nearest(text, &values).map(|value| format!("{value:?}"))
        }
        "string" => Some(format!("{text:?}")),
        "numbers" | "integers" => number().map(|_| format!("[{text}]")),
        "strings" => Some(format!("[{text:?}]")),
        _ => None,
    }
}

/// A value of the key's type: the default, if there is one.
fn example(key: &Key) -> Option<String> {
    if let Some(default) = key.default.as_ref().filter(|value| **value != Value::Null) {
        return Some(reference::toml(default));
    }
    let example = match key.kind.as_str() {
        "integer" => "10",
        "number" => "0.1",
        "boolean" => "true",
        "numbers" => "[0.5]",
        _ => return None,
    };
    Some(example.to_owned())
}

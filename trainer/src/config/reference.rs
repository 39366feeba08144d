//! Generates the reference of all configuration keys as Markdown.
//!
//! Descriptions are the doc comments of the fields, and defaults come from `Default`.

use std::fmt::Write;

use schemars::schema_for;
use serde_json::{Map, Value};

use super::{Config, sections, variants};

const INTRODUCTION: &str = "\
# Configuration

Every key of a configuration file. `trainer docs` writes this file from the program's source.

A configuration is a TOML file with the sections below. `[model]` and `[optimizer]` need the key
`name`; all other keys have defaults. If keys depend on `name`, the first table of a section lists
the keys that every name has. The command line can set each key, with strings unquoted: `trainer
vit.toml --set train.epochs=2 --set data.name=cifar-10`. `trainer check FILE` prints a configuration
with all defaults, `trainer docs KEY` explains a key, `trainer configs` lists the built-in
configurations.
";

/// One key.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Its section.
    pub section: String,
    /// The `name` of the section that it belongs to, if keys depend on it.
    pub variant: Option<String>,
    /// The key.
    pub name: String,
    /// Its meaning.
    pub description: String,
    /// Type in TOML.
    pub kind: String,
    /// Unit of a number.
    pub unit: Option<String>,
    /// Default value. `None` if it depends on other keys.
    pub default: Option<Value>,
    /// All values with their meanings, if few are allowed.
    pub values: Vec<(String, String)>,
}

/// A section, or the keys that one of its names adds.
pub(super) struct Group {
    pub section: &'static str,
    pub variant: Option<String>,
    pub description: String,
    pub keys: Vec<Key>,
}

/// All keys, in the order of the reference.
pub fn keys() -> Vec<Key> {
    groups().into_iter().flat_map(|group| group.keys).collect()
}

/// The reference as a Markdown document.
pub fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    for group in groups() {
        match &group.variant {
            Some(name) => {
                text += &format!("\n### name = \"{name}\"\n\n{}\n", group.description);
            }
            None => text += &format!("\n## [{}]\n\n{}\n", group.section, group.description),
        }
        table(&mut text, &group.keys);
    }
    text
}

fn table(text: &mut String, keys: &[Key]) {
    if keys.is_empty() {
        return;
    }
    text.push_str("\n| key | type | default | unit | |\n|---|---|---|---|---|\n");
    for key in keys {
        let default = match &key.default {
            Some(value) => format!("`{}`", toml(value)),
            None => "–".to_owned(),
        };
        // Writing to a string cannot fail, so ignore the result instead of panicking.
        let _ = writeln!(
            text,
            "| `{}` | {} | {default} | {} | {} |",
            key.name,
            key.kind,
            key.unit.as_deref().unwrap_or_default(),
            beside_default(key).replace('|', "\\|"),
        );
    }
    let is_told = |key: &&Key| key.values.iter().any(|(_, meaning)| !meaning.is_empty());
    for key in keys.iter().filter(is_told) {
        let _ = write!(text, "\n`{}` is one of\n\n", key.name);
        for (value, meaning) in &key.values {
            let _ = writeln!(text, "- `\"{value}\"`: {meaning}");
        }
    }
}

/// The description without a final sentence that only repeats the default.
fn beside_default(key: &Key) -> &str {
    match key.description.rsplit_once(" Default ") {
        Some((rest, value)) if key.default.is_some() && is_one_value(value) => rest,
        _ => &key.description,
    }
}

/// Whether `text` is a value and a full stop.
fn is_one_value(text: &str) -> bool {
    let value = text.strip_suffix('.').unwrap_or(text);
    let quoted = value.strip_prefix('`').and_then(|v| v.strip_suffix('`'));
    match quoted {
        Some(inside) => !inside.contains('`'),
        None => !value.contains([' ', '`']),
    }
}

/// All sections, each followed by what its names add.
pub(super) fn groups() -> Vec<Group> {
    let schema = Schema(schema_for!(Config).to_value());
    let mut groups = Vec::new();
    for (section, order) in sections() {
        let Some(object) = schema.property(section) else {
            continue;
        };
        groups.push(Group {
            section,
            variant: None,
            description: sentence(section, &description(object)),
            keys: schema.keys(section, None, object, &order),
        });
        let alternatives = object.get("oneOf").and_then(Value::as_array);
        for variant in alternatives
            .into_iter()
            .flatten()
            .filter_map(Value::as_object)
        {
            let name = constant(variant.get("properties").and_then(|all| all.get("name")));
            let known = variants().into_iter();
            let own = known.filter(|(of, variant, _)| *of == section && *variant == name);
            let order: Vec<&str> = own.flat_map(|(.., keys)| keys).copied().collect();
            groups.push(Group {
                section,
                description: sentence(&name, &description(variant)),
                keys: schema.keys(section, Some(&name), variant, &order),
                variant: Some(name),
            });
        }
    }
    groups
}

/// A JSON schema.
struct Schema(Value);

impl Schema {
    /// The schema of a section.
    fn property(&self, section: &str) -> Option<&Map<String, Value>> {
        let property = self.0.get("properties")?.get(section)?.as_object()?;
        Some(self.resolve(property))
    }

    /// Follows a reference to its schema.
    fn resolve<'a>(&'a self, schema: &'a Map<String, Value>) -> &'a Map<String, Value> {
        let name = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|path| path.strip_prefix("#/$defs/"));
        name.and_then(|name| self.0.get("$defs")?.get(name)?.as_object())
            .unwrap_or(schema)
    }

    fn keys(
        &self,
        section: &str,
        variant: Option<&str>,
        object: &Map<String, Value>,
        order: &[&str],
    ) -> Vec<Key> {
        let Some(properties) = object.get("properties").and_then(Value::as_object) else {
            return Vec::new();
        };
        let mut keys: Vec<Key> = properties
            .iter()
            .filter(|(name, _)| variant.is_none() || *name != "name")
            .filter_map(|(name, property)| {
                let property = property.as_object()?;
                Some(Key {
                    section: section.to_owned(),
                    variant: variant.map(str::to_owned),
                    name: name.clone(),
                    description: one_line(&description(property)),
                    kind: self.kind(property),
                    unit: property.get("unit").map(constant_text),
                    default: property.get("default").filter(|v| !v.is_null()).cloned(),
                    values: self.values(property),
                })
            })
            .collect();
        keys.sort_by_key(|key| order.iter().position(|name| *name == key.name));
        keys
    }

    /// The schema without `null`: an absent key is not null in TOML.
    fn present<'a>(&'a self, property: &'a Map<String, Value>) -> &'a Map<String, Value> {
        let one = property
            .get("anyOf")
            .and_then(Value::as_array)
            .and_then(|all| all.iter().filter_map(Value::as_object).next());
        self.resolve(one.unwrap_or(property))
    }

    fn kind(&self, property: &Map<String, Value>) -> String {
        let schema = self.present(property);
        if schema.contains_key("oneOf") {
            return "string".to_owned();
        }
        let kind = match schema.get("type") {
            Some(Value::Array(kinds)) => kinds.iter().find(|kind| *kind != "null"),
            kind => kind,
        };
        match kind.map(constant_text).unwrap_or_default().as_str() {
            "array" => {
                let inner = schema.get("items").and_then(Value::as_object);
                let inner = inner.map(|items| self.kind(items)).unwrap_or_default();
                match schema.get("maxItems").and_then(Value::as_u64) {
                    Some(number) => format!("{number} {inner}s"),
                    None => format!("{inner}s"),
                }
            }
            kind => kind.to_owned(),
        }
    }

    fn values(&self, property: &Map<String, Value>) -> Vec<(String, String)> {
        let schema = self.present(property);
        let all = |key| schema.get(key).and_then(Value::as_array);
        // The key's description explains these values.
        if let Some(names) = all("enum") {
            let names = names.iter().map(constant_text);
            return names.map(|name| (name, String::new())).collect();
        }
        all("oneOf")
            .into_iter()
            .flatten()
            .filter_map(Value::as_object)
            .map(|value| {
                let name = value.get("const").map(constant_text).unwrap_or_default();
                (name, one_line(&description(value)))
            })
            .collect()
    }
}

fn description(schema: &Map<String, Value>) -> String {
    schema
        .get("description")
        .map(constant_text)
        .unwrap_or_default()
}

/// The only value that a schema allows.
fn constant(schema: Option<&Value>) -> String {
    let value = schema.and_then(|schema| schema.get("const"));
    value.map(constant_text).unwrap_or_default()
}

fn constant_text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Joins the lines of a comment for a table.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Turns "`name`: description" into a sentence, for a title that already has the name.
fn sentence(name: &str, text: &str) -> String {
    let text = one_line(text);
    let rest = [format!("`{name}`: "), format!("`[{name}]`: ")]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .unwrap_or(&text)
        .to_owned();
    let mut characters = rest.chars();
    match characters.next() {
        Some(first) => first.to_uppercase().chain(characters).collect(),
        None => rest,
    }
}

/// A value as TOML has it.
pub fn toml(value: &Value) -> String {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(small) if small != 0.0 && small.abs() < 1e-2 => format!("{small:e}"),
            _ => number.to_string(),
        },
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(toml).collect();
            format!("[{}]", values.join(", "))
        }
        other => other.to_string(),
    }
}

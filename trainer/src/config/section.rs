//! Parses one `[section]` of a configuration into its type.
//!
//! Rejects unknown keys and names, and suggests the nearest valid one.

use std::ops::Range;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _, Visitor};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::error::Fault;
use super::named::{Alternative, Named};

/// Minimum similarity (Jaro-Winkler, 0 to 1) for a suggestion.
const SIMILAR: f64 = 0.75;

/// One table of the document, still untyped.
pub struct Section<'a> {
    name: &'static str,
    table: DeTable<'a>,
    span: Range<usize>,
}

impl<'a> Section<'a> {
    /// Takes section `name` out of the document. A missing section is empty.
    pub fn take(root: &mut DeTable<'a>, name: &'static str) -> Result<Self, Fault> {
        let Some(value) = root.remove(name) else {
            return Ok(Self {
                name,
                table: DeTable::new(),
                span: 0..0,
            });
        };
        let span = value.span();
        match value.into_inner() {
            DeValue::Table(table) => Ok(Self { name, table, span }),
            _ => Err(Fault::new(format!("`{name}` is a section, not a key"))
                .at(span)
                .help(format!("write [{name}] and its keys below it"))),
        }
    }

    /// Parses the whole section.
    pub fn read<T: DeserializeOwned>(self) -> Result<T, Fault> {
        let valid = fields::<T>();
        for key in self.table.keys() {
            if !valid.contains(&key.get_ref().as_ref()) {
                return Err(self.unknown_key(key.get_ref(), key.span(), valid));
            }
        }
        let table = Spanned::new(self.span, DeValue::Table(self.table));
        T::deserialize(ValueDeserializer::from(table)).map_err(|error| Fault::from_toml(&error, 0))
    }

    /// Parses a section whose keys depend on its `name`.
    ///
    /// If it `yields` and the command line sets the name (`is_set`, by position), keys of other
    /// names in the file are dropped: the command line cannot remove them from the file.
    pub fn choose<N: Named>(
        mut self,
        is_set: &dyn Fn(&Range<usize>) -> bool,
        yields: bool,
    ) -> Result<N, Fault> {
        let given = self.table.remove("name");
        let choice = self.choice::<N>(given.as_ref())?;
        let renamed = given.is_some_and(|name| is_set(&name.span()));
        let common = fields::<N::Keys>();
        let valid = [(choice.keys)(), common].concat();
        let is_valid = |key: &str| valid.contains(&key);
        let keys = self.table.iter().map(|(key, value)| {
            let name = key.get_ref().to_string();
            (name, key.span(), value.span())
        });
        let others: Vec<_> = keys.filter(|(key, ..)| !is_valid(key)).collect();
        for (key, place, of_value) in others {
            let has_key = |choice: &&Alternative<N::Kind>| (choice.keys)().contains(&key.as_str());
            let users: Vec<_> = N::ALTERNATIVES.iter().filter(has_key).collect();
            let value = self.table.remove_entry(key.as_str());
            match (users.first(), value) {
                (Some(_), Some(_)) if yields && renamed && !is_set(&of_value) => {}
                (Some(user), Some(value)) if N::USUAL.is_some() => {
                    let read = |table| (user.read)(self.part(table));
                    if read(DeTable::from_iter([value]))? != read(DeTable::new())? {
                        return Err(self.useless(&key, choice.name, &users).at(of_value));
                    }
                }
                _ => return Err(self.unknown_key(&key, place, &valid)),
            }
        }
        let table = std::mem::take(&mut self.table).into_iter();
        let (common, own): (DeTable<'a>, DeTable<'a>) =
            table.partition(|(key, _)| common.contains(&key.get_ref().as_ref()));
        Ok(N::new(
            (choice.read)(self.part(own))?,
            self.part(common).read()?,
        ))
    }

    /// The choice that the value of `name` selects, if any.
    fn choice<N: Named>(
        &self,
        given: Option<&Spanned<DeValue<'a>>>,
    ) -> Result<&'static Alternative<N::Kind>, Fault> {
        let section = self.name;
        let names: Vec<&str> = N::ALTERNATIVES.iter().map(|choice| choice.name).collect();
        let wanted = match given {
            Some(value) => value.get_ref().as_str().ok_or_else(|| {
                Fault::new(format!("`name` in [{section}] must be a string")).at(value.span())
            })?,
            None => N::USUAL.ok_or_else(|| {
                let fault = Fault {
                    key: Some(section.to_owned()),
                    ..Fault::new(format!("[{section}] needs the key `name`"))
                };
                fault.help(format!("one of: {}", names.join(", ")))
            })?,
        };
        let found = N::ALTERNATIVES.iter().find(|choice| choice.name == wanted);
        found.ok_or_else(|| Fault {
            span: given.map(Spanned::span),
            help: Some(suggest(wanted, &names, "valid names")),
            ..Fault::new(match N::USUAL {
                Some(_) => format!("unknown name `{wanted}` in [{section}]"),
                None => format!("unknown {section} `{wanted}`"),
            })
        })
    }

    /// A section with some of the keys.
    fn part(&self, table: DeTable<'a>) -> Self {
        Self {
            name: self.name,
            table,
            span: self.span.clone(),
        }
    }

    /// The fault of a key that this `name` does not use, although its author expects an effect.
    fn useless<K>(&self, key: &str, name: &str, users: &[&Alternative<K>]) -> Fault {
        let section = self.name;
        let users: Vec<&str> = users.iter().map(|choice| choice.name).collect();
        let fault = Fault::new(format!("`{section}.{key}` has no effect with `{name}`"));
        let users = users.join(", ");
        fault.help(format!(
            "remove it, or choose another {section}.name: {users}"
        ))
    }

    fn unknown_key(&self, key: &str, span: Range<usize>, valid: &[&str]) -> Fault {
        let section = self.name;
        let help = match super::section_with_key(key) {
            Some(other) if other != section && nearest(key, valid).is_none() => {
                format!("`{key}` belongs to [{other}]")
            }
            _ => suggest(key, valid, "valid keys"),
        };
        Fault::new(format!("unknown key `{key}` in [{section}]"))
            .at(span)
            .help(help)
    }
}

/// Parses an array of exactly `N` values. TOML's parser by itself takes the first `N` of more.
pub fn exactly<'de, T, const N: usize, D>(deserializer: D) -> Result<[T; N], D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let values: Vec<T> = Vec::deserialize(deserializer)?;
    let found = values.len();
    let array = <[T; N]>::try_from(values);
    array.map_err(|_| D::Error::custom(format!("expected {N} values, found {found}")))
}

/// A suggestion "did you mean ...?" if a valid name is near, and the list of valid names.
pub fn suggest(wrong: &str, valid: &[&str], what: &str) -> String {
    let all = format!("{what}: {}", valid.join(", "));
    match nearest(wrong, valid) {
        Some(near) => format!("did you mean `{near}`? ({all})"),
        None => all,
    }
}

/// The valid name nearest to a wrong one, if any is near.
pub fn nearest<'a>(wrong: &str, valid: &[&'a str]) -> Option<&'a str> {
    // Comparison time is the product of the lengths.
    if wrong.len() > 100 {
        return None;
    }
    valid
        .iter()
        .map(|name| (strsim::jaro_winkler(wrong, name), *name))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Field names that a struct deserializes.
pub fn fields<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // Always fails: the deserializer only records the request.
    let _ = T::deserialize(FieldNames(&mut names));
    names
}

/// A deserializer without data that records the fields a struct requests.
struct FieldNames<'n>(&'n mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("no data"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(Self::Error::custom("no data"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        option unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier
        ignored_any
    }
}

/// Defines a struct of optional keys with defaults.
macro_rules! keys {
    ($(#[$doc:meta])* $type:ident { $($(#[$key_doc:meta])* $key:ident: $of:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $type { $($(#[$key_doc])* pub $key: $of),* }

        impl Default for $type {
            fn default() -> Self {
                Self { $($key: $default),* }
            }
        }
    };
}
pub(crate) use keys;

/// Defines an enum that is written as one of a few strings. Errors suggest the nearest valid
/// string.
macro_rules! names {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
        pub enum $type { $($(#[$variant_doc])* #[serde(rename = $text)] $variant),* }

        impl $type {
            /// Every valid string.
            pub const NAMES: &[&str] = &[$($text),*];

            /// The string it is written as.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                match text.as_str() {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(serde::de::Error::custom(format!(
                        "unknown name `{text}`; {}",
                        $crate::config::section::suggest(&text, Self::NAMES, "valid names"),
                    ))),
                }
            }
        }
    };
}
pub(crate) use names;

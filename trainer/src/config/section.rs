//! Parses one `[section]` of a configuration into its type.
//!
//! Collects unknown keys, unknown names and values of a wrong type, and goes on without them.

use std::ops::Range;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _, Visitor};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::error::Fault;
use super::foreign::{self, Meaning};
use super::mistyped::mistyped;
use super::named::{Alternative, Named};
use super::suggest::{self, VERY_SIMILAR, nearest, suggest};

/// One table of the document, still untyped.
pub struct Section<'a> {
    name: &'static str,
    /// The section's `name`, if its keys depend on it.
    variant: Option<&'static str>,
    table: DeTable<'a>,
    span: Range<usize>,
}

impl<'a> Section<'a> {
    /// Takes section `name` out of the document. A missing section is empty, as is one that is no
    /// table, which is added to `faults`.
    pub fn take(root: &mut DeTable<'a>, name: &'static str, faults: &mut Vec<Fault>) -> Self {
        let empty = |span| Self {
            name,
            variant: None,
            table: DeTable::new(),
            span,
        };
        let Some(value) = root.remove(name) else {
            return empty(0..0);
        };
        let span = value.span();
        match value.into_inner() {
            DeValue::Table(table) => Self {
                table,
                ..empty(span)
            },
            _ => {
                let fault = Fault::new(format!("`{name}` is a section, not a key"));
                let help = format!("write [{name}] and its keys below it");
                faults.push(fault.at(span.clone()).help(help));
                empty(span)
            }
        }
    }

    /// Parses the whole section. Wrong keys get their defaults, and are added to `faults`.
    pub fn read<T: DeserializeOwned + Default>(mut self, faults: &mut Vec<Fault>) -> T {
        let valid = fields::<T>();
        let keys = self
            .table
            .keys()
            .map(|key| (key.get_ref().to_string(), key.span()));
        let unknown: Vec<_> = keys
            .filter(|(key, _)| !valid.contains(&key.as_str()))
            .collect();
        for (key, span) in unknown {
            self.table.remove(key.as_str());
            faults.push(self.unknown_key(&key, span, valid, &[]));
        }
        let typed = |table: DeTable<'a>| {
            let table = Spanned::new(self.span.clone(), DeValue::Table(table));
            T::deserialize(ValueDeserializer::from(table))
        };
        let error = match typed(self.table.clone()) {
            Ok(read) => return read,
            Err(error) => error,
        };
        // Every key has a default, so each can be read alone.
        let mut good = DeTable::new();
        let before = faults.len();
        for (key, value) in self.table {
            match typed(DeTable::from_iter([(key.clone(), value.clone())])) {
                Ok(_) => {
                    good.insert(key, value);
                }
                Err(error) => {
                    let of = (self.name, self.variant, key.get_ref().as_ref());
                    faults.push(mistyped(of, &value, &error));
                }
            }
        }
        if faults.len() == before {
            faults.push(Fault::from_toml(&error, 0));
        }
        typed(good).unwrap_or_default()
    }

    /// Parses a section whose keys depend on its `name`. `None` if that is missing or unknown.
    ///
    /// If it `yields` and the command line sets the name (`is_set`, by position), keys of other
    /// names in the file are dropped: the command line cannot remove them from the file.
    pub fn choose<N: Named>(
        mut self,
        is_set: &dyn Fn(&Range<usize>) -> bool,
        yields: bool,
        faults: &mut Vec<Fault>,
    ) -> Option<N> {
        let given = self.table.remove("name");
        let choice = match self.choice::<N>(given.as_ref()) {
            Ok(choice) => choice,
            Err(fault) => {
                faults.push(fault);
                return None;
            }
        };
        self.variant = Some(choice.name);
        let renamed = given.is_some_and(|name| is_set(&name.span()));
        let common = fields::<N::Keys>();
        let valid = [(choice.keys)(), common].concat();
        let keys = self.table.iter().map(|(key, value)| {
            let name = key.get_ref().to_string();
            (name, key.span(), value.span())
        });
        let is_other = |(key, ..): &(String, _, _)| !valid.contains(&key.as_str());
        let others: Vec<_> = keys.filter(is_other).collect();
        for (key, place, of_value) in others {
            let value = self.table.remove_entry(key.as_str());
            let has_key = |choice: &&Alternative<N::Kind>| (choice.keys)().contains(&key.as_str());
            let users: Vec<_> = N::ALTERNATIVES.iter().filter(has_key).collect();
            let names: Vec<_> = users.iter().map(|choice| choice.name).collect();
            match (users.first(), value) {
                (Some(_), Some(_)) if yields && renamed && !is_set(&of_value) => {}
                (Some(user), Some(value)) if N::USUAL.is_some() => {
                    let (mut wrong, table) = (Vec::new(), DeTable::from_iter([value]));
                    let read = (user.read)(self.part(table), &mut wrong);
                    let usual = (user.read)(self.part(DeTable::new()), &mut Vec::new());
                    if wrong.is_empty() && read != usual {
                        let fault = self.useless(&key, choice.name, &names);
                        wrong.push(fault.at(of_value).of(self.name, &key));
                    }
                    faults.append(&mut wrong);
                }
                _ => faults.push(self.unknown_key(&key, place, &valid, &names)),
            }
        }
        let table = std::mem::take(&mut self.table).into_iter();
        let (common, own): (DeTable<'a>, DeTable<'a>) =
            table.partition(|(key, _)| common.contains(&key.get_ref().as_ref()));
        let own = (choice.read)(self.part(own), faults);
        // The reference lists these keys without a name.
        self.variant = None;
        Some(N::new(own, self.part(common).read(faults)))
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
                let fault = Fault::new(format!("`name` in [{section}] must be a string"));
                let help = format!("write it in quotes, one of: {}", names.join(", "));
                fault.at(value.span()).help(help)
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
            variant: self.variant,
            table,
            span: self.span.clone(),
        }
    }

    /// The fault of a key that this `name` does not use, although its author expects an effect.
    fn useless(&self, key: &str, name: &str, users: &[&str]) -> Fault {
        let section = self.name;
        let fault = Fault::new(format!("`{section}.{key}` has no effect with `{name}`"));
        let users = users.join(", ");
        fault.help(format!(
            "remove it, or choose another {section}.name: {users}"
        ))
    }

    /// The fault of a key that does not exist. `users` are the names of this section that have it.
    fn unknown_key(&self, key: &str, span: Range<usize>, valid: &[&str], users: &[&str]) -> Fault {
        let section = self.name;
        let all = format!("valid keys: {}", valid.join(", "));
        let help = match self.meant(key, valid) {
            Some(meant) if users.is_empty() => meant,
            Some(meant) => format!("{meant} `{key}` is a key of {}", users.join(", ")),
            None if !users.is_empty() => {
                format!("`{key}` is a key of {} ({all})", users.join(", "))
            }
            None => all,
        };
        Fault::new(format!("unknown key `{key}` in [{section}]"))
            .of(section, key)
            .at(span)
            .help(help)
    }

    /// Advice on the key that the author of an unknown one may mean.
    fn meant(&self, key: &str, valid: &[&str]) -> Option<String> {
        let did_you = |near: &str| {
            let all = valid.join(", ");
            format!("did you mean `{near}`? (valid keys: {all})")
        };
        let elsewhere = |(section, own): (&str, &str)| match own == key {
            true => format!("`{key}` belongs to [{section}]"),
            false => format!("did you mean `{own}` in [{section}]?"),
        };
        if let Some(near) = suggest::meant(key, valid) {
            return Some(did_you(near));
        }
        match foreign::meaning(key) {
            Some(Meaning::Key(path)) => {
                let (section, own) = path.split_once('.')?;
                let is_here = section == self.name && valid.contains(&own);
                return Some(match is_here {
                    true => did_you(own),
                    false => elsewhere((section, own)),
                });
            }
            Some(Meaning::Elsewhere(advice)) => return Some(advice.to_owned()),
            None => {}
        }
        let other = match super::key_meant(key) {
            Some(Meaning::Key(path)) => path,
            _ => String::new(),
        };
        let other = other.split_once('.');
        match other.filter(|(section, _)| *section != self.name) {
            Some(other) => match suggest::similar(key, valid, VERY_SIMILAR) {
                Some(near) => Some(did_you(near)),
                None => Some(elsewhere(other)),
            },
            None => nearest(key, valid).map(did_you),
        }
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

/// As [`exactly`], for a key that may be missing.
pub fn exactly_if_given<'de, T, const N: usize, D>(
    deserializer: D,
) -> Result<Option<[T; N]>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    exactly(deserializer).map(Some)
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
                        $crate::config::suggest::suggest(&text, Self::NAMES, "valid names"),
                    ))),
                }
            }
        }
    };
}
pub(crate) use names;

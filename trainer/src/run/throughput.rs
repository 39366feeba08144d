//! Throughput of a training, in units of its task.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// End of the key in a line of metrics.
const PER_SECOND: &str = "_per_second";

/// Images, tokens or other units per second. In a file its key is `images_per_second`.
#[derive(Clone, Debug, PartialEq)]
pub struct Throughput {
    /// The unit in the plural.
    pub unit: Cow<'static, str>,
    /// Units per second.
    pub per_second: f64,
}

impl Default for Throughput {
    fn default() -> Self {
        Self::new("images", 0.0)
    }
}

impl Throughput {
    /// Makes a throughput of `per_second` units per second.
    pub const fn new(unit: &'static str, per_second: f64) -> Self {
        Self {
            unit: Cow::Borrowed(unit),
            per_second,
        }
    }

    /// Key in a file.
    pub fn key(&self) -> String {
        format!("{}{PER_SECOND}", self.unit)
    }
}

impl Serialize for Throughput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(self.key(), self.per_second)])
    }
}

/// Finds the key that ends with `_per_second` in an object.
impl<'de> Deserialize<'de> for Throughput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Found;

        impl<'de> Visitor<'de> for Found {
            type Value = Throughput;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key that ends with `_per_second`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Throughput, A::Error> {
                let mut found = Throughput::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.strip_suffix(PER_SECOND) {
                        Some(unit) => {
                            found.unit = Cow::Owned(unit.to_owned());
                            found.per_second = map.next_value()?;
                        }
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(found)
            }
        }
        deserializer.deserialize_map(Found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_part_of_the_key() {
        let tokens = Throughput::new("tokens", 12.5);
        let text = serde_json::to_string(&tokens).unwrap();
        assert_eq!(text, r#"{"tokens_per_second":12.5}"#);
        assert_eq!(serde_json::from_str::<Throughput>(&text).unwrap(), tokens);
        let others: Throughput = serde_json::from_str(r#"{"a":[1]}"#).unwrap();
        assert_eq!(others, Throughput::default());
    }
}

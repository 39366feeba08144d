//! Serializes the libraries' enums by name.

use burn_dist::device::DeviceChoice;
use burn_dist::parallel::{Precision, Strategy};
use burn_dist::{Algorithm, Compression, TransportKind};
use kernels::policy::Choice;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::Serializer;

use super::suggest::suggest;

/// An enum with a fixed set of names.
pub(super) trait ByName: Copy + 'static {
    /// All values.
    const ALL: &'static [Self];

    /// The name in a configuration.
    fn name(self) -> &'static str;
}

macro_rules! by_name {
    ($($type:ty),*) => {$(
        impl ByName for $type {
            const ALL: &'static [Self] = &<$type>::ALL;

            fn name(self) -> &'static str {
                <$type>::name(self)
            }
        }
    )*};
}
by_name!(
    Algorithm,
    Choice,
    Compression,
    DeviceChoice,
    Precision,
    Strategy,
    TransportKind
);

pub(super) fn serialize<T: ByName, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(value.name())
}

pub(super) fn deserialize<'de, T: ByName, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    let names: Vec<&str> = T::ALL.iter().map(|known| known.name()).collect();
    let found = T::ALL.iter().copied().find(|known| known.name() == text);
    found.ok_or_else(|| {
        let help = suggest(&text, &names, "valid names");
        D::Error::custom(format!("unknown name `{text}`; {help}"))
    })
}

pub(super) fn schema<T: ByName>(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<&str> = T::ALL.iter().map(|known| known.name()).collect();
    json_schema!({ "type": "string", "enum": names })
}

/// For an optional key.
pub(super) mod option {
    use super::*;

    pub fn serialize<T: ByName, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, T: ByName, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        super::deserialize(from).map(Some)
    }
}

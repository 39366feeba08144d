//! Sections whose keys depend on their `name`.
//!
//! Each name is one file with its keys, and one line in the list from which [`named_section`] makes
//! the section.

use serde::de::DeserializeOwned;
use toml::de::DeTable;

use super::error::Fault;
use super::section::Section;

/// A section whose keys depend on its `name`.
pub trait Named: Sized {
    /// Keys of a name.
    type Kind: PartialEq + 'static;
    /// Keys of every name.
    type Keys: DeserializeOwned + Default;
    /// Name of the section.
    const SECTION: &'static str;
    /// All names.
    const ALTERNATIVES: &'static [Alternative<Self::Kind>];
    /// Default name. A section with one ignores other names' keys at their usual values, which
    /// earlier versions wrote into the resolved configuration.
    const USUAL: Option<&'static str>;

    /// Makes the section.
    fn new(kind: Self::Kind, keys: Self::Keys) -> Self;
}

/// The section, or one of any name if there is none, which is then added to `unnamed`.
pub(super) fn or_any<N: Named>(section: Option<N>, unnamed: &mut Vec<&'static str>) -> N {
    section.unwrap_or_else(|| {
        unnamed.push(N::SECTION);
        let faults = &mut Vec::new();
        let empty = Section::take(&mut DeTable::new(), N::SECTION, faults);
        let kind = (N::ALTERNATIVES[0].read)(empty, faults);
        N::new(kind, N::Keys::default())
    })
}

/// A name, its own keys, and their parser.
pub struct Alternative<K> {
    /// The name.
    pub name: &'static str,
    /// Its keys.
    pub keys: fn() -> &'static [&'static str],
    /// Parses them, and adds wrong ones to the faults.
    pub read: fn(Section<'_>, &mut Vec<Fault>) -> K,
}

/// Defines a section from the list of its names.
///
/// Each name comes with its file (a module beside the list) and the type of its keys. Defines the
/// type of the section, with the keys of all names, and an enum of the names' keys, which implement
/// the trait.
macro_rules! named_section {
    (
        $(#[$doc:meta])*
        $section:literal $config:ident($keys:ty) $kind:ident: $trait:ident, $usual:expr;
        $($name:literal $variant:ident($file:ident::$own:ident),)*
    ) => {
        $(pub use $file::$own;)*

        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
        pub struct $config {
            /// The kind that `name` selects, with its own keys.
            #[serde(flatten)]
            pub kind: $kind,
            /// The keys that go with every name.
            #[serde(flatten)]
            pub keys: $keys,
        }

        #[doc = concat!("The choices of `[", $section, "] name`.")]
        #[derive(Clone, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
        #[serde(tag = "name")]
        #[allow(missing_docs)]
        pub enum $kind { $(#[serde(rename = $name)] $variant($own)),* }

        impl $kind {
            /// The name.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name),* }
            }
        }

        impl std::ops::Deref for $kind {
            type Target = dyn $trait;

            fn deref(&self) -> &Self::Target {
                match self { $(Self::$variant(own) => own),* }
            }
        }

        impl std::ops::DerefMut for $kind {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self { $(Self::$variant(own) => own),* }
            }
        }

        impl std::ops::Deref for $config {
            type Target = $keys;

            fn deref(&self) -> &Self::Target {
                &self.keys
            }
        }

        impl std::ops::DerefMut for $config {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.keys
            }
        }

        impl $crate::config::named::Named for $config {
            type Kind = $kind;
            type Keys = $keys;
            const SECTION: &'static str = $section;
            const ALTERNATIVES: &'static [$crate::config::named::Alternative<$kind>] = &[
                $($crate::config::named::Alternative {
                    name: $name,
                    keys: $crate::config::section::fields::<$own>,
                    read: |section, faults| $kind::$variant(section.read(faults)),
                }),*
            ];
            const USUAL: Option<&'static str> = $usual;

            fn new(kind: $kind, keys: $keys) -> Self {
                Self { kind, keys }
            }
        }
    };
}
pub(super) use named_section;

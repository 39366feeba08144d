//! Sections some of whose keys depend on their `name`: each name is one file with its keys, and one
//! line in the list that [`named_section`] makes the section of.

use serde::de::DeserializeOwned;

use super::error::Fault;
use super::section::Section;

/// A section some of whose keys depend on its `name`.
pub trait Named: Sized {
    /// What there is for each name.
    type Kind: PartialEq + 'static;
    /// The keys that go with every name.
    type Keys: DeserializeOwned;
    /// Its name in a configuration.
    const SECTION: &'static str;
    /// All names.
    const CHOICES: &'static [Choice<Self::Kind>];
    /// The name where none is given. Sections that have one take the usual values of other names'
    /// keys: earlier versions wrote them into the resolved configuration.
    const USUAL: Option<&'static str>;

    /// The section.
    fn new(kind: Self::Kind, keys: Self::Keys) -> Self;
}

/// A name, the keys that go with it alone, and how they are read.
pub struct Choice<K> {
    /// The name.
    pub name: &'static str,
    /// Its keys.
    pub keys: fn() -> &'static [&'static str],
    /// Reads them.
    pub read: fn(Section<'_>) -> Result<K, Fault>,
}

/// Defines a section from the list of its names, each with the file (a module beside the list) and
/// the type of its keys: the type of the section, with the keys of all names, and an enum of what
/// there is for each name, which are `dyn` the trait.
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
            /// What `name` says, with the keys of that alone.
            #[serde(flatten)]
            pub kind: $kind,
            /// The keys that go with every name.
            #[serde(flatten)]
            pub keys: $keys,
        }

        #[doc = concat!("What `[", $section, "] name` says.")]
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
            const CHOICES: &'static [$crate::config::named::Choice<$kind>] = &[
                $($crate::config::named::Choice {
                    name: $name,
                    keys: $crate::config::section::fields::<$own>,
                    read: |section| Ok($kind::$variant(section.read()?)),
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

//! Enums whose variants have names in configurations and messages.

/// A name that no variant has.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} `{name}`; choose one of {known}")]
pub struct UnknownName {
    /// The kind of name, such as `strategy`.
    pub kind: &'static str,
    /// The name.
    pub name: String,
    /// All names, separated by commas.
    pub known: String,
}

crate::debug_is_display!(UnknownName);

/// Gives an enum `ALL`, `name` and `Display`; with `parsed as "strategy"`, also `FromStr`.
macro_rules! named {
    ($type:ident { $($variant:ident = $name:literal,)+ }) => {
        impl $type {
            /// All of them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Its name in configurations and messages.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
    ($type:ident { $($variants:tt)+ } parsed as $kind:literal) => {
        $crate::named::named! { $type { $($variants)+ } }

        impl std::str::FromStr for $type {
            type Err = $crate::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.into_iter().find(|known| known.name() == name);
                found.ok_or_else(|| $crate::UnknownName {
                    kind: $kind,
                    name: name.to_owned(),
                    known: Self::ALL.map(Self::name).join(", "),
                })
            }
        }
    };
}
pub(crate) use named;

//! Enums whose variants have a name each, by which configurations and messages call them.

/// Gives an enum `ALL`, `name` and `Display`; with `unknown`, an error and `FromStr` too.
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
    (
        $type:ident { $($variants:tt)+ }
        $(#[$doc:meta])* unknown $error:ident($what:literal)
    ) => {
        $crate::named::named! { $type { $($variants)+ } }

        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error("unknown {} `{name}`; choose one of {}", $what, $type::ALL.map($type::name).join(", "))]
        pub struct $error {
            /// The name.
            pub name: String,
        }

        impl std::str::FromStr for $type {
            type Err = $error;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.into_iter().find(|known| known.name() == name);
                found.ok_or_else(|| $error { name: name.to_owned() })
            }
        }
    };
}
pub(crate) use named;

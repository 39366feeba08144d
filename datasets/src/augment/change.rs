//! Changes that are one file and one line in a list, of an image's bytes or its normalised values.

use super::parse::{Parameters, ParseAugmentError};
use crate::ImageShape;
use crate::random::{Purpose, Stream};

/// A change of every training image with its own random stream. `On` is the type that it changes.
pub(super) trait Change<On: ?Sized>: Sized {
    /// The form in a configuration.
    const USAGE: &'static str;
    /// Its random stream.
    const PURPOSE: Purpose;

    /// Reads its parameters.
    fn read(words: &mut Parameters<'_>) -> Result<Self, ParseAugmentError>;

    /// The text with every parameter.
    fn text(&self) -> String;

    /// Changes an image.
    fn apply(&self, stream: &mut Stream, shape: ImageShape, image: &mut On);
}

/// Defines a struct with a field for each change of a list; they are applied in the order of the
/// list.
macro_rules! changes {
    ($(#[$doc:meta])* $all:ident: $on:ty; $($file:ident::$change:ident,)+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Default)]
        #[allow(non_snake_case)]
        struct $all { $($change: Option<$file::$change>),+ }

        impl $all {
            const USAGE: &'static [&'static str] =
                &[$(<$file::$change as change::Change<$on>>::USAGE),+];

            fn is_none(&self) -> bool {
                $(self.$change.is_none())&&+
            }

            /// Adds the change with this usage; false if the list does not contain it.
            fn add(
                &mut self,
                usage: &'static str,
                words: &mut parse::Parameters<'_>,
            ) -> Result<bool, ParseAugmentError> {
                $(if usage == <$file::$change as change::Change<$on>>::USAGE {
                    let change = change::Change::<$on>::read(words)?;
                    parse::once(&mut self.$change, change, usage)?;
                    return Ok(true);
                })+
                Ok(false)
            }

            fn texts(&self) -> Vec<String> {
                let all = [$(self.$change.as_ref().map(change::Change::<$on>::text)),+];
                all.into_iter().flatten().collect()
            }

            fn apply(&self, key: Key, shape: ImageShape, image: &mut $on) {
                $(if let Some(own) = &self.$change {
                    let purpose = <$file::$change as change::Change<$on>>::PURPOSE;
                    change::Change::<$on>::apply(own, &mut key.stream(purpose), shape, image);
                })+
            }
        }
    };
}
pub(super) use changes;

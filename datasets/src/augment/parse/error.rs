//! What is wrong with a text that should be an augmentation, and what to write instead.

use super::usage;

/// Why a text is no augmentation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseAugmentError {
    /// A name that is no operation.
    #[error(
        "unknown augmentation \"{name}\". Use \"none\" alone, or these in this order, joined by +: \
         {}",
        usage().join(", ")
    )]
    Unknown {
        /// What stands there.
        name: String,
    },

    /// A parameter that is no number, or one out of range.
    #[error("\"{operation}\": {parameter} is \"{given}\" but must be {expected}. Write {usage}")]
    Parameter {
        /// The operation with its parameters.
        operation: String,
        /// The parameter's name.
        parameter: &'static str,
        /// What stands there.
        given: String,
        /// What may stand there.
        expected: String,
        /// How the operation is written.
        usage: &'static str,
    },

    /// More parameters than the operation has.
    #[error("\"{operation}\" has too many parameters. Write {usage}")]
    Surplus {
        /// The operation with its parameters.
        operation: String,
        /// How the operation is written.
        usage: &'static str,
    },

    /// An operation that is there twice.
    #[error("\"{name}\" occurs twice in the augmentation. Keep one")]
    Twice {
        /// The operation.
        name: &'static str,
    },

    /// Two operations of which only one may be there.
    #[error("\"{first}\" and \"{second}\" both choose the visible part of the image. Keep one")]
    Exclusive {
        /// The first one.
        first: String,
        /// The second one.
        second: String,
    },

    /// Another order than that in which the operations are done.
    #[error("augmentations are written in the order in which they are applied: \"{instead}\"")]
    Order {
        /// The same in the right order.
        instead: String,
    },

    /// Mixing is more than certain.
    #[error(
        "mixup has probability {mixup} and cutmix {cutmix}, but their sum may be at most 1. Write \
         mixup:ALPHA:P+cutmix:ALPHA:P"
    )]
    Mixing {
        /// That of mixup.
        mixup: f32,
        /// That of cutmix.
        cutmix: f32,
    },

    /// The spelling of an earlier version.
    #[error("\"{text}\": the padding belongs to crop; write \"crop:{padding}+flip\"")]
    OldCropFlip {
        /// All of it.
        text: String,
        /// The padding.
        padding: u8,
    },
}

//! Errors in the text of an augmentation.

use super::usage;

/// The reason why a text is not an augmentation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseAugmentError {
    /// A name is not an operation.
    #[error(
        "unknown augmentation \"{name}\". Use \"none\" alone, or these in this order, joined by +: \
         {}",
        usage().join(", ")
    )]
    Unknown {
        /// The name.
        name: String,
    },

    /// A parameter is no valid number or is out of range.
    #[error("\"{operation}\": {parameter} is \"{given}\" but must be {expected}. Write {usage}")]
    Parameter {
        /// The operation with its parameters.
        operation: String,
        /// The parameter's name.
        parameter: &'static str,
        /// Its text.
        given: String,
        /// The accepted values.
        expected: String,
        /// The form of the operation.
        usage: &'static str,
    },

    /// The operation has too many parameters.
    #[error("\"{operation}\" has too many parameters. Write {usage}")]
    Surplus {
        /// The operation with its parameters.
        operation: String,
        /// The form of the operation.
        usage: &'static str,
    },

    /// An operation appears twice.
    #[error("\"{name}\" occurs twice in the augmentation. Keep one")]
    Twice {
        /// The operation.
        name: &'static str,
    },

    /// Two operations exclude each other.
    #[error("\"{first}\" and \"{second}\" both choose the visible part of the image. Keep one")]
    Exclusive {
        /// The first one.
        first: String,
        /// The second one.
        second: String,
    },

    /// The operations are not in their order.
    #[error("augmentations are written in the order in which they are applied: \"{instead}\"")]
    Order {
        /// The same operations in the right order.
        instead: String,
    },

    /// The probabilities of mixing sum to more than 1.
    #[error(
        "mixup has probability {mixup} and cutmix {cutmix}, but their sum may be at most 1. Write \
         mixup:ALPHA:P+cutmix:ALPHA:P"
    )]
    Mixing {
        /// Probability of mixup.
        mixup: f32,
        /// Probability of cutmix.
        cutmix: f32,
    },

    /// The spelling of an earlier version.
    #[error("\"{text}\": the padding belongs to crop; write \"crop:{padding}+flip\"")]
    OldCropFlip {
        /// The whole text.
        text: String,
        /// The padding.
        padding: u8,
    },
}

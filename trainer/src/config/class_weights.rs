//! `train.class_weights`: a word, or a number for each class.

use std::fmt;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::ser::Serializer;

use super::error::Fault;
use super::validate::positive;

const KEY: &str = "train.class_weights";
const NONE: &str = "none";
const BALANCED: &str = "balanced";

/// Weights of the classes in the loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ClassWeights {
    /// All alike.
    #[default]
    None,
    /// Inverse to the number of training images.
    Balanced,
    /// One for each class.
    Given(Vec<f64>),
}

pub(super) fn serialize<S: Serializer>(value: &ClassWeights, to: S) -> Result<S::Ok, S::Error> {
    match value {
        ClassWeights::None => to.serialize_str(NONE),
        ClassWeights::Balanced => to.serialize_str(BALANCED),
        ClassWeights::Given(weights) => to.collect_seq(weights),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ClassWeights, D::Error> {
    from.deserialize_any(WordOrNumbers)
}

struct WordOrNumbers;

impl<'de> Visitor<'de> for WordOrNumbers {
    type Value = ClassWeights;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"none\", \"balanced\", or a number for each class, such as [1.0, 5.0]")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ClassWeights, E> {
        match text {
            NONE => Ok(ClassWeights::None),
            BALANCED => Ok(ClassWeights::Balanced),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, numbers: A) -> Result<ClassWeights, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(numbers)).map(ClassWeights::Given)
    }
}

/// Checks the weights. Their number is checked when the data is opened.
pub(super) fn check(weights: &ClassWeights) -> Result<(), Fault> {
    let ClassWeights::Given(weights) = weights else {
        return Ok(());
    };
    for weight in weights {
        positive(KEY, *weight)?;
    }
    Ok(())
}

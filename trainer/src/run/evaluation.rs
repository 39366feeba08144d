//! Metrics of an evaluation.

use std::fmt;

use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

/// Metrics of a model on data that it was not trained on.
///
/// In a file it is one object: `loss`, each metric by its name, and `samples`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Mean loss.
    pub loss: f64,
    /// Evaluated samples over all ranks.
    pub samples: u64,
    /// The task's metrics, in its order.
    pub metrics: Metrics,
}

/// Metrics by name, in the order of the task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(Vec<(String, f64)>);

impl Evaluation {
    /// Makes an evaluation of a loss, a number of samples and metrics by name.
    pub fn new<'a>(
        loss: f64,
        samples: u64,
        metrics: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> Self {
        let metrics = metrics.into_iter();
        let metrics = metrics.map(|(name, value)| (name.to_owned(), value));
        Self {
            loss,
            samples,
            metrics: Metrics(metrics.collect()),
        }
    }

    /// The metric called `name`, or the loss. `None` if the task has no such metric.
    pub fn metric(&self, name: &str) -> Option<f64> {
        match name {
            "loss" => Some(self.loss),
            _ => self.metrics.get(name),
        }
    }
}

impl Metrics {
    /// The metric called `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        let found = self.0.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| *value)
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

impl Serialize for Metrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// Reads the numbers of an object, and ignores everything else in it.
impl<'de> Deserialize<'de> for Metrics {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;

        impl<'de> Visitor<'de> for Numbers {
            type Value = Metrics;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("metrics by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metrics, A::Error> {
                let mut metrics = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    match map.next_value::<Number>()? {
                        Number::Is(value) => metrics.push((name, value)),
                        Number::Other(IgnoredAny) => {}
                    }
                }
                Ok(Metrics(metrics))
            }
        }
        deserializer.deserialize_map(Numbers)
    }
}

/// A number, or anything else.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Is(f64),
    Other(IgnoredAny),
}

impl Serialize for Evaluation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("loss", &self.loss)?;
        for (name, value) in self.metrics.iter() {
            map.serialize_entry(name, &value)?;
        }
        map.serialize_entry("samples", &self.samples)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Evaluation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Metrics(mut metrics) = Metrics::deserialize(deserializer)?;
        let mut take = |name: &'static str| {
            let index = metrics.iter().position(|(own, _)| own == name);
            let index = index.ok_or_else(|| D::Error::missing_field(name))?;
            Ok(metrics.remove(index).1)
        };
        Ok(Self {
            loss: take("loss")?,
            samples: take("samples")? as u64,
            metrics: Metrics(metrics),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The form of earlier versions, which checkpoints hold.
    #[test]
    fn an_evaluation_is_one_object() {
        let evaluation = Evaluation::new(0.1, 7, [("accuracy", 0.1 + 0.2), ("top5", 1.0)]);
        let text = serde_json::to_string(&evaluation).unwrap();
        let expected = r#"{"loss":0.1,"accuracy":0.30000000000000004,"top5":1.0,"samples":7}"#;
        assert_eq!(text, expected);
        let value = serde_json::to_value(&evaluation).unwrap();
        let read: Evaluation = serde_json::from_value(value).unwrap();
        assert_eq!(read.metric("accuracy"), Some(0.1 + 0.2));
        assert_eq!((read.metric("loss"), read.metric("iou")), (Some(0.1), None));
        assert_eq!(
            serde_json::from_str::<Evaluation>(&text).unwrap(),
            evaluation
        );
        assert!(serde_json::from_str::<Evaluation>(r#"{"loss":1}"#).is_err());
    }
}

//! Weights for data sets with rare classes.

use datasets::{Dataset, DatasetError, class_weights};

use crate::config::ClassWeights;
use crate::error::TrainError;

/// The weight of each class in the loss, or `None` if all are alike.
///
/// # Errors
/// Fails if the configuration has another number of weights than the data has classes, or if a
/// label cannot be read.
pub(crate) fn of_classes(
    weights: &ClassWeights,
    images: &dyn Dataset,
) -> Result<Option<Vec<f64>>, TrainError> {
    let classes = images.class_names().len();
    match weights {
        ClassWeights::None => Ok(None),
        ClassWeights::Balanced => Ok(Some(class_weights(&labels(images)?, classes)?)),
        ClassWeights::Given(given) if given.len() == classes => Ok(Some(given.clone())),
        ClassWeights::Given(given) => {
            let error = DatasetError::Settings {
                what: "train.class_weights",
                reason: format!(
                    "{} weights for {classes} classes. Give one weight for each class, in the \
                     order of the class names",
                    given.len()
                ),
            };
            Err(error.into())
        }
    }
}

/// The weight of each image in the sampler: with `balance` 1 all classes are drawn equally often,
/// with 0 all images.
///
/// # Errors
/// Fails if a label cannot be read.
pub(crate) fn of_samples(images: &dyn Dataset, balance: f64) -> Result<Vec<f64>, TrainError> {
    let labels = labels(images)?;
    let classes = class_weights(&labels, images.class_names().len())?;
    let classes: Vec<f64> = classes.iter().map(|weight| weight.powf(balance)).collect();
    let weight = |label: &usize| classes.get(*label).copied().unwrap_or_default();
    Ok(labels.iter().map(weight).collect())
}

fn labels(images: &dyn Dataset) -> Result<Vec<usize>, DatasetError> {
    let label = |index| Ok(images.label(index)? as usize);
    (0..images.len()).map(label).collect()
}

#[cfg(test)]
mod tests {
    use datasets::{ImageShape, Normalization};

    use super::*;

    /// Black images with these labels.
    struct Labels {
        labels: Vec<u32>,
        names: Vec<String>,
    }

    impl Dataset for Labels {
        fn len(&self) -> usize {
            self.labels.len()
        }

        fn shape(&self) -> ImageShape {
            ImageShape {
                channels: 1,
                height: 1,
                width: 1,
            }
        }

        fn class_names(&self) -> &[String] {
            &self.names
        }

        fn normalization(&self) -> Normalization {
            Normalization {
                mean: vec![0.0],
                std: vec![1.0],
            }
        }

        fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
            image.fill(0);
            self.labels.get(index).copied().ok_or(DatasetError::Index {
                index,
                len: self.labels.len(),
            })
        }
    }

    fn images() -> Labels {
        Labels {
            labels: vec![0, 1, 0, 0, 0, 0, 0, 0, 0],
            names: ["many", "one", "none"].map(str::to_owned).to_vec(),
        }
    }

    #[test]
    fn rare_classes_weigh_more() {
        let found = of_classes(&ClassWeights::Balanced, &images()).unwrap();
        assert_eq!(found, Some(vec![9.0 / 16.0, 9.0 / 2.0, 0.0]));
        assert_eq!(of_classes(&ClassWeights::None, &images()).unwrap(), None);
        let given = ClassWeights::Given(vec![1.0, 2.0]);
        let error = of_classes(&given, &images()).unwrap_err().to_string();
        assert!(error.contains("2 weights for 3 classes"), "{error}");
    }

    #[test]
    fn a_balance_between_is_a_power() {
        let ratio = |balance| {
            let weights = of_samples(&images(), balance).unwrap();
            assert_eq!(weights.len(), 9);
            weights[1] / weights[0]
        };
        assert!((ratio(1.0) - 8.0).abs() < 1e-12);
        assert!((ratio(0.5) - 8f64.sqrt()).abs() < 1e-12);
    }
}

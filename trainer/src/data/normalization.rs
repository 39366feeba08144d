//! Overrides the normalization of a data set by `data.mean` and `data.std`.

use std::sync::Arc;

use datasets::{Area, Dataset, DatasetError, ImageShape, Normalization};

use crate::config::DataConfig;

/// The normalization to use; `usual` is that of the data set.
///
/// # Errors
/// [`DatasetError::Settings`] with the name of the key that has neither one number nor one per
/// channel.
pub(crate) fn normalization(
    config: &DataConfig,
    usual: Normalization,
) -> Result<Normalization, DatasetError> {
    Ok(Normalization {
        mean: numbers("data.mean", config.mean.as_deref(), usual.mean)?,
        std: numbers("data.std", config.std.as_deref(), usual.std)?,
    })
}

fn numbers(
    key: &'static str,
    given: Option<&[f64]>,
    usual: Vec<f32>,
) -> Result<Vec<f32>, DatasetError> {
    let channels = usual.len();
    match given {
        None => Ok(usual),
        Some([one]) => Ok(vec![*one as f32; channels]),
        Some(all) if all.len() == channels => Ok(all.iter().map(|one| *one as f32).collect()),
        Some(all) => Err(DatasetError::Settings {
            what: key,
            reason: format!(
                "it has {} numbers for {channels} channels; give one per channel, or one for all",
                all.len()
            ),
        }),
    }
}

/// Returns `dataset` with the configured normalization.
///
/// # Errors
/// As [`normalization`].
pub(crate) fn normalized(
    config: &DataConfig,
    dataset: Arc<dyn Dataset>,
) -> Result<Arc<dyn Dataset>, DatasetError> {
    let usual = dataset.normalization();
    let by = normalization(config, usual.clone())?;
    Ok(match by == usual {
        true => dataset,
        false => Arc::new(Normalized { dataset, by }),
    })
}

/// A data set with another normalization.
struct Normalized {
    dataset: Arc<dyn Dataset>,
    by: Normalization,
}

impl Dataset for Normalized {
    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn shape(&self) -> ImageShape {
        self.dataset.shape()
    }

    fn class_names(&self) -> &[String] {
        self.dataset.class_names()
    }

    fn normalization(&self) -> Normalization {
        self.by.clone()
    }

    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        self.dataset.read(index, image)
    }

    fn label(&self, index: usize) -> Result<u32, DatasetError> {
        self.dataset.label(index)
    }

    fn read_part(
        &self,
        index: usize,
        choose: &mut dyn FnMut(usize, usize) -> Area,
        image: &mut [u8],
    ) -> Result<u32, DatasetError> {
        self.dataset.read_part(index, choose, image)
    }
}

#[cfg(test)]
mod tests {
    use datasets::{Generated, Loader};

    use super::*;
    use crate::config::DataKeys;

    fn config(mean: &[f64], std: &[f64]) -> DataConfig {
        let some = |numbers: &[f64]| (!numbers.is_empty()).then(|| numbers.to_vec());
        DataConfig {
            keys: DataKeys {
                mean: some(mean),
                std: some(std),
                ..DataKeys::default()
            },
            ..DataConfig::default()
        }
    }

    fn colours() -> Arc<dyn Dataset> {
        let shape = ImageShape {
            channels: 3,
            height: 4,
            width: 4,
        };
        Arc::new(Generated::new(shape, 2, 8, 1).unwrap())
    }

    /// The loader's normalization, which batches made on a device use, too.
    #[test]
    fn the_loader_goes_by_the_numbers_of_the_configuration() {
        let usual = colours().normalization();
        for (mean, std, expected) in [
            (&[][..], &[][..], usual.clone()),
            (
                &[0.1, 0.2, 0.3],
                &[0.4, 0.5, 0.6],
                Normalization {
                    mean: vec![0.1, 0.2, 0.3],
                    std: vec![0.4, 0.5, 0.6],
                },
            ),
            (
                &[0.25],
                &[],
                Normalization {
                    mean: vec![0.25; 3],
                    ..usual
                },
            ),
        ] {
            let dataset = normalized(&config(mean, std), colours()).unwrap();
            assert_eq!(dataset.normalization(), expected);
            let lines = Loader::new(dataset).unwrap().lines();
            let of_numbers = expected.mean.iter().zip(&expected.std);
            for ((scale, offset), (mean, std)) in lines.into_iter().zip(of_numbers) {
                assert!((scale * 255.0 * std - 1.0).abs() < 1e-6);
                assert!((offset * std + mean).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn the_key_with_a_wrong_number_of_numbers_is_named() {
        for (config, key) in [
            (config(&[0.1, 0.2], &[]), "data.mean"),
            (config(&[0.1], &[0.1; 4]), "data.std"),
        ] {
            let error = normalized(&config, colours()).err().unwrap().to_string();
            assert!(
                error.starts_with(key) && error.contains("for 3 channels"),
                "{error}"
            );
        }
    }
}

//! Loads weights of any known implementation of a model: each names its tensors differently.

use std::path::Path;

use burn::module::Module;
use models::weights::{KeyMap, Load, PyTorchKeys, Taken, WeightsError};

use crate::config::WeightsConfig;

/// Returns a copy of `model` with the weights in `file`, and a report of what was loaded.
///
/// Tries the names of the reference implementation, then those of others. A `new_head` leaves out
/// the last layer.
///
/// # Errors
/// The error for the naming with the fewest missing tensors.
pub(crate) fn load<M: Module + PyTorchKeys>(
    model: &M,
    file: &Path,
    new_head: bool,
    config: &WeightsConfig,
) -> Result<(M, Taken), WeightsError> {
    let by = |(keys, head): (KeyMap, &'static str), lenient: bool| {
        let mut load = Load::new().resample(model.positions()).lenient(lenient);
        if let Some(part) = &config.part {
            load = load.part(part.as_str());
        }
        if new_head {
            load = load.without(head);
        }
        load.load_told(model.clone(), file, &keys)
    };
    let own = || (model.key_map(), model.head());
    let mut nearest = match by(own(), false) {
        Err(error @ WeightsError::Mismatch { .. }) => error,
        other => return other,
    };
    let mut names = own();
    for other in model.other_names() {
        match by(other.clone(), false) {
            Err(error) if missing(&error) >= missing(&nearest) => {}
            Err(error) => (nearest, names) = (error, other),
            loaded => return loaded,
        }
    }
    match config.strict {
        true => Err(nearest),
        false => by(names, true),
    }
}

/// Number of the model's tensors that the file lacks.
fn missing(error: &WeightsError) -> usize {
    match error {
        WeightsError::Mismatch { mismatches, .. } => mismatches.missing.len(),
        _ => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, ModuleMapper, Param};
    use burn::tensor::{Device, Tensor};
    use models::weights::{save, state_dict};
    use models::{Vit, VitConfig};

    use super::*;

    fn load_as(model: &Vit, file: &Path, new_head: bool) -> Result<Vit, WeightsError> {
        let loaded = load(model, file, new_head, &WeightsConfig::default());
        loaded.map(|(model, _)| model)
    }

    fn vit(classes: usize) -> Vit {
        let vit = VitConfig::new(12, 2, 3, classes)
            .with_height(16)
            .with_width(16);
        vit.init(&Device::flex()).unwrap()
    }

    fn values(vit: &Vit) -> Vec<f32> {
        let mut tensors = state_dict(vit, &vit.key_map()).unwrap();
        let embedding = tensors.remove("patch_embed.proj.weight").unwrap();
        embedding.try_to_vec().unwrap()
    }

    struct ToNan;

    impl ModuleMapper for ToNan {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| tensor * f32::NAN)
        }
    }

    #[test]
    fn weights_that_are_no_numbers_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vit.safetensors");
        let failed = vit(5).map(&mut ToNan);
        save(&failed, &file, &failed.key_map()).unwrap();
        let error = load_as(&vit(5), &file, false).unwrap_err();
        assert!(
            error.to_string().contains("its element 0 is NaN"),
            "{error}"
        );
    }

    #[test]
    fn vision_transformers_take_weights_for_other_sizes_of_images() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vit.safetensors");
        let small = vit(5);
        let wide = || {
            let config = VitConfig::new(12, 2, 3, 5).with_height(24).with_width(32);
            config.init(&Device::flex()).unwrap()
        };
        let embedding = |vit: &Vit| {
            let embedding = state_dict(vit, &vit.key_map()).unwrap().remove("pos_embed");
            embedding.unwrap().try_to_vec::<f32>().unwrap()
        };
        for keys in [small.key_map(), KeyMap::torchvision_vit()] {
            save(&small, &file, &keys).unwrap();
            let loaded = load_as(&wide(), &file, false).unwrap();
            let (from, to) = (embedding(&small), embedding(&loaded));
            assert_eq!((from.len(), to.len()), (17 * 12, 49 * 12));
            assert_eq!(from[..12], to[..12]);
            assert_eq!(values(&loaded), values(&small));
        }
        // For a size that is no square, the image size is not known to differ.
        save(&wide(), &file, &small.key_map()).unwrap();
        let error = load_as(&vit(5), &file, false).unwrap_err();
        assert!(error.to_string().contains("pos_embed"), "{error}");
    }

    #[test]
    fn vision_transformers_come_from_timm_and_from_torchvision() {
        let folder = tempfile::tempdir().unwrap();
        let saved = vit(5);
        for (name, keys) in [
            ("timm", saved.key_map()),
            ("torchvision", KeyMap::torchvision_vit()),
        ] {
            let file = folder.path().join(format!("{name}.safetensors"));
            save(&saved, &file, &keys).unwrap();
            let loaded = load_as(&vit(5), &file, false).unwrap();
            assert_eq!(values(&loaded), values(&saved), "{name}");
            let loaded = load_as(&vit(7), &file, true).unwrap();
            assert_eq!(values(&loaded), values(&saved), "{name}");
            let Err(WeightsError::Mismatch { mismatches, .. }) = load_as(&vit(7), &file, false)
            else {
                panic!("{name}: another number of classes");
            };
            assert!(mismatches.missing.is_empty(), "{name}: {mismatches}");
            assert_eq!(mismatches.misshapen.len(), 2, "{name}: {mismatches}");
        }
    }

    #[test]
    fn what_fits_is_loaded_where_that_is_enough() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vit.safetensors");
        let saved = vit(5);
        for keys in [saved.key_map(), KeyMap::torchvision_vit()] {
            save(&saved, &file, &keys).unwrap();
            assert!(load_as(&vit(7), &file, false).is_err());
            let lenient = WeightsConfig {
                strict: false,
                part: None,
            };
            let (loaded, taken) = load(&vit(7), &file, false, &lenient).unwrap();
            assert_eq!(values(&loaded), values(&saved));
            assert_eq!(taken.mismatches.misshapen.len(), 2, "{taken:?}");
            // A file in which nothing fits is always an error.
            let other = models::CnnConfig::new().init(&Device::flex()).unwrap();
            assert!(load(&other, &file, false, &lenient).is_err());
        }
    }
}

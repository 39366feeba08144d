//! Models in a weights file.
//!
//! A file of `trainer export` embeds its model configuration. A file of PyTorch needs a
//! configuration beside it.

use std::collections::HashMap;
use std::path::Path;

use datasets::{Dataset, ImageShape, Normalization};
use models::weights;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{FindError, Subject};
use crate::config::{Loaded, ModelConfig};
use crate::data::class_names::ClassNames;
use crate::error::TrainError;

/// Keys of a file's metadata.
const MODEL: &str = "model";
const CLASS_NAMES: &str = "class_names";
const IMAGE_SHAPE: &str = "image_shape";
const MEAN: &str = "mean";
const STD: &str = "std";
const RESIZE: &str = "resize";
const STEP: &str = "step";

/// Maximum size or depth of a model in metadata. Files may come from anywhere, and a model needs
/// memory before its weights are compared.
const MOST: f64 = 4096.0;
const DEEPEST: f64 = 1024.0;

/// Metadata of a weights file. Empty for files of other programs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct About {
    /// The `[model]` section, without its initial weights.
    pub model: Option<Value>,
    /// Image size, classes and normalization.
    pub subject: Option<Subject>,
    /// Pixels of the shorter side before the center crop.
    pub resize: Option<usize>,
    /// Optimizer steps of the training.
    pub step: Option<u64>,
}

impl About {
    /// Metadata for the export of a model of `config` for `subject`.
    pub fn of_export(
        config: &ModelConfig,
        subject: Subject,
        resize: Option<usize>,
        step: Option<u64>,
    ) -> Self {
        let mut model = serde_json::to_value(config).unwrap_or_default();
        if let Some(keys) = model.as_object_mut() {
            // These keys concern the finished training and its machine.
            keys.retain(|key, _| !matches!(key.as_str(), "weights" | "new_head"));
        }
        Self {
            model: Some(model),
            subject: Some(subject),
            resize,
            step,
        }
    }

    /// The metadata as safetensors keys and values.
    pub fn to_metadata(&self) -> HashMap<String, String> {
        let mut about = HashMap::new();
        let mut say = |key: &str, value: Value| about.insert(key.to_owned(), value.to_string());
        if let Some(model) = &self.model {
            say(MODEL, model.clone());
        }
        if let Some(subject) = &self.subject {
            let shape = subject.shape();
            let Normalization { mean, std } = subject.normalization();
            say(CLASS_NAMES, subject.class_names().into());
            say(
                IMAGE_SHAPE,
                vec![shape.channels, shape.height, shape.width].into(),
            );
            say(MEAN, mean.into());
            say(STD, std.into());
        }
        if let Some(resize) = self.resize {
            say(RESIZE, resize.into());
        }
        if let Some(step) = self.step {
            say(STEP, step.into());
        }
        about
    }

    /// Reads the metadata of the file at `path`, and ignores keys of another form.
    ///
    /// # Errors
    /// Fails if it is no weights file.
    fn of_file(path: &Path) -> Result<Self, FindError> {
        let about = weights::about(path)?;
        Ok(Self {
            model: read(&about, MODEL),
            subject: subject(&about),
            resize: read(&about, RESIZE),
            step: read(&about, STEP),
        })
    }

    /// A configuration with this model, for default data and training.
    fn configuration(&self) -> Option<String> {
        let model = toml::Value::try_from(self.model.as_ref()?).ok()?;
        let optimizer = toml::Table::from_iter([("name".to_owned(), "sgd".into())]);
        let root = toml::Table::from_iter([
            (MODEL.to_owned(), model),
            ("optimizer".to_owned(), optimizer.into()),
        ]);
        toml::to_string(&root).ok()
    }

    /// Checks that `data` has images like the model's, according to the file.
    ///
    /// # Errors
    /// Returns the first difference.
    pub fn check_data(&self, data: &dyn Dataset) -> Result<(), TrainError> {
        let Some(subject) = &self.subject else {
            return Ok(());
        };
        let names = ClassNames::of(subject.class_names());
        if let Some(difference) = names.difference(&ClassNames::of(data.class_names())) {
            return Err(TrainError::OtherClasses(difference));
        }
        let (own, other) = (subject.normalization(), data.normalization());
        if own != other {
            return Err(TrainError::OtherNormalization {
                trained: own,
                data: other,
            });
        }
        Ok(())
    }
}

/// Whether all numbers of a `[model]` section are plausible.
fn has_sizes_of_a_model(model: &Value) -> bool {
    let is_such = |(key, value): (&String, &Value)| {
        let most = if key == "depth" { DEEPEST } else { MOST };
        let is_small = |number: &Value| number.as_f64().is_none_or(|number| number <= most);
        is_small(value) && value.as_array().into_iter().flatten().all(is_small)
    };
    model
        .as_object()
        .is_some_and(|keys| keys.iter().all(is_such))
}

fn read<T: DeserializeOwned>(about: &HashMap<String, String>, key: &str) -> Option<T> {
    serde_json::from_str(about.get(key)?).ok()
}

fn subject(about: &HashMap<String, String>) -> Option<Subject> {
    let [channels, height, width] = read(about, IMAGE_SHAPE)?;
    let shape = ImageShape {
        channels,
        height,
        width,
    };
    let normalization = Normalization {
        mean: read(about, MEAN)?,
        std: read(about, STD)?,
    };
    Subject::complete(shape, read(about, CLASS_NAMES)?, normalization)
}

/// Finds the configuration and the metadata of the file at `path`; `config` overrides the former.
pub(super) fn find(
    path: &Path,
    config: Option<&str>,
    sets: &[String],
) -> Result<(Loaded, About), FindError> {
    let about = About::of_file(path)?;
    if let Some(config) = config {
        return Ok((Loaded::load(config, sets)?, about));
    }
    let nothing = |reason: &str| FindError::Nothing {
        path: path.to_owned(),
        reason: format!("{reason}. Name a configuration with --config"),
    };
    let text = about.configuration();
    let text = text.ok_or_else(|| {
        nothing("does not contain a model configuration, unlike files of `trainer export`")
    })?;
    if !about.model.as_ref().is_some_and(has_sizes_of_a_model) {
        return Err(nothing("contains an implausibly large model configuration"));
    }
    let file = path.display().to_string();
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok((Loaded::parse(&file, &name, &text, sets)?, about))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        let shape = ImageShape {
            channels: 1,
            height: 28,
            width: 28,
        };
        let normalization = Normalization {
            mean: vec![0.1],
            std: vec![1.0 / 3.0],
        };
        let classes = vec!["cat".to_owned(), "dog \"é\"".to_owned()];
        Subject::complete(shape, classes, normalization).unwrap()
    }

    /// Writes a weights file with this metadata.
    fn write(path: &Path, metadata: HashMap<String, String>) {
        let model = burn::nn::LinearConfig::new(2, 3).init(&burn::tensor::Device::flex());
        let keys = weights::KeyMap::same();
        weights::save_with(&model, path, &keys, metadata, &Default::default()).unwrap();
    }

    fn vit() -> Loaded {
        let sets = ["model.weights=here.pt", "model.new_head=true"];
        Loaded::load("vit.toml", &sets.map(str::to_owned)).unwrap()
    }

    #[test]
    fn what_an_export_says_is_read_back() {
        let said = About::of_export(&vit().config.model, subject(), Some(37), Some(9));
        let metadata = said.to_metadata();
        assert!(!metadata[MODEL].contains("here.pt"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        write(&path, metadata);
        let (loaded, about) = find(&path, None, &["train.epochs=2".to_owned()]).unwrap();
        assert_eq!(about, said);
        let plain = Loaded::load("vit.toml", &[]).unwrap();
        assert_eq!(loaded.config.model, plain.config.model);
        assert_eq!((loaded.config.train.epochs, loaded.name.as_str()), (2, "a"));
    }

    #[test]
    fn files_of_other_programs_say_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        for (key, value) in [
            ("", ""),
            (MODEL, "{"),
            (MODEL, "null"),
            (IMAGE_SHAPE, "[1, 2, -3]"),
            (IMAGE_SHAPE, "[1, 4294967296, 4294967296]"),
            (CLASS_NAMES, "7"),
            (STEP, "1e99"),
        ] {
            let mut about =
                About::of_export(&vit().config.model, subject(), None, None).to_metadata();
            about.remove(MODEL);
            about.insert(key.to_owned(), value.to_owned());
            write(&path, about);
            let error = find(&path, None, &[]).unwrap_err().to_string();
            assert!(error.contains("--config"), "{key} {value}: {error}");
            let (_, about) = find(&path, Some("vit.toml"), &[]).unwrap();
            let known = !matches!(key, IMAGE_SHAPE | CLASS_NAMES);
            assert_eq!(about.subject.is_some(), known, "{key} {value}");
        }
        for (said, told) in [
            (r#"{"name":"new"}"#, "unknown model `new`"),
            (
                r#"{"name":"wide-resnet","widen":100000000}"#,
                "implausibly large",
            ),
            (
                r#"{"name":"wide-resnet","depth":100000}"#,
                "implausibly large",
            ),
            (
                r#"{"name":"cnn","filters":[8,99999999]}"#,
                "implausibly large",
            ),
            ("[1]", "--config"),
        ] {
            let about = HashMap::from([(MODEL.to_owned(), said.to_owned())]);
            write(&path, about);
            let error = find(&path, None, &[]).unwrap_err().to_string();
            assert!(error.contains(told), "{said}: {error}");
        }
    }

    #[test]
    fn other_classes_and_another_normalization_are_told() {
        let about = About::of_export(&vit().config.model, subject(), None, None);
        about.check_data(&subject()).unwrap();
        About::default().check_data(&subject()).unwrap();
        let mut other = about.to_metadata();
        other.insert(STD.to_owned(), "[0.25]".to_owned());
        let error = about.check_data(&super::subject(&other).unwrap());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("data.std"), "{error}");
        other.insert(CLASS_NAMES.to_owned(), r#"["cat", "cow"]"#.to_owned());
        let error = about.check_data(&super::subject(&other).unwrap());
        assert!(matches!(error, Err(TrainError::OtherClasses(_))));
    }
}

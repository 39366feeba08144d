//! Images with masks of a run, and a rank's batches of them.

use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;
use burn_dist::ProcessGroup;
use datasets::{DatasetError, Split as Part};
use models::{ModelError, UNetConfig};

use super::Segmentation;
use super::folder::MaskFolder;
use super::shapes::Shapes;
use crate::config::{Config, DataKind, EvalSet, ModelKind};
use crate::error::TrainError;
use crate::task::batches::{Collate, Collated};
use crate::task::open::{Input, Opening, WithTask};
use crate::task::same::check_same;
use crate::task::split::{Shares, Split};

/// Minimum images in a batch of an evaluation.
const EVAL_BATCH: usize = 16;

/// A set of images with a label for each pixel.
pub(super) trait Masked: Send + Sync {
    /// Number of images.
    fn len(&self) -> usize;

    /// Number of classes.
    fn classes(&self) -> usize;

    /// Channels, height and width.
    fn shape(&self) -> [usize; 3];

    /// Writes image `index` (planes of bytes: channel, row, column) and its labels (row, column).
    ///
    /// # Errors
    /// Fails if the files cannot be used.
    fn read(&self, index: usize, image: &mut [u8], labels: &mut [u8]) -> Result<(), TrainError>;
}

/// Some images of a set.
#[derive(Clone)]
pub struct Picked {
    set: Arc<dyn Masked>,
    indices: Vec<usize>,
}

impl Picked {
    fn all(set: Arc<dyn Masked>) -> Self {
        Self {
            indices: (0..set.len()).collect(),
            set,
        }
    }
}

/// The batches of an epoch or an evaluation.
pub(super) type Batches = Collated<Picked>;

/// Images and labels in host memory.
pub struct HostBatch {
    /// Values from -1 to 1: image, channel, row, column.
    pub(super) images: Vec<f32>,
    /// Image, row, column.
    pub(super) labels: Vec<u8>,
    /// Images, channels, height, width.
    pub(super) shape: [usize; 4],
}

impl HostBatch {
    /// Grey images of class 0.
    pub(super) fn blank(images: usize, [channels, height, width]: [usize; 3]) -> Self {
        Self {
            images: vec![0.0; images * channels * height * width],
            labels: vec![0; images * height * width],
            shape: [images, channels, height, width],
        }
    }
}

impl Split for Picked {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn pick(&self, indices: &[usize]) -> Self {
        let origin = |index: &usize| self.indices.get(*index).copied();
        Self {
            set: self.set.clone(),
            indices: indices.iter().filter_map(origin).collect(),
        }
    }
}

impl Collate for Picked {
    type Batch = HostBatch;

    fn collate(&self, indices: &[usize]) -> Result<HostBatch, TrainError> {
        let [channels, height, width] = self.set.shape();
        let pixels = height * width;
        let mut bytes = vec![0; channels * pixels];
        let mut batch = HostBatch::blank(0, [channels, height, width]);
        for index in indices {
            let mut labels = vec![0; pixels];
            let index = self.indices.get(*index).copied().unwrap_or_default();
            self.set.read(index, &mut bytes, &mut labels)?;
            batch
                .images
                .extend(bytes.iter().map(|byte| f32::from(*byte) / 127.5 - 1.0));
            batch.labels.append(&mut labels);
        }
        batch.shape[0] = indices.len();
        Ok(batch)
    }
}

/// Images with masks for training and evaluation.
pub(crate) struct Pictures {
    shares: Shares<Picked>,
}

impl Pictures {
    /// Opens the configured images.
    ///
    /// # Errors
    /// Fails if files are missing, or the batch sizes do not fit.
    pub fn open(opening: &Opening<'_>) -> Result<Self, TrainError> {
        let data = &opening.config.data;
        let shares = match &data.kind {
            DataKind::Shapes(config) => {
                let seed = opening.config.train.seed;
                let draw = |part, samples: Option<usize>, usual| {
                    let samples = samples.unwrap_or(usual);
                    Picked::all(Arc::new(Shapes::new(part, samples, config.size, seed)))
                };
                let train = draw(Part::Train, data.train_samples, 2048);
                let test = |_| Ok(draw(Part::Test, data.test_samples, 512));
                Shares::new(opening, train, test, EVAL_BATCH)?
            }
            DataKind::MaskFolder(config) => {
                let folder = data.kind.folder();
                if data.validation.is_some() && data.kind.has_val() {
                    return Err(two_for_validation(folder).into());
                }
                let open = |part: &str| -> Result<Picked, TrainError> {
                    let folder = MaskFolder::open(folder, part, config)?;
                    Ok(Picked::all(Arc::new(folder)))
                };
                let own = |set: EvalSet| open(set.name());
                Shares::new(opening, open("train")?, own, EVAL_BATCH)?
            }
            _ => return Err(TrainError::OtherData("shapes, mask-folder")),
        };
        Ok(Self { shares })
    }

    pub(super) fn items(&self) -> crate::task::Items {
        crate::task::Items {
            train: self.shares.train.len(),
            eval: self.shares.eval.len(),
        }
    }

    pub(super) fn evaluated(&self) -> EvalSet {
        self.shares.evaluated
    }

    pub(super) fn classes(&self) -> usize {
        self.shares.train.set.classes()
    }

    /// Channels, height and width.
    pub(super) fn shape(&self) -> [usize; 3] {
        self.shares.train.set.shape()
    }

    pub(super) fn train_batches(&self, epoch: usize, from_step: usize) -> Batches {
        self.shares.train_batches(epoch, from_step)
    }

    pub(super) fn eval_batches(&self) -> (usize, Batches) {
        self.shares.eval_batches()
    }

    /// Builds the configured model, and passes it to `then`.
    ///
    /// # Errors
    /// Fails if the model does not accept images of this size.
    pub fn build<W: WithTask>(
        self,
        config: &Config,
        device: &Device,
        then: W,
    ) -> Result<W::Output, ModelError> {
        let [channels, height, width] = self.shape();
        match &config.model.kind {
            ModelKind::UNet(own) => {
                let model = UNetConfig::new(self.classes())
                    .with_channels(channels)
                    .with_height(height)
                    .with_width(width)
                    .with_filters(own.filters)
                    .with_levels(own.levels)
                    .with_dropout(own.dropout);
                let model = model.init(device)?;
                Ok(then.call(Segmentation::<models::UNet>::new(self), model))
            }
            other => Err(ModelError::OtherTask {
                of: other.task(),
                task: "segmentation",
            }),
        }
    }
}

/// The error of a folder `val` beside `data.validation`.
fn two_for_validation(folder: &Path) -> DatasetError {
    DatasetError::Settings {
        what: "data.validation",
        reason: format!(
            "it takes images for validation from the training images, but {} also has a folder \
             val. Remove the folder or the setting",
            folder.display()
        ),
    }
}

impl Input for Pictures {
    fn check_same(&self, group: &ProcessGroup) -> Result<(), TrainError> {
        let facts = [&self.shares.train, &self.shares.eval].map(|picked| {
            let [channels, height, width] = picked.set.shape();
            let images = picked.len();
            format!("{images} images of {channels} × {height} × {width} with masks")
        });
        check_same(&facts, group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Batching, Loaded};

    /// A folder with this many images and masks in each part.
    fn folder(parts: &[(&str, u8)]) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for (part, count) in parts {
            for kind in ["images", "masks"] {
                let folder = home.path().join(part).join(kind);
                std::fs::create_dir_all(&folder).unwrap();
                for number in 0..*count {
                    let picture = image::GrayImage::from_pixel(8, 8, image::Luma([number % 2]));
                    picture.save(folder.join(format!("{number}.png"))).unwrap();
                }
            }
        }
        home
    }

    #[test]
    fn a_folder_says_which_of_its_images_are_evaluated() {
        let (train, val, test) = (("train", 8), ("val", 1), ("test", 3));
        let (no, share) = (None, Some("data.validation=0.25"));
        // Folders, share, and images for training and evaluation in training and at the end.
        for (parts, share, during, at_end) in [
            (&[train, val, test][..], no, ("val", 8, 1), ("test", 8, 3)),
            (&[train, val], no, ("val", 8, 1), ("val", 8, 1)),
            (&[train, test], no, ("test", 8, 3), ("test", 8, 3)),
            (&[train, test], share, ("val", 6, 2), ("test", 6, 3)),
            (&[train], share, ("val", 6, 2), ("val", 6, 2)),
        ] {
            let home = folder(parts);
            let dir = format!("data.dir={}", home.path().display());
            let sets = [
                Some("task.name=segmentation"),
                Some("data.name=mask-folder"),
                Some(&dir),
                Some("train.batch_size=2"),
                share,
            ];
            let sets: Vec<String> = sets.into_iter().flatten().map(str::to_owned).collect();
            let config = Loaded::load("shapes.toml", &sets).unwrap().config;
            let batching = Batching {
                global: 2,
                micro: 2,
                accumulate: 1,
            };
            let opened = |evaluated: EvalSet| {
                let opening = Opening {
                    evaluated,
                    ..Opening::to_train(&config, batching, (0, 1))
                };
                let pictures = Pictures::open(&opening).unwrap();
                let items = pictures.items();
                (pictures.evaluated().name(), items.train, items.eval)
            };
            assert_eq!(opened(config.data.evaluated()), during, "{parts:?}");
            assert_eq!(opened(config.data.evaluated_at_end()), at_end, "{parts:?}");
        }
    }

    #[test]
    fn images_for_validation_come_from_one_place() {
        let home = folder(&[("train", 4), ("val", 1)]);
        let sets = [
            "data.name=mask-folder".to_owned(),
            format!("data.dir={}", home.path().display()),
            "data.validation=0.25".to_owned(),
        ];
        let loaded = Loaded::load("shapes.toml", &sets).unwrap();
        let batching = loaded.batching(1).unwrap();
        let opening = Opening::to_train(&loaded.config, batching, (0, 1));
        let error = Pictures::open(&opening).err().unwrap().to_string();
        assert!(error.contains("also has a folder val"), "{error}");
    }
}

//! `trainer preview`: a picture of the first training batch, as the model sees it.

mod grid;
mod writing;

use std::io::Cursor;
use std::sync::Arc;

use datasets::{Batch, Dataset, Loader, Normalization};
use image::{ImageFormat, RgbImage};

use crate::config::{Batching, Loaded};
use crate::data;
use crate::data::division::Division;
use crate::data::input;
use crate::error::TrainError;
use crate::train::misfit;
use grid::Tile;
use writing::Writer;

/// Contents of a preview.
#[derive(Clone, Copy, Debug)]
pub struct PreviewOptions {
    /// Number of images, from 1 to a global batch.
    pub images: usize,
    /// Epoch of the batch, from 1.
    pub epoch: usize,
}

/// A drawn batch.
#[derive(Debug)]
pub struct Preview {
    /// The images with their class names.
    pub picture: RgbImage,
    /// Characters of class names that no font of this machine has; boxes stand for them.
    pub missing: String,
}

/// Error of a preview.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    /// No batch can be loaded. Training would fail alike.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The picture would be too large.
    #[error(
        "{images} images of {width}×{height} pixels make the picture too large. Show fewer with \
         --images"
    )]
    TooLarge {
        /// Number of images.
        images: usize,
        /// Width of each.
        width: usize,
        /// Height of each.
        height: usize,
    },
    /// The picture cannot be encoded as PNG.
    #[error("cannot encode the picture: {0}")]
    Encode(image::ImageError),
}

/// Draws the beginning of an epoch's first global batch, augmented and with class names.
///
/// The picture depends only on the configuration: a run sees these images whatever its world size.
///
/// # Errors
/// Fails if the data cannot be read or the picture gets too large.
pub fn draw(loaded: &Loaded, options: PreviewOptions) -> Result<Preview, PreviewError> {
    let (batch, dataset) =
        first_batch(loaded, options.epoch).map_err(|error| misfit::locate(loaded, error))?;
    let tiles = tiles(&batch, dataset.as_ref(), options.images);
    let mut writer = Writer::new();
    let picture = grid::draw(&tiles, &mut writer).ok_or(PreviewError::TooLarge {
        images: tiles.len(),
        width: batch.shape.width,
        height: batch.shape.height,
    })?;
    Ok(Preview {
        picture,
        missing: writer.missing(),
    })
}

/// The first global batch of an epoch, and its data set.
fn first_batch(loaded: &Loaded, epoch: usize) -> Result<(Batch, Arc<dyn Dataset>), TrainError> {
    let mut config = loaded.config.clone();
    if !config.task.is_usual() {
        return Err(TrainError::OnlyImages(config.task.kind.name()));
    }
    let global = loaded.batching(1)?.global;
    let whole = Batching {
        global,
        micro: global,
        accumulate: 1,
    };
    data::prepare(&config.data)?;
    config.data.read_only();
    let config = &config;
    let sets = input::sets(config, global)?;
    let sampler = input::train_sampler(config, whole, &sets, Division::of_ranks((0, 1)))?;
    let dataset = sets.train;
    let loader = Loader::new(dataset.clone())?.augment(input::augment(config), config.train.seed);
    let epoch = sampler.epoch(epoch.saturating_sub(1));
    let batch = loader.iter(epoch).next().transpose()?.unwrap_or_default();
    Ok((batch, dataset))
}

/// Encodes the picture as a PNG file.
///
/// # Errors
/// Fails if the encoder refuses.
pub fn png(picture: &RgbImage) -> Result<Vec<u8>, PreviewError> {
    let mut png = Cursor::new(Vec::new());
    picture
        .write_to(&mut png, ImageFormat::Png)
        .map_err(PreviewError::Encode)?;
    Ok(png.into_inner())
}

fn tiles(batch: &Batch, dataset: &dyn Dataset, images: usize) -> Vec<Tile> {
    let normalization = dataset.normalization();
    batch
        .images
        .chunks_exact(batch.shape.len().max(1))
        .take(images)
        .enumerate()
        .map(|(index, values)| Tile {
            image: picture(values, batch, &normalization),
            lines: caption(batch, index, dataset.class_names()),
        })
        .collect()
}

/// Turns normalized planes back into colors. One channel is drawn in gray; of more than three, the
/// first three are drawn.
fn picture(values: &[f32], batch: &Batch, by: &Normalization) -> RgbImage {
    let plane = batch.shape.height * batch.shape.width;
    let colours = |channel: usize| {
        let channel = channel.min(batch.shape.channels.saturating_sub(1));
        let mean = by.mean.get(channel).copied().unwrap_or_default();
        let std = by.std.get(channel).copied().unwrap_or(1.0);
        let values = values
            .chunks_exact(plane.max(1))
            .nth(channel)
            .unwrap_or_default();
        // The cast from float to integer saturates.
        let byte = move |value: &f32| ((value * std + mean) * 255.0).round() as u8;
        values.iter().map(byte)
    };
    let channels = match batch.shape.channels {
        1 | 2 => [0, 0, 0],
        _ => [0, 1, 2],
    };
    let [red, green, blue] = channels.map(colours);
    let mut image = RgbImage::new(batch.shape.width as u32, batch.shape.height as u32);
    for (pixel, ((r, g), b)) in image.pixels_mut().zip(red.zip(green).zip(blue)) {
        *pixel = image::Rgb([r, g, b]);
    }
    image
}

/// The class name, or both names with their weights.
fn caption(batch: &Batch, index: usize, names: &[String]) -> Vec<String> {
    let name = |labels: &[i32]| {
        labels
            .get(index)
            .and_then(|label| names.get(usize::try_from(*label).ok()?))
            .cloned()
            .unwrap_or_default()
    };
    let first = name(&batch.labels);
    let Some(mixed) = &batch.mixed else {
        return vec![first];
    };
    let weight = mixed.weights.get(index).copied().unwrap_or(1.0);
    if weight >= 1.0 {
        return vec![first, String::new()];
    }
    let share = |weight: f32| (100.0 * weight).round();
    vec![
        format!("{}% {first}", share(weight)),
        format!("{}% {}", share(1.0 - weight), name(&mixed.labels)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use datasets::{ImageShape, Mixed};

    fn batch() -> Batch {
        Batch {
            images: vec![-1.0, 1.0, 0.0, 0.5, -0.5, 9.0],
            labels: vec![0, 1],
            mixed: None,
            indices: vec![0, 1],
            shape: ImageShape {
                channels: 1,
                height: 1,
                width: 3,
            },
        }
    }

    #[test]
    fn values_become_the_bytes_they_came_from() {
        let by = Normalization {
            mean: vec![0.5],
            std: vec![0.5],
        };
        let image = picture(&batch().images[3..], &batch(), &by);
        let grey: Vec<u8> = image.pixels().map(|pixel| pixel.0[0]).collect();
        assert_eq!(grey, [191, 64, 255]);
        assert_eq!(image.dimensions(), (3, 1));
    }

    /// The center crop for evaluation is all green.
    #[test]
    fn random_parts_of_pictures_are_shown() {
        let folder = tempfile::tempdir().unwrap();
        let thirds = RgbImage::from_fn(60, 20, |x, _| {
            let mut colour = image::Rgb([0; 3]);
            colour.0[x as usize / 20] = 255;
            colour
        });
        for number in 0..24 {
            let class = folder.path().join(["a", "b"][number % 2]);
            std::fs::create_dir_all(&class).unwrap();
            thirds.save(class.join(format!("{number}.png"))).unwrap();
        }
        let colours = |augment: &str| -> Vec<image::Rgb<u8>> {
            let dir = folder.path();
            let text = format!(
                "[data]\nname = \"image-folder\"\ndir = {dir:?}\nsize = 8\nvalidation = 0.5\n\
                 augment = \"{augment}\"\n[model]\nname = \"cnn\"\n\
                 [optimizer]\nname = \"sgd\"\nlr = 0.1\n[train]\nbatch_size = 12\n"
            );
            let loaded = Loaded::parse("t.toml", "t", &text, &[]).unwrap();
            let options = PreviewOptions {
                images: 12,
                epoch: 1,
            };
            let Preview { picture, .. } = draw(&loaded, options).unwrap();
            picture.pixels().copied().collect()
        };
        let (red, blue) = (image::Rgb([255, 0, 0]), image::Rgb([0, 0, 255]));
        let shown = colours("resized-crop+flip");
        assert!(shown.contains(&red) && shown.contains(&blue));
        let shown = colours("flip");
        assert!(!shown.contains(&red) && !shown.contains(&blue));
    }

    #[test]
    fn mixed_images_are_named_with_their_weights() {
        let names = ["cat".to_owned(), "dog".to_owned()];
        let mut batch = batch();
        assert_eq!(caption(&batch, 1, &names), ["dog"]);
        batch.mixed = Some(Mixed {
            labels: vec![1, 1],
            weights: vec![0.3, 1.0],
        });
        assert_eq!(caption(&batch, 0, &names), ["30% cat", "70% dog"]);
        assert_eq!(caption(&batch, 1, &names), ["dog", ""]);
    }
}

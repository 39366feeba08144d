//! A folder of images and masks with the same names.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use burn_dist::files::open_file;
use datasets::DatasetError;
use image::imageops::{FilterType, resize};
use image::{GrayImage, ImageReader};
use png::{BitDepth, ColorType, Decoder, Transformations};

use super::IGNORED;
use super::pictures::Masked;
use crate::config::MaskFolderConfig;
use crate::error::TrainError;

/// Endings of image files.
const ENDINGS: [&str; 9] = [
    "png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff", "ppm", "pgm",
];
/// Maximum side of a mask in its file, in pixels.
const MOST: u32 = 1 << 15;

/// Images and masks of one split.
#[derive(Debug)]
pub(super) struct MaskFolder {
    /// Image and mask of each sample.
    files: Vec<[PathBuf; 2]>,
    side: usize,
    classes: usize,
}

impl MaskFolder {
    /// Finds the images and masks of `part`: `train`, `val` or `test`.
    ///
    /// # Errors
    /// Fails if a folder is missing or empty, or an image has no mask.
    pub fn open(folder: &Path, part: &str, config: &MaskFolderConfig) -> Result<Self, TrainError> {
        let part = folder.join(part);
        let (images, masks) = (part.join("images"), part.join("masks"));
        let mut files = Vec::new();
        for image in listed(&images)? {
            let name = image.file_stem().unwrap_or_default();
            let mask = masks.join(Path::new(name).with_extension("png"));
            if !mask.is_file() {
                let reason = format!("it has no mask {}", mask.display());
                return Err(unusable(&image, reason).into());
            }
            files.push([image, mask]);
        }
        if files.is_empty() {
            let reason = format!("{} contains no images", images.display());
            return Err(settings(reason).into());
        }
        Ok(Self {
            files,
            side: config.size,
            classes: config.classes,
        })
    }
}

impl Masked for MaskFolder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn shape(&self) -> [usize; 3] {
        [3, self.side, self.side]
    }

    fn read(&self, index: usize, image: &mut [u8], labels: &mut [u8]) -> Result<(), TrainError> {
        let len = self.len();
        let files = self
            .files
            .get(index)
            .ok_or(DatasetError::Index { index, len })?;
        let [picture, mask] = files;
        let side = self.side as u32;
        let rgb = contained::run(|| decoded(picture))
            .unwrap_or_else(|reason| Err(unusable(picture, reason)))?;
        let rgb = resize(&rgb, side, side, FilterType::Triangle);
        let plane = self.side * self.side;
        for (pixel, value) in rgb.pixels().enumerate() {
            for (channel, byte) in value.0.into_iter().enumerate() {
                if let Some(place) = image.get_mut(channel * plane + pixel) {
                    *place = byte;
                }
            }
        }
        let mask = self.labels(mask)?;
        labels.copy_from_slice(&mask);
        Ok(())
    }
}

impl MaskFolder {
    /// The labels of a mask, scaled without mixing.
    fn labels(&self, path: &Path) -> Result<Vec<u8>, DatasetError> {
        let mask = indices(path)?;
        let side = self.side as u32;
        let labels = resize(&mask, side, side, FilterType::Nearest).into_raw();
        let is_wrong = |label: &&u8| **label != IGNORED && usize::from(**label) >= self.classes;
        match labels.iter().find(is_wrong) {
            Some(label) => Err(unusable(
                path,
                format!(
                    "it has the label {label}, but there are {} classes (data.classes)",
                    self.classes
                ),
            )),
            None => Ok(labels),
        }
    }
}

/// The image files in a folder, in the order of their names.
fn listed(folder: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let io = |source| DatasetError::Io {
        action: "read",
        path: folder.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        let ending = ending.map(str::to_lowercase);
        if ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn unusable(path: &Path, reason: String) -> DatasetError {
    DatasetError::Image {
        path: path.to_owned(),
        reason,
    }
}

fn settings(reason: String) -> DatasetError {
    DatasetError::Settings {
        what: "data.dir",
        reason,
    }
}

/// Decodes an image in colour.
fn decoded(path: &Path) -> Result<image::RgbImage, DatasetError> {
    let fail = |reason: String| unusable(path, reason);
    let file = open_file(path).map_err(|error| fail(error.to_string()))?;
    let reader = ImageReader::new(BufReader::new(file)).with_guessed_format();
    let reader = reader.map_err(|error| fail(error.to_string()))?;
    let image = reader.decode().map_err(|error| fail(error.to_string()))?;
    Ok(image.to_rgb8())
}

/// Reads the labels of an indexed or grey PNG file as they are stored.
fn indices(path: &Path) -> Result<GrayImage, DatasetError> {
    let fail = |reason: String| unusable(path, reason);
    let file = open_file(path).map_err(|error| fail(error.to_string()))?;
    let mut decoder = Decoder::new(BufReader::new(file));
    // The palette is for people.
    decoder.set_transformations(Transformations::IDENTITY);
    let mut reader = decoder
        .read_info()
        .map_err(|error| fail(error.to_string()))?;
    let (color, depth) = reader.output_color_type();
    let (width, height) = reader.info().size();
    let is_indexed = matches!(color, ColorType::Indexed | ColorType::Grayscale);
    if !is_indexed || depth == BitDepth::Sixteen || width > MOST || height > MOST {
        return Err(fail(format!(
            "a mask must be an indexed or grey PNG file of at most 8 bits and {MOST} × {MOST} \
             pixels"
        )));
    }
    let size = reader.output_buffer_size().unwrap_or_default();
    let mut packed = vec![0; size];
    let frame = reader
        .next_frame(&mut packed)
        .map_err(|error| fail(error.to_string()))?;
    let bits = depth as usize;
    let mut labels = Vec::with_capacity(width as usize * height as usize);
    for row in packed.chunks(frame.line_size).take(height as usize) {
        labels.extend((0..width as usize).map(|column| {
            let bit = column * bits;
            let byte = row.get(bit / 8).copied().unwrap_or_default();
            byte >> (8 - bits - bit % 8) & (u8::MAX >> (8 - bits))
        }));
    }
    GrayImage::from_raw(width, height, labels).ok_or_else(|| fail("it is truncated".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{Rgb, RgbImage};

    /// Writes an indexed PNG file of 4 × 4 pixels.
    fn write_mask(path: &Path, labels: [u8; 16], depth: BitDepth) {
        let file = std::fs::File::create(path).unwrap();
        let mut encoder = png::Encoder::new(file, 4, 4);
        encoder.set_color(ColorType::Indexed);
        encoder.set_depth(depth);
        encoder.set_palette([9u8, 9, 9].repeat(256));
        let bits = depth as usize;
        let packed: Vec<u8> = labels
            .chunks(8 / bits)
            .map(|group| {
                group
                    .iter()
                    .fold(0, |byte, label| byte << (bits % 8) | label)
            })
            .collect();
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&packed).unwrap();
    }

    fn folder(labels: [u8; 16], depth: BitDepth) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for part in ["train", "val"] {
            for kind in ["images", "masks"] {
                std::fs::create_dir_all(folder.path().join(part).join(kind)).unwrap();
            }
            let picture = RgbImage::from_fn(8, 8, |x, _| Rgb([10 * x as u8, 7, 200]));
            picture
                .save(folder.path().join(part).join("images/a.png"))
                .unwrap();
            write_mask(&folder.path().join(part).join("masks/a.png"), labels, depth);
        }
        folder
    }

    fn config(classes: usize) -> MaskFolderConfig {
        MaskFolderConfig {
            size: 8,
            classes,
            ..MaskFolderConfig::default()
        }
    }

    #[test]
    fn masks_are_read_as_indices() {
        let labels = [0, 1, 2, 3, 3, 2, 1, 0, 0, 0, 1, 1, 2, 2, 3, 3];
        for depth in [BitDepth::Two, BitDepth::Eight] {
            let folder = folder(labels, depth);
            let set = MaskFolder::open(folder.path(), "val", &config(4)).unwrap();
            let (mut image, mut mask) = (vec![0; 192], vec![0; 64]);
            set.read(0, &mut image, &mut mask).unwrap();
            assert_eq!(mask[..8], [0, 0, 1, 1, 2, 2, 3, 3]);
            assert_eq!(mask[16..24], [3, 3, 2, 2, 1, 1, 0, 0]);
            assert_eq!((image[3], image[64], image[128]), (30, 7, 200));
            assert!(set.read(1, &mut image, &mut mask).is_err());
        }
    }

    #[test]
    fn labels_without_a_class_and_images_without_a_mask_are_named() {
        let mut labels = [0; 16];
        (labels[3], labels[4]) = (IGNORED, 2);
        let folder = folder(labels, BitDepth::Eight);
        let read = |classes| {
            let set = MaskFolder::open(folder.path(), "train", &config(classes)).unwrap();
            set.read(0, &mut [0; 192], &mut [0; 64])
        };
        read(3).unwrap();
        let error = read(2).unwrap_err().to_string();
        assert!(error.contains("the label 2"), "{error}");
        std::fs::remove_file(folder.path().join("train/masks/a.png")).unwrap();
        let open = || MaskFolder::open(folder.path(), "train", &config(2));
        let error = open().unwrap_err().to_string();
        assert!(error.contains("no mask"), "{error}");
        std::fs::remove_file(folder.path().join("train/images/a.png")).unwrap();
        assert!(open().unwrap_err().to_string().contains("no images"));
    }
}

//! Folders of image files with one folder per class, for the user's own images.
//!
//! Opening a folder [lists](scan) the files, [divides](split) them if a part is kept for
//! evaluation, and [reads their headers](inspect), so that unusable files are reported at once.
//! [Decoding](decode) happens when an image is read, in a loader's threads.

mod budget;
mod decode;
mod header;
mod inspect;
mod jpeg;
mod layout;
mod scan;
mod split;
mod unusable;

use std::path::{Path, PathBuf};

use crate::{Area, Dataset, DatasetError, ImageShape, Normalization, Split, check_read};
use decode::{Picture, Target};
use layout::Layout;
use scan::PassedOver;
use unusable::Unusable;

/// Largest side of images, for training and for reading.
const MAX_SIDE: usize = 1 << 14;

/// Options for opening a folder of images.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ImageFolderOptions {
    /// Height and width of all images in pixels, cropped around their centre.
    pub size: usize,
    /// Length of the shorter side before the crop; default `size`.
    ///
    /// ImageNet is usually evaluated with 256 and a `size` of 224.
    pub resize: Option<usize>,
    /// Conversion of colours.
    pub color: Color,
    /// Mean and standard deviation for normalization; default ImageNet's for RGB, 0.5 for grey.
    pub normalization: Option<Normalization>,
    /// Share of the training images to keep for validation, above 0 and below 1.
    ///
    /// They are then the images of [`Split::Test`]. A folder `test` is not touched.
    pub validation: Option<f64>,
    /// Whether [`Split::Test`] prefers the folder `test` to `val`. Default false.
    pub prefers_test: bool,
    /// Selects the images to keep.
    pub seed: u64,
    /// Checks when the folder is opened.
    pub check: Check,
}

impl ImageFolderOptions {
    /// Images of `size` x `size` pixels in the colours of the files; nothing kept for evaluation.
    pub fn new(size: usize) -> Self {
        ImageFolderOptions {
            size,
            resize: None,
            color: Color::AsStored,
            normalization: None,
            validation: None,
            prefers_test: false,
            seed: 0,
            check: Check::Headers,
        }
    }

    fn verify(&self) -> Result<(), DatasetError> {
        let refuse = |what, reason| Err(DatasetError::Settings { what, reason });
        if !(1..=MAX_SIDE).contains(&self.size) {
            let reason = format!("it is {}, but must be from 1 to {MAX_SIDE}", self.size);
            return refuse("image size", reason);
        }
        if let Some(resize) = self.resize
            && !(self.size..=MAX_SIDE).contains(&resize)
        {
            let reason = format!(
                "it is {resize}, but must be at least the image size, {}, and at most {MAX_SIDE}",
                self.size
            );
            return refuse("shorter side before the crop", reason);
        }
        if let Some(part) = self.validation
            && !(part > 0.0 && part < 1.0)
        {
            let reason = format!("it is {part}, but must be above 0 and below 1");
            return refuse("validation share", reason);
        }
        Ok(())
    }
}

/// Conversion of an image's colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Color {
    /// No conversion: either all files are grey or all are in colour.
    #[default]
    AsStored,
    /// Three channels; grey images get three equal ones.
    Rgb,
    /// One channel: 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601).
    Grey,
}

/// Checks when a folder is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Check {
    /// Checks the headers of all files, and that they are complete.
    ///
    /// BMP, TIFF and PNM files, which do not mark their end, are decoded for this.
    #[default]
    Headers,
    /// Also decodes all pixels; takes as long as an epoch.
    Pixels,
}

/// One split of a folder of images.
///
/// **Layout.** The images are in `ROOT/train/CLASS/` and `ROOT/val/CLASS/`, or in `ROOT/CLASS/`, at
/// any depth below the class folder. `valid` and `validation` are other names for `val`; if none of
/// them exists, `ROOT/test/CLASS/` is used. The classes are the folders' names in byte order.
///
/// **Ignored.** Names that start with a dot, and files beside the class folders, are ignored.
/// Folders made by systems and programs (`__MACOSX`, `lost+found`, `.ipynb_checkpoints`, `@eaDir`,
/// `$RECYCLE.BIN`, `System Volume Information`) are ignored with a warning. So are files in class
/// folders without an image's extension: `.jpg`, `.jpeg`, `.png`, `.webp`, `.bmp`, `.tif`, `.tiff`,
/// `.ppm`, `.pgm`, `.pbm` or `.pnm`, in upper or lower case. The content of a file decides its
/// format. GIF is not supported: convert these files.
///
/// **Size.** Images are scaled as for evaluation on ImageNet: the shorter side to
/// [`resize`](ImageFolderOptions::resize) pixels (bilinear, with a filter as wide as the reduction
/// needs), then the centre is cropped. If training takes random parts (`resized-crop` of
/// [`Augment`](crate::Augment)), each is a part of the whole picture in the file, scaled in one
/// step.
///
/// **Pixels.** 16 bits become 8, transparent images are laid over black, CMYK becomes RGB, and of
/// an animation or several pages the first picture is used. BMP files count as colour. Photographs
/// are turned upright (Exif orientation; torchvision does not, so consider this in comparisons).
///
/// **Limits.** All threads of the process decode within 512 MiB, and wait for each other if that is
/// not enough. A picture that needs more alone, or longer than a minute, is refused. So is a JPEG
/// that would be decoded wrongly: arithmetic or lossless coding, samples of more than 8 bits, luma
/// sampled coarser than chroma, baseline with a scan for each component.
#[derive(Debug)]
pub struct ImageFolder {
    /// Sorted by class, then by path.
    files: Vec<(PathBuf, u32)>,
    class_names: Vec<String>,
    target: Target,
    normalization: Normalization,
}

impl ImageFolder {
    /// Opens the images in `root` that belong to `split`.
    ///
    /// If a folder `train` exists, the images for [`Split::Test`] are those in `val`, `valid` or
    /// `validation`, else in `test`. With [`validation`](ImageFolderOptions::validation), they are
    /// that share of the training images. It depends only on the seed and the names of the files:
    /// the same share of every class with two or more images, at least one image and never all.
    ///
    /// # Errors
    /// - [`DatasetError::Images`] lists everything unusable: files with an image's extension that
    ///   are damaged or no images, broken links, class folders without an image.
    /// - [`DatasetError::MixedColor`] if grey and colour images are mixed and [`Color`] says
    ///   nothing else.
    /// - [`DatasetError::Layout`] and [`DatasetError::Classes`] if folders are missing or not as
    ///   described.
    /// - [`DatasetError::Settings`] if the options are invalid.
    pub fn open(
        root: impl AsRef<Path>,
        split: Split,
        options: &ImageFolderOptions,
    ) -> Result<Self, DatasetError> {
        options.verify()?;
        let layout = Layout::of(root.as_ref(), split, options)?;
        let (mut files, mut problems) = (Vec::new(), Vec::new());
        let mut passed = PassedOver {
            folders: layout.foreign,
            ..PassedOver::default()
        };
        for (class, name) in layout.classes.iter().enumerate() {
            let folder = layout.folder.join(name);
            let mut found = scan::files(&folder, " of this class", &mut problems, &mut passed);
            if let Some(part) = options.validation {
                found = split::part(found, &folder, part, options.seed, split);
            }
            files.extend(found.into_iter().map(|path| (path, class as u32)));
        }
        // If one folder has the images of both splits, only one of them warns.
        if options.validation.is_none() || split == Split::Train {
            warn_of(&passed, &layout.folder);
        }
        let inspected = inspect::inspect(&files, options.check);
        let usable = files.len() - inspected.problems.len();
        problems.extend(inspected.problems);
        if !problems.is_empty() {
            return Err(DatasetError::Images {
                root: layout.folder,
                usable,
                problems,
            });
        }
        if files.is_empty() {
            return Err(DatasetError::Layout {
                root: layout.folder,
                reason: "no image is left for this split; change data.validation".into(),
            });
        }
        let channels = channels(options.color, inspected.grey, inspected.rgb, &layout.folder)?;
        let target = Target {
            channels,
            size: options.size,
            resize: options.resize.unwrap_or(options.size),
        };
        Ok(ImageFolder {
            files,
            class_names: layout
                .classes
                .iter()
                .map(|name| name.to_string_lossy().into_owned())
                .collect(),
            target,
            normalization: options
                .normalization
                .clone()
                .unwrap_or_else(|| usual_normalization(channels)),
        })
    }

    /// Whether `root` has folders of validation and of test images with classes, beside `train`.
    pub fn evaluation_folders(root: impl AsRef<Path>) -> [bool; 2] {
        layout::evaluation_folders(root.as_ref())
    }

    /// Path of image `index`.
    pub fn path(&self, index: usize) -> Option<&Path> {
        self.files.get(index).map(|(path, _)| path.as_path())
    }
}

/// Warns that files are ignored, and why.
fn warn_of(passed: &PassedOver, folder: &Path) {
    if let Some(one) = passed.folders.first() {
        tracing::warn!(
            folder = %folder.display(),
            "skipped {} folders with names that systems and programs use, such as {}",
            passed.folders.len(),
            one.display(),
        );
    }
    let Some(one) = passed.files.first() else {
        return;
    };
    tracing::warn!(
        folder = %folder.display(),
        "skipped {} files, such as {}; image names end with one of {}",
        passed.files.len(),
        one.display(),
        scan::endings()
    );
}

/// Number of channels of the images; `grey` and `rgb` are examples of what the folder has.
fn channels(
    color: Color,
    grey: Option<&Path>,
    rgb: Option<&Path>,
    root: &Path,
) -> Result<usize, DatasetError> {
    match (color, grey, rgb) {
        (Color::Rgb, ..) => Ok(3),
        (Color::Grey, ..) => Ok(1),
        (Color::AsStored, Some(grey), Some(rgb)) => Err(DatasetError::MixedColor {
            root: root.to_owned(),
            grey: grey.to_owned(),
            rgb: rgb.to_owned(),
        }),
        (Color::AsStored, Some(_), None) => Ok(1),
        (Color::AsStored, None, _) => Ok(3),
    }
}

/// ImageNet's statistics for RGB; for grey, bytes are mapped to -1..=1.
fn usual_normalization(channels: usize) -> Normalization {
    match channels {
        3 => Normalization {
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229, 0.224, 0.225],
        },
        _ => Normalization {
            mean: vec![0.5; channels],
            std: vec![0.5; channels],
        },
    }
}

impl Dataset for ImageFolder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn shape(&self) -> ImageShape {
        ImageShape {
            channels: self.target.channels,
            height: self.target.size,
            width: self.target.size,
        }
    }

    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn normalization(&self) -> Normalization {
        self.normalization.clone()
    }

    fn label(&self, index: usize) -> Result<u32, DatasetError> {
        let len = self.files.len();
        let found = self.files.get(index).map(|(_, class)| *class);
        found.ok_or(DatasetError::Index { index, len })
    }

    /// Decodes the file; [`DatasetError::Image`] names it if that fails.
    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        let (picture, path, class) = self.picture(index, image)?;
        let written = picture.centre(self.target, image);
        written.map_err(unusable(path))?;
        Ok(class)
    }

    /// The part is one of the picture in the file, upright, and is scaled from its pixels.
    fn read_part(
        &self,
        index: usize,
        choose: &mut dyn FnMut(usize, usize) -> Area,
        image: &mut [u8],
    ) -> Result<u32, DatasetError> {
        let (picture, path, class) = self.picture(index, image)?;
        let (height, width) = (picture.height(), picture.width());
        let area = choose(height, width);
        DatasetError::check_area(area, height, width)?;
        let written = picture.part(area, self.target, image);
        written.map_err(unusable(path))?;
        Ok(class)
    }
}

impl ImageFolder {
    /// The picture in file `index`, its path and its class, if `image` has room for it.
    fn picture(&self, index: usize, image: &[u8]) -> Result<(Picture, &Path, u32), DatasetError> {
        check_read(index, self.len(), image, self.shape())?;
        let Some((path, class)) = self.files.get(index) else {
            let len = self.len();
            return Err(DatasetError::Index { index, len });
        };
        let picture = Picture::open(path).map_err(unusable(path))?;
        Ok((picture, path, *class))
    }
}

/// For `map_err` on a problem of a file.
fn unusable<R: Into<Unusable>>(path: &Path) -> impl FnOnce(R) -> DatasetError {
    |reason| match reason.into() {
        Unusable::Unsupported(what) => DatasetError::UnsupportedImage {
            path: path.to_owned(),
            what,
        },
        Unusable::Other(reason) => DatasetError::Image {
            path: path.to_owned(),
            reason,
        },
    }
}

/// Lists all visible images below `folder`, sorted by path, and the errors of others.
///
/// It finds the same files as an [`ImageFolder`] does for a class. Files without an image's
/// extension are ignored.
pub fn image_files(folder: &Path) -> (Vec<PathBuf>, Vec<DatasetError>) {
    let mut problems = Vec::new();
    let mut passed = PassedOver::default();
    let files = scan::files(folder, "", &mut problems, &mut passed);
    passed.files.clear();
    warn_of(&passed, folder);
    let unusable = |(path, reason): (PathBuf, String)| unusable(&path)(reason);
    (files, problems.into_iter().map(unusable).collect())
}

/// Decodes the image file `path` as an [`ImageFolder`] would, for images outside a data set.
///
/// The shorter side is scaled to `resize` pixels, at least that of `shape`, and the centre is
/// cropped, with the number of channels of `shape`.
///
/// # Errors
/// [`DatasetError::Image`] if the file cannot be decoded, [`DatasetError::Buffer`] if the length of
/// `image` is not that of `shape`, [`DatasetError::Settings`] if `shape` is not square or has
/// neither one nor three channels.
pub fn read_image(
    path: &Path,
    shape: ImageShape,
    resize: usize,
    image: &mut [u8],
) -> Result<(), DatasetError> {
    check_read(0, 1, image, shape)?;
    let sides = 1..=MAX_SIDE;
    if shape.height != shape.width
        || !matches!(shape.channels, 1 | 3)
        || !sides.contains(&shape.width)
    {
        return Err(DatasetError::Settings {
            what: "image size",
            reason: format!(
                "files cannot become images of {}×{}×{} (channels, height, width): only square \
                 images of 1 or 3 channels and at most {MAX_SIDE} pixels are possible",
                shape.channels, shape.height, shape.width
            ),
        });
    }
    let target = Target {
        channels: shape.channels,
        size: shape.width,
        resize: resize.clamp(shape.width, MAX_SIDE),
    };
    let picture = Picture::open(path).map_err(unusable(path))?;
    picture.centre(target, image).map_err(unusable(path))
}

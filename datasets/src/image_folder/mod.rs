//! Folders of image files, one folder per class: the usual way to bring own images.
//!
//! Opening [lists](scan) the files, [divides](split) them if a part is to be kept for evaluation,
//! and [reads their headers](inspect), so that what cannot be used is reported at once and not
//! hours later. [Decoding](decode) happens where an image is read: in a loader's threads.

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

/// Larger images than this are refused, to be trained on as well as to be read.
const MAX_SIDE: usize = 1 << 14;

/// How a folder of images becomes a data set.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ImageFolderOptions {
    /// Height and width to which all images are cut, around their centre, in pixels.
    pub size: usize,
    /// The shorter side to which they are scaled before that; `size` unless told. ImageNet is
    /// usually evaluated with 256 and a `size` of 224.
    pub resize: Option<usize>,
    /// What colours are converted to.
    pub color: Color,
    /// Mean and standard deviation to normalise by. Unless told, those of ImageNet for RGB, and
    /// 0.5 for grey.
    pub normalization: Option<Normalization>,
    /// The part of the images, above 0 and below 1, that is kept for evaluation where there is no
    /// folder of images for it.
    pub validation: Option<f64>,
    /// Chooses which images these are.
    pub seed: u64,
    /// What is verified when the folder is opened.
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

/// What the colours of images are converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Color {
    /// Nothing: either all files are grey or all are coloured, and stay so.
    #[default]
    AsStored,
    /// Three channels; grey images get three equal ones.
    Rgb,
    /// One channel: 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601).
    Grey,
}

/// What is verified when a folder is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Check {
    /// The headers of all files, and that they do not end too early. BMP, TIFF and PNM files, which
    /// do not tell where they end, are decoded for it.
    #[default]
    Headers,
    /// All pixels, too: takes as long as an epoch.
    Pixels,
}

/// One split of a folder of images.
///
/// The images are in `ROOT/train/CLASS/` and `ROOT/val/CLASS/` (`valid` and `validation` are other
/// names for `val`; where there is none of them, it is `ROOT/test/CLASS/`), or in `ROOT/CLASS/`, at
/// any depth below the class folder. The folders' names, in byte order, are the classes. Names that
/// start with a dot are left out, with a warning folders that systems and programs make
/// (`__MACOSX`, `lost+found`, `.ipynb_checkpoints`, `@eaDir`, `$RECYCLE.BIN`, `System Volume
/// Information`), and so are files beside the class folders, and, with a warning, files in them
/// whose names do not end as those of images do: with `.jpg`, `.jpeg`, `.png`, `.webp`, `.bmp`,
/// `.tif`, `.tiff`, `.ppm`, `.pgm`, `.pbm` or `.pnm`, in upper or lower case. The content of
/// a file decides its format. GIF is not supported: convert such files.
///
/// Every image is brought to one size as is usual for the evaluation on ImageNet: its shorter side
/// is scaled to [`resize`](ImageFolderOptions::resize) pixels (bilinear, with a filter as wide as
/// the reduction needs), then the centre is cut out. Where training takes random parts
/// (`resized-crop` of [`Augment`](crate::Augment)), each is one of the whole picture in the file,
/// and scaled in one step. What a file says about its pixels is obeyed: 16 bits become 8,
/// transparent images are laid over black, CMYK becomes RGB, the first picture of an animation or
/// of several pages is taken, BMP files are coloured, and photographs are turned upright (Exif
/// orientation; torchvision leaves them lying, so turn that into account when comparing).
///
/// All threads of the process decode within 512 MiB, and wait for each other where that is not
/// enough. A picture that takes more by itself is refused, and one whose decoding takes longer than
/// a minute. So is a JPEG that is not decoded rightly: arithmetic or lossless coding, samples of
/// more than 8 bits, luma sampled coarser than chroma, baseline with a scan for each component.
#[derive(Debug)]
pub struct ImageFolder {
    /// Sorted by class, then by path.
    files: Vec<(PathBuf, u32)>,
    class_names: Vec<String>,
    target: Target,
    normalization: Normalization,
}

impl ImageFolder {
    /// Opens the part of the images in `root` that belongs to `split`.
    ///
    /// Where there is a folder `train`, the images for [`Split::Test`] are those in `val`, `valid`
    /// or `validation`, or else in `test`; otherwise they are those that
    /// [`validation`](ImageFolderOptions::validation) keeps, which depend on the seed and the names
    /// of the files alone: of every class with two images or more the same part, but at least one,
    /// and never all.
    ///
    /// # Errors
    /// [`DatasetError::Images`] lists everything that cannot be used: files that are no images, but
    /// are called so, or are damaged, broken links, class folders without an image.
    /// [`DatasetError::MixedColor`] when grey and coloured images come together and [`Color`] does
    /// not say what they become; [`DatasetError::Layout`] and [`DatasetError::Classes`] when the
    /// folders are not there or not as described; [`DatasetError::Settings`] when the options make
    /// no sense.
    pub fn open(
        root: impl AsRef<Path>,
        split: Split,
        options: &ImageFolderOptions,
    ) -> Result<Self, DatasetError> {
        options.verify()?;
        let layout = Layout::of(root.as_ref(), split, options.validation.is_some())?;
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
        // Where one folder has the images of both splits, one of them tells.
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

    /// Where image `index` is.
    pub fn path(&self, index: usize) -> Option<&Path> {
        self.files.get(index).map(|(path, _)| path.as_path())
    }
}

/// Says that files are left out, and why.
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

/// How many channels the images get; `grey` and `rgb` are examples of what there is.
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

/// ImageNet's statistics for RGB; for grey, what maps bytes to -1..=1.
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

    /// Decodes the file; [`DatasetError::Image`] names it if it cannot be decoded.
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
    /// What file `index` shows, where that is and of which class, if `image` has room for it.
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

/// For `map_err` on what is wrong with a file.
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

/// All visible images below `folder`, however deep, sorted by path, as an [`ImageFolder`] finds
/// those of a class; and what is in the way of others. Files whose names do not end as those of
/// images are passed over.
pub fn image_files(folder: &Path) -> (Vec<PathBuf>, Vec<DatasetError>) {
    let mut problems = Vec::new();
    let mut passed = PassedOver::default();
    let files = scan::files(folder, "", &mut problems, &mut passed);
    passed.files.clear();
    warn_of(&passed, folder);
    let unusable = |(path, reason): (PathBuf, String)| unusable(&path)(reason);
    (files, problems.into_iter().map(unusable).collect())
}

/// Decodes the image file `path` as an [`ImageFolder`] would: the shorter side is scaled to
/// `resize` pixels, at least that of `shape`, and the centre is cut out, in as many colours as
/// `shape` has. For images that belong to no data set.
///
/// # Errors
/// [`DatasetError::Image`] if the file cannot be decoded, [`DatasetError::Buffer`] if `image` is
/// not as long as `shape` needs, [`DatasetError::Settings`] if images of such a shape do not exist
/// here: they are square, with one channel or three.
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

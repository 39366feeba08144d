//! Errors of data sets.

use std::io;
use std::path::{Path, PathBuf};

use loader::pipeline::Failure;

use crate::area::Area;

/// The reason why a data set, or a part of it, cannot be read.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// Files of a data set are missing.
    #[error(
        "{dataset} is incomplete in {}: missing {}. Put these files there (compressed or \
         unpacked{}), or set data.dir to the folder that contains them",
        dir.display(), files.join(", "), also_in(also)
    )]
    Missing {
        /// The data set.
        dataset: &'static str,
        /// The folder that was searched.
        dir: PathBuf,
        /// A sub-folder of it that was also searched.
        also: Option<&'static str>,
        /// The missing files.
        files: Vec<String>,
    },

    /// No mirror returned a file; no incomplete file has a final name.
    #[error(
        "cannot download {}: {}. If this machine is offline, download {} elsewhere and put the \
         files into {}, or set data.dir to the folder that contains them",
        files.first().map_or("", String::as_str), reasons.join("; "), files.join(", "), dir.display()
    )]
    Download {
        /// The target folder.
        dir: PathBuf,
        /// All missing files; the first is the one that failed.
        files: Vec<String>,
        /// The answer of each mirror.
        reasons: Vec<String>,
    },

    /// The system refused an operation on a file or folder.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// A file is malformed.
    #[error(
        "{} is damaged or not the expected file: {reason} (byte {offset} of the uncompressed \
         content). Replace it",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Offset in the uncompressed content.
        offset: u64,
        /// The found and the expected value.
        reason: String,
    },

    /// A file is truncated.
    #[error(
        "{} is truncated: its header announces {expected} bytes, but it ends after {found} \
         (uncompressed). Fetch it again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes according to the header, which is included.
        expected: u64,
        /// Bytes found.
        found: u64,
    },

    /// A file has bytes after its end.
    #[error(
        "{} is longer than the {expected} bytes that its header announces (uncompressed). Replace \
         it",
        path.display()
    )]
    Trailing {
        /// The file.
        path: PathBuf,
        /// Bytes according to the header, which is included.
        expected: u64,
    },

    /// The numbers of images and labels differ.
    #[error(
        "{} has {images} images, but {} has {labels} labels. Replace the pair with files of one set",
        images_path.display(), labels_path.display()
    )]
    Count {
        /// The file of images.
        images_path: PathBuf,
        /// Number of images.
        images: usize,
        /// The file of labels.
        labels_path: PathBuf,
        /// Number of labels.
        labels: usize,
    },

    /// A file with the right name belongs to another data set.
    #[error(
        "{} contains {found}, not {wanted}; their files have the same names. Keep {wanted} in \
         another folder, or in the subfolder {sub_folder}", path.display()
    )]
    Impostor {
        /// The file.
        path: PathBuf,
        /// The data set that it belongs to.
        found: &'static str,
        /// The requested data set.
        wanted: &'static str,
        /// Sub-folder where files of the requested set are looked for first.
        sub_folder: &'static str,
    },

    /// The size of a file is not a multiple of its records'.
    #[error(
        "{} has {len} bytes, {} records of {record_len} bytes and {} bytes more: it is truncated \
         or not the expected file. Fetch it again",
        path.display(), len.checked_div(*record_len).unwrap_or(0), len.checked_rem(*record_len).unwrap_or(0)
    )]
    Records {
        /// The file.
        path: PathBuf,
        /// Its length in bytes (uncompressed).
        len: u64,
        /// Bytes of one record.
        record_len: u64,
    },

    /// The number of class names is not the number of classes.
    #[error(
        "{} has {found} class names, but the data set has {expected} classes. Replace it",
        path.display()
    )]
    Names {
        /// The file.
        path: PathBuf,
        /// Number of names.
        found: usize,
        /// Number of classes.
        expected: usize,
    },

    /// An archive is truncated.
    #[error("{} is truncated: it ends {place}, after {found} bytes of uncompressed content. Fetch it again", path.display())]
    ArchiveTruncated {
        /// The archive.
        path: PathBuf,
        /// The place where it ends.
        place: String,
        /// Bytes of uncompressed content found.
        found: u64,
    },

    /// An archive is complete but lacks files.
    #[error(
        "{} does not contain {}, so it is another archive. Replace it",
        path.display(), files.join(", ")
    )]
    ArchiveLacks {
        /// The archive.
        path: PathBuf,
        /// The missing files.
        files: Vec<String>,
    },

    /// An unpacked file is damaged, perhaps already in the archive.
    #[error(
        "{}. It was unpacked from {}. Delete the folder {} to unpack it again; if that does not \
         help, replace the archive",
        without_advice(damage), archive.display(), folder.display()
    )]
    Unpacked {
        /// The damage: [`Malformed`](DatasetError::Malformed), [`Records`](DatasetError::Records)
        /// or [`Names`](DatasetError::Names).
        damage: Box<DatasetError>,
        /// The archive.
        archive: PathBuf,
        /// The cache folder with the unpacked files.
        folder: PathBuf,
    },

    /// An archive cannot be unpacked, because no folder is writable.
    #[error(
        "no folder to unpack {} into: {}. Set the cache folder to a writable one, or unpack it \
         yourself",
        path.display(), reasons.join("; ")
    )]
    NoCache {
        /// The archive.
        path: PathBuf,
        /// The folders that were tried, and the system's errors.
        reasons: Vec<String>,
    },

    /// An image file cannot be used.
    #[error("{} cannot be used: {reason}. Replace or remove it", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },

    /// The format of an image file is not supported. It need not be damaged.
    #[error("{} is not supported: {what}. Convert it, or remove it", path.display())]
    UnsupportedImage {
        /// The file.
        path: PathBuf,
        /// Its format.
        what: String,
    },

    /// Files and folders in a folder of images cannot be used.
    #[error("{}:{}", unusable(root, *usable, problems.len()), listed(problems))]
    Images {
        /// The folder.
        root: PathBuf,
        /// Number of usable files.
        usable: usize,
        /// Each problem, with its path.
        problems: Vec<(PathBuf, String)>,
    },

    /// Some images are grey and some are in colour.
    #[error(
        "the images in {} differ in color: {} is grey, {} is RGB. Set color to rgb or grey to \
         convert all", root.display(), grey.display(), rgb.display()
    )]
    MixedColor {
        /// The folder.
        root: PathBuf,
        /// A grey image.
        grey: PathBuf,
        /// An RGB image.
        rgb: PathBuf,
    },

    /// The layout of a folder of images is wrong.
    #[error("{}: {reason}", root.display())]
    Layout {
        /// The folder.
        root: PathBuf,
        /// The missing or contradictory part, and what to do.
        reason: String,
    },

    /// Two parts of a data set have different classes.
    #[error(
        "{} and {} must have the same class folders, but {}", train.display(), test.display(),
        different(train, only_train, test, only_test)
    )]
    Classes {
        /// The folder of training images.
        train: PathBuf,
        /// Classes only in the training images.
        only_train: Vec<String>,
        /// The folder of images for evaluation.
        test: PathBuf,
        /// Classes only in the evaluation images.
        only_test: Vec<String>,
    },

    /// Invalid settings of a data set.
    #[error("{what}: {reason}")]
    Settings {
        /// The setting.
        what: &'static str,
        /// The problem.
        reason: String,
    },

    /// An index is out of range.
    #[error(
        "image {index} does not exist: the data set has {len}. Create the sampler with the length \
         of this data set"
    )]
    Index {
        /// The index.
        index: usize,
        /// Number of images.
        len: usize,
    },

    /// A label has no class.
    #[error("image {index} has label {label}, but the data set has {classes} classes")]
    Label {
        /// Index of the image.
        index: usize,
        /// Its label.
        label: u32,
        /// Number of classes.
        classes: usize,
    },

    /// The buffer for an image has the wrong length.
    #[error("the image buffer has {given} bytes but needs {needed}")]
    Buffer {
        /// Its length.
        given: usize,
        /// Length of an image.
        needed: usize,
    },

    /// The chosen part lies outside the image.
    #[error(
        "{}×{} pixels from row {} and column {} are outside an image of {height}×{width} (height × \
         width). Choose a part of at least one pixel inside the image",
        area.height, area.width, area.top, area.left
    )]
    Area {
        /// The part.
        area: Area,
        /// Rows of the image.
        height: usize,
        /// Columns of the image.
        width: usize,
    },

    /// The normalization does not match the images.
    #[error("invalid normalization of the data set: {reason}")]
    Normalization {
        /// The reason.
        reason: String,
    },

    /// A batch does not fit into memory.
    #[error(
        "out of memory for a batch of {images} images ({bytes} bytes). Use smaller micro-batches"
    )]
    Memory {
        /// Images in the batch.
        images: usize,
        /// Bytes needed.
        bytes: usize,
    },

    /// A loader's thread did not start.
    #[error("cannot start a loader thread: {source}. Use fewer workers")]
    Spawn {
        /// The system's error.
        source: io::Error,
    },

    /// Code that reads or augments images panicked.
    #[error("panic while reading batch {position} of the epoch: {message}")]
    Panic {
        /// Number of the batch in the epoch, from 0.
        position: usize,
        /// The message of the panic.
        message: String,
    },
}

/// As `Display`, because `fn main() -> Result` prints it.
impl std::fmt::Debug for DatasetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl DatasetError {
    /// Refuses an area outside an image of this size.
    pub(crate) fn check_area(area: Area, height: usize, width: usize) -> Result<(), Self> {
        match area.fits(height, width) {
            true => Ok(()),
            false => Err(DatasetError::Area {
                area,
                height,
                width,
            }),
        }
    }

    /// For `map_err` on an operation with a path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| DatasetError::Io {
            action,
            path,
            source,
        }
    }
}

/// Number of problems listed; more would hide the message.
const LISTED: usize = 10;

fn unusable(root: &Path, usable: usize, problems: usize) -> String {
    let root = root.display();
    match (usable, problems) {
        (0, _) => format!("{root} contains no usable image"),
        (_, 1) => format!("one file or folder in {root} is unusable. Replace or remove it"),
        _ => format!("{problems} files and folders in {root} are unusable. Replace or remove them"),
    }
}

fn listed(problems: &[(PathBuf, String)]) -> String {
    let mut text: String = problems
        .iter()
        .take(LISTED)
        .map(|(path, reason)| format!("\n  {}: {reason}", path.display()))
        .collect();
    match problems.len().saturating_sub(LISTED) {
        0 => {}
        more => text.push_str(&format!("\n  and {more} more")),
    }
    text
}

/// The error's text without its advice, for a message with other advice.
fn without_advice(error: &DatasetError) -> String {
    let text = error.to_string();
    let advice = [". Replace it", ". Fetch it again"];
    let ends = advice.iter().find_map(|advice| text.strip_suffix(advice));
    ends.map(str::to_owned).unwrap_or(text)
}

fn different(train: &Path, only_train: &[String], test: &Path, only_test: &[String]) -> String {
    [(train, only_train), (test, only_test)]
        .iter()
        .filter(|(_, classes)| !classes.is_empty())
        .map(|(folder, classes)| {
            let shown = classes.iter().take(LISTED).cloned().collect::<Vec<_>>();
            let more = match classes.len().saturating_sub(LISTED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("only {} has {}{more}", folder.display(), shown.join(", "))
        })
        .collect::<Vec<_>>()
        .join(", ")
}

fn also_in(sub_folder: &Option<&'static str>) -> String {
    sub_folder.map_or(String::new(), |name| format!(", here or in {name}"))
}

impl From<Failure> for DatasetError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Spawn(source) => DatasetError::Spawn { source },
            Failure::Panic { position, message } => DatasetError::Panic { position, message },
        }
    }
}

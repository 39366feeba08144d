//! What can go wrong with data, said so that the reader knows what to do next.

use std::io;
use std::path::{Path, PathBuf};

use crate::area::Area;

/// Why a data set, or a part of it, cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// Files of a data set are not where they were looked for.
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
        /// A sub-folder of it that was searched as well, if any.
        also: Option<&'static str>,
        /// What was not found.
        files: Vec<String>,
    },

    /// No mirror gave a file; nothing was left under its final name.
    #[error(
        "cannot download {}: {}. If this machine is offline, download {} elsewhere and put the \
         files into {}, or set data.dir to the folder that contains them",
        files.first().map_or("", String::as_str), reasons.join("; "), files.join(", "), dir.display()
    )]
    Download {
        /// The folder the files were to be written to.
        dir: PathBuf,
        /// Every file that is still missing; the first is the one that failed.
        files: Vec<String>,
        /// What each mirror answered.
        reasons: Vec<String>,
    },

    /// The operating system refused an operation on a file or folder.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A file is not what its name says.
    #[error(
        "{} is damaged or not the expected file: {reason} (byte {offset} of the uncompressed \
         content). Replace it",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where, counted in the uncompressed content.
        offset: u64,
        /// What was found and what was expected.
        reason: String,
    },

    /// A file ends too early.
    #[error(
        "{} is truncated: its header announces {expected} bytes, but it ends after {found} \
         (uncompressed). Fetch it again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes the header promises, itself included.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },

    /// A file goes on after its end.
    #[error(
        "{} is longer than the {expected} bytes that its header announces (uncompressed). Replace \
         it",
        path.display()
    )]
    Trailing {
        /// The file.
        path: PathBuf,
        /// Bytes the header promises, itself included.
        expected: u64,
    },

    /// Images and labels do not belong together.
    #[error(
        "{} has {images} images, but {} has {labels} labels. Replace the pair with files of one set",
        images_path.display(), labels_path.display()
    )]
    Count {
        /// The file of images.
        images_path: PathBuf,
        /// How many it has.
        images: usize,
        /// The file of labels.
        labels_path: PathBuf,
        /// How many it has.
        labels: usize,
    },

    /// A file of the right name belongs to another data set.
    #[error(
        "{} contains {found}, not {wanted}; their files have the same names. Keep {wanted} in \
         another folder, or in the subfolder {sub_folder}", path.display()
    )]
    Impostor {
        /// The file.
        path: PathBuf,
        /// The set it belongs to.
        found: &'static str,
        /// The set that was asked for.
        wanted: &'static str,
        /// Where files of that set are looked for first.
        sub_folder: &'static str,
    },

    /// A file of fixed-size records whose size does not fit.
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

    /// A list of class names has another length than there are classes.
    #[error(
        "{} has {found} class names, but the data set has {expected} classes. Replace it",
        path.display()
    )]
    Names {
        /// The file.
        path: PathBuf,
        /// How many names it has.
        found: usize,
        /// How many classes there are.
        expected: usize,
    },

    /// An archive ends too early.
    #[error("{} is truncated: it ends {place}, after {found} bytes of uncompressed content. Fetch it again", path.display())]
    ArchiveTruncated {
        /// The archive.
        path: PathBuf,
        /// Where it ends.
        place: String,
        /// Bytes of uncompressed content that are there.
        found: u64,
    },

    /// An archive is whole, but something is not in it.
    #[error(
        "{} does not contain {}, so it is another archive. Replace it",
        path.display(), files.join(", ")
    )]
    ArchiveLacks {
        /// The archive.
        path: PathBuf,
        /// What it should contain.
        files: Vec<String>,
    },

    /// What was unpacked from an archive is damaged, or was so in the archive.
    #[error(
        "{}. It was unpacked from {}. Delete the folder {} to unpack it again; if that does not \
         help, replace the archive",
        without_advice(damage), archive.display(), folder.display()
    )]
    Unpacked {
        /// What is wrong with which file: [`Malformed`](DatasetError::Malformed),
        /// [`Records`](DatasetError::Records) or [`Names`](DatasetError::Names).
        damage: Box<DatasetError>,
        /// The archive.
        archive: PathBuf,
        /// The folder in the cache that holds what was unpacked.
        folder: PathBuf,
    },

    /// No folder can be written to where an archive could be unpacked.
    #[error(
        "no folder to unpack {} into: {}. Set the cache folder to a writable one, or unpack it \
         yourself",
        path.display(), reasons.join("; ")
    )]
    NoCache {
        /// The archive.
        path: PathBuf,
        /// The folders that were tried, and what the system said.
        reasons: Vec<String>,
    },

    /// An image file cannot be used.
    #[error("{} cannot be used: {reason}. Replace or remove it", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },

    /// An image file of a kind that is not read. It need not be damaged.
    #[error("{} is not supported: {what}. Convert it, or remove it", path.display())]
    UnsupportedImage {
        /// The file.
        path: PathBuf,
        /// Its kind.
        what: String,
    },

    /// Files and folders below a folder of images that cannot be used.
    #[error("{}:{}", unusable(root, *usable, problems.len()), listed(problems))]
    Images {
        /// The folder.
        root: PathBuf,
        /// Files that can be used.
        usable: usize,
        /// Each one, and what is wrong with it.
        problems: Vec<(PathBuf, String)>,
    },

    /// Some images are grey and some coloured.
    #[error(
        "the images in {} differ in color: {} is grey, {} is RGB. Set color to rgb or grey to \
         convert all", root.display(), grey.display(), rgb.display()
    )]
    MixedColor {
        /// The folder.
        root: PathBuf,
        /// One with one channel.
        grey: PathBuf,
        /// One with three.
        rgb: PathBuf,
    },

    /// A folder is not laid out as one of images.
    #[error("{}: {reason}", root.display())]
    Layout {
        /// The folder.
        root: PathBuf,
        /// What is missing or contradictory, and what to do.
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
        /// Classes that only it has.
        only_train: Vec<String>,
        /// The folder of images for evaluation.
        test: PathBuf,
        /// Classes that only it has.
        only_test: Vec<String>,
    },

    /// A data set was asked for with settings that make no sense.
    #[error("{what}: {reason}")]
    Settings {
        /// Which setting.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },

    /// An index that the data set does not have.
    #[error(
        "image {index} does not exist: the data set has {len}. Create the sampler with the length \
         of this data set"
    )]
    Index {
        /// The index.
        index: usize,
        /// The number of images.
        len: usize,
    },

    /// A label that has no class.
    #[error("image {index} has label {label}, but the data set has {classes} classes")]
    Label {
        /// The image.
        index: usize,
        /// Its label.
        label: u32,
        /// The number of classes.
        classes: usize,
    },

    /// The buffer for an image has the wrong length.
    #[error("the image buffer has {given} bytes but needs {needed}")]
    Buffer {
        /// Its length.
        given: usize,
        /// The length of an image.
        needed: usize,
    },

    /// A part was chosen that the image does not have.
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

    /// A data set's normalisation does not fit its images.
    #[error("invalid normalization of the data set: {reason}")]
    Normalization {
        /// Why.
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

    /// A loader's thread could not be started.
    #[error("cannot start a loader thread: {source}. Use fewer workers")]
    Spawn {
        /// What the system said.
        source: io::Error,
    },

    /// The code that reads or augments images panicked.
    #[error("panic while reading batch {position} of the epoch: {message}")]
    Panic {
        /// Number of the batch within the epoch's iterator, from 0.
        position: usize,
        /// The panic's message.
        message: String,
    },
}

impl DatasetError {
    /// Refuses an area that is no part of an image of this size.
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

/// More problems than these would hide the message itself.
const LISTED: usize = 10;

fn unusable(root: &Path, usable: usize, problems: usize) -> String {
    let root = root.display();
    match usable {
        0 => format!("{root} contains no usable image"),
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

/// What happened, for a message that says something else about what to do.
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

/// Why samples cannot be divided as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// A size that must not be zero is zero.
    #[error("{what} is 0; it must be at least 1")]
    Zero {
        /// Which size.
        what: &'static str,
    },

    /// The rank does not exist.
    #[error("rank {rank} does not exist in a world of {size} (ranks count from 0)")]
    Rank {
        /// The rank.
        rank: usize,
        /// The world size.
        size: usize,
    },

    /// The global batch does not divide into micro-batches on all ranks.
    #[error(
        "a global batch of {global_batch} does not divide into micro-batches of {micro_batch} on \
         {size} ranks. Use a multiple of {}, such as {}",
        micro_batch.saturating_mul(*size), nearest_multiple(*global_batch, micro_batch.saturating_mul(*size))
    )]
    Divide {
        /// The global batch.
        global_batch: usize,
        /// The micro-batch.
        micro_batch: usize,
        /// The world size.
        size: usize,
    },

    /// Not even one global batch can be filled.
    #[error(
        "the data set has {len} samples, fewer than one global batch of {global_batch}. Use a \
         smaller batch"
    )]
    TooFew {
        /// Samples in the data set.
        len: usize,
        /// The global batch.
        global_batch: usize,
    },
}

fn nearest_multiple(value: usize, of: usize) -> usize {
    let down = value.checked_div(of).unwrap_or(0).max(1);
    of.saturating_mul(down)
}

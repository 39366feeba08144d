//! MNIST: 28x28 grey images of handwritten digits (LeCun, Cortes, Burges).

use std::path::{Path, PathBuf};

use crate::download::{Downloader, RemoteFile};
use crate::{Dataset, DatasetError, ImageShape, Normalization, Split, check_read, idx};

const SHAPE: ImageShape = ImageShape {
    channels: 1,
    height: 28,
    width: 28,
};
const CLASSES: u8 = 10;
/// Where torchvision keeps the files below the folder it is given.
const SUB_FOLDER: &str = "MNIST/raw";

const TRAIN_IMAGES: RemoteFile = RemoteFile {
    name: "train-images-idx3-ubyte.gz",
    sha256: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    content_len: 47_040_016,
};
const TRAIN_LABELS: RemoteFile = RemoteFile {
    name: "train-labels-idx1-ubyte.gz",
    sha256: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    content_len: 60_008,
};
const TEST_IMAGES: RemoteFile = RemoteFile {
    name: "t10k-images-idx3-ubyte.gz",
    sha256: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    content_len: 7_840_016,
};
const TEST_LABELS: RemoteFile = RemoteFile {
    name: "t10k-labels-idx1-ubyte.gz",
    sha256: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    content_len: 10_008,
};

/// One split of MNIST, held in memory as bytes.
#[derive(Debug)]
pub struct Mnist {
    images: Vec<u8>,
    labels: Vec<u8>,
    class_names: Vec<String>,
}

impl Mnist {
    /// The files of both splits, as their publishers name them.
    pub const FILES: [RemoteFile; 4] = [TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS];

    /// Where the files can be downloaded from, in the order in which they are tried.
    pub const MIRRORS: [&str; 2] = [
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ];

    /// Reads one split from IDX files, gzip-compressed or plain, in `dir` or in its sub-folder
    /// `MNIST/raw` (as torchvision lays them).
    ///
    /// # Errors
    /// [`DatasetError::Missing`] names every file of MNIST that is not there; other variants say
    /// in which way a file is damaged, or that images and labels do not belong together.
    pub fn open(dir: impl AsRef<Path>, split: Split) -> Result<Self, DatasetError> {
        let dir = dir.as_ref();
        let (images, labels) = match split {
            Split::Train => (TRAIN_IMAGES, TRAIN_LABELS),
            Split::Test => (TEST_IMAGES, TEST_LABELS),
        };
        match (find(dir, &images), find(dir, &labels)) {
            (Some(images), Some(labels)) => Self::from_files(&images, &labels),
            _ => Err(DatasetError::Missing {
                dataset: "MNIST",
                dir: dir.to_owned(),
                also: Some(SUB_FOLDER),
                files: names(&Self::missing(dir)),
            }),
        }
    }

    /// The files of both splits that `dir` and its sub-folder `MNIST/raw` lack.
    pub fn missing(dir: impl AsRef<Path>) -> Vec<RemoteFile> {
        let dir = dir.as_ref();
        let lacks = |file: &RemoteFile| find(dir, file).is_none();
        Self::FILES.into_iter().filter(lacks).collect()
    }

    /// Downloads from [`Mnist::MIRRORS`] into `dir` what is [missing](Mnist::missing) there.
    ///
    /// Only one process of a node should call this, and the others wait for it.
    ///
    /// # Errors
    /// [`DatasetError::Download`] when no mirror gives a file, [`DatasetError::Io`] when it cannot
    /// be written.
    pub fn download(dir: impl AsRef<Path>) -> Result<(), DatasetError> {
        Self::download_with(&Downloader::new(Self::MIRRORS), dir)
    }

    /// As [`Mnist::download`], with other mirrors or time-outs.
    ///
    /// # Errors
    /// As [`Mnist::download`].
    pub fn download_with(
        downloader: &Downloader,
        dir: impl AsRef<Path>,
    ) -> Result<(), DatasetError> {
        downloader.fetch(&Self::missing(&dir), dir.as_ref())
    }

    fn from_files(images_path: &Path, labels_path: &Path) -> Result<Self, DatasetError> {
        let images = idx::read_file::<3>(images_path)?;
        let labels = idx::read_file::<1>(labels_path)?;
        let [count, height, width] = images.dimensions;
        if (height, width) != (SHAPE.height, SHAPE.width) {
            return Err(DatasetError::Malformed {
                path: images_path.to_owned(),
                offset: 8,
                reason: format!("its images are {height}x{width}, MNIST has 28x28"),
            });
        }
        if labels.dimensions != [count] {
            return Err(DatasetError::Count {
                images_path: images_path.to_owned(),
                images: count,
                labels_path: labels_path.to_owned(),
                labels: labels.bytes.len(),
            });
        }
        if let Some(index) = labels.bytes.iter().position(|&label| label >= CLASSES) {
            let label = labels.bytes.get(index).copied().unwrap_or_default();
            return Err(DatasetError::Malformed {
                path: labels_path.to_owned(),
                offset: 8 + index as u64,
                reason: format!("label {label} of image {index} is not a digit"),
            });
        }
        Ok(Mnist {
            images: images.bytes,
            labels: labels.bytes,
            class_names: (0..CLASSES).map(|digit| digit.to_string()).collect(),
        })
    }
}

impl Dataset for Mnist {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn shape(&self) -> ImageShape {
        SHAPE
    }

    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// Statistics of the training images.
    fn normalization(&self) -> Normalization {
        Normalization {
            mean: vec![0.1307],
            std: vec![0.3081],
        }
    }

    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        check_read(index, self.len(), image, SHAPE)?;
        match (
            self.images.chunks_exact(SHAPE.len()).nth(index),
            self.labels.get(index),
        ) {
            (Some(pixels), Some(&label)) => {
                image.copy_from_slice(pixels);
                Ok(u32::from(label))
            }
            _ => Err(DatasetError::Index {
                index,
                len: self.len(),
            }),
        }
    }
}

/// Where `file` is, plain or compressed.
fn find(dir: &Path, file: &RemoteFile) -> Option<PathBuf> {
    let plain = file.name.strip_suffix(".gz").unwrap_or(file.name);
    [dir.to_owned(), dir.join(SUB_FOLDER)]
        .iter()
        .flat_map(|folder| [folder.join(plain), folder.join(file.name)])
        .find(|path| path.is_file())
}

fn names(files: &[RemoteFile]) -> Vec<String> {
    files.iter().map(|file| file.name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(dir: &Path, images: u32, pixels: &[u8], labels: &[u8]) {
        let mut content = vec![0, 0, 8, 3];
        [images, 28, 28]
            .iter()
            .for_each(|size| content.extend(size.to_be_bytes()));
        content.extend(pixels);
        fs::write(dir.join("t10k-images-idx3-ubyte"), content).unwrap();
        let mut content = vec![0, 0, 8, 1];
        content.extend((labels.len() as u32).to_be_bytes());
        content.extend(labels);
        fs::write(dir.join("t10k-labels-idx1-ubyte"), content).unwrap();
    }

    #[test]
    fn reads_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let raw = dir.path().join(SUB_FOLDER);
        fs::create_dir_all(&raw).unwrap();
        let pixels: Vec<u8> = (0..2 * 784).map(|i| (i % 251) as u8).collect();
        write(&raw, 2, &pixels, &[7, 9]);
        let set = Mnist::open(dir.path(), Split::Test).unwrap();
        let mut image = [0; 784];
        assert_eq!(set.len(), 2);
        assert_eq!(set.read(1, &mut image).unwrap(), 9);
        assert_eq!(image, pixels[784..]);
        let index = set.read(2, &mut image).unwrap_err();
        assert!(matches!(index, DatasetError::Index { index: 2, len: 2 }));
        let buffer = set.read(0, &mut image[1..]).unwrap_err();
        assert!(matches!(buffer, DatasetError::Buffer { given: 783, .. }));
    }

    #[test]
    fn a_missing_set_is_listed_whole() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, &[], &[]);
        let error = Mnist::open(dir.path(), Split::Train).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, DatasetError::Missing { .. }));
        assert!(message.contains("train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz"));
        assert!(message.contains("MNIST/raw") && message.contains("data.dir"));
        assert!(!message.contains("t10k"), "{message}");
    }

    #[test]
    fn pairs_that_do_not_match_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 1, &[0; 784], &[1, 2]);
        let error = Mnist::open(dir.path(), Split::Test).unwrap_err();
        assert!(matches!(
            error,
            DatasetError::Count {
                images: 1,
                labels: 2,
                ..
            }
        ));

        write(dir.path(), 2, &[0; 2 * 784], &[1, 10]);
        let error = Mnist::open(dir.path(), Split::Test).unwrap_err();
        assert!(matches!(error, DatasetError::Malformed { offset: 9, .. }));
        assert!(error.to_string().contains("label 10 of image 1"), "{error}");
    }

    #[test]
    fn other_image_sizes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, &[], &[]);
        let mut content = vec![0, 0, 8, 3];
        [1u32, 2, 2]
            .iter()
            .for_each(|size| content.extend(size.to_be_bytes()));
        content.extend([0; 4]);
        fs::write(dir.path().join("t10k-images-idx3-ubyte"), content).unwrap();
        let error = Mnist::open(dir.path(), Split::Test).unwrap_err();
        assert!(error.to_string().contains("2x2"), "{error}");
    }
}

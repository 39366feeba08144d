//! Common part of MNIST and the sets that imitate it: four IDX files, 28x28 grey images, ten
//! classes.
//!
//! They share even the file names, so a folder may hold another set than the requested one. Each
//! set's own sub-folder comes first, and labels that begin like those of another set are refused.

use std::path::{Path, PathBuf};

use crate::download::{Form, RemoteFile};
use crate::{Dataset, DatasetError, ImageShape, Normalization, Split, check_read, idx, label_in};

const SHAPE: ImageShape = ImageShape {
    channels: 1,
    height: 28,
    width: 28,
};
const CLASSES: usize = 10;

/// The first labels of each set, of its training and its test images. They tell the sets apart.
const FIRST_LABELS: [(&str, [[u8; 10]; 2]); 2] = [
    (
        "MNIST",
        [
            [5, 0, 4, 1, 9, 2, 1, 3, 1, 4],
            [7, 2, 1, 0, 4, 1, 4, 9, 5, 9],
        ],
    ),
    (
        "Fashion-MNIST",
        [
            [9, 0, 0, 3, 0, 2, 7, 2, 5, 5],
            [9, 2, 1, 1, 6, 1, 4, 6, 5, 7],
        ],
    ),
];

/// Properties of one set.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) name: &'static str,
    /// Sub-folder in which torchvision keeps the files.
    pub(crate) sub_folder: &'static str,
    /// Form, SHA-256 and length of the [files](Self::files), in their order.
    pub(crate) form: Form,
    pub(crate) sha256: [&'static str; 4],
    pub(crate) lens: [u64; 4],
    pub(crate) mirrors: [&'static str; 2],
    pub(crate) class_names: [&'static str; CLASSES],
    pub(crate) mean: f32,
    pub(crate) std: f32,
}

impl Published {
    /// Images and labels for training, images and labels for testing.
    pub(crate) const fn files(&self) -> [RemoteFile; 4] {
        [
            self.file("train-images-idx3-ubyte.gz", 0),
            self.file("train-labels-idx1-ubyte.gz", 1),
            self.file("t10k-images-idx3-ubyte.gz", 2),
            self.file("t10k-labels-idx1-ubyte.gz", 3),
        ]
    }

    const fn file(&self, name: &'static str, index: usize) -> RemoteFile {
        RemoteFile {
            name,
            form: self.form,
            sha256: self.sha256[index],
            len: self.lens[index],
        }
    }

    /// The files that `dir` lacks for both splits.
    pub(crate) fn missing(&self, dir: &Path) -> Vec<RemoteFile> {
        [Split::Train, Split::Test]
            .into_iter()
            .filter(|&split| self.find(dir, split).is_none())
            .flat_map(|split| self.files_of(split))
            .filter(|file| stored_as(dir, file).is_none())
            .collect()
    }

    /// Images and labels of a split.
    fn files_of(&self, split: Split) -> [RemoteFile; 2] {
        let [train_images, train_labels, test_images, test_labels] = self.files();
        match split {
            Split::Train => [train_images, train_labels],
            Split::Test => [test_images, test_labels],
        }
    }

    /// Paths of a split's images and labels, in one folder so that they match.
    fn find(&self, dir: &Path, split: Split) -> Option<[PathBuf; 2]> {
        let [images, labels] = self.files_of(split);
        [dir.join(self.sub_folder), dir.to_owned()]
            .iter()
            .find_map(|folder| Some([stored_as(folder, &images)?, stored_as(folder, &labels)?]))
    }

    /// Refuses the labels of another set.
    fn check_beginning(&self, labels: &[u8], path: &Path) -> Result<(), DatasetError> {
        let begin = |first: &[[u8; 10]; 2]| first.iter().any(|first| labels.starts_with(first));
        let mut sets = FIRST_LABELS.iter();
        match sets.find(|(name, first)| *name != self.name && begin(first)) {
            None => Ok(()),
            Some((other, _)) => Err(DatasetError::Impostor {
                path: path.to_owned(),
                found: other,
                wanted: self.name,
                sub_folder: self.sub_folder,
            }),
        }
    }
}

/// One split, held in memory as bytes.
#[derive(Debug)]
pub(crate) struct IdxSet {
    published: &'static Published,
    images: Vec<u8>,
    labels: Vec<u8>,
    class_names: Vec<String>,
}

impl IdxSet {
    pub(crate) fn open(
        published: &'static Published,
        dir: &Path,
        split: Split,
    ) -> Result<Self, DatasetError> {
        match published.find(dir, split) {
            Some([images, labels]) => Self::from_files(published, &images, &labels),
            None => Err(DatasetError::Missing {
                dataset: published.name,
                dir: dir.to_owned(),
                also: Some(published.sub_folder),
                files: names(&published.missing(dir)),
            }),
        }
    }

    fn from_files(
        published: &'static Published,
        images_path: &Path,
        labels_path: &Path,
    ) -> Result<Self, DatasetError> {
        let images = idx::read_file::<3>(images_path)?;
        let labels = idx::read_file::<1>(labels_path)?;
        let [count, height, width] = images.dimensions;
        if (height, width) != (SHAPE.height, SHAPE.width) {
            return Err(DatasetError::Malformed {
                path: images_path.to_owned(),
                offset: 8,
                reason: format!(
                    "its images are {height}x{width}, but those of {} are 28x28",
                    published.name
                ),
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
        let unknown = |&label: &u8| usize::from(label) >= CLASSES;
        if let Some(index) = labels.bytes.iter().position(unknown) {
            let label = labels.bytes.get(index).copied().unwrap_or_default();
            return Err(DatasetError::Malformed {
                path: labels_path.to_owned(),
                offset: 8 + index as u64,
                reason: format!("label {label} of image {index} is outside 0 to 9"),
            });
        }
        published.check_beginning(&labels.bytes, labels_path)?;
        Ok(IdxSet {
            published,
            images: images.bytes,
            labels: labels.bytes,
            class_names: published.class_names.map(str::to_owned).into(),
        })
    }
}

impl Dataset for IdxSet {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn shape(&self) -> ImageShape {
        SHAPE
    }

    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn normalization(&self) -> Normalization {
        Normalization {
            mean: vec![self.published.mean],
            std: vec![self.published.std],
        }
    }

    fn label(&self, index: usize) -> Result<u32, DatasetError> {
        label_in(&self.labels, index)
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

/// Path of the file in `folder`, plain or compressed.
fn stored_as(folder: &Path, file: &RemoteFile) -> Option<PathBuf> {
    let plain = file.name.strip_suffix(".gz").unwrap_or(file.name);
    [folder.join(plain), folder.join(file.name)]
        .into_iter()
        .find(|path| path.is_file())
}

fn names(files: &[RemoteFile]) -> Vec<String> {
    files.iter().map(|file| file.name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FashionMnist, Mnist};
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
        let raw = dir.path().join("MNIST/raw");
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

    /// Labels that begin like those of the published test set.
    fn write_beginning_of(published: &Published, dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        let (_, first) = FIRST_LABELS
            .iter()
            .find(|(name, _)| *name == published.name)
            .unwrap();
        write(dir, 10, &[7; 7840], &first[1]);
    }

    #[test]
    fn sets_with_the_same_file_names_live_side_by_side() {
        let dir = tempfile::tempdir().unwrap();
        let (mnist, fashion) = (&crate::mnist::PUBLISHED, &crate::fashion_mnist::PUBLISHED);
        write_beginning_of(mnist, &dir.path().join("MNIST/raw"));
        let error = FashionMnist::open(dir.path(), Split::Test).unwrap_err();
        assert!(matches!(error, DatasetError::Missing { .. }), "{error}");

        write_beginning_of(fashion, &dir.path().join("FashionMNIST/raw"));
        let mut image = [0; 784];
        let set = FashionMnist::open(dir.path(), Split::Test).unwrap();
        assert_eq!(set.read(0, &mut image).unwrap(), 9);
        assert_eq!(set.class_names()[9], "Ankle boot");
        let set = Mnist::open(dir.path(), Split::Test).unwrap();
        assert_eq!(set.read(0, &mut image).unwrap(), 7);

        // Files beside the sub-folder do not hide it.
        write_beginning_of(fashion, dir.path());
        let set = Mnist::open(dir.path(), Split::Test).unwrap();
        assert_eq!(set.read(0, &mut image).unwrap(), 7);
    }

    #[test]
    fn a_set_is_not_taken_for_another_one() {
        let dir = tempfile::tempdir().unwrap();
        write_beginning_of(&crate::mnist::PUBLISHED, dir.path());
        Mnist::open(dir.path(), Split::Test).unwrap();
        let error = FashionMnist::open(dir.path(), Split::Test).unwrap_err();
        assert!(matches!(error, DatasetError::Impostor { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("contains MNIST, not Fashion-MNIST"),
            "{error}"
        );

        write_beginning_of(&crate::fashion_mnist::PUBLISHED, dir.path());
        let error = Mnist::open(dir.path(), Split::Test).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("contains Fashion-MNIST, not MNIST"),
            "{error}"
        );
    }
}

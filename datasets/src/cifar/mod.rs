//! CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 32x32 colour photographs, in the publisher's binary
//! layout (<https://www.cs.toronto.edu/~kriz/cifar.html>).
//!
//! A file is a row of records: one or two label bytes, then the red, green and blue planes. Its
//! size gives the number of records, so shortened sets can be read too. Labels are held in memory;
//! pixels stay in the mapped files.

mod cifar10;
mod cifar100;
mod locate;
mod names;
mod records;

pub use cifar10::Cifar10;
pub use cifar100::{Cifar100, Cifar100Labels};

use std::path::Path;

use crate::download::RemoteFile;
use crate::unpack::Member;
use crate::{Dataset, DatasetError, ImageShape, Normalization, Split, check_read, label_in};
use locate::{Place, Unpack};
use records::Records;

const SHAPE: ImageShape = ImageShape {
    channels: 3,
    height: 32,
    width: 32,
};
const PIXELS: usize = 3 * 32 * 32;

/// URLs for both archives.
const MIRRORS: [&str; 1] = ["https://www.cs.toronto.edu/~kriz/"];
/// Largest file; CIFAR's largest has 153,700,000 bytes.
const MAX_RECORDS: u64 = 256 << 20;
/// Largest list of names; CIFAR's largest has less than a kilobyte.
const MAX_NAMES: u64 = 1 << 16;

/// Properties of one set.
#[derive(Debug)]
struct Published {
    name: &'static str,
    archive: RemoteFile,
    /// The folder of the files in the archive.
    folder: &'static str,
    train: &'static [&'static str],
    test: &'static [&'static str],
    /// The lists of names.
    lists: &'static [&'static str],
    /// The label bytes at the start of each record.
    labels: &'static [Label],
    mean: [f32; 3],
    std: [f32; 3],
}

/// A byte of a record with a class.
#[derive(Debug)]
struct Label {
    name: &'static str,
    classes: u8,
}

impl Published {
    fn record_len(&self) -> usize {
        self.labels.len() + PIXELS
    }

    /// All files in the archive.
    fn members(&self) -> Vec<Member> {
        let member = |max_len| move |&name| Member { name, max_len };
        let records = self.train.iter().chain(self.test);
        let records = records.map(member(MAX_RECORDS));
        let lists = self.lists.iter().map(member(MAX_NAMES));
        records.chain(lists).collect()
    }

    fn files_of(&self, split: Split) -> &'static [&'static str] {
        match split {
            Split::Train => self.train,
            Split::Test => self.test,
        }
    }
}

/// One split of one of the sets.
#[derive(Debug)]
struct Cifar {
    published: &'static Published,
    /// One per file.
    parts: Vec<Records>,
    /// Labels of all parts, one after the other.
    labels: Vec<u8>,
    class_names: Vec<String>,
}

impl Cifar {
    /// Labels are byte `label` of each record; `list` has the names of their classes.
    fn open(
        published: &'static Published,
        (dir, how): (&Path, Unpack<'_>),
        split: Split,
        label: (usize, &'static str),
    ) -> Result<Self, DatasetError> {
        let mut place = locate::locate(published, dir, split, how)?;
        let opened = Self::from_place(published, &mut place, split, label);
        opened.map_err(|error| place.explain(error))
    }

    fn from_place(
        published: &'static Published,
        place: &mut Place,
        split: Split,
        (label, list): (usize, &'static str),
    ) -> Result<Self, DatasetError> {
        let classes = published.labels.get(label).map_or(0, |label| label.classes);
        let class_names = names::read(place, list, usize::from(classes))?;
        let mut parts = Vec::new();
        let mut labels = Vec::new();
        for file in published.files_of(split) {
            let records = Records::open(published, place, file)?;
            labels.extend(records.labels(label));
            parts.push(records);
        }
        Ok(Cifar {
            published,
            parts,
            labels,
            class_names,
        })
    }

    fn pixels(&self, index: usize) -> Option<&[u8]> {
        let mut index = index;
        for part in &self.parts {
            if index < part.len() {
                return part.pixels(index);
            }
            index -= part.len();
        }
        None
    }
}

impl Dataset for Cifar {
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
            mean: self.published.mean.into(),
            std: self.published.std.into(),
        }
    }

    fn label(&self, index: usize) -> Result<u32, DatasetError> {
        label_in(&self.labels, index)
    }

    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        check_read(index, self.len(), image, SHAPE)?;
        match (self.pixels(index), self.labels.get(index)) {
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

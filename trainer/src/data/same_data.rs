//! Checks that all ranks have the same data.
//!
//! Nodes have their own copies. If one lacks a file or names a class differently, its ranks would
//! silently draw other samples and learn wrong labels.

use burn_dist::ProcessGroup;
use datasets::Dataset;
use serde::{Deserialize, Serialize};

use crate::data::class_names::checksum;
use crate::error::TrainError;

/// Properties of a data set that must be equal on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Facts {
    images: usize,
    shape: [usize; 3],
    classes: usize,
    /// Checksum of the class names in their order.
    names: u32,
}

impl Facts {
    fn of(data: &dyn Dataset) -> Self {
        let (shape, names) = (data.shape(), data.class_names());
        Self {
            images: data.len(),
            shape: [shape.channels, shape.height, shape.width],
            classes: names.len(),
            names: checksum(names),
        }
    }

    /// The first difference, as this value and the other's.
    fn difference(&self, other: &Self) -> Option<[String; 2]> {
        let said = |facts: &Self| {
            let [channels, height, width] = facts.shape;
            [
                format!("{} classes", facts.classes),
                format!("classes with the name checksum {:08x}", facts.names),
                format!("{} images", facts.images),
                format!("images of {channels} × {height} × {width}"),
            ]
        };
        let mut pairs = said(self).into_iter().zip(said(other));
        pairs.find(|(own, other)| own != other).map(Into::into)
    }
}

/// Compares the data of all ranks: numbers of images, and classes. A collective call.
///
/// # Errors
/// [`TrainError::DataDiffers`] on all ranks, if they differ.
pub(crate) fn check(sets: &[&dyn Dataset], group: &ProcessGroup) -> Result<(), TrainError> {
    let own: Vec<Facts> = sets.iter().map(|data| Facts::of(*data)).collect();
    let message = serde_json::to_vec(&own).unwrap_or_default();
    let all = group.gather_bytes(&message)?;
    let read =
        |bytes: &Vec<u8>| -> Vec<Facts> { serde_json::from_slice(bytes).unwrap_or_default() };
    let all: Vec<Vec<Facts>> = all.iter().map(read).collect();
    let Some(first) = all.first() else {
        return Ok(());
    };
    let differing = all.iter().enumerate().find_map(|(rank, other)| {
        let mut pairs = first.iter().zip(other);
        let difference = pairs.find_map(|(first, other)| first.difference(other));
        difference.map(|values| (rank, values))
    });
    match differing {
        None => Ok(()),
        Some((rank, [ours, theirs])) => Err(TrainError::DataDiffers { rank, ours, theirs }),
    }
}

#[cfg(test)]
mod tests {
    use datasets::{Digits, Split};

    use super::*;

    #[test]
    fn the_rank_that_has_other_data_is_named_on_all() {
        let test = Digits::new(Split::Test, 10, 1);
        let facts = |images| Facts::of(&Digits::new(Split::Train, images, 1));
        assert_eq!(facts(20).difference(&facts(20)), None);
        let [ours, theirs] = facts(20).difference(&facts(19)).unwrap();
        assert_eq!([ours.as_str(), theirs.as_str()], ["20 images", "19 images"]);
        let renamed = Facts {
            names: 0,
            ..facts(20)
        };
        let [_, theirs] = facts(20).difference(&renamed).unwrap();
        assert!(theirs.contains("00000000"), "{theirs}");
        check(&[&test], &ProcessGroup::single()).unwrap();
    }
}

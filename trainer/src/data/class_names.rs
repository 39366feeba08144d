//! Class names in a checkpoint: they detect data whose classes differ from the model's.
//!
//! With other names, or the same in another order, a model would silently learn and predict wrong
//! classes.

use serde::{Deserialize, Serialize};

/// Maximum bytes of names in a checkpoint. Longer lists are covered by the checksum.
const MAX_BYTES: usize = 1 << 16;

/// The names of classes, in the order of their labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassNames {
    /// Number of classes.
    count: usize,
    /// Checksum of all names, see [`checksum`].
    checksum: u32,
    /// The first names, as many as fit.
    first: Vec<String>,
}

impl ClassNames {
    /// Takes the names of a data set.
    pub fn of(names: &[String]) -> Self {
        let mut bytes = 0;
        let fits = |name: &&String| {
            bytes += name.len();
            bytes <= MAX_BYTES
        };
        Self {
            count: names.len(),
            checksum: checksum(names),
            first: names.iter().take_while(fits).cloned().collect(),
        }
    }

    /// The first difference between these names, of a checkpoint, and those of the data.
    pub fn difference(&self, data: &Self) -> Option<String> {
        if self == data {
            return None;
        }
        let mut pairs = self.first.iter().zip(&data.first).enumerate();
        let renamed = pairs.find(|(_, (own, other))| own != other);
        Some(match renamed {
            Some((label, (own, other))) => {
                format!("class {label} was `{own}` in training and is `{other}` in the data")
            }
            None if self.count != data.count => format!(
                "training had {} classes, the data has {}",
                self.count, data.count
            ),
            None => format!(
                "a class after the first {} has another name in the data than in training",
                self.first.len()
            ),
        })
    }
}

/// CRC-32C of the names in their order.
pub(crate) fn checksum(names: &[String]) -> u32 {
    // A zero separates names: folder names cannot contain one.
    let add = |checksum, name: &String| {
        crc32c::crc32c_append(crc32c::crc32c_append(checksum, name.as_bytes()), &[0])
    };
    names.iter().fold(0, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn difference(own: &[String], data: &[String]) -> Option<String> {
        ClassNames::of(own).difference(&ClassNames::of(data))
    }

    #[test]
    fn the_first_class_that_differs_is_named() {
        let own = names(&["ant", "cat", "dog"]);
        assert_eq!(difference(&own, &own), None);
        let swapped = difference(&own, &names(&["ant", "dog", "cat"])).unwrap();
        assert_eq!(
            swapped,
            "class 1 was `cat` in training and is `dog` in the data"
        );
        let more = difference(&own, &names(&["ant", "cat", "dog", "eel"])).unwrap();
        assert!(
            more.contains("3 classes") && more.contains("has 4"),
            "{more}"
        );
        let joined = difference(&names(&["a", "b"]), &names(&["ab", ""])).unwrap();
        assert!(joined.contains("`ab`"), "{joined}");
    }

    #[test]
    fn many_classes_need_little_room_and_are_told_apart() {
        let own: Vec<String> = (0..40_000).map(|class| format!("{class:09}")).collect();
        let kept = ClassNames::of(&own);
        assert!(kept.first.len() < 8_000, "{}", kept.first.len());
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(serde_json::from_str::<ClassNames>(&text).unwrap(), kept);
        let mut other = own.clone();
        other[30_000] = "another".to_owned();
        let late = difference(&own, &other).unwrap();
        assert!(late.contains("after the first 7281"), "{late}");
        assert_eq!(difference(&own, &own.clone()), None);
    }
}

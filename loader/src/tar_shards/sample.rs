//! A sample of a tar shard.

use super::TarError;

/// A sample of a tar shard: the files whose names differ only after the first dot.
///
/// The files `photos/0007.jpg` and `photos/0007.seg.png` are the sample with key `photos/0007` and
/// the extensions `jpg` and `seg.png`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TarSample {
    pub(super) key: String,
    pub(super) files: Vec<(String, Vec<u8>)>,
}

impl TarSample {
    /// The common part of the names: folder, and name up to the first dot.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Extensions in lower case and contents of all files, in the order of the shard.
    pub fn files(&self) -> &[(String, Vec<u8>)] {
        &self.files
    }

    /// The content of the file with this extension.
    ///
    /// # Errors
    /// [`TarError::Lacks`] if the sample has no such file.
    pub fn get(&self, extension: &str) -> Result<&[u8], TarError> {
        let mut files = self.files.iter();
        let found = files.find(|(other, _)| other == extension);
        found
            .map(|(_, content)| content.as_slice())
            .ok_or_else(|| TarError::Lacks {
                key: self.key.clone(),
                extension: extension.to_owned(),
                found: self.files.iter().map(|(other, _)| other.clone()).collect(),
            })
    }
}

/// Key and extension of a file; `None` if it belongs to no sample, as with WebDataset.
pub(super) fn key_and_extension(name: &str) -> Option<(&str, &str)> {
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base + name.get(base..)?.find('.')?;
    let (key, extension) = (name.get(..dot)?, name.get(dot + 1..)?);
    (dot > base).then_some((key, extension))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_dot_of_the_file_ends_the_key() {
        for (name, expected) in [
            ("7.jpg", Some(("7", "jpg"))),
            ("a.b/7.seg.png", Some(("a.b/7", "seg.png"))),
            ("a/7.", Some(("a/7", ""))),
            ("a.b/7", None),
            ("README", None),
            ("a/.hidden.jpg", None),
            ("", None),
        ] {
            assert_eq!(key_and_extension(name), expected, "{name}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let sample = TarSample {
            key: "a/7".into(),
            files: vec![("jpg".into(), vec![1]), ("cls".into(), vec![2])],
        };
        assert_eq!(sample.get("cls").unwrap(), [2]);
        let error = sample.get("png").unwrap_err().to_string();
        assert_eq!(error, "sample a/7 has no file .png, only .jpg, .cls");
    }
}

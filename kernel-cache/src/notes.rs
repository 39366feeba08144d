//! Short texts beside the kernels, for example which kernel is the fastest.

use std::path::PathBuf;

/// Short texts in the folder of [`keep`](crate::keep), for all processes that see it. They are
/// written and verified as kernels are.
#[derive(Clone, Debug)]
pub struct Notes {
    #[cfg_attr(not(stand_in), allow(dead_code))]
    folder: PathBuf,
}

impl Notes {
    /// The notes of a folder that [`keep`](crate::keep) has returned.
    pub fn of(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The text that an earlier call or process has written for `key`. `None` if there is none, or
    /// if the file cannot be read, is damaged, or may be another user's.
    #[cfg(stand_in)]
    pub fn read(&self, key: &str) -> Option<String> {
        let note = crate::kept::note(&self.folder, &digest(key))?;
        String::from_utf8(note).ok()
    }

    /// Writes `text` for `key`, in place of an earlier one. If that is impossible, the first
    /// call warns.
    #[cfg(stand_in)]
    pub fn write(&self, key: &str, text: &str) {
        crate::kept::put_note(&self.folder, &digest(key), text.as_bytes());
    }

    /// Nothing is kept in this build.
    #[cfg(not(stand_in))]
    pub fn read(&self, _: &str) -> Option<String> {
        None
    }

    /// Nothing is kept in this build.
    #[cfg(not(stand_in))]
    pub fn write(&self, _: &str, _: &str) {}
}

#[cfg(stand_in)]
fn digest(key: &str) -> blake3::Hash {
    blake3::hash(key.as_bytes())
}

#[cfg(all(test, stand_in))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_note_is_read_as_written_last() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::of(folder.path().join("kept"));
        assert_eq!(notes.read("one"), None);
        notes.write("one", "1");
        notes.write("other", "a longer text");
        notes.write("other", "2");
        let again = Notes::of(folder.path().join("kept"));
        assert_eq!(again.read("one").as_deref(), Some("1"));
        assert_eq!(again.read("other").as_deref(), Some("2"));
        assert_eq!(again.read("third"), None);
    }

    #[test]
    fn a_damaged_note_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::of(folder.path().to_owned());
        notes.write("one", "1");
        let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap();
        let file = file.unwrap().path();
        let mut content = std::fs::read(&file).unwrap();
        *content.last_mut().unwrap() = b'2';
        std::fs::write(&file, content).unwrap();
        assert_eq!(notes.read("one"), None);
    }

    #[test]
    fn a_folder_that_others_can_write_has_no_notes() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::of(folder.path().to_owned());
        notes.write("one", "1");
        let shared = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), shared).unwrap();
        assert_eq!(notes.read("one"), None);
        notes.write("one", "2");
        let own = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(folder.path(), own).unwrap();
        assert_eq!(notes.read("one").as_deref(), Some("1"));
    }
}

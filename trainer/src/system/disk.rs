//! Free disk space.

use std::path::Path;

/// Bytes that a file in this folder may take. The folder need not exist yet. `None` if the system
/// does not tell.
pub(crate) fn free(folder: &Path) -> Option<u64> {
    let absolute = std::path::absolute(folder).ok()?;
    let existing = absolute.ancestors().find(|path| path.exists())?;
    let space = rustix::fs::statvfs(existing).ok()?;
    space.f_bavail.checked_mul(space.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_still_missing_has_the_space_of_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let within = free(&folder.path().join("a/b")).unwrap();
        assert!(within > 0 && free(folder.path()).is_some());
        assert_eq!(free(Path::new("/proc/none")), Some(0));
    }
}

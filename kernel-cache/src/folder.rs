//! The folder of compiled kernels. A GPU runs its contents, so only this user or root may have
//! written them.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, unlinkat};
use rustix::io::Errno;

/// Only this user enters the folder.
const FOLDER_MODE: u32 = 0o700;
/// Only this user reads and writes a file.
const FILE_MODE: u32 = 0o600;
/// Group or others may write.
const SHARED: u32 = 0o022;

/// Opens the folder at `path`, and creates it if necessary.
///
/// # Errors
/// Returns the system's error; [`io::ErrorKind::PermissionDenied`] if others may have put something
/// into it.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    match existing(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(FOLDER_MODE).create(path)?;
            existing(path)
        }
        opened => opened,
    }
}

/// Opens the folder at `path`; errors as [`open`].
pub(crate) fn existing(path: &Path) -> io::Result<OwnedFd> {
    // With a trailing slash a link would be followed.
    let path: PathBuf = path.components().collect();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder =
        openat(CWD, &path, flags, Mode::empty()).map_err(
            |error| match std::fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_symlink() => {
                    refused("it is a symbolic link; use the folder it points to")
                }
                _ => error.into(),
            },
        )?;
    match strangers(&fstat(&folder)?) {
        None => Ok(folder),
        Some(reason) => Err(refused(&format!(
            "{reason}, and the GPU executes its files; use a folder of your own"
        ))),
    }
}

/// Opens the file `name` in `folder` for reading and writing, or read-only if the system allows no
/// more. Creates it if necessary, and recreates it if others may have written it.
pub(crate) fn file(folder: &OwnedFd, name: &str) -> io::Result<File> {
    match own_file(folder, name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            unlinkat(folder, name, AtFlags::empty()).map_err(|_| error)?;
            own_file(folder, name)
        }
        opened => opened,
    }
}

/// Opens a file of the folder for reading, if it exists.
pub(crate) fn existing_file(folder: &OwnedFd, name: &str) -> io::Result<File> {
    own(openat(folder, name, SAFE, Mode::empty()))
}

/// Opening a pipe would block.
const SAFE: OFlags = OFlags::NOFOLLOW
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

fn own_file(folder: &OwnedFd, name: &str) -> io::Result<File> {
    let mode = Mode::from_raw_mode(FILE_MODE);
    own(
        openat(folder, name, SAFE | OFlags::RDWR | OFlags::CREATE, mode)
            .or_else(|error| openat(folder, name, SAFE, Mode::empty()).map_err(|_| error)),
    )
}

/// Refuses a file that another user may have written.
fn own(opened: Result<OwnedFd, Errno>) -> io::Result<File> {
    let file = match opened {
        Ok(file) => file,
        Err(Errno::LOOP) => return Err(refused("it is a symbolic link")),
        Err(error) => return Err(error.into()),
    };
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused("it is not a regular file"));
    }
    match strangers(&stat) {
        None => Ok(file.into()),
        Some(reason) => Err(refused(&reason)),
    }
}

/// Others who may have written a file or a folder.
fn strangers(stat: &Stat) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    if ![own, 0].contains(&stat.st_uid) {
        return Some(format!("it belongs to another user ({})", stat.st_uid));
    }
    let mode = stat.st_mode & 0o7777;
    (mode & SHARED != 0).then(|| format!("others can write to it (mode {mode:04o})"))
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn allow(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn refusal<T>(opened: io::Result<T>) -> String {
        let error = opened.err().expect("it was opened");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        error.to_string()
    }

    #[test]
    fn a_new_folder_and_its_files_are_the_users_own() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/kept");
        let folder = open(&path).unwrap();
        file(&folder, "one").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("one")), 0o600);
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        let place = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o1777, 0o775, 0o722] {
            allow(place.path(), mode);
            let said = refusal(open(place.path()));
            assert!(said.contains(&format!("(mode {mode:04o})")), "{said}");
        }
        allow(place.path(), 0o755);
        open(place.path()).unwrap();
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        // Only root can give a folder away; elsewhere root's own is an example.
        if !rustix::process::geteuid().is_root() {
            open(Path::new("/usr")).unwrap();
            return;
        }
        let place = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(place.path(), Some(12345), None).unwrap();
        let said = refusal(open(place.path()));
        assert!(said.contains("another user (12345)"), "{said}");
    }

    #[test]
    fn a_folder_that_is_a_link_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let (real, link) = (place.path().join("real"), place.path().join("link"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        for path in [link.clone(), link.join("")] {
            let said = refusal(open(&path));
            assert!(said.contains("symbolic link"), "{said}");
        }
        assert_eq!(fs::read_dir(&real).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_others_may_have_written_is_made_anew() {
        let place = tempfile::tempdir().unwrap();
        let (victim, planted) = (place.path().join("victim"), place.path().join("a.ptx"));
        fs::write(&victim, "mine").unwrap();
        let folder = open(place.path()).unwrap();
        let len = || {
            let file = file(&folder, "a.ptx").unwrap();
            file.metadata().unwrap().len()
        };
        fs::write(&planted, "stranger's").unwrap();
        assert_eq!(len(), 10);
        allow(&planted, 0o666);
        assert_eq!(len(), 0);
        fs::remove_file(&planted).unwrap();
        symlink(&victim, &planted).unwrap();
        assert_eq!(len(), 0);
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
    }
}

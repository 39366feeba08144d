//! Output files of commands: checks first that they can be written, then writes them atomically.
//!
//! The check comes before the work, which may take hours.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::failure::Failure;
use super::json_lines::is_stdout;
use crate::error::TrainError;
use crate::system::whole_file::{self, folder_of};

/// Way of writing a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By [`write`]: overwrites the target, which may also be a pipe or a device.
    InPlace,
    /// A complete new file replaces the target.
    Replaced,
}

/// Checks that a file can be written at `path`, given by `option`, without a change.
///
/// # Errors
/// A usage error with the reason.
pub fn check(option: &str, path: &Path, way: Way) -> Result<(), Failure> {
    attempt(path, way).map_err(|reason| {
        Failure::Usage(format!(
            "cannot write {}: {reason}. Choose another file with {option}",
            path.display()
        ))
    })
}

fn attempt(path: &Path, way: Way) -> Result<(), String> {
    if is_stdout(path) {
        return Err("this output goes only to a file (./- if it has that name)".to_owned());
    }
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            return Err("it is a folder".to_owned());
        }
        Ok(found) if !found.is_file() => {
            return match way {
                // Opening a pipe may block until a reader opens it.
                Way::InPlace => Ok(()),
                Way::Replaced => Err("it is not a file that can be replaced".to_owned()),
            };
        }
        Ok(_) if way == Way::InPlace => {
            let opened = File::options().append(true).open(path);
            return opened.map(drop).map_err(|error| error.to_string());
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.to_string()),
    }
    let folder = folder_of(path);
    if !folder.is_dir() {
        let folder = folder.display();
        return Err(format!("the folder {folder} does not exist"));
    }
    // This file has no name, or loses it at once.
    let tried = tempfile::tempfile_in(folder);
    tried.map(drop).map_err(|error| error.to_string())
}

/// Checks that the name at `path`, given by `option`, has this `ending` or none.
///
/// # Errors
/// A usage error with the reason.
pub fn check_ending(option: &str, path: &Path, ending: &str) -> Result<(), Failure> {
    match path.extension() {
        Some(other) if !other.eq_ignore_ascii_case(ending) => Err(Failure::Usage(format!(
            "cannot write {}: the name must end with .{ending}. Choose another name with {option}",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Writes an output that passed [`check`].
///
/// A file is replaced once the new one is complete; after a failure, as on a full disk, the old one
/// stays.
///
/// # Errors
/// Fails if the system refuses.
pub fn write(path: &Path, content: &[u8]) -> Result<(), TrainError> {
    replace(path, content).map_err(|error| TrainError::Output {
        path: path.to_owned(),
        error,
    })
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    // Keeps a symbolic link and replaces its target.
    let target = fs::canonicalize(path);
    let path = target.as_deref().unwrap_or(path);
    let mode = match fs::metadata(path) {
        Ok(found) if !found.is_file() => return fs::write(path, content),
        Ok(found) => Some(found.permissions().mode()),
        Err(_) => None,
    };
    match whole_file::replace(path, content, mode) {
        // The file is writable, but its folder is not.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && mode.is_some() => {
            fs::write(path, content)
        }
        replaced => replaced,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("folder")).unwrap();
        fs::write(path("file"), "content").unwrap();
        let check = |path: &Path, way| super::check("--out", path, way);
        let _socket = UnixListener::bind(path("socket")).unwrap();
        for way in [Way::InPlace, Way::Replaced] {
            check(&path("new"), way).unwrap();
            check(&path("file"), way).unwrap();
            check(Path::new("here"), way).unwrap();
            for (name, part) in [
                ("folder", "it is a folder"),
                ("none/new", "does not exist"),
                ("file/new", "Not a directory"),
            ] {
                let error = check(&path(name), way).unwrap_err();
                assert_eq!(error.exit_code(), crate::USAGE);
                let error = error.to_string();
                assert!(error.starts_with("cannot write /"), "{error}");
                assert!(error.contains(part), "{error}");
                assert!(error.ends_with("with --out"), "{error}");
            }
        }
        let error = check(Path::new("-"), Way::InPlace).unwrap_err().to_string();
        assert!(error.contains("goes only to a file"), "{error}");
        check(Path::new("/dev/null"), Way::InPlace).unwrap();
        check(&path("socket"), Way::Replaced).unwrap_err();
        // Even root cannot create files in /proc.
        assert!(check(Path::new("/proc/new"), Way::InPlace).is_err());
        assert_eq!(fs::read_to_string(path("file")).unwrap(), "content");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        assert!(!Path::new("here").exists());
    }

    #[test]
    fn a_file_is_replaced_as_what_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode() & 0o777;
        write(&path("new"), b"new").unwrap();
        fs::write(path("plain"), "").unwrap();
        assert_eq!(mode("new"), mode("plain"));
        fs::write(path("private"), "old").unwrap();
        fs::set_permissions(path("private"), Permissions::from_mode(0o600)).unwrap();
        symlink("private", path("link")).unwrap();
        write(&path("link"), b"new").unwrap();
        assert!(path("link").is_symlink());
        assert_eq!(fs::read_to_string(path("private")).unwrap(), "new");
        assert_eq!(mode("private"), 0o600);
        write(Path::new("/dev/null"), b"new").unwrap();
        let error = write(&path("none/new"), b"new").unwrap_err().to_string();
        assert!(error.contains("none/new: No such file"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[test]
    fn endings_of_other_kinds_are_refused() {
        let check = |name: &str| check_ending("--out", Path::new(name), "png");
        for good in ["a.png", "a.PNG", "a.b.png", "a", "/dev/null", "dir.jpg/a"] {
            check(good).unwrap();
        }
        for wrong in ["a.jpg", "a.png.gz"] {
            let error = check(wrong).unwrap_err();
            assert_eq!(error.exit_code(), crate::USAGE);
            assert!(error.to_string().contains(".png"), "{error}");
        }
    }
}

//! Files that a command is asked to write: whether they can be is tried before the work begins, which may take hours.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use super::failure::Failure;

/// How a file comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What lies there is written over, which may also be a pipe or a device.
    InPlace,
    /// A new file takes the place of what lies there when it is complete.
    Replaced,
}

/// Tries whether a file can be written at `path`, which `option` has named, and changes nothing.
///
/// # Errors
/// Why not, as of a wrong argument.
pub fn check(option: &str, path: &Path, way: Way) -> Result<(), Failure> {
    attempt(path, way).map_err(|reason| {
        Failure::Usage(format!(
            "cannot write {}: {reason}. Choose another file with {option}",
            path.display()
        ))
    })
}

fn attempt(path: &Path, way: Way) -> Result<(), String> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            return Err("it is a folder".to_owned());
        }
        Ok(found) if !found.is_file() => {
            return match way {
                // To open a pipe may take as long as nobody reads from it.
                Way::InPlace => Ok(()),
                Way::Replaced => Err("it is no file that could be replaced".to_owned()),
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
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let folder = folder.display();
        return Err(format!("there is no folder {folder}"));
    }
    // Has no name, or loses it at once.
    let tried = tempfile::tempfile_in(folder);
    tried.map(drop).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
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
                ("none/new", "there is no folder"),
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
        check(Path::new("/dev/null"), Way::InPlace).unwrap();
        check(&path("socket"), Way::Replaced).unwrap_err();
        // Not even a folder in /proc can be written by its owner.
        assert!(check(Path::new("/proc/new"), Way::InPlace).is_err());
        assert_eq!(fs::read_to_string(path("file")).unwrap(), "content");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        assert!(!Path::new("here").exists());
    }
}

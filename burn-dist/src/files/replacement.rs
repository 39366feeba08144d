//! A file that replaces another one when it is complete.

use std::fs::{self, File, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, OFlags, flock, linkat};
use rustix::io::Errno;

use super::{CheckedFile, Content, sync_folder};

/// Number of names to try.
const ATTEMPTS: u32 = 100;
/// Permissions of a new file, less the process's mask.
const MODE: u32 = 0o666;

/// A file that replaces the one at a path when it is complete.
///
/// A process that is killed before leaves nothing behind, because the file has no name until then.
/// If the file system lacks unnamed files, the next replacement of the same path removes the rest.
#[derive(Debug)]
pub struct Replacement {
    path: PathBuf,
    file: CheckedFile,
    /// Its name until it is complete, if it has one.
    part: Option<Part>,
}

impl Replacement {
    /// Begins a file for `path`, with the permissions `mode`.
    ///
    /// Without `mode` it gets those of a new file, less the process's mask.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn create(path: &Path, mode: Option<u32>) -> io::Result<Self> {
        remove_parts(path);
        match unnamed(folder_of(path)) {
            Some(file) => Self::with(path, file, None, mode),
            None => {
                let (file, part) = named(path)?;
                Self::with(path, file, Some(part), mode)
            }
        }
    }

    fn with(path: &Path, file: File, part: Option<Part>, mode: Option<u32>) -> io::Result<Self> {
        if let Some(mode) = mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(Self {
            path: path.to_owned(),
            file: CheckedFile::new(file),
            part,
        })
    }

    /// Puts the file in its place after it is on disk and was read back.
    ///
    /// # Errors
    /// Fails if the system refuses, or if the disk has other bytes. The old file then stays.
    pub fn publish(self) -> io::Result<Content> {
        let Self { path, file, part } = self;
        let (file, content) = file.settle()?;
        let copied = |copy: CheckedFile| match copy.settle()? {
            (file, copied) if copied == content => Ok(file),
            _ => Err(io::Error::other(
                "the disk returned other bytes than were written",
            )),
        };
        put(&path, file, part, name, copied)?;
        sync_folder(folder_of(&path))?;
        Ok(content)
    }

    /// Puts the file in its place without waiting for the disk.
    ///
    /// A crash of the machine may leave the old content, or none.
    ///
    /// # Errors
    /// Fails if the system refuses. The old file then stays.
    pub fn publish_cached(self) -> io::Result<()> {
        let Self { path, file, part } = self;
        put(&path, file.unchecked()?, part, name, CheckedFile::unchecked)
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A name that is removed unless the file gets its final one.
#[derive(Debug)]
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Names the file with `name`, closes it, and puts it in its place. If it cannot get a name, a copy
/// takes its place, which `copied` completes.
fn put(
    path: &Path,
    file: File,
    part: Option<Part>,
    name: impl FnOnce(&File, &Path) -> io::Result<Part>,
    copied: impl FnOnce(CheckedFile) -> io::Result<File>,
) -> io::Result<()> {
    let (file, part) = match part {
        Some(part) => (file, part),
        None => match name(&file, path) {
            Ok(part) => (file, part),
            Err(_) => copy(&file, path, copied)?,
        },
    };
    // The lock keeps others from removing the file as a leftover until it has its final name.
    let held = file.try_clone()?;
    super::Disk::close(file)?;
    let renamed = fs::rename(&part.0, path);
    // After that no file with the part's name is left to remove.
    drop((part, held));
    renamed
}

/// The folder of a file at `path`.
fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// A file without a name, if the file system has them.
fn unnamed(folder: &Path) -> Option<File> {
    // The file gets its name through this path.
    if !Path::new("/proc/self/fd").is_dir() {
        return None;
    }
    let mut options = File::options();
    let flags = OFlags::TMPFILE.bits().cast_signed();
    let options = options.read(true).write(true).mode(MODE);
    let file = options.custom_flags(flags).open(folder).ok()?;
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    Some(file)
}

/// Gives an unnamed file a name beside `path`.
fn name(file: &File, path: &Path) -> io::Result<Part> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    for _ in 0..ATTEMPTS {
        let part = part_name(path);
        match linkat(CWD, &from, CWD, &part, AtFlags::SYMLINK_FOLLOW) {
            Err(Errno::EXIST) => {}
            linked => return linked.map(|()| Part(part)).map_err(io::Error::from),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Copies an unnamed file to a named one beside `path`: some systems create unnamed files and
/// refuse to name them.
fn copy(
    mut file: &File,
    path: &Path,
    copied: impl FnOnce(CheckedFile) -> io::Result<File>,
) -> io::Result<(File, Part)> {
    let (named, part) = named(path)?;
    named.set_permissions(file.metadata()?.permissions())?;
    let mut copy = CheckedFile::new(named);
    file.seek(SeekFrom::Start(0))?;
    io::copy(&mut file, &mut copy)?;
    Ok((copied(copy)?, part))
}

/// A named file beside `path`, locked as long as it is open.
fn named(path: &Path) -> io::Result<(File, Part)> {
    let mut options = File::options();
    let options = options.read(true).write(true).create_new(true).mode(MODE);
    for _ in 0..ATTEMPTS {
        let part = part_name(path);
        let file = match options.open(&part) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other?,
        };
        let part = Part(part);
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        // Another process may have removed it as a leftover before it was locked.
        if locked == Err(Errno::WOULDBLOCK) || file.metadata()?.nlink() == 0 {
            continue;
        }
        return Ok((file, part));
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Prefix of the names of parts of a file at `path`.
fn part_prefix(path: &Path) -> Vec<u8> {
    let name = path.file_name().unwrap_or_default();
    [b".", name.as_encoded_bytes(), b".part-"].concat()
}

fn part_name(path: &Path) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let random = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
    let name = [part_prefix(path), format!("{random:016x}").into_bytes()].concat();
    folder_of(path).join(std::ffi::OsString::from_vec(name))
}

/// Removes parts for `path` that killed processes left. A live writer holds a lock on its part.
/// Errors are ignored: a leftover does no harm.
fn remove_parts(path: &Path) {
    let prefix = part_prefix(path);
    let Ok(entries) = fs::read_dir(folder_of(path)) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let rest = name.as_encoded_bytes().strip_prefix(prefix.as_slice());
        let is_part =
            rest.is_some_and(|rest| rest.len() == 16 && rest.iter().all(u8::is_ascii_hexdigit));
        if !is_part {
            continue;
        }
        let part = entry.path();
        // Opening a pipe with that name would block.
        let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
        let opened = File::options().read(true).custom_flags(flags).open(&part);
        let is_free = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if opened.is_ok_and(|file| is_free(&file)) {
            let _ = fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_whole_and_in_the_place_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for text in ["first", "second"] {
            let mut file = Replacement::create(&path, Some(0o640)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert_ne!(fs::read(&path).ok().as_deref(), Some(text.as_bytes()));
            file.publish().unwrap();
            assert_eq!(crate::files::tests::SYNCED.take(), [folder.path()]);
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o640);
        }
        drop(Replacement::create(&path, None).unwrap());
        assert_eq!(names(folder.path()), ["file"]);
    }

    /// As on a file system without unnamed files.
    #[test]
    fn what_a_killed_process_left_is_removed_and_what_another_writes_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let (file, part) = named(&path).unwrap();
        let other = folder.path().join(".file.part-notes");
        fs::write(&other, "").unwrap();
        Replacement::create(&path, None).unwrap();
        assert!(part.0.exists(), "it is being written");
        // A killed process has lost its lock, not its file.
        drop(file);
        let mut new = Replacement::create(&path, None).unwrap();
        assert!(!part.0.exists());
        new.write_all(b"content").unwrap();
        new.publish_cached().unwrap();
        assert_eq!(names(folder.path()), [".file.part-notes", "file"]);
    }

    #[test]
    fn a_file_that_can_get_no_name_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let refused = |_: &File, _: &Path| Err(io::ErrorKind::PermissionDenied.into());
        let mut file = unnamed(folder.path()).unwrap();
        file.set_permissions(Permissions::from_mode(0o640)).unwrap();
        file.write_all(b"content").unwrap();
        put(&path, file, None, refused, CheckedFile::unchecked).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"content");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        // An incomplete file changes nothing.
        let file = unnamed(folder.path()).unwrap();
        let full = |_| Err(io::ErrorKind::StorageFull.into());
        put(&path, file, None, refused, full).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"content");
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn a_file_with_a_name_appears_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let (file, part) = named(&path).unwrap();
        let mut file = Replacement::with(&path, file, Some(part), None).unwrap();
        file.write_all(b"content").unwrap();
        file.publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"content");
        assert_eq!(names(folder.path()), ["file"]);
    }
}

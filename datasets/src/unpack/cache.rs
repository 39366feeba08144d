//! Where unpacked archives are kept, and how they get there.
//!
//! A cache folder is named by the archive's path, size and time of modification, is written under
//! a temporary name and renamed when it is whole. Of several processes that need it, one unpacks
//! and the others wait for its lock. A note in the folder tells the length of each file, so that a
//! folder from which a cleaner took something is made anew.

use std::env;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use super::{Contents, archive};
use crate::DatasetError;
use crate::hex::hex;
use crate::lock::Lock;
use crate::unique;

/// Holds the length and name of every file, one per line.
const NOTE: &str = "complete.txt";
const MAX_NOTE: u64 = 1 << 16;
/// A temporary folder that was not touched for this long belongs to a process that is gone.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A folder that has the `contents` of `archive` as plain files, unpacked now if need be.
///
/// It lies in `cache`, or else in the first of these that can be written to: the folder of the
/// archive, the user's cache folder, the folder for temporary files.
pub(crate) fn unpacked(
    archive: &Path,
    contents: &Contents,
    cache: Option<&Path>,
) -> Result<PathBuf, DatasetError> {
    let roots = match cache {
        Some(cache) => vec![Root::named(cache)],
        None => roots(archive),
    };
    let name = format!("{}-{}", contents.folder, key(archive)?);
    for root in &roots {
        let folder = root.path.join(&name);
        if is_complete(&folder, contents) && root.is_ours().is_ok() {
            return Ok(folder);
        }
    }
    let mut reasons = Vec::new();
    for root in &roots {
        match root.prepare(&name) {
            Ok(lock) => return fill(&root.path, &name, archive, contents, lock),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(DatasetError::NoCache {
        path: archive.to_owned(),
        reasons,
    })
}

/// A folder that cache folders may lie in.
struct Root {
    path: PathBuf,
    /// Whether others can write to the folder around it, and so could have made it.
    exposed: bool,
}

impl Root {
    fn named(path: &Path) -> Self {
        Root {
            path: path.to_owned(),
            exposed: false,
        }
    }

    /// Makes the folder, and waits for the right to write `name` in it.
    fn prepare(&self, name: &str) -> Result<Lock, DatasetError> {
        if self.exposed {
            make_private(&self.path).map_err(DatasetError::io("create", &self.path))?;
            self.is_ours()?;
        } else {
            fs::create_dir_all(&self.path).map_err(DatasetError::io("create", &self.path))?;
        }
        Lock::wait(&self.path.join(format!(".{name}.lock")), "unpacking")
    }

    /// Refuses an exposed folder that somebody else made or can write to: they could exchange the
    /// pixels, or cut a mapped file.
    fn is_ours(&self) -> Result<(), DatasetError> {
        if !self.exposed {
            return Ok(());
        }
        private(&self.path).map_err(DatasetError::io("use as cache", &self.path))
    }
}

/// Where to try when no folder is named, best first.
fn roots(archive: &Path) -> Vec<Root> {
    let beside = archive.parent().map(|folder| folder.join(".burn-dist"));
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let home_cache = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")))
        .filter(|path| path.is_absolute())
        .map(|path| path.join("burn-dist"));
    let user = set("USER").or_else(|| set("LOGNAME")).unwrap_or_default();
    let user = user.to_string_lossy().replace(['/', '\\'], "_");
    let temporary = Root {
        path: env::temp_dir().join(format!("burn-dist-{user}")),
        exposed: true,
    };
    let trusted = [beside, home_cache].into_iter().flatten();
    let trusted = trusted.map(|path| Root::named(&path));
    trusted.chain([temporary]).collect()
}

/// 16 digits that change when the archive does.
fn key(archive: &Path) -> Result<String, DatasetError> {
    let path = fs::canonicalize(archive).map_err(DatasetError::io("find", archive))?;
    let metadata = fs::metadata(&path).map_err(DatasetError::io("read the size of", archive))?;
    let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
    let modified = match modified.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos(),
        Err(before) => !before.duration().as_nanos(),
    };
    let mut hasher = Sha256::new();
    hasher.update(path.as_os_str().as_encoded_bytes());
    hasher.update(metadata.len().to_le_bytes());
    hasher.update(modified.to_le_bytes());
    let digits = hex(&hasher.finalize());
    Ok(digits.chars().take(16).collect())
}

/// Whether every file is there with the length that was noted.
fn is_complete(folder: &Path, contents: &Contents) -> bool {
    let mut note = String::new();
    let read = File::open(folder.join(NOTE))
        .and_then(|file| file.take(MAX_NOTE).read_to_string(&mut note));
    let noted = |name: &str| {
        let mut lines = note.lines().filter_map(|line| line.split_once(' '));
        let (len, _) = lines.find(|(_, noted)| *noted == name)?;
        len.parse::<u64>().ok()
    };
    let whole = |name: &str| {
        let metadata = fs::metadata(folder.join(name)).ok();
        metadata.is_some_and(|metadata| metadata.is_file() && noted(name) == Some(metadata.len()))
    };
    read.is_ok() && contents.files.iter().all(|file| whole(file.name))
}

/// Unpacks under the lock, unless another process just did.
fn fill(
    root: &Path,
    name: &str,
    archive: &Path,
    contents: &Contents,
    lock: Lock,
) -> Result<PathBuf, DatasetError> {
    let folder = root.join(name);
    if is_complete(&folder, contents) {
        lock.remove();
        return Ok(folder);
    }
    tracing::info!(archive = %archive.display(), to = %folder.display(), "unpacking once");
    remove_abandoned(root, name);
    let staging = Staging::new(root, name)?;
    let lens = archive::unpack(archive, contents, &staging.0)?;
    let lines = contents.files.iter().zip(lens);
    let note: String = lines
        .map(|(file, len)| format!("{len} {}\n", file.name))
        .collect();
    let note_path = staging.0.join(NOTE);
    fs::write(&note_path, note).map_err(DatasetError::io("write", &note_path))?;
    publish(&staging.0, &folder, contents)?;
    lock.remove();
    Ok(folder)
}

/// Gives a whole folder its final name, unless another process did so first: where the file
/// system has no locks, two may unpack.
fn publish(staging: &Path, folder: &Path, contents: &Contents) -> Result<(), DatasetError> {
    let exists = |error: &io::Error| {
        use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty};
        matches!(error.kind(), AlreadyExists | DirectoryNotEmpty)
    };
    let renamed = match fs::rename(staging, folder) {
        Err(error) if exists(&error) && is_complete(folder, contents) => Ok(()),
        Err(error) if exists(&error) => {
            fs::remove_dir_all(folder).and_then(|()| fs::rename(staging, folder))
        }
        other => other,
    };
    renamed.map_err(DatasetError::io("rename to its final name", staging))
}

/// A folder under a temporary name; removed when dropped, unless it got its final name.
struct Staging(PathBuf);

impl Staging {
    fn new(root: &Path, name: &str) -> Result<Self, DatasetError> {
        let path = root.join(format!(".{name}.{}.part", unique::name()));
        fs::create_dir(&path).map_err(DatasetError::io("create", &path))?;
        Ok(Staging(path))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // It is not there any more if all went well.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what processes left that were killed while they unpacked.
fn remove_abandoned(root: &Path, name: &str) {
    let beginning = format!(".{name}.");
    let abandoned = |entry: &fs::DirEntry| {
        let file_name = entry.file_name();
        let file_name = file_name.to_string_lossy();
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.map(|time| time.elapsed().unwrap_or_default());
        file_name.starts_with(&beginning)
            && file_name.ends_with(".part")
            && age.is_ok_and(|age| age > ABANDONED)
    };
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    for entry in entries.filter(abandoned) {
        // A leftover costs space, nothing else.
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// Makes a folder that only this user may enter, or leaves one as it is.
fn make_private(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Whether `path` is a folder that this user owns and nobody else can write to.
#[cfg(unix)]
fn private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::symlink_metadata(path)?;
    // A new file has the user of this process as its owner.
    let probe_path = path.join(format!(".probe-{}", unique::name()));
    let probe = File::create_new(&probe_path)?;
    let owner = probe.metadata()?.uid();
    let _ = fs::remove_file(&probe_path);
    if metadata.is_dir() && metadata.uid() == owner && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it belongs to another user, or others can write to it",
    ))
}

/// Elsewhere, the folder for temporary files is the user's own.
#[cfg(not(unix))]
fn private(_path: &Path) -> io::Result<()> {
    Ok(())
}

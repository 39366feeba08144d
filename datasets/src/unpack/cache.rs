//! The cache of unpacked archives.
//!
//! A cache folder is named by the archive's path, size and time of modification. It is written
//! under a temporary name and renamed when it is complete. One of several processes unpacks, and
//! the others wait for its lock. A note in the folder has the length of each file, so that a folder
//! from which a cleaner removed something is made again.
//!
//! A process that is killed while unpacking leaves its temporary folder. Others remove it once they
//! know that nobody writes to it: see [`remove_abandoned`].

use std::env;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use super::Contents;
use super::archive::{self, Target};
use crate::DatasetError;
use crate::hex::hex;
use crate::lock::Lock;
use crate::unique;

/// Ends the names of temporary folders.
const PART: &str = ".part";
/// Holds the length and name of every file, one per line.
const NOTE: &str = "complete.txt";
const MAX_NOTE: u64 = 1 << 16;
/// A temporary folder without writes for this long belongs to a process that is gone.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A folder with the `contents` of `archive` as plain files, unpacked now if necessary.
///
/// It lies in `cache`, or else in the first writable one of: the folder of the archive, the user's
/// cache folder, the folder for temporary files.
pub(crate) fn unpacked(
    archive: &Path,
    contents: &Contents,
    cache: Option<&Path>,
) -> Result<PathBuf, DatasetError> {
    let roots = roots(archive, cache);
    let name = format!("{}-{}", contents.folder, key(archive)?);
    for root in &roots {
        let folder = root.path.join(&name);
        if is_complete(&folder, contents) && root.is_ours().is_ok() {
            remove_abandoned(&root.path, &name, contents, false);
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

/// The folder that an earlier call of [`unpacked`] made. Writes nothing.
///
/// Folders for temporary files do not count: only a write can tell whose they are.
pub(crate) fn unpacked_before(
    archive: &Path,
    contents: &Contents,
    cache: Option<&Path>,
) -> Result<Option<PathBuf>, DatasetError> {
    let name = format!("{}-{}", contents.folder, key(archive)?);
    let roots = roots(archive, cache).into_iter();
    let roots = roots.filter(|root| !root.exposed);
    let mut folders = roots.map(|root| root.path.join(&name));
    Ok(folders.find(|folder| is_complete(folder, contents)))
}

/// A folder for cache folders.
struct Root {
    path: PathBuf,
    /// Whether others can write to its parent, and so could have made it.
    exposed: bool,
}

impl Root {
    fn named(path: &Path) -> Self {
        Root {
            path: path.to_owned(),
            exposed: false,
        }
    }

    /// Creates the folder, and waits for the right to write `name` in it.
    fn prepare(&self, name: &str) -> Result<Lock, DatasetError> {
        if self.exposed {
            make_private(&self.path).map_err(DatasetError::io("create", &self.path))?;
            self.is_ours()?;
        } else {
            fs::create_dir_all(&self.path).map_err(DatasetError::io("create", &self.path))?;
        }
        Lock::wait(&self.path.join(format!(".{name}.lock")), "unpacking")
    }

    /// Refuses an exposed folder that others made or can write to: they could exchange pixels, or
    /// truncate a mapped file.
    fn is_ours(&self) -> Result<(), DatasetError> {
        if !self.exposed {
            return Ok(());
        }
        private(&self.path).map_err(DatasetError::io("use as cache", &self.path))
    }
}

/// Folders to try, best first: only `cache`, if it is named.
fn roots(archive: &Path, cache: Option<&Path>) -> Vec<Root> {
    if let Some(cache) = cache {
        return vec![Root::named(cache)];
    }
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

/// 16 digits that change with the archive.
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

/// Whether every file exists with the noted length.
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
    remove_abandoned(root, name, contents, lock.is_held());
    if is_complete(&folder, contents) {
        lock.remove();
        return Ok(folder);
    }
    tracing::info!(archive = %archive.display(), to = %folder.display(), "unpacking once");
    let staging = Staging::new(root, name)?;
    let files = archive::unpack(archive, contents, Target::Folder(&staging.0))?;
    let lines = contents.files.iter().zip(files);
    let note: String = lines
        .map(|(file, found)| format!("{} {}\n", found.len, file.name))
        .collect();
    let note_path = staging.0.join(NOTE);
    fs::write(&note_path, note).map_err(DatasetError::io("write", &note_path))?;
    publish(&staging.0, &folder, contents)?;
    lock.remove();
    Ok(folder)
}

/// Gives a complete folder its final name, unless another process did so first: two may unpack if
/// the file system has no locks.
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

/// A folder with a temporary name; removed when dropped, unless it got its final name.
struct Staging(PathBuf);

impl Staging {
    fn new(root: &Path, name: &str) -> Result<Self, DatasetError> {
        let path = root.join(format!(".{name}.{}{PART}", unique::name()));
        fs::create_dir(&path).map_err(DatasetError::io("create", &path))?;
        Ok(Staging(path))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // It is gone after a success.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes leftovers of processes that were killed while they unpacked `contents`: everything that
/// nobody wrote to for long and, with `alone` (under the lock of `name`), all leftovers of this
/// host for it. Other hosts may still be at work: some network file systems have locks that only
/// their own host knows.
fn remove_abandoned(root: &Path, name: &str, contents: &Contents, alone: bool) {
    let beginning = format!(".{}-", contents.folder);
    let (own, host) = (format!(".{name}."), unique::host());
    let abandoned = |entry: &fs::DirEntry| {
        let file_name = entry.file_name();
        let file_name = file_name.to_string_lossy();
        let Some((folder, maker)) = file_name
            .strip_suffix(PART)
            .and_then(|rest| rest.rsplit_once('.'))
            .and_then(|(folder, maker)| Some((folder, unique::host_in(maker)?)))
        else {
            return false;
        };
        let is_dead = alone && file_name.starts_with(&own) && maker == host;
        folder.starts_with(&beginning) && (is_dead || is_old(&entry.path()))
    };
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    for entry in entries.filter(abandoned) {
        // A leftover only costs space.
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// Whether nothing in a temporary folder changed for so long that nobody can be writing to it.
fn is_old(folder: &Path) -> bool {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = files.map(|file| file.metadata());
    let modified = [fs::symlink_metadata(folder)].into_iter().chain(files);
    let modified: io::Result<Vec<SystemTime>> =
        modified.map(|metadata| metadata?.modified()).collect();
    let last = modified.ok().and_then(|times| times.into_iter().max());
    // Clocks of hosts may differ: a time in the future counts as young.
    let age = last.map(|time| time.elapsed().unwrap_or_default());
    age.is_some_and(|age| age > ABANDONED)
}

/// Creates a folder that only this user may enter; leaves an existing one as it is.
fn make_private(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Checks that `path` is a folder that this user owns and nobody else can write to.
#[cfg(unix)]
fn private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::symlink_metadata(path)?;
    // The owner of a new file is the user of this process.
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

/// On other systems the folder for temporary files is the user's own.
#[cfg(not(unix))]
fn private(_path: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const CONTENTS: Contents = Contents {
        folder: "set-bin",
        files: &[],
    };
    const NAME: &str = "set-bin-0123456789abcdef";

    /// A temporary folder of `name`, made on `host`, with the age in seconds of its and its file's
    /// last write.
    fn leave(root: &Path, name: &str, host: &str, [folder, file]: [u64; 2]) {
        let path = root.join(format!(".{name}.{host}-12-345-6{PART}"));
        let written = path.join("train.bin");
        fs::create_dir(&path).unwrap();
        fs::write(&written, "half").unwrap();
        for (path, ago) in [(written, file), (path, folder)] {
            let time = SystemTime::now() - Duration::from_secs(ago);
            File::open(path).unwrap().set_modified(time).unwrap();
        }
    }

    fn left(root: &Path) -> usize {
        fs::read_dir(root).unwrap().count()
    }

    #[test]
    fn only_what_nobody_writes_to_is_removed() {
        let here = unique::host();
        let similar = format!("{here}-1");
        let other_key = "set-bin-ffffffffffffffff";
        let (young, old) = ([5000, 10], [5000, 4000]);
        for (name, host, age, gone_alone, gone_otherwise) in [
            (NAME, &*here, young, true, false),
            (NAME, &*here, old, true, true),
            (NAME, &*similar, young, false, false),
            (NAME, "elsewhere", young, false, false),
            (NAME, "elsewhere", [10, 5000], false, false),
            (NAME, "elsewhere", old, true, true),
            // They belong to another archive, or to this one before it was replaced, and have
            // another lock.
            (other_key, &*here, young, false, false),
            (other_key, &*here, old, true, true),
            ("set-binary", &*here, old, false, false),
        ] {
            for (alone, gone) in [(true, gone_alone), (false, gone_otherwise)] {
                let root = tempfile::tempdir().unwrap();
                leave(root.path(), name, host, age);
                remove_abandoned(root.path(), NAME, &CONTENTS, alone);
                let removed = left(root.path()) == 0;
                assert_eq!(removed, gone, "{name} {host} {age:?} {alone}");
            }
        }
    }

    #[test]
    fn what_is_nobodys_temporary_folder_stays() {
        let root = tempfile::tempdir().unwrap();
        let names = [
            NAME.to_owned(),
            format!(".{NAME}.lock"),
            format!(".{NAME}{PART}"),
            format!(".{NAME}.notes{PART}"),
            format!("{NAME}.{}", unique::name()),
        ];
        for name in &names {
            fs::create_dir(root.path().join(name)).unwrap();
            let time = SystemTime::now() - 2 * ABANDONED;
            let folder = File::open(root.path().join(name)).unwrap();
            folder.set_modified(time).unwrap();
        }
        remove_abandoned(root.path(), NAME, &CONTENTS, true);
        assert_eq!(left(root.path()), names.len());
    }
}

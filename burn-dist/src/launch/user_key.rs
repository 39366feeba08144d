//! A key that a user's processes on all nodes share and other users cannot read: a random file in
//! the home folder, made at first use. Under Slurm and torchrun the secrets of runs are derived
//! from it.
//!
//! It protects a run from other users of the nodes and the network: without the file they can
//! neither join nor take part. It does not protect from root, from other processes of the same
//! user, or from anybody who can read the home folder on the network (NFS without encryption). It
//! encrypts nothing.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Vars;
use crate::wire::{Secret, SecretError};

/// How long a network file system may take to show a file that another node has just made.
const PATIENCE: Duration = Duration::from_secs(3);

/// The reason why there is no key.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The folder of the key is unknown.
    #[error("neither XDG_CONFIG_HOME nor HOME is set, so the user key has no folder")]
    NoHome,
    /// The key is unreadable, or others can read it.
    #[error("cannot use the user key: {0}")]
    Secret(#[from] SecretError),
    /// The key belongs to another user.
    #[error("the user key {} belongs to user {owner}, not to you. Remove it", path.display())]
    Owner {
        /// Path of the key.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others could replace the key.
    #[error(
        "others can write to {} (mode {mode:03o}, user {owner}), the folder of your user key. Make \
         it yours and run `chmod 700` on it",
        path.display()
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// The key could not be made.
    #[error("cannot create the user key {}: {source}", path.display())]
    Make {
        /// Path of the key.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

crate::debug_is_display!(KeyError);

/// The key of the user with these variables; made if there is none.
pub(super) fn load(vars: Vars) -> Result<Secret, KeyError> {
    let folder = folder(vars).ok_or(KeyError::NoHome)?;
    let path = folder.join("key");
    if !path.exists() {
        make(&folder, &path).map_err(|source| KeyError::Make {
            path: path.clone(),
            source,
        })?;
    }
    let deadline = Instant::now() + PATIENCE;
    let secret = loop {
        match Secret::from_file(&path) {
            Err(SecretError::Read { source, .. })
                if source.kind() == io::ErrorKind::NotFound && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(50));
            }
            other => break other?,
        }
    };
    let me = rustix::process::geteuid().as_raw();
    if let Ok(meta) = fs::metadata(&folder) {
        let (owner, mode) = (meta.uid(), meta.mode() & 0o777);
        if mode & 0o022 != 0 || (owner != me && owner != 0) {
            return Err(KeyError::Folder {
                path: folder,
                owner,
                mode,
            });
        }
    }
    match fs::metadata(&path).map(|meta| meta.uid()) {
        Ok(owner) if owner != me => Err(KeyError::Owner { path, owner }),
        _ => Ok(secret),
    }
}

fn folder(vars: Vars) -> Option<PathBuf> {
    let absolute = |name: &str| {
        vars(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let config = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(config.join("burn-dist"))
}

/// Makes the key. Many ranks on several nodes may do this at once: each writes its own file, and
/// the first whose link succeeds has made the key. A link is atomic on network file systems too.
fn make(folder: &Path, path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let (text, _) = Secret::generate().map_err(io::Error::other)?;
    let (name, _) = Secret::generate().map_err(io::Error::other)?;
    let own = folder.join(format!(".key-{}", name.get(..16).unwrap_or(&name)));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&own)?;
    let made = file
        .write_all(format!("{text}\n").as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| match fs::hard_link(&own, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // File systems without links, which Linux reports as a lack of permission: the last
            // rename wins, and ranks that read another key are refused at the store.
            Err(error) if lacks_links(error.kind()) => fs::rename(&own, path),
            other => other,
        });
    let _ = fs::remove_file(&own);
    made
}

fn lacks_links(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn load_in(home: &Path) -> Result<Secret, KeyError> {
        load(&|name| (name == "HOME").then(|| home.display().to_string()))
    }

    #[test]
    fn ranks_that_start_at_once_get_one_key() {
        let home = tempfile::tempdir().unwrap();
        let keys: Vec<[u8; 32]> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| *load_in(home.path()).unwrap().key()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(keys.windows(2).all(|pair| pair[0] == pair[1]));
        let folder = home.path().join(".config/burn-dist");
        let names: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["key"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("key"))), (0o700, 0o600));
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let home = tempfile::tempdir().unwrap();
        load_in(home.path()).unwrap();
        let path = home.path().join(".config/burn-dist/key");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = load_in(home.path()).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        let home = tempfile::tempdir().unwrap();
        load_in(home.path()).unwrap();
        let folder = home.path().join(".config/burn-dist");
        for mode in [0o770, 0o707] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            let error = load_in(home.path()).unwrap_err().to_string();
            assert!(error.contains("chmod 700"), "{error}");
        }
    }

    #[test]
    fn a_home_that_can_not_be_written_is_named() {
        let error = load(&|name| (name == "HOME").then(|| "/proc/nowhere".into())).unwrap_err();
        assert!(matches!(error, KeyError::Make { .. }), "{error}");
        assert!(matches!(load(&|_| None), Err(KeyError::NoHome)));
    }
}

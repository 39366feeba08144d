//! Files of the folder: compiled programs and notes, for all processes that see it.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::folder;

/// Bytes of the digest at the start of a file.
const DIGEST: usize = blake3::OUT_LEN;

/// Largest kernel; anything larger is not a kernel.
const LARGEST: u64 = 64 << 20;

/// How long a process waits for another one that compiles the same program: longer than any kernel
/// takes, but not for ever, as the other may have been stopped. A process whose wait has timed out
/// never waits again.
const WAIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Returns the cached result for `key` in `folder`, or caches that of `compile`. Waits while
/// another process compiles the same. Errors are not cached, and an unusable folder costs one
/// warning.
pub(crate) fn or_compiled<E>(
    folder: &Path,
    key: &blake3::Hash,
    compile: impl FnOnce() -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, E> {
    let unusable = |error: io::Error| warn(folder, &error);
    let mut file = open(folder, key, "ptx").map_err(unusable).ok();
    if let Some(file) = &mut file
        && let Ok(Some(kept)) = read(file).map_err(unusable)
    {
        return Ok(kept);
    }
    let compiled = compile()?;
    if let Some(file) = &mut file {
        let _ = write(file, &compiled).map_err(unusable);
    }
    Ok(compiled)
}

/// The note of this key, if there is one.
pub(crate) fn note(folder: &Path, key: &blake3::Hash) -> Option<Vec<u8>> {
    let folder = folder::existing(folder).ok()?;
    let mut file = folder::existing_file(&folder, &name(key, "note")).ok()?;
    read(&mut file).ok()?
}

/// Writes the note of this key. Warns if that fails.
pub(crate) fn put_note(folder: &Path, key: &blake3::Hash, content: &[u8]) {
    let written = open(folder, key, "note").and_then(|mut file| write(&mut file, content));
    let _ = written.map_err(|error| warn(folder, &error));
}

fn warn(folder: &Path, error: &io::Error) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::warn!(
            "cannot keep compiled kernels in {}: {error}. Set BURN_DIST_KERNELS to another folder \
             or off",
            folder.display()
        );
    });
}

/// Opens and locks the file until it is closed or its process ends. If files cannot be locked, two
/// processes may mix up its contents, which a reader detects. If they are read-only, a writer gets
/// an error. Only this user and root can have written it.
fn open(folder: &Path, key: &blake3::Hash, ending: &str) -> io::Result<File> {
    let folder = folder::open(folder)?;
    let file = folder::file(&folder, &name(key, ending))?;
    static IN_VAIN: AtomicBool = AtomicBool::new(false);
    let since = Instant::now();
    while !IN_VAIN.load(Ordering::Relaxed)
        && flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
    {
        IN_VAIN.fetch_or(since.elapsed() > WAIT, Ordering::Relaxed);
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(file)
}

/// The content of a file, if it is complete.
fn read(file: &mut File) -> io::Result<Option<Vec<u8>>> {
    let mut all = Vec::new();
    file.take(LARGEST).read_to_end(&mut all)?;
    let Some((digest, content)) = all.split_at_checked(DIGEST) else {
        return Ok(None);
    };
    Ok((blake3::hash(content).as_bytes() == digest).then(|| content.to_vec()))
}

fn write(file: &mut File, content: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    let digest = blake3::hash(content);
    file.write_all(&[digest.as_bytes(), content].concat())
}

fn name(key: &blake3::Hash, ending: &str) -> String {
    format!("{}.{ending}", key.to_hex())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn compiled(content: &str) -> Result<Vec<u8>, String> {
        Ok(content.as_bytes().to_vec())
    }

    fn not_again() -> Result<Vec<u8>, String> {
        Err("compiled again".to_owned())
    }

    fn only_file(folder: &Path) -> std::path::PathBuf {
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
        assert_eq!(files.len(), 1);
        files[0].as_ref().unwrap().path()
    }

    #[test]
    fn a_program_is_compiled_once() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (blake3::hash(b"one"), blake3::hash(b"other"));
        let kept = |key, content| or_compiled(folder.path(), key, || compiled(content));
        assert_eq!(kept(&one, "1"), compiled("1"));
        assert_eq!(kept(&other, ""), compiled(""));
        assert_eq!(or_compiled(folder.path(), &one, not_again), compiled("1"));
        assert_eq!(or_compiled(folder.path(), &other, not_again), compiled(""));
    }

    #[test]
    fn what_failed_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let key = blake3::hash(b"program");
        assert!(or_compiled(folder.path(), &key, not_again).is_err());
        let second = or_compiled(folder.path(), &key, || compiled("ptx"));
        assert_eq!(second, compiled("ptx"));
    }

    #[test]
    fn what_was_not_written_to_its_end_is_compiled_again() {
        let folder = tempfile::tempdir().unwrap();
        let key = blake3::hash(b"program");
        or_compiled(folder.path(), &key, || compiled("a long text")).unwrap();
        let file = only_file(folder.path());
        let whole = std::fs::read(&file).unwrap();
        for length in [0, 1, DIGEST, whole.len() - 1] {
            std::fs::write(&file, &whole[..length]).unwrap();
            let second = or_compiled(folder.path(), &key, || compiled("again"));
            assert_eq!(second, compiled("again"), "{length} bytes");
        }
        let kept = or_compiled(folder.path(), &key, not_again);
        assert_eq!(kept, compiled("again"));
    }

    #[test]
    fn who_comes_meanwhile_waits() {
        let folder = tempfile::tempdir().unwrap();
        let key = blake3::hash(b"program");
        let times = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let got = or_compiled(folder.path(), &key, || {
                        times.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(50));
                        compiled("ptx")
                    });
                    assert_eq!(got, compiled("ptx"));
                });
            }
        });
        assert_eq!(times.into_inner(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_no_failure() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let key = blake3::hash(b"program");
        for _ in 0..2 {
            let got = or_compiled(file.path(), &key, || compiled("ptx"));
            assert_eq!(got, compiled("ptx"));
        }
    }

    #[test]
    fn a_folder_that_can_only_be_read_gives_what_it_has() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (key, other) = (blake3::hash(b"one"), blake3::hash(b"other"));
        or_compiled(folder.path(), &key, || compiled("ptx")).unwrap();
        let allow = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        allow(&only_file(folder.path()), 0o444);
        allow(folder.path(), 0o555);
        assert_eq!(or_compiled(folder.path(), &key, not_again), compiled("ptx"));
        let got = or_compiled(folder.path(), &other, || compiled("2"));
        assert_eq!(got, compiled("2"));
        allow(folder.path(), 0o755);
    }

    /// A user who can write to the folder could make the GPU run their code.
    #[test]
    fn a_folder_that_others_can_write_gives_nothing_and_takes_nothing() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let key = blake3::hash(b"program");
        or_compiled(folder.path(), &key, || compiled("planted")).unwrap();
        let shared = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), shared).unwrap();
        let got = or_compiled(folder.path(), &key, || compiled("ptx"));
        assert_eq!(got, compiled("ptx"));
        let planted = std::fs::read(only_file(folder.path())).unwrap();
        assert!(planted.ends_with(b"planted"));
    }
}

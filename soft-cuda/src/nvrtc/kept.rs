//! What was compiled before, one file for each program, for all processes of this host.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::report::{count, say};

/// Bytes of the digest that a file starts with.
const DIGEST: usize = blake3::OUT_LEN;

/// What is kept in `folder` under `key`, or else what `compile` makes, which is kept then. Who comes while
/// another process compiles it waits for that. What fails is not kept, and a folder that cannot be used
/// costs a line on stderr.
pub(super) fn or_compiled<E>(
    folder: &Path,
    key: &blake3::Hash,
    compile: impl FnOnce() -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, E> {
    let unusable = |error: io::Error| say(format_args!("{}: {error}", folder.display()));
    let Ok(mut file) = locked(folder, key).map_err(unusable) else {
        return compile();
    };
    match read(&mut file).map_err(unusable) {
        Ok(Some(kept)) => {
            count("kernels that were kept");
            return Ok(kept);
        }
        Ok(None) => {}
        Err(()) => return compile(),
    }
    let compiled = compile()?;
    let _ = write(&mut file, &compiled).map_err(unusable);
    Ok(compiled)
}

/// The file, which nobody else has until it is closed, or its process ends.
fn locked(folder: &Path, key: &blake3::Hash) -> io::Result<File> {
    std::fs::create_dir_all(folder)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(folder.join(format!("{}.ptx", key.to_hex())))?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// What a file holds, if it was written to its end.
fn read(file: &mut File) -> io::Result<Option<Vec<u8>>> {
    let mut all = Vec::new();
    file.read_to_end(&mut all)?;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

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
}

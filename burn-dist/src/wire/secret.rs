//! The secret that the ranks of a run share: a process must know it to join.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Shortest text of a secret, in bytes.
pub const MIN_SECRET_BYTES: usize = 16;

/// Longest text of a secret, in bytes. It bounds how much of a file is read.
pub const MAX_SECRET_BYTES: usize = 4096;

/// Separates our keys from all other uses of the same text. Never changes.
const KEY_CONTEXT: &str = "burn-dist 2026-11 secret of a run v1";

/// Hex digits that carry 128 bits.
const STRONG_DIGITS: usize = 32;
/// Number of different digits among them. 32 random digits have fewer less than once in a hundred
/// thousand times.
const STRONG_DISTINCT: usize = 8;

/// Cost of a text that may be guessed: memory in KiB and passes over it (OWASP's recommendation for
/// Argon2id).
const STRETCH_MEMORY: u32 = 19 * 1024;
const STRETCH_PASSES: u32 = 2;
/// A constant, because ranks share nothing but the secret and cannot agree on another salt.
const STRETCH_SALT: &[u8] = b"burn-dist 2026-11 secret of a run";

/// The reason why a text or file is not a secret.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The text is too short to resist guessing.
    #[error("it has {bytes} bytes; at least {MIN_SECRET_BYTES} are needed")]
    TooShort {
        /// Its length.
        bytes: usize,
    },
    /// The text is too long.
    #[error("it has more than {MAX_SECRET_BYTES} bytes")]
    TooLong,
    /// A folder, pipe or device instead of a file.
    #[error("{path} is not a regular file", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Others on the machine could read the file.
    #[error(
        "{path} is readable by others (mode {mode:03o}); run `chmod 600 {path}`",
        path = path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file cannot be opened or read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system has no random numbers.
    #[error("the system returned no random numbers: {0}")]
    Random(getrandom::Error),
    /// The text could not be hashed with Argon2id.
    #[error("Argon2 cannot hash it: {0}")]
    Stretch(argon2::Error),
}

crate::debug_is_display!(SecretError);

/// A 256-bit key, derived from text. Its `Debug` output hides it.
#[derive(Clone)]
pub struct Secret {
    key: [u8; 32],
    weak: bool,
}

impl Secret {
    /// Hashes `text` into a key.
    ///
    /// An attacker in place of the store can try out secrets on a rank's proof. So a text other
    /// than 128 random bits in hex digits is hashed with Argon2id, at some 30 ms for each try.
    ///
    /// # Errors
    /// Fails if the text has fewer than [`MIN_SECRET_BYTES`] or more than [`MAX_SECRET_BYTES`]
    /// bytes.
    pub fn from_text(text: &str) -> Result<Self, SecretError> {
        Self::from_bytes(text.as_bytes())
    }

    /// Reads the text from a file, without trailing line ends.
    ///
    /// # Errors
    /// Fails if it is not a regular file, if group or others may read or write it, or if its length
    /// is out of bounds.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let read = |source| SecretError::Read {
            path: path.into(),
            source,
        };
        // Without NONBLOCK, opening a named pipe would wait for its writer.
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open(path)
            .map_err(read)?;
        let meta = file.metadata().map_err(read)?;
        if !meta.is_file() {
            return Err(SecretError::NotAFile { path: path.into() });
        }
        let mode = meta.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Exposed {
                path: path.into(),
                mode,
            });
        }
        let mut text = Vec::new();
        // Room for a line end beyond the cap; a text that is too long is found below.
        file.take(MAX_SECRET_BYTES as u64 + 3)
            .read_to_end(&mut text)
            .map_err(read)?;
        while text
            .last()
            .is_some_and(|byte| matches!(byte, b'\n' | b'\r'))
        {
            text.pop();
        }
        Self::from_bytes(&text)
    }

    /// A new random secret, as text for other processes and as a key.
    pub(crate) fn generate() -> Result<(String, Self), SecretError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(SecretError::Random)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let secret = Self::from_text(&text)?;
        Ok((text, secret))
    }

    /// A secret for one purpose. It reveals neither this secret nor those for other purposes.
    pub(crate) fn derive(&self, purpose: &[u8]) -> Self {
        Self {
            key: *blake3::keyed_hash(&self.key, purpose).as_bytes(),
            weak: self.weak,
        }
    }

    /// Whether the text is among the first guesses.
    ///
    /// It has few different characters, repeats itself, or is a row such as `0123456789abcdef`.
    /// Other texts may be weak too.
    pub fn is_weak(&self) -> bool {
        self.weak
    }

    /// The key, for keyed hashes.
    pub(crate) fn key(&self) -> &[u8; 32] {
        &self.key
    }

    fn from_bytes(text: &[u8]) -> Result<Self, SecretError> {
        if text.len() < MIN_SECRET_BYTES {
            return Err(SecretError::TooShort { bytes: text.len() });
        }
        if text.len() > MAX_SECRET_BYTES {
            return Err(SecretError::TooLong);
        }
        let key = match is_strong(text) {
            true => blake3::derive_key(KEY_CONTEXT, text),
            false => blake3::derive_key(KEY_CONTEXT, &stretch(text)?),
        };
        Ok(Self {
            key,
            weak: is_weak(text),
        })
    }
}

/// Fewest different bytes of a text that is not guessed at once.
const FEW_BYTES: usize = 8;

/// See [`Secret::is_weak`].
fn is_weak(text: &[u8]) -> bool {
    let distinct: BTreeSet<&u8> = text.iter().collect();
    let repeats = |period: usize| {
        let (start, rest) = (text.iter(), text.iter().skip(period));
        start.zip(rest).all(|(one, other)| one == other)
    };
    let in_row = |pair: &[u8]| matches!(pair, [one, other] if one.abs_diff(*other) <= 1);
    let steps = text.windows(2).filter(|pair| in_row(pair)).count();
    distinct.len() < FEW_BYTES || (1..=text.len() / 2).any(repeats) || steps > text.len() / 2
}

/// Whether a text looks like `openssl rand -hex 16` or longer.
fn is_strong(text: &[u8]) -> bool {
    let mut distinct = [0; 16];
    for byte in text {
        match char::from(*byte).to_digit(16) {
            Some(digit) => distinct[digit as usize] = 1,
            None => return false,
        }
    }
    text.len() >= STRONG_DIGITS && distinct.iter().sum::<usize>() >= STRONG_DISTINCT
}

fn stretch(text: &[u8]) -> Result<[u8; 32], SecretError> {
    let mut key = [0; 32];
    argon2::Params::new(STRETCH_MEMORY, STRETCH_PASSES, 1, Some(key.len()))
        .map(|cost| argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, cost))
        .and_then(|argon| argon.hash_password_into(text, STRETCH_SALT, &mut key))
        .map_err(SecretError::Stretch)?;
    Ok(key)
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};

    const TEXT: &str = "correct horse battery staple";

    fn file(content: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn debug_hides_the_key() {
        let secret = Secret::from_text(TEXT).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(hidden)");
    }

    #[test]
    fn file_and_text_give_the_same_key() {
        let (_dir, path) = file(format!("{TEXT}\r\n").as_bytes(), 0o600);
        let secret = Secret::from_file(&path).unwrap();
        assert_eq!(secret.key(), Secret::from_text(TEXT).unwrap().key());
    }

    #[test]
    fn lengths_are_checked() {
        let short = Secret::from_text("fifteen bytes..");
        assert!(matches!(short, Err(SecretError::TooShort { bytes: 15 })));
        assert!(Secret::from_text("sixteen bytes...").is_ok());
        assert!(Secret::from_text(&"x".repeat(MAX_SECRET_BYTES)).is_ok());
        let long = Secret::from_text(&"x".repeat(MAX_SECRET_BYTES + 1));
        assert!(matches!(long, Err(SecretError::TooLong)));
        let (_dir, path) = file(&vec![b'x'; 1 << 20], 0o600);
        assert!(matches!(
            Secret::from_file(&path),
            Err(SecretError::TooLong)
        ));
    }

    /// A passphrase must be costly to guess; 128 random bits need not.
    #[test]
    fn what_can_be_guessed_is_hashed_slowly() {
        let random = "7f3a09c4d1e85b26a0f97c3e4d5b1862";
        for (text, strong) in [
            (random, true),
            (&*random.to_uppercase(), true),
            (&*random.repeat(2), true),
            (&random[1..], false),
            (TEXT, false),
            (&*"0".repeat(64), false),
            ("correct horse battery staple and 7f3a09c4d1e85b26", false),
        ] {
            assert_eq!(is_strong(text.as_bytes()), strong, "{text}");
        }
        let key = *Secret::from_text(TEXT).unwrap().key();
        assert_ne!(key, blake3::derive_key(KEY_CONTEXT, TEXT.as_bytes()));
        let begin = std::time::Instant::now();
        stretch(TEXT.as_bytes()).unwrap();
        let took = begin.elapsed();
        assert!(took > std::time::Duration::from_millis(2), "{took:?}");
    }

    #[test]
    fn what_is_guessed_at_once_is_weak() {
        let random = "7f3a09c4d1e85b26a0f97c3e4d5b1862";
        for (text, weak) in [
            (random, false),
            (TEXT, false),
            ("a secret of this test only", false),
            (&*"a".repeat(16), true),
            ("0123456789abcdef", true),
            ("1234567890123456", true),
            ("passwordpassword", true),
            ("secret-ABsecret-AB", true),
        ] {
            let secret = Secret::from_text(text).unwrap();
            assert_eq!(secret.is_weak(), weak, "{text}");
            assert_eq!(secret.derive(b"purpose").is_weak(), weak, "{text}");
        }
        assert!(!Secret::generate().unwrap().1.is_weak());
    }

    #[test]
    fn files_that_others_can_read_are_refused() {
        for mode in [0o640, 0o604, 0o620, 0o644] {
            let (_dir, path) = file(TEXT.as_bytes(), mode);
            let error = Secret::from_file(&path).unwrap_err();
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn folders_pipes_and_missing_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Secret::from_file(dir.path());
        assert!(matches!(folder, Err(SecretError::NotAFile { .. })));
        let missing = Secret::from_file(&dir.path().join("none"));
        assert!(matches!(missing, Err(SecretError::Read { .. })));
        let device = Secret::from_file(Path::new("/dev/zero"));
        assert!(matches!(device, Err(SecretError::NotAFile { .. })));
    }

    #[test]
    fn generated_secrets_differ_and_read_back() {
        let (text, secret) = Secret::generate().unwrap();
        let (other, _) = Secret::generate().unwrap();
        assert_ne!(text, other);
        assert_eq!(secret.key(), Secret::from_text(&text).unwrap().key());
    }
}

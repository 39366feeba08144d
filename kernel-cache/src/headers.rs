//! Identifies the headers that a program is compiled with: folders have other names on other
//! machines, and their contents may change.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use blake3::Hasher;

use crate::nvrtc::digest;

const FOLDER: &[u8] = b"--include-path=";

/// Prefixes of options that read files.
const READING: [&[u8]; 7] = [
    b"-I",
    b"-include",
    b"--include-path",
    b"-pre-include",
    b"--pre-include",
    b"-use-pch",
    b"--use-pch",
];

/// Files with the version of all headers in a folder, or in its parent, as for `cccl`.
const OF_ALL: [&str; 2] = ["cuda.h", "../cuda.h"];

/// Hashes an option. For a folder with CUDA's headers it hashes their version instead of the path.
/// False if it is unknown what the option has read.
pub(crate) fn hash(option: &CStr, hasher: &mut Hasher) -> bool {
    let bytes = option.to_bytes();
    if let Some((name, digest)) = bytes.strip_prefix(FOLDER).and_then(version) {
        hasher.update(FOLDER).update(name.as_bytes()).update(b"\0");
        hasher.update(digest.as_bytes());
        return true;
    }
    hasher.update(option.to_bytes_with_nul());
    !READING.iter().any(|reading| bytes.starts_with(reading))
}

fn version(folder: &[u8]) -> Option<(&'static str, blake3::Hash)> {
    let folder = Path::new(OsStr::from_bytes(folder));
    let read = |name: &'static str| Some((name, digest(&folder.join(name)).ok()?));
    OF_ALL.into_iter().find_map(read)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;

    use super::*;

    fn hashed(option: &str) -> Option<blake3::Hash> {
        let mut hasher = Hasher::new();
        hash(&CString::new(option).unwrap(), &mut hasher).then(|| hasher.finalize())
    }

    fn of(folder: &Path) -> Option<blake3::Hash> {
        hashed(&format!("--include-path={}", folder.display()))
    }

    #[test]
    fn headers_are_known_by_their_version_and_not_by_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        let [one, same, other] = ["one", "same", "other"].map(|name| folder.path().join(name));
        for (folder, text) in [(&one, "12.8"), (&same, "12.8"), (&other, "13.0")] {
            fs::create_dir_all(folder.join("cccl")).unwrap();
            fs::write(folder.join("cuda.h"), text).unwrap();
        }
        assert!(of(&one).is_some());
        assert_eq!(of(&one), of(&same));
        assert_ne!(of(&one), of(&other));
        assert_eq!(of(&one.join("cccl")), of(&same.join("cccl")));
        assert_ne!(of(&one.join("cccl")), of(&one));
    }

    #[test]
    fn of_what_is_in_other_folders_nothing_is_known() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of(folder.path()), None);
        for option in [
            "-I/usr/include",
            "-I",
            "--include-path",
            "--pre-include=a.h",
            "-include=a.h",
        ] {
            assert_eq!(hashed(option), None, "{option}");
        }
    }

    #[test]
    fn all_other_options_count_as_they_are() {
        assert!(hashed("-lineinfo").is_some());
        let of_90 = hashed("--gpu-architecture=sm_90a");
        assert_ne!(of_90, hashed("--gpu-architecture=sm_100a"));
    }
}

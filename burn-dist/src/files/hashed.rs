//! A file that is hashed while it is written, and compared with the bytes on disk.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

/// Bytes to which small writes are collected.
const BUFFER: usize = 1 << 20;
/// Bytes that are read back at a time.
const CHUNK: usize = 1 << 18;

/// The target of a [`CheckedFile`], such as the system's [`File`].
pub trait Disk: Write {
    /// Waits until everything is on disk.
    ///
    /// # Errors
    /// Fails if the disk refuses.
    fn sync(&mut self) -> io::Result<()>;

    /// Drops the file from the page cache if possible, so that the next read comes from the disk.
    fn forget_cached(&mut self);

    /// Reads at `offset`; 0 at the end.
    ///
    /// # Errors
    /// Fails if the disk refuses.
    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Closes the file. Some file systems report a failed write only here.
    ///
    /// # Errors
    /// Returns the system's error.
    fn close(self) -> io::Result<()>;
}

impl Disk for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }

    fn forget_cached(&mut self) {
        // If this is not possible, memory is the disk (as on tmpfs), or the cache is trusted.
        let _ = fadvise(&*self, 0, None, Advice::DontNeed);
    }

    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    // `File` ignores errors on close, and none of the project's crates has a safe function that
    // reports them.
    #[allow(unsafe_code)]
    fn close(self) -> io::Result<()> {
        let descriptor = self.into_raw_fd();
        // SAFETY: `self` was the only owner of this open descriptor and has given it up, so nobody
        // uses or closes it any more.
        let closed = unsafe { libc::close(descriptor) };
        if closed == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // Linux has closed it nevertheless, and its content is synced.
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        }
    }
}

/// Length and checksum of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 checksum, in hexadecimal digits.
    pub blake3: String,
}

/// A file that is hashed as it is written. [`finish`](Self::finish) compares it with the disk.
#[derive(Debug)]
pub struct CheckedFile<D: Disk = File> {
    out: BufWriter<D>,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl CheckedFile {
    /// Creates or empties the file.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        Ok(Self::new(options.open(path)?))
    }
}

impl<D: Disk> CheckedFile<D> {
    /// Writes to an empty file that can also be read.
    pub fn new(disk: D) -> Self {
        Self {
            out: BufWriter::with_capacity(BUFFER, disk),
            hasher: blake3::Hasher::new(),
            bytes: 0,
        }
    }

    /// Waits until everything is on disk, reads it back, and closes the file.
    ///
    /// The read bypasses the page cache if the file system allows it.
    ///
    /// # Errors
    /// Fails if the system refuses, or if the bytes on disk differ from those written.
    pub fn finish(self) -> io::Result<Content> {
        let (disk, content) = self.settle()?;
        disk.close()?;
        Ok(content)
    }

    /// Does the same without closing the file.
    pub(super) fn settle(self) -> io::Result<(D, Content)> {
        let written = self.hasher.finalize();
        let mut disk = self.out.into_inner().map_err(|error| error.into_error())?;
        disk.sync()?;
        disk.forget_cached();
        let (bytes, found) = read_back(&mut disk)?;
        if bytes != self.bytes {
            let reason = format!(
                "the disk holds {bytes} bytes after a write of {}",
                self.bytes
            );
            return Err(io::Error::other(reason));
        }
        if found != written {
            return Err(io::Error::other(
                "the disk returned other bytes than were written",
            ));
        }
        let content = Content {
            bytes,
            blake3: written.to_hex().to_string(),
        };
        Ok((disk, content))
    }

    /// Closes a file in memory. There is no disk to compare it with.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn finish_in_memory(self) -> io::Result<Content> {
        let (bytes, written) = (self.bytes, self.hasher.finalize());
        self.unchecked()?;
        Ok(Content {
            bytes,
            blake3: written.to_hex().to_string(),
        })
    }

    /// Returns the file without a check.
    pub(super) fn unchecked(self) -> io::Result<D> {
        self.out.into_inner().map_err(|error| error.into_error())
    }
}

/// Length and checksum of the bytes on disk.
fn read_back(disk: &mut impl Disk) -> io::Result<(u64, blake3::Hash)> {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK];
    let mut bytes = 0;
    loop {
        let count = match disk.read_at(&mut chunk, bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        let Some(read) = chunk.get(..count).filter(|read| !read.is_empty()) else {
            return Ok((bytes, hasher.finalize()));
        };
        hasher.update(read);
        bytes += count as u64;
    }
}

impl<D: Disk> Write for CheckedFile<D> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The fault of a [`Faulty`] disk.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) enum Fault {
        /// Every write is a short one; otherwise none.
        Short,
        /// This write, from 0, is reported as done and is not.
        Missing(usize),
        /// It writes a byte that nobody gave it.
        Changed(usize),
        /// The end of the file is lost.
        Truncated,
        Sync,
        Close,
    }

    /// A disk in memory with a fault.
    pub(crate) struct Faulty {
        bytes: Vec<u8>,
        fault: Fault,
        writes: usize,
    }

    impl Faulty {
        pub(crate) fn new(fault: Fault) -> Self {
            Self {
                bytes: Vec::new(),
                fault,
                writes: 0,
            }
        }
    }

    impl Write for Faulty {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let number = self.writes;
            self.writes += 1;
            let mut done = bytes.len();
            match self.fault {
                Fault::Missing(which) if which == number => return Ok(done),
                Fault::Short => done = done.div_ceil(3),
                _ => {}
            }
            self.bytes.extend(&bytes[..done]);
            if self.fault == Fault::Changed(number) {
                *self.bytes.last_mut().unwrap() ^= 1;
            }
            Ok(done)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Disk for Faulty {
        fn sync(&mut self) -> io::Result<()> {
            match self.fault {
                Fault::Sync => Err(io::ErrorKind::StorageFull.into()),
                _ => Ok(()),
            }
        }

        fn forget_cached(&mut self) {
            if self.fault == Fault::Truncated {
                self.bytes.pop();
            }
        }

        fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
            let rest = &self.bytes[offset as usize..];
            let count = rest.len().min(bytes.len());
            bytes[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }

        fn close(self) -> io::Result<()> {
            match self.fault {
                Fault::Close => Err(io::ErrorKind::QuotaExceeded.into()),
                _ => Ok(()),
            }
        }
    }

    /// Two writes that go directly to the disk, and a rest in the buffer.
    fn write(fault: Fault) -> io::Result<Content> {
        let mut file = CheckedFile::new(Faulty::new(fault));
        for byte in 0..2 {
            file.write_all(&vec![byte; BUFFER + 1])?;
        }
        file.write_all(b"end")?;
        file.finish()
    }

    #[test]
    fn what_the_disk_does_not_have_is_an_error() {
        for (fault, part) in [
            (Fault::Missing(1), "1048580 bytes after a write of 2097157"),
            (Fault::Missing(2), "2097154 bytes after"),
            (Fault::Changed(0), "other bytes"),
            (Fault::Truncated, "2097156 bytes after"),
            (Fault::Sync, "no storage space"),
            (Fault::Close, "quota exceeded"),
        ] {
            let error = write(fault).unwrap_err().to_string();
            assert!(error.contains(part), "{fault:?}: {error}");
        }
    }

    #[test]
    fn short_writes_are_completed_and_the_checksum_is_of_what_was_written() {
        let content = write(Fault::Short).unwrap();
        let all = [vec![0; BUFFER + 1], vec![1; BUFFER + 1], b"end".to_vec()].concat();
        assert_eq!(content.bytes, all.len() as u64);
        assert_eq!(content.blake3, blake3::hash(&all).to_hex().as_str());
    }

    #[test]
    fn a_file_is_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "longer than what comes").unwrap();
        let mut file = CheckedFile::create(&path).unwrap();
        file.write_all(b"content").unwrap();
        assert_eq!(file.finish().unwrap().bytes, 7);
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
    }
}

//! A file that is hashed while it is written, and compared with what the disk has.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

/// Bytes that small writes are gathered to.
const BUFFER: usize = 1 << 20;
/// Bytes that are read back at a time.
const CHUNK: usize = 1 << 18;

/// What a [`CheckedFile`] is written to. The system's [`File`] is one.
pub trait Disk: Write {
    /// Waits until all is on disk.
    ///
    /// # Errors
    /// If the disk refuses.
    fn sync(&mut self) -> io::Result<()>;

    /// Gives up what is cached of the file, where the file system can: the next read is one of the
    /// disk.
    fn forget_cached(&mut self);

    /// Reads at `offset`; 0 at the end.
    ///
    /// # Errors
    /// If the disk refuses.
    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Closes the file. Some file systems tell only here that they could not write.
    ///
    /// # Errors
    /// What the system says.
    fn close(self) -> io::Result<()>;
}

impl Disk for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }

    fn forget_cached(&mut self) {
        // Where it cannot, as on tmpfs, memory is the disk, or the cache is believed.
        let _ = fadvise(&*self, 0, None, Advice::DontNeed);
    }

    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    // `File` closes itself without a word, and no safe function of the crates that the project has
    // closes it with one.
    #[allow(unsafe_code)]
    fn close(self) -> io::Result<()> {
        let descriptor = self.into_raw_fd();
        // SAFETY: `self` was the only owner of this open descriptor and has given it up, so that
        // nobody uses or closes it any more.
        let closed = unsafe { libc::close(descriptor) };
        if closed == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // Linux has closed it nevertheless, and what it holds is synced.
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        }
    }
}

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 checksum, in hexadecimal digits.
    pub blake3: String,
}

/// A file that is hashed as it is written. [`finish`](Self::finish) compares what is on disk with
/// that.
#[derive(Debug)]
pub struct CheckedFile<D: Disk = File> {
    out: BufWriter<D>,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl CheckedFile {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        Ok(Self::new(options.open(path)?))
    }
}

impl<D: Disk> CheckedFile<D> {
    /// Writes to an empty file, which can be read as well.
    pub fn new(disk: D) -> Self {
        Self {
            out: BufWriter::with_capacity(BUFFER, disk),
            hasher: blake3::Hasher::new(),
            bytes: 0,
        }
    }

    /// Waits until all is on disk, reads it back past the page cache where the file system allows,
    /// and closes the file.
    ///
    /// # Errors
    /// If the system refuses, or the disk has something else than what was written.
    pub fn finish(self) -> io::Result<Content> {
        let (disk, content) = self.settle()?;
        disk.close()?;
        Ok(content)
    }

    /// The same without closing the file.
    pub(super) fn settle(self) -> io::Result<(D, Content)> {
        let written = self.hasher.finalize();
        let mut disk = self.out.into_inner().map_err(|error| error.into_error())?;
        disk.sync()?;
        disk.forget_cached();
        let (bytes, found) = read_back(&mut disk)?;
        if bytes != self.bytes {
            let reason = format!(
                "the disk has {bytes} bytes of it after a write of {}",
                self.bytes
            );
            return Err(io::Error::other(reason));
        }
        if found != written {
            return Err(io::Error::other(
                "the disk has other bytes than those that were written",
            ));
        }
        let content = Content {
            bytes,
            blake3: written.to_hex().to_string(),
        };
        Ok((disk, content))
    }

    /// Hands the file over without a check.
    pub(super) fn unchecked(self) -> io::Result<D> {
        self.out.into_inner().map_err(|error| error.into_error())
    }
}

/// Length and checksum of what the disk has.
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

    /// What goes wrong with a [`Faulty`] disk.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) enum Fault {
        /// Nothing, but every write is a short one.
        Short,
        /// This write, from 0, is said to be done and is not.
        Missing(usize),
        /// It writes a byte that nobody gave it.
        Changed(usize),
        /// The end of the file gets lost.
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

    /// Two writes that go to the disk by themselves, and what is left in the buffer.
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
            (
                Fault::Missing(1),
                "1048580 bytes of it after a write of 2097157",
            ),
            (Fault::Missing(2), "2097154 bytes of it"),
            (Fault::Changed(0), "other bytes"),
            (Fault::Truncated, "2097156 bytes of it"),
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

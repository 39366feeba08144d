//! Files in memory that another process of this user opens, by the number of a process and of its
//! open file.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};

/// Creates a file with this name. It is gone when nobody has it open any more.
pub(crate) fn create(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

/// Opens the file `descriptor` of another process, which must have this name: the numbers may be
/// left over, and mean another file now.
pub(crate) fn open(process: u32, descriptor: u32, name: &str) -> io::Result<File> {
    let path = PathBuf::from(format!("/proc/{process}/fd/{descriptor}"));
    let target = std::fs::read_link(&path)?;
    match target.to_string_lossy().contains(name) {
        true => File::options().read(true).write(true).open(path),
        false => Err(io::Error::other(format!(
            "{} is another file",
            path.display()
        ))),
    }
}

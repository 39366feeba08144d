//! The memory of a node that outlives its ranks.

pub(crate) mod file;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Variable with the agent's memory: its process, random mark, and file descriptors.
const MEMORY: &str = "BURN_DIST_MEMORY";
/// Slots of a rank. While one is written, the other holds the state before.
pub(crate) const SLOTS: usize = 2;

/// Memory in which the ranks of a node keep copies of their state.
///
/// It consists of files without a name, so nothing is left behind however a process ends. An agent
/// holds it open while ranks end and start again. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct NodeMemory {
    /// Random mark of the memory. Ranks of one node have the same.
    mark: u64,
    /// The slots of each rank, then one for copies from other nodes.
    files: Vec<Arc<File>>,
}

impl NodeMemory {
    /// Memory for `ranks` ranks. It is empty.
    ///
    /// # Errors
    /// Fails if the system has no files of this kind, or no random numbers.
    pub fn new(ranks: usize) -> io::Result<Self> {
        let mark = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        // 0 means none.
        let mark = mark.max(1);
        let slot = |_| Ok(Arc::new(file::create(&name(mark))?));
        let files: io::Result<Vec<_>> = (0..ranks * SLOTS + 1).map(slot).collect();
        Ok(Self {
            mark,
            files: files?,
        })
    }

    /// The variable, and its value, by which children of this process find the memory.
    pub(crate) fn variable(&self) -> (&'static str, String) {
        let descriptors = self.files.iter().map(|file| file.as_raw_fd().to_string());
        let descriptors: Vec<_> = descriptors.collect();
        let process = std::process::id();
        let value = format!("{process}:{:016x}:{}", self.mark, descriptors.join(","));
        (MEMORY, value)
    }

    /// The memory that the agent of this process keeps. `None` if there is no agent, or it keeps
    /// none.
    ///
    /// # Errors
    /// Fails if the memory cannot be opened.
    pub fn of_agent() -> io::Result<Option<Self>> {
        match std::env::var(MEMORY) {
            Ok(value) => Self::open(&value).map(Some),
            Err(_) => Ok(None),
        }
    }

    fn open(value: &str) -> io::Result<Self> {
        let wrong = || io::Error::other(format!("{MEMORY}=`{value}` is not of an agent"));
        let mut words = value.splitn(3, ':');
        let mut word = || words.next().ok_or_else(wrong);
        let process: u32 = word()?.parse().map_err(|_| wrong())?;
        let mark = u64::from_str_radix(word()?, 16).map_err(|_| wrong())?;
        let mut files = Vec::new();
        for descriptor in word()?.split(',') {
            let descriptor: u32 = descriptor.parse().map_err(|_| wrong())?;
            let opened = file::open(process, descriptor, &name(mark))?;
            files.push(Arc::new(opened));
        }
        match mark > 0 && files.len() > SLOTS && files.len() % SLOTS == 1 {
            true => Ok(Self { mark, files }),
            false => Err(wrong()),
        }
    }

    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }

    /// Number of ranks that it has slots for.
    pub(crate) fn ranks(&self) -> usize {
        (self.files.len() - 1) / SLOTS
    }

    /// All slots of ranks.
    pub(crate) fn slots(&self) -> &[Arc<File>] {
        self.files.split_last().map_or(&[], |(_, slots)| slots)
    }

    /// The file for what other nodes send.
    pub(crate) fn incoming(&self) -> Option<&Arc<File>> {
        self.files.last()
    }
}

/// Name of the files in /proc.
fn name(mark: u64) -> String {
    format!("burn-dist-memory-{mark:016x}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn another_process_would_open_the_same_memory() {
        let memory = NodeMemory::new(2).unwrap();
        let (_, value) = memory.variable();
        let opened = NodeMemory::open(&value).unwrap();
        assert_eq!((opened.mark(), opened.ranks()), (memory.mark(), 2));
        memory.slots()[3].write_all_at(b"state", 0).unwrap();
        let mut read = [0; 5];
        opened.slots()[3].read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"state");
    }

    #[test]
    fn other_files_are_refused() {
        let memory = NodeMemory::new(1).unwrap();
        let (_, value) = memory.variable();
        let other = tempfile::tempfile().unwrap().as_raw_fd();
        let (process, mark) = (std::process::id(), memory.mark());
        for wrong in [
            "",
            "1:2",
            "a:b:c",
            &format!("{process}:{mark:016x}:{other},{other},{other}"),
            &value.replace(&format!("{mark:016x}"), "0000000000000001"),
            value.rsplit_once(',').unwrap().0,
        ] {
            assert!(NodeMemory::open(wrong).is_err(), "{wrong}");
        }
    }
}

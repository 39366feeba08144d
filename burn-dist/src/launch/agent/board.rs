//! A word from the ranks of a node to its agent: which checkpoint is complete.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::node_memory::file;

/// Variable with the agent's process, the mark of the board, and its file descriptor.
const BOARD: &str = "BURN_DIST_BOARD";

/// Memory that an agent shares with its ranks.
#[derive(Debug)]
pub(super) struct Board {
    file: File,
    mark: u64,
    /// Steps of the last checkpoint that the agent knows of.
    seen: u64,
}

impl Board {
    pub(super) fn new(mark: u64) -> io::Result<Self> {
        Ok(Self {
            file: file::create(&name(mark))?,
            mark,
            seen: 0,
        })
    }

    /// The variable for ranks.
    pub(super) fn variable(&self) -> (&'static str, String) {
        let descriptor = self.file.as_raw_fd();
        let process = std::process::id();
        (BOARD, format!("{process}:{:016x}:{descriptor}", self.mark))
    }

    /// Whether a rank has told of another checkpoint since the last call.
    pub(super) fn is_news(&mut self) -> bool {
        let mut steps = [0; 8];
        let read = self.file.read_exact_at(&mut steps, 0);
        let told = read.map_or(0, |()| u64::from_le_bytes(steps));
        std::mem::replace(&mut self.seen, told) != told
    }
}

/// Tells the agent that started this process that the checkpoint after `steps` steps is complete.
/// Nodes that wait are taken in then. Nothing happens without an agent.
///
/// Only rank 0 needs to.
pub fn tell_saved(steps: u64) {
    if let Ok(value) = std::env::var(BOARD)
        && let Some(board) = open(&value)
    {
        // The agent waits for `--join-after` if it does not learn of it.
        let _ = board.write_all_at(&steps.to_le_bytes(), 0);
    }
}

fn open(value: &str) -> Option<File> {
    let (process, rest) = value.split_once(':')?;
    let (mark, descriptor) = rest.split_once(':')?;
    let mark = u64::from_str_radix(mark, 16).ok()?;
    file::open(process.parse().ok()?, descriptor.parse().ok()?, &name(mark)).ok()
}

fn name(mark: u64) -> String {
    format!("burn-dist-board-{mark:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_checkpoint_is_news_once() {
        let mut board = Board::new(7).unwrap();
        assert!(!board.is_news());
        let (_, value) = board.variable();
        let told = open(&value).unwrap();
        for steps in [5u64, 10] {
            told.write_all_at(&steps.to_le_bytes(), 0).unwrap();
            assert!(board.is_news());
            assert!(!board.is_news());
        }
        assert!(open(&value.replace("0007", "0008")).is_none());
        assert!(open("").is_none());
    }
}

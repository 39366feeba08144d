//! The flight recorder: keeps a rank's last collectives and writes them when one fails, so that the
//! logs of all ranks show where they diverged.

use std::collections::VecDeque;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::collective::Descriptor;

/// Number of collectives to remember.
const KEPT: usize = 64;

/// The last collectives, oldest first.
pub(super) struct Recorder {
    start: Instant,
    entries: VecDeque<Entry>,
}

struct Entry {
    what: Descriptor,
    began: Duration,
    took: Option<Duration>,
}

impl Recorder {
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            entries: VecDeque::with_capacity(KEPT),
        }
    }

    pub fn begin(&mut self, what: Descriptor) {
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry {
            what,
            began: self.start.elapsed(),
            took: None,
        });
    }

    pub fn end(&mut self) {
        if let Some(entry) = self.entries.back_mut() {
            entry.took = Some(self.start.elapsed().saturating_sub(entry.began));
        }
    }

    /// One line for each collective: seconds since the group was made, duration, description.
    fn report(&self, rank: usize, group: Option<&str>) -> String {
        let group = group.map_or(String::new(), |group| format!(" in {group}"));
        let mut text = format!(
            "last collectives of rank {rank}{group} (seconds since the group was created):\n"
        );
        for Entry { what, began, took } in &self.entries {
            let took = took.map_or("unfinished".into(), |took| {
                format!("{:.6} s", took.as_secs_f64())
            });
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:12.6}  {took:>12}  {what}", began.as_secs_f64());
        }
        text
    }

    /// Writes the report to `folder`, or to the log if there is no folder or the write fails.
    /// `label` is a subgroup's name for the file and for messages.
    pub fn dump(&self, rank: usize, label: Option<(String, String)>, folder: Option<&Path>) {
        let (file, group) = label.unzip();
        let report = self.report(rank, group.as_deref());
        if let Some(folder) = folder {
            let file = file.map_or(String::new(), |file| format!("-{file}"));
            let path = folder.join(format!("flight-recorder-rank-{rank}{file}.txt"));
            match std::fs::write(&path, &report) {
                Ok(()) => {
                    tracing::info!("flight recorder {}", path.display());
                    return;
                }
                Err(error) => tracing::warn!("cannot write {}: {error}", path.display()),
            }
        }
        tracing::info!("{report}");
    }
}

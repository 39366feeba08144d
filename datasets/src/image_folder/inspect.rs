//! Verifies many files in parallel: on network file systems most of the time is waiting.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::decode::{self, Picture, Target};
use super::unusable::Unusable;
use super::{Check, header};

/// Files that a thread takes at a time.
const CHUNK: usize = 32;
const MAX_THREADS: usize = 16;

/// Result of the inspection.
#[derive(Debug, Default)]
pub(super) struct Inspected<'a> {
    /// Unusable files with reasons, in the order of the files.
    pub(super) problems: Vec<(PathBuf, String)>,
    /// The first grey image.
    pub(super) grey: Option<&'a Path>,
    /// The first image in colour.
    pub(super) rgb: Option<&'a Path>,
}

/// Inspects all files.
pub(super) fn inspect(files: &[(PathBuf, u32)], check: Check) -> Inspected<'_> {
    let next = AtomicUsize::new(0);
    let available = thread::available_parallelism().map_or(1, |threads| threads.get());
    // More threads than cores, since they mostly wait.
    let threads = (2 * available).clamp(1, MAX_THREADS);
    let threads = threads.min(files.len().div_ceil(CHUNK));
    let mut results: Vec<(usize, Result<bool, Unusable>)> = thread::scope(|scope| {
        let work = || chunks(files, check, &next);
        let others: Vec<_> = (1..threads)
            .filter_map(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let mut results = work();
        for other in others {
            // A file cannot make the thread panic, see `chunks`.
            results.extend(other.join().unwrap_or_default());
        }
        results
    });
    results.sort_by_key(|(index, _)| *index);

    let mut inspected = Inspected::default();
    for (index, result) in results {
        let path = &files[index].0;
        match result {
            Err(reason) => inspected.problems.push((path.clone(), reason.to_string())),
            Ok(true) => inspected.grey = inspected.grey.or(Some(path)),
            Ok(false) => inspected.rgb = inspected.rgb.or(Some(path)),
        }
    }
    inspected
}

/// Takes chunks until none is left. Returns whether each file is grey, or what is wrong with it.
fn chunks(
    files: &[(PathBuf, u32)],
    check: Check,
    next: &AtomicUsize,
) -> Vec<(usize, Result<bool, Unusable>)> {
    let mut results = Vec::new();
    loop {
        let start = next.fetch_add(CHUNK, Ordering::Relaxed);
        let end = (start + CHUNK).min(files.len());
        let Some(chunk) = files.get(start..end).filter(|chunk| !chunk.is_empty()) else {
            return results;
        };
        for (index, (path, _)) in (start..).zip(chunk) {
            results.push((index, decode::guarded(|| one(path, check))));
        }
    }
}

fn one(path: &Path, check: Check) -> Result<bool, Unusable> {
    let header = header::read(path)?;
    if check == Check::Pixels {
        let smallest = Target {
            channels: 3,
            size: 1,
            resize: 1,
        };
        Picture::open(path)?.centre(smallest, &mut [0; 3])?;
    }
    Ok(header.grey)
}

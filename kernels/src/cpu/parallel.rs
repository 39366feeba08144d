//! Divides work into pieces and runs them on all threads. Pieces of a sum depend on the shape
//! alone, so that results do not depend on the number of threads.

use std::array;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu::team::{self, Patience};

/// Most shares that work is handed out in.
const SHARES: usize = 64;

/// The next index of a share, in a cache line of its own.
#[repr(align(64))]
struct Next(AtomicUsize);

/// Runs `task` for every index below `count`, on the threads of the current rayon pool.
///
/// A thread begins with the same share of the indices in every operation, as its cache holds the
/// results of the last one there. Then it helps the others.
pub(crate) fn each(count: usize, task: impl Fn(usize) + Sync + Send) {
    let threads = rayon::current_num_threads();
    if count <= 1 || threads == 1 {
        (0..count).for_each(task);
        return;
    }
    team::wake();
    let shares = threads.min(SHARES);
    let next: [Next; SHARES] = array::from_fn(|share| Next((count * share / shares).into()));
    let done = AtomicUsize::new(0);
    let work = || {
        let own = rayon::current_thread_index().unwrap_or(0);
        for share in (own..own + shares).map(|share| share % shares) {
            let end = count * (share + 1) / shares;
            loop {
                let index = next[share].0.fetch_add(1, Ordering::Relaxed);
                if index >= end {
                    break;
                }
                task(index);
                done.fetch_add(1, Ordering::Release);
            }
        }
    };
    rayon::join(
        || {
            work();
            // Rayon would soon put this thread to sleep.
            let mut patience = Patience::default();
            while done.load(Ordering::Acquire) < count && patience.lasts() {}
        },
        || on(threads.min(count) - 1, &work),
    );
}

/// Runs `work` on a number of threads.
fn on(threads: usize, work: &(impl Fn() + Sync)) {
    match threads {
        0 => {}
        1 => work(),
        _ => {
            let half = threads / 2;
            rayon::join(|| on(threads - half, work), || on(half, work));
        }
    }
}

/// The piece `index` of `total` items in pieces of `size`.
pub(crate) fn piece(index: usize, size: usize, total: usize) -> Range<usize> {
    let start = (index * size).min(total);
    start..(start + size).min(total)
}

/// Address of an output to which several threads write, each in its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared(*mut f32);

// SAFETY: it is only an address; a writer through it must be the only one at that place.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn new(slice: &mut [f32]) -> Self {
        Self(slice.as_mut_ptr())
    }

    /// Wraps the address of an input; nothing may be written through it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn read_only(slice: &[f32]) -> Self {
        Self(slice.as_ptr().cast_mut())
    }

    /// Wraps an address that is only read.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn address(start: *const f32) -> Self {
        Self(start.cast_mut())
    }

    /// Returns the address of element `offset`.
    ///
    /// # Safety
    ///
    /// `offset` lies within the slice, and no other thread touches the elements written there.
    pub(crate) unsafe fn at(self, offset: usize) -> *mut f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { self.0.add(offset) }
    }

    /// Returns the elements `range`.
    ///
    /// # Safety
    ///
    /// The range lies within the slice, and no other thread touches it.
    pub(crate) unsafe fn slice<'a>(self, range: Range<usize>) -> &'a mut [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }
}

/// Elements per piece of an elementwise operation.
const ELEMENTS: usize = 32 * 1024;

/// Returns the rows per piece of an operation on rows of `columns` elements.
pub(crate) fn rows_per_piece(columns: usize) -> usize {
    (ELEMENTS / columns.max(1)).max(1)
}

/// Maximum number of parts of a sum over rows; the parts are then added up.
const PARTS: usize = 32;

/// Returns the rows per part of a sum over `rows` rows.
pub(crate) fn rows_per_part(rows: usize) -> usize {
    rows.div_ceil(PARTS).max(16)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn in_pool<R: Send>(threads: usize, run: impl FnOnce() -> R + Send) -> R {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.expect("a pool").install(run)
    }

    #[test]
    fn every_index_runs_once_also_within_another() {
        for threads in [1, 2, 3, 8] {
            for count in [0, 1, 2, 7, 100] {
                let runs: Vec<AtomicUsize> = (0..count * 5).map(|_| AtomicUsize::new(0)).collect();
                in_pool(threads, || {
                    each(count, |outer| {
                        each(5, |inner| {
                            runs[outer * 5 + inner].fetch_add(1, Ordering::Relaxed);
                        });
                    });
                });
                assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        in_pool(3, || {
            let run = || each(50, |index| assert!(index != 20, "at index {index}"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        });
    }
}

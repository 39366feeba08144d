//! Divides work into pieces that depend on the shape alone, so that results do not depend on the
//! number of threads.

use std::ops::Range;

use rayon::prelude::*;

/// Runs `task` for every index below `count`, on the threads of the current rayon pool.
pub(crate) fn each(count: usize, task: impl Fn(usize) + Sync + Send) {
    if count <= 1 || rayon::current_num_threads() == 1 {
        (0..count).for_each(task);
        return;
    }
    (0..count).into_par_iter().with_max_len(1).for_each(task);
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

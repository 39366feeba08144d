//! Matrices of f32 whose panels are packed into pairs of bf16.

use std::ops::Range;

use super::micro::{COLUMNS, Left, Micro};
use super::vector::{pack_adjacent, pack_apart};
use crate::cpu::epilogue::Map;
use crate::cpu::parallel::Shared;
use crate::cpu::workspace::Workspace;

/// Least steps of the depth that pass through a [`Map`] at a time; even.
const MAPPED: usize = 8;

/// A matrix whose panels are packed.
pub(crate) struct Source {
    pub start: Shared,
    /// Distance between the lanes of a panel.
    pub lane: usize,
    /// Distance between steps of the depth. One of the two distances is 1.
    pub step: usize,
}

impl Source {
    /// Packs the lanes `lanes` of a right matrix into panels that are `panel` words apart, over the
    /// steps `steps`.
    ///
    /// # Safety
    ///
    /// The CPU has AVX-512 BF16; lanes and steps exist; `to` has room for the panels.
    pub(super) unsafe fn pack_right<M: Micro>(
        &self,
        lanes: Range<usize>,
        steps: Range<usize>,
        to: *mut u32,
        panel: usize,
    ) {
        let pairs = steps.len().div_ceil(2);
        let zeros = M::pairs(steps.len()) - pairs;
        // SAFETY: guaranteed by the caller; one of the two distances is 1.
        unsafe {
            let from = |lane: usize| self.start.at(lane * self.lane + steps.start * self.step);
            if self.lane == 1 {
                let size = (lanes.len(), COLUMNS);
                let from = from(lanes.start).cast_const();
                pack_adjacent(size, steps.len(), from, self.step, to, panel);
            }
            for (index, first) in lanes.clone().step_by(COLUMNS).enumerate() {
                let to = to.add(index * panel);
                if self.lane != 1 {
                    let size = (COLUMNS.min(lanes.end - first), COLUMNS);
                    pack_apart(size, steps.len(), from(first).cast_const(), self.lane, to);
                }
                to.add(pairs * COLUMNS).write_bytes(0, zeros * COLUMNS);
            }
        }
    }

    /// Packs all `lanes` rows of a left matrix, which are adjacent, over the steps `steps`, after
    /// applying `map` if there is one.
    ///
    /// # Safety
    ///
    /// As for [`Micro::pack_adjacent`] and `map`.
    pub(super) unsafe fn pack_adjacent<M: Micro>(
        &self,
        (map, workspace): (Option<Map>, &Workspace),
        lanes: usize,
        steps: Range<usize>,
        to: *mut u32,
        panel: usize,
    ) {
        // SAFETY: guaranteed by the caller.
        let from = unsafe { self.start.at(steps.start * self.step).cast_const() };
        let Some(map) = map else {
            // SAFETY: guaranteed by the caller.
            return unsafe { M::pack_adjacent(lanes, steps.len(), from, self.step, to, panel) };
        };
        let most = MAPPED.max(M::GRAIN);
        let mut scratch = workspace.take(most * lanes);
        let scratch = scratch.pointer();
        for start in (0..steps.len()).step_by(most) {
            let count = most.min(steps.len() - start);
            // SAFETY: guaranteed by the caller; the scratch memory has room for these steps.
            unsafe {
                map(count * lanes, from.add(start * self.step), scratch);
                let to = to.add(start / 2 * M::ROWS);
                M::pack_adjacent(lanes, count, scratch, lanes, to, panel);
            }
        }
    }

    /// Packs the rows `lanes` of a left matrix, after applying `map` if there is one, for which
    /// steps must be adjacent. Returns the rows of the first micro-tile, and the number of words to
    /// the rows of the next one.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions of `M` and `map`; lanes and steps exist; `to` has room for
    /// whole micro-tiles.
    pub(super) unsafe fn pack_left<M: Micro>(
        &self,
        (map, workspace): (Option<Map>, &Workspace),
        lanes: Range<usize>,
        steps: Range<usize>,
        to: *mut u32,
    ) -> (Left, usize) {
        let (depth, tile) = (steps.len(), M::ROWS * M::pairs(steps.len()));
        let from = |lane: usize| lane * self.lane + steps.start * self.step;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let first = self.start.at(from(lanes.start)).cast_const();
            if self.lane == 1 {
                M::pack_adjacent(lanes.len(), depth, first, self.step, to, tile);
                return (Left::panel(to), tile);
            }
            let Some(map) = map else {
                let left = M::pack_rows(lanes.len(), depth, first, self.lane, to);
                return (left, tile);
            };
            let mut scratch = workspace.take(M::ROWS * depth);
            let scratch = scratch.pointer();
            let mut left = Left::panel(to);
            for (index, first) in lanes.clone().step_by(M::ROWS).enumerate() {
                let count = M::ROWS.min(lanes.end - first);
                for lane in 0..count {
                    let from = self.start.at(from(first + lane));
                    map(depth, from, scratch.add(lane * depth));
                }
                left = M::pack_rows(count, depth, scratch, depth, to.add(index * tile));
            }
            (Left { start: to, ..left }, tile)
        }
    }
}

//! Matrices of f32 whose panels are packed into pairs of bf16.

use std::ops::Range;

use super::vector::{Left, ROWS, pack_adjacent, pack_apart, pack_rows};
use crate::cpu::parallel::Shared;
use crate::cpu::workspace::Workspace;

/// A function of numbers before they are rounded: count, from, to.
pub(super) type Map = unsafe fn(usize, *const f32, *mut f32);

/// Steps of the depth that pass through a [`Map`] at a time; even.
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
    /// Packs the lanes `lanes` into panels of `width`, `panel` words apart, over the steps `steps`.
    ///
    /// # Safety
    ///
    /// The CPU has AVX-512 BF16; lanes and steps exist; `to` has room for the panels.
    pub unsafe fn pack(
        &self,
        lanes: Range<usize>,
        width: usize,
        steps: Range<usize>,
        to: *mut u32,
        panel: usize,
    ) {
        // SAFETY: guaranteed by the caller; one of the two distances is 1.
        unsafe {
            let from = |lane: usize| self.start.at(lane * self.lane + steps.start * self.step);
            if self.lane == 1 {
                let size = (lanes.len(), width);
                let from = from(lanes.start).cast_const();
                return pack_adjacent(size, steps.len(), from, self.step, to, panel);
            }
            for (index, first) in lanes.clone().step_by(width).enumerate() {
                let size = (width.min(lanes.end - first), width);
                let (from, to) = (from(first).cast_const(), to.add(index * panel));
                pack_apart(size, steps.len(), from, self.lane, to);
            }
        }
    }

    /// Packs the rows `lanes` of a left matrix. Returns the rows of the first micro-tile, and the
    /// number of words to the rows of the next one.
    ///
    /// # Safety
    ///
    /// As for [`Source::pack`]; `to` has room for whole micro-tiles.
    pub(super) unsafe fn pack_left(
        &self,
        lanes: Range<usize>,
        steps: Range<usize>,
        to: *mut u32,
    ) -> (Left, usize) {
        let tile = ROWS * steps.len().div_ceil(2);
        // SAFETY: guaranteed by the caller.
        unsafe {
            if self.lane == 1 {
                self.pack(lanes, ROWS, steps, to, tile);
                return (Left::panel(to), tile);
            }
            let from = self.start.at(lanes.start * self.lane + steps.start);
            pack_rows(lanes.len(), steps.len(), from, self.lane, to);
        }
        let left = Left {
            start: to,
            row: steps.len().div_ceil(2),
        };
        (left, tile)
    }

    /// [`Source::pack`] of the results of `map` for all `lanes` lanes, which are adjacent.
    ///
    /// # Safety
    ///
    /// As for [`Source::pack`] and `map`.
    pub(super) unsafe fn pack_mapped(
        &self,
        (map, workspace): (Map, &Workspace),
        (lanes, width): (usize, usize),
        steps: Range<usize>,
        to: *mut u32,
        panel: usize,
    ) {
        let mut scratch = workspace.take(MAPPED * lanes);
        let scratch = scratch.pointer();
        let mapped = Self {
            start: Shared::address(scratch),
            lane: 1,
            step: lanes,
        };
        for start in steps.clone().step_by(MAPPED) {
            let count = MAPPED.min(steps.end - start);
            // SAFETY: guaranteed by the caller; the scratch memory has room for these steps.
            unsafe {
                map(count * lanes, self.start.at(start * self.step), scratch);
                let to = to.add((start - steps.start) / 2 * width);
                mapped.pack(0..lanes, width, 0..count, to, panel);
            }
        }
    }

    /// [`Source::pack_left`] of the results of `map` for the rows, whose steps are adjacent.
    ///
    /// # Safety
    ///
    /// As for [`Source::pack_left`] and `map`.
    pub(super) unsafe fn pack_left_mapped(
        &self,
        (map, workspace): (Map, &Workspace),
        lanes: Range<usize>,
        steps: Range<usize>,
        to: *mut u32,
    ) -> (Left, usize) {
        let (depth, row) = (steps.len(), steps.len().div_ceil(2));
        let mut scratch = workspace.take(ROWS * depth);
        let scratch = scratch.pointer();
        for first in lanes.clone().step_by(ROWS) {
            let count = ROWS.min(lanes.end - first);
            // SAFETY: guaranteed by the caller; the scratch memory has room for these rows.
            unsafe {
                for lane in 0..count {
                    let from = self.start.at((first + lane) * self.lane + steps.start);
                    map(depth, from, scratch.add(lane * depth));
                }
                let to = to.add((first - lanes.start) * row);
                pack_rows(count, depth, scratch, depth, to);
            }
        }
        (Left { start: to, row }, ROWS * row)
    }
}

//! Several tensors in one kernel, like Apex's multi-tensor apply. Most parameters of a model are so
//! small that a kernel for each of them keeps the CPU busy and the GPU idle.

use std::ops::Range;

use cubecl::calculate_cube_count_elemwise;
use cubecl::client::Client;
use cubecl::prelude::*;

use super::matrix::Matrix;
use super::sums::{UNITS, cube};

/// Maximum tensors of a kernel: its code is repeated for every tensor that it writes.
const TENSORS: usize = 24;

/// Bindings reserved for the other arguments of a kernel.
const OTHERS: usize = 3;

/// Maximum numbers of the first tensors of all sets of a kernel: indices have room for more.
const NUMBERS: usize = 1 << 30;

/// The work of one kernel: sets of `N` tensors of the same length that belong together, such as a
/// parameter and its gradient.
pub(super) struct Batch<'a, const N: usize> {
    all: &'a [[Matrix; N]],
    /// Its own sets among `all`.
    pub sets: Vec<usize>,
    /// Vector length.
    pub vector: usize,
    /// The width of indices.
    pub address: AddressType,
}

/// All `sets` that have numbers, in batches with the same vector size.
pub(super) fn batches<const N: usize>(
    sets: &[[Matrix; N]],
    vector: impl Fn(usize) -> usize,
) -> Vec<Batch<'_, N>> {
    let mut open: Vec<Batch<'_, N>> = Vec::new();
    let mut full = Vec::new();
    for (index, set) in sets.iter().enumerate() {
        if set[0].columns() == 0 {
            continue;
        }
        let (vector, address) = (vector(index), address_of(set));
        let alike = |batch: &Batch<'_, N>| (batch.vector, batch.address) == (vector, address);
        let batch = || Batch {
            all: sets,
            sets: Vec::new(),
            vector,
            address,
        };
        let at = open.iter().position(alike).unwrap_or_else(|| {
            open.push(batch());
            open.len() - 1
        });
        if !open[at].has_room_for(set) {
            full.push(std::mem::replace(&mut open[at], batch()));
        }
        open[at].sets.push(index);
    }
    full.extend(open);
    full
}

fn address_of<const N: usize>(set: &[Matrix; N]) -> AddressType {
    let widths = set.iter().map(Matrix::address);
    widths.max().unwrap_or_default()
}

impl<const N: usize> Batch<'_, N> {
    fn has_room_for(&self, set: &[Matrix; N]) -> bool {
        if self.sets.is_empty() {
            return true;
        }
        let bindings = self.client().properties().hardware.max_bindings as usize;
        let tensors = TENSORS.min(bindings.saturating_sub(OTHERS));
        let numbers: usize = self.tensors(0).map(Matrix::columns).sum();
        (self.sets.len() + 1) * N <= tensors && numbers + set[0].columns() <= NUMBERS
    }

    fn tensors(&self, place: usize) -> impl Iterator<Item = &Matrix> {
        self.sets.iter().map(move |set| &self.all[*set][place])
    }

    pub fn client(&self) -> &Client {
        self.all[self.sets[0]][0].client()
    }

    /// Returns the tensors at one position of all sets.
    pub fn args(&self, place: usize) -> impl Iterator<Item = BufferArg> {
        self.tensors(place).map(Matrix::arg)
    }

    /// Returns the length of each set's first tensor.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.tensors(0).map(Matrix::columns)
    }

    /// The units of each set, one per vector. Every set begins with a cube of its own.
    pub fn units(&self) -> Vec<Range<usize>> {
        let mut end: usize = 0;
        let range = |length| {
            let begin = end.next_multiple_of(UNITS);
            end = begin + length / self.vector;
            begin..end
        };
        self.lengths().map(range).collect()
    }

    /// Returns the cubes of all units.
    pub fn cubes(&self, units: &[Range<usize>]) -> CubeCount {
        let all = units.last().map_or(0, |last| last.end);
        calculate_cube_count_elemwise(self.client(), all, cube())
    }
}

/// The place of the vector of a unit.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Place {
    begin: usize,
    end: usize,
}

#[cube]
impl Place {
    /// Returns true if a unit has a vector of the set.
    pub fn has(&self, unit: usize) -> bool {
        unit >= self.begin && unit < self.end
    }

    /// Its number.
    pub fn vector(&self, unit: usize) -> usize {
        unit - self.begin
    }
}

/// The kernel argument for [`Batch::units`].
pub(super) fn places(units: &[Range<usize>]) -> SequenceArg<Place> {
    let place = |units: &Range<usize>| PlaceLaunch::new(units.start, units.end);
    units.iter().map(place).collect()
}

//! Plans of batches, for callers that assemble the images themselves: a GPU with the whole data set
//! in memory needs nothing else.

use super::Loader;
use crate::augment::{Augment, Key};
use crate::{Epoch, ImageShape};

/// A move of an image within its frame, and a reflection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Move {
    /// Rows by which it is moved down.
    pub down: i32,
    /// Columns by which it is moved to the right.
    pub right: i32,
    /// Whether it is then mirrored left to right.
    pub mirrored: bool,
}

/// The plan of one batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchPlan {
    /// Indices of the images in the data set.
    pub indices: Vec<usize>,
    /// Move of each image.
    pub moves: Vec<Move>,
}

/// The plans of the batches of one epoch, in order; made by [`Loader::plans`].
#[derive(Debug)]
pub struct Plans {
    epoch: Epoch,
    augment: Augment,
    seed: u64,
    position: usize,
}

impl Loader {
    /// The plans of the batches that [`iter`](Self::iter) would make of `epoch`.
    ///
    /// `None` if the augmentation does more than move and mirror images.
    /// [`reflects`](Self::reflects) tells what fills the gap after a move. A byte `b` of channel
    /// `c` becomes `b * scale + offset`, with the pair in [`lines`](Self::lines) for `c`.
    pub fn plans(&self, epoch: Epoch) -> Option<Plans> {
        self.only_moves().then(|| Plans {
            epoch,
            augment: self.augment.clone(),
            seed: self.seed,
            position: 0,
        })
    }

    /// Whether the augmentation only moves and mirrors images.
    pub fn only_moves(&self) -> bool {
        let shape: ImageShape = self.dataset.shape();
        self.augment.only_places(shape)
    }

    /// Whether the gap after a move is filled by the image's reflection instead of zeros.
    ///
    /// The image is mirrored at its outermost pixels.
    pub fn reflects(&self) -> bool {
        self.augment.reflects()
    }

    /// Scale and offset of every channel.
    pub fn lines(&self) -> Vec<(f32, f32)> {
        self.normalizer.lines().collect()
    }
}

impl Plans {
    fn plan(&self, position: usize) -> BatchPlan {
        let indices = self.epoch.get(position).unwrap_or_default().to_vec();
        let copies = self.epoch.copies(position);
        let place = |(place, &index): (usize, &usize)| {
            let Some(epoch) = self.epoch.number() else {
                return Move::default();
            };
            let placed = self.augment.place(Key {
                seed: self.seed,
                epoch,
                index,
                copy: copies.get(place).copied().unwrap_or(0),
            });
            // Offsets are drawn from a range of bytes.
            Move {
                down: placed.down as i32,
                right: placed.right as i32,
                mirrored: placed.mirrored,
            }
        };
        let moves = indices.iter().enumerate().map(place).collect();
        BatchPlan { indices, moves }
    }
}

impl Iterator for Plans {
    type Item = BatchPlan;

    fn next(&mut self) -> Option<BatchPlan> {
        if self.position >= self.epoch.batches() {
            return None;
        }
        let plan = self.plan(self.position);
        self.position += 1;
        Some(plan)
    }
}

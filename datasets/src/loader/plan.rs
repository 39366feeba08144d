//! What batches consist of, for those who put the images together themselves: a GPU that holds the
//! whole data set needs only this of every batch.

use super::Loader;
use crate::augment::{Augment, Key};
use crate::{Epoch, ImageShape};

/// How an image is moved within its frame and mirrored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Move {
    /// Rows that it is moved down.
    pub down: i32,
    /// Columns that it is moved to the right.
    pub right: i32,
    /// Whether it is then mirrored left to right.
    pub mirrored: bool,
}

/// One batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchPlan {
    /// Which images of the data set.
    pub indices: Vec<usize>,
    /// How each of them is moved.
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
    /// What [`iter`](Self::iter) would make the batches of `epoch` from; `None` if the augmentation
    /// does more than to move and mirror images.
    ///
    /// Where an image was moved away comes what [`reflects`](Self::reflects) says; a byte `b` of
    /// channel `c` becomes `b * scale + offset`, with the pair that [`lines`](Self::lines) has for
    /// `c`.
    pub fn plans(&self, epoch: Epoch) -> Option<Plans> {
        self.only_moves().then(|| Plans {
            epoch,
            augment: self.augment.clone(),
            seed: self.seed,
            position: 0,
        })
    }

    /// Whether the augmentation does no more than to move and mirror images.
    pub fn only_moves(&self) -> bool {
        let shape: ImageShape = self.dataset.shape();
        self.augment.only_places(shape)
    }

    /// Whether the image goes on, mirrored at its outermost pixels, where it was moved away; else
    /// zeros come in.
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

//! The next samples of a rank: through the shuffle buffer, and from any step.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::Shards;
use super::buffer::Buffer;
use super::sampler::ShardEpoch;
use super::walk::{Found, Sample, Walk};
use crate::error::LoaderError;

/// Draws that a resume works out at a time: their number need not be that of any sample.
const DRAWS: usize = 1 << 20;

pub(super) struct Cursor<I> {
    shards: Arc<dyn Shards<Item = I>>,
    epoch: ShardEpoch,
    /// `None` before the first sample.
    at: Option<Place<I>>,
    /// Samples that are ready; only used if a step is delivered as a whole.
    ready: VecDeque<Sample<I>>,
}

struct Place<I> {
    walk: Walk<I>,
    buffer: Buffer<Sample<I>>,
}

impl<I> Cursor<I> {
    pub(super) fn new(shards: Arc<dyn Shards<Item = I>>, epoch: ShardEpoch) -> Self {
        Cursor {
            shards,
            epoch,
            at: None,
            ready: VecDeque::new(),
        }
    }

    /// The samples of the next micro-batch; none at the end.
    pub(super) fn batch(&mut self) -> Result<Vec<Sample<I>>, LoaderError> {
        let mut place = match self.at.take() {
            Some(place) => place,
            None => self.resume()?,
        };
        if self.ready.is_empty() {
            let together = self.epoch.all_or_none();
            let count = together.unwrap_or(self.epoch.batch());
            let samples = place.take(count)?;
            if together.is_none() || samples.len() == count {
                self.ready.extend(samples);
            }
        }
        self.at = Some(place);
        let count = self.ready.len().min(self.epoch.batch());
        Ok(self.ready.drain(..count).collect())
    }

    /// The place after the samples that were seen before.
    fn resume(&self) -> Result<Place<I>, LoaderError> {
        let mut total = None;
        loop {
            match self.resume_of(total)? {
                Resumed::Here(place) => return Ok(*place),
                // The draws near the end depend on the number of samples.
                Resumed::EndedAt(number) => total = Some(number),
            }
        }
    }

    /// As [`resume`](Self::resume), for an epoch of `total` samples, or of enough.
    ///
    /// Draws are known before anything is read. So only the samples that are left in the buffer
    /// are read, and all others are skipped.
    fn resume_of(&self, total: Option<usize>) -> Result<Resumed<I>, LoaderError> {
        let mut walk = Walk::new(&self.shards, &self.epoch);
        let mut numbers = Buffer::new(self.epoch.buffer());
        let mut kept: HashMap<usize, Sample<I>> = HashMap::new();
        let (mut left, mut read) = (self.epoch.seen(), 0);
        while left > 0 {
            let draws = left.min(DRAWS);
            let until = numbers.draw(draws, read, total);
            let wanted: HashSet<usize> = numbers.slots().iter().copied().collect();
            kept.retain(|number, _| wanted.contains(number));
            for number in read..until {
                match walk.next(wanted.contains(&number))? {
                    Found::Sample(sample) => drop(kept.insert(number, sample)),
                    Found::Skipped => {}
                    Found::End => return Ok(Resumed::EndedAt(number)),
                }
            }
            if wanted.is_empty() && total == Some(until) {
                break; // All samples of the epoch were seen.
            }
            (left, read) = (left - draws, until);
        }
        let buffer = numbers.map(|number| kept.remove(&number));
        Ok(Resumed::Here(Box::new(Place { walk, buffer })))
    }
}

enum Resumed<I> {
    Here(Box<Place<I>>),
    /// The epoch has fewer samples than expected: this number.
    EndedAt(usize),
}

impl<I> Place<I> {
    /// The next `count` samples; fewer at the end.
    fn take(&mut self, count: usize) -> Result<Vec<Sample<I>>, LoaderError> {
        let mut samples = Vec::new();
        let Place { walk, buffer } = self;
        while samples.len() < count {
            let more = || {
                walk.next(true).map(|found| match found {
                    Found::Sample(sample) => Some(sample),
                    Found::Skipped | Found::End => None,
                })
            };
            match buffer.next(more)? {
                Some(sample) => samples.push(sample),
                None => break,
            }
        }
        Ok(samples)
    }
}

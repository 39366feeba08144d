//! A shuffle buffer.

use std::convert::Infallible;

use crate::random::Stream;

/// Keeps samples and draws the next one from them.
pub(super) struct Buffer<T> {
    slots: Vec<T>,
    size: usize,
    random: Stream,
}

impl<T> Buffer<T> {
    pub(super) fn new((size, random): (usize, Stream)) -> Self {
        Buffer {
            slots: Vec::new(),
            size,
            random,
        }
    }

    /// Draws a sample, after `more` has filled the buffer; `None` if it is empty.
    pub(super) fn next<E>(
        &mut self,
        mut more: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        while self.slots.len() < self.size {
            let Some(sample) = more()? else { break };
            self.slots.push(sample);
        }
        if self.slots.is_empty() {
            return Ok(None);
        }
        let slot = self.random.below(self.slots.len() as u64) as usize;
        Ok(Some(self.slots.swap_remove(slot)))
    }

    /// The same buffer with other contents.
    pub(super) fn map<U>(self, change: impl FnMut(T) -> Option<U>) -> Buffer<U> {
        Buffer {
            slots: self.slots.into_iter().filter_map(change).collect(),
            size: self.size,
            random: self.random,
        }
    }

    pub(super) fn slots(&self) -> &[T] {
        &self.slots
    }
}

impl Buffer<usize> {
    /// Makes `count` draws from samples that are represented by their numbers.
    ///
    /// Reading continues at number `read` and ends before `total`, if known. Returns where it
    /// stopped.
    pub(super) fn draw(&mut self, count: usize, mut read: usize, total: Option<usize>) -> usize {
        let mut more = || {
            let number = total.is_none_or(|total| read < total).then_some(read);
            read += usize::from(number.is_some());
            Ok::<_, Infallible>(number)
        };
        for _ in 0..count {
            if matches!(self.next(&mut more), Ok(None)) {
                break;
            }
        }
        read
    }
}

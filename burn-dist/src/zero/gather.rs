//! Gathers shards: values bucket by bucket, one in flight while the next is filled, and parameters
//! of stage 3 when a layer reads them.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use burn::tensor::Tensor;
use parking_lot::Mutex;

use crate::Error;
use crate::autograd::ParameterSource;
use crate::bucket::{BucketLayout, Gathering, Reducer};
use crate::flat;

/// The whole values of every parameter, from the `pieces` that each rank owns. A collective call.
pub(crate) fn gather_values(
    reducer: &Reducer,
    pieces: &[Tensor<1>],
) -> Result<Vec<Tensor<1>>, Error> {
    let mut whole = vec![flat::none(); reducer.parameters().len()];
    let mut under_way = VecDeque::new();
    for (bucket, layout) in reducer.layouts().iter().enumerate() {
        let gathering = reducer.gather(bucket, |parameter| pieces.get(parameter).cloned())?;
        under_way.push_back((layout, gathering));
        if under_way.len() > 1 {
            take_whole(under_way.pop_front(), &mut whole)?;
        }
    }
    take_whole(under_way.pop_front(), &mut whole)?;
    Ok(whole)
}

fn take_whole(
    bucket: Option<(&BucketLayout, Box<dyn Gathering>)>,
    whole: &mut [Tensor<1>],
) -> Result<(), Error> {
    let Some((layout, mut gathering)) = bucket else {
        return Ok(());
    };
    gathering.wait()?;
    let places: Vec<_> = layout
        .slots
        .iter()
        .map(|slot| slot.elements.clone())
        .collect();
    for (slot, part) in layout.slots.iter().zip(gathering.parts(&places)) {
        if let Some(place) = whole.get_mut(slot.parameter) {
            *place = part;
        }
    }
    Ok(())
}

/// The parameters of a model that live as shards, and their gathered buckets.
///
/// Forward reads buckets from the last to the first, backward in the reverse order. Reading a
/// bucket starts the next ones in that direction, and frees the buckets that were read longest ago.
/// Buckets of whole parameters and cut buckets alternate in one pass, so each kind has an order of
/// its own.
pub(crate) struct ShardedParameters {
    reducer: Arc<Reducer>,
    prefetch: usize,
    state: Mutex<State>,
}

struct State {
    /// Elements of each parameter that this rank owns.
    pieces: Vec<Tensor<1>>,
    /// Gathered buckets and those in flight; the last one read is at the back.
    gathered: VecDeque<Gathered>,
    /// The pass over cut buckets, and the pass over buckets of whole parameters.
    passes: [Pass; 2],
    failure: Option<Error>,
    /// Whether an evaluation reads.
    is_lent: bool,
    /// Parameters read in evaluations since the last [`take_reads`](ShardedParameters::take_reads).
    reads: u64,
}

/// Position of the reads.
#[derive(Clone, Copy, Default)]
struct Pass {
    last: Option<usize>,
    backwards: bool,
}

impl Pass {
    /// Notes the read of a bucket, and returns the next ones, nearest first. `before` and `after`
    /// are the other buckets on either side, both from near to far.
    fn read(
        &mut self,
        bucket: usize,
        before: impl Iterator<Item = usize>,
        after: impl Iterator<Item = usize>,
        count: usize,
    ) -> Vec<usize> {
        let (mut before, mut after) = (before.peekable(), after.peekable());
        let between = before.peek().is_some() && after.peek().is_some();
        self.backwards = match self.last {
            Some(last) if last != bucket => bucket < last,
            Some(_) if between => self.backwards,
            _ => before.peek().is_some(),
        };
        self.last = Some(bucket);
        match self.backwards {
            true => before.take(count).collect(),
            false => after.take(count).collect(),
        }
    }
}

struct Gathered {
    bucket: usize,
    content: Box<dyn Gathering>,
}

impl ShardedParameters {
    /// Takes the `pieces` of every parameter that this rank owns.
    pub(crate) fn new(reducer: Arc<Reducer>, prefetch: usize, pieces: Vec<Tensor<1>>) -> Self {
        Self {
            reducer,
            prefetch,
            state: Mutex::new(State {
                pieces,
                gathered: VecDeque::new(),
                passes: Default::default(),
                failure: None,
                is_lent: false,
                reads: 0,
            }),
        }
    }

    /// The pieces that this rank owns.
    pub(crate) fn pieces(&self) -> Vec<Tensor<1>> {
        self.state.lock().pieces.clone()
    }

    /// Changes the pieces that this rank owns, and frees gathered buckets.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut [Tensor<1>]) -> R) -> R {
        let mut state = self.state.lock();
        state.gathered.clear();
        for pass in &mut state.passes {
            pass.last = None;
        }
        change(&mut state.pieces)
    }

    /// Lets `then` read `pieces` in place of the own ones.
    pub(crate) fn lend<R>(&self, pieces: Vec<Tensor<1>>, then: impl FnOnce() -> R) -> R {
        let swap = |mut pieces: Vec<Tensor<1>>| {
            self.release();
            let mut state = self.state.lock();
            state.is_lent = !state.is_lent;
            std::mem::swap(&mut state.pieces, &mut pieces);
            drop(state);
            pieces
        };
        let own = swap(pieces);
        // Training must not continue with the lent pieces if a panic is caught.
        let result = catch_unwind(AssertUnwindSafe(then));
        drop(swap(own));
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Parameters that evaluations have read since the last call.
    ///
    /// Ranks with unequal numbers have made unequal forward passes. If buckets were in memory
    /// already, nothing else shows it.
    pub(crate) fn take_reads(&self) -> u64 {
        std::mem::take(&mut self.state.lock().reads)
    }

    /// Frees gathered buckets.
    pub(crate) fn release(&self) {
        self.update(|_| ());
    }

    /// Returns an error from a read that could not return it.
    pub(crate) fn failure(&self) -> Result<(), Error> {
        self.state.lock().failure.take().map_or(Ok(()), Err)
    }

    /// A whole parameter: its part of the gathered bucket, not copied in host memory. Every rank
    /// reads the same parameters in the same order.
    pub(crate) fn read(&self, parameter: usize) -> Result<Tensor<1>, Error> {
        // Nothing can be missing. Computing with the placeholder instead would be wrong and
        // unnoticed.
        let missing = |what: &str| Error::Device {
            reason: format!("parameter {parameter} was read, and its {what} is missing"),
        };
        let place = self.reducer.place_of(parameter);
        let (bucket, place) = place.ok_or_else(|| missing("bucket"))?;
        let mut state = self.state.lock();
        state.reads += u64::from(state.is_lent);
        self.ensure(&mut state, bucket)?;
        self.look_ahead(&mut state, bucket)?;
        let Some(Gathered { content, .. }) = state
            .gathered
            .iter_mut()
            .find(|entry| entry.bucket == bucket)
        else {
            return Err(missing("gathered bucket"));
        };
        // Waits only now, when the next buckets are in flight.
        content.wait()?;
        let part = content.parts(&[place]).pop();
        part.ok_or_else(|| missing("part of the gathered bucket"))
    }

    /// Starts a bucket if it is missing, and marks it as read last.
    fn ensure(&self, state: &mut State, bucket: usize) -> Result<(), Error> {
        let at = state
            .gathered
            .iter()
            .position(|entry| entry.bucket == bucket);
        let entry = match at.and_then(|at| state.gathered.remove(at)) {
            Some(entry) => entry,
            None => {
                let piece = |parameter: usize| state.pieces.get(parameter).cloned();
                let content = self.reducer.gather(bucket, piece)?;
                Gathered { bucket, content }
            }
        };
        state.gathered.push_back(entry);
        Ok(())
    }

    fn look_ahead(&self, state: &mut State, bucket: usize) -> Result<(), Error> {
        let layouts = self.reducer.layouts();
        let is_whole = |bucket: usize| layouts.get(bucket).is_some_and(|layout| layout.is_whole);
        let alike = |other: &usize| is_whole(*other) == is_whole(bucket);
        let before = (0..bucket).rev().filter(alike);
        let after = (bucket + 1..layouts.len()).filter(alike);
        let pass = &mut state.passes[usize::from(is_whole(bucket))];
        for next in pass.read(bucket, before, after, self.prefetch) {
            if !state.gathered.iter().any(|entry| entry.bucket == next) {
                self.ensure(state, next)?;
            }
        }
        // A block may lie in two buckets, so the previous one is kept too.
        let there = state.gathered.iter().filter(|entry| alike(&entry.bucket));
        let kept = self.prefetch.saturating_add(2);
        let mut spare = there.count().saturating_sub(kept);
        state.gathered.retain(|entry| {
            let gone = spare > 0 && alike(&entry.bucket);
            spare -= usize::from(gone);
            !gone
        });
        Ok(())
    }
}

impl ParameterSource for ShardedParameters {
    fn whole(&self, parameter: usize) -> Option<Tensor<1>> {
        match self.read(parameter) {
            Ok(values) => Some(values),
            Err(error) => {
                self.state.lock().failure.get_or_insert(error);
                None
            }
        }
    }
}

impl fmt::Debug for ShardedParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ShardedParameters({} parameters)",
            self.reducer.parameters().len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads buckets 0, 2, 5 and 6; the others are of the other kind.
    fn read(pass: &mut Pass, bucket: usize) -> Vec<usize> {
        let before = [6, 5, 2, 0].into_iter().filter(|other| *other < bucket);
        let after = [0, 2, 5, 6].into_iter().filter(|other| *other > bucket);
        pass.read(bucket, before, after, 2)
    }

    #[test]
    fn what_lies_ahead_follows_the_direction_and_is_of_the_same_kind() {
        let mut pass = Pass::default();
        // Forward, then backward, in which a block reads both of its buckets twice.
        let steps = [
            (6, vec![5, 2]),
            (5, vec![2, 0]),
            (5, vec![2, 0]),
            (2, vec![0]),
            (0, vec![]),
            (0, vec![2, 5]),
            (2, vec![5, 6]),
            (2, vec![5, 6]),
            (5, vec![6]),
            (6, vec![]),
            (6, vec![5, 2]),
        ];
        for (bucket, expected) in steps {
            assert_eq!(read(&mut pass, bucket), expected, "{bucket}");
        }
    }

    #[test]
    fn a_bucket_alone_has_nothing_ahead() {
        let mut pass = Pass::default();
        for _ in 0..3 {
            let none = std::iter::empty;
            assert!(pass.read(4, none(), none(), 3).is_empty());
        }
    }
}

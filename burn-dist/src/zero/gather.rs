//! Makes wholes of shards: values bucket by bucket, one bucket on its way while the next is filled,
//! and parameters that live as shards (stage 3), gathered when they are read.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{AllocationProperty, Bytes, Tensor};

use crate::autograd::{ParameterSource, WholeParameter};
use crate::bucket::{BucketLayout, DeviceHandle, Reducer, assemble, take_parts};
use crate::values::Values;
use crate::{Buffer, DType, Error, Handle, ProcessGroup};

/// Gathers one bucket after the other, in host memory.
pub(crate) struct Gatherer<'a> {
    group: &'a ProcessGroup,
    reducer: &'a Reducer,
    under_way: VecDeque<(usize, Handle)>,
}

impl<'a> Gatherer<'a> {
    pub(crate) fn new(group: &'a ProcessGroup, reducer: &'a Reducer) -> Self {
        Self {
            group,
            reducer,
            under_way: VecDeque::new(),
        }
    }

    /// Starts gathering a bucket, of which `fill` writes what this rank owns of each parameter.
    pub(crate) fn start(
        &mut self,
        bucket: usize,
        fill: impl FnMut(usize, &mut [f32]),
    ) -> Result<(), Error> {
        let handle = start(self.group, self.reducer, bucket, fill)?;
        self.under_way.push_back((bucket, handle));
        Ok(())
    }

    /// Hands over, parameter by parameter, all buckets but the `left` newest ones.
    pub(crate) fn take(
        &mut self,
        left: usize,
        mut take: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        while self.under_way.len() > left {
            finish(self.reducer, self.under_way.pop_front(), &mut take)?;
        }
        Ok(())
    }
}

fn start(
    group: &ProcessGroup,
    reducer: &Reducer,
    bucket: usize,
    mut fill: impl FnMut(usize, &mut [f32]),
) -> Result<Handle, Error> {
    let empty = BucketLayout::EMPTY;
    let layout = reducer.layouts().get(bucket).unwrap_or(&empty);
    let mut buffer = Buffer::recycled(DType::F32, layout.len);
    let values = buffer.as_mut_slice::<f32>()?;
    for slot in &layout.slots {
        let place = reducer.own_place(slot.parameter).unwrap_or(0..0);
        if let Some(own) = values.get_mut(place).filter(|own| !own.is_empty()) {
            fill(slot.parameter, own);
        }
    }
    Ok(group.start_all_gather(
        buffer
            .cut(layout.cuts.clone())
            .numbered(reducer.number(bucket)),
    ))
}

fn finish(
    reducer: &Reducer,
    bucket: Option<(usize, Handle)>,
    mut take: impl FnMut(usize, &[f32]),
) -> Result<(), Error> {
    let Some((bucket, handle)) = bucket else {
        return Ok(());
    };
    let buffer = handle.wait()?;
    let values = buffer.as_slice::<f32>()?;
    for slot in reducer.layouts().get(bucket).map_or(&[][..], |b| &b.slots) {
        take(
            slot.parameter,
            values.get(slot.elements.clone()).unwrap_or_default(),
        );
    }
    Ok(())
}

/// The whole values of every parameter, of which this rank has the `pieces` that it owns. A
/// collective call.
pub(crate) fn gather_values(
    group: &ProcessGroup,
    reducer: &Reducer,
    pieces: &[Values],
) -> Result<Vec<Values>, Error> {
    let mut whole = vec![Values::put(Vec::new(), None); reducer.parameters().len()];
    let mut under_way = VecDeque::new();
    for bucket in 0..reducer.layouts().len() {
        under_way.push_back((bucket, Content::start(group, reducer, bucket, pieces)?));
        if under_way.len() > 1 {
            take_whole(reducer, under_way.pop_front(), &mut whole)?;
        }
    }
    take_whole(reducer, under_way.pop_front(), &mut whole)?;
    Ok(whole)
}

fn take_whole(
    reducer: &Reducer,
    bucket: Option<(usize, Content)>,
    whole: &mut [Values],
) -> Result<(), Error> {
    let Some((bucket, content)) = bucket else {
        return Ok(());
    };
    let content = content.arrive()?;
    for slot in reducer.layouts().get(bucket).map_or(&[][..], |b| &b.slots) {
        if let Some(place) = whole.get_mut(slot.parameter) {
            *place = match content.part(slot.elements.clone()) {
                Some(WholeParameter::Host(bytes)) => {
                    Values::put(bytemuck::pod_collect_to_vec(&bytes), None)
                }
                Some(WholeParameter::Device(part)) => Values::Device(part),
                None => continue,
            };
        }
    }
    Ok(())
}

/// The parameters of a model that live as shards, and the buckets of them that are gathered at the
/// moment.
///
/// A forward pass reads the buckets from the last to the first, backward the other way round. So
/// whoever reads a bucket makes the next ones in that direction start, and those that were read
/// longest ago are given up. Buckets of whole parameters and those that are cut alternate in one
/// pass, so each of the two has an order of its own.
pub(crate) struct Store {
    group: ProcessGroup,
    reducer: Arc<Reducer>,
    prefetch: usize,
    state: Mutex<State>,
}

struct State {
    /// By parameter: the elements that this rank owns.
    pieces: Vec<Values>,
    /// Gathered buckets and those on their way; the one that was read last is at the back.
    gathered: VecDeque<Gathered>,
    /// Of the buckets that are cut, and of those of whole parameters.
    passes: [Pass; 2],
    failure: Option<Error>,
}

/// Where reading stands.
#[derive(Clone, Copy, Default)]
struct Pass {
    last: Option<usize>,
    backwards: bool,
}

impl Pass {
    /// Notes that a bucket is read, and gives those that will be next, nearest first. There are others
    /// `before` and `after` it, both from near to far.
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
    content: Content,
}

/// A bucket that is gathered, or will be.
enum Content {
    Coming(Handle),
    Here(bytes::Bytes),
    ComingThere(Box<dyn DeviceHandle>),
    There(Box<Tensor<1>>),
}

impl Content {
    /// Starts gathering a bucket, of which this rank has `pieces`.
    fn start(
        group: &ProcessGroup,
        reducer: &Reducer,
        bucket: usize,
        pieces: &[Values],
    ) -> Result<Self, Error> {
        if reducer.resident().is_none() {
            let fill = |parameter: usize, own: &mut [f32]| {
                let piece = pieces.get(parameter).map_or(&[][..], Values::host);
                if piece.len() == own.len() {
                    own.copy_from_slice(piece);
                }
            };
            return Ok(Self::Coming(start(group, reducer, bucket, fill)?));
        }
        let piece = |parameter: usize| match pieces.get(parameter) {
            Some(Values::Device(piece)) => Some((**piece).clone()),
            _ => None,
        };
        let started = start_there(reducer, bucket, piece);
        Ok(started.map_or(Self::Here(bytes::Bytes::new()), Self::ComingThere))
    }

    /// Waits until it is there.
    fn arrive(self) -> Result<Self, Error> {
        Ok(match self {
            Self::Coming(handle) => Self::Here(bytes::Bytes::from_owner(Owner(handle.wait()?))),
            Self::ComingThere(handle) => Self::There(Box::new(handle.wait()?)),
            here => here,
        })
    }

    /// Some elements of what is there.
    fn part(&self, place: Range<usize>) -> Option<WholeParameter> {
        match self {
            Self::Here(all) => {
                let bytes = place.start * size_of::<f32>()..place.end * size_of::<f32>();
                let part = (bytes.end <= all.len()).then(|| all.slice(bytes))?;
                Some(WholeParameter::Host(Bytes::from_shared(
                    part,
                    AllocationProperty::Native,
                )))
            }
            Self::There(all) => {
                let part = take_parts((**all).clone(), &[place]).pop()?;
                Some(WholeParameter::Device(Box::new(part)))
            }
            Self::Coming(_) | Self::ComingThere(_) => None,
        }
    }
}

/// Starts gathering a bucket on the device, of which `piece` gives what this rank owns of each
/// parameter.
pub(crate) fn start_there(
    reducer: &Reducer,
    bucket: usize,
    mut piece: impl FnMut(usize) -> Option<Tensor<1>>,
) -> Option<Box<dyn DeviceHandle>> {
    let (flat, layout) = reducer.empty_there(bucket)?;
    let parts = layout.slots.iter().filter_map(|slot| {
        let place = reducer.own_place(slot.parameter)?;
        let piece = piece(slot.parameter).filter(|_| !place.is_empty())?;
        Some((place, piece))
    });
    let flat = assemble(flat, parts);
    let resident = reducer.resident()?;
    Some(
        resident
            .within
            .start_gather(flat, reducer.number(bucket), &layout.cuts),
    )
}

/// A gathered bucket, whose parts may outlive its place in the store.
struct Owner(Buffer);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl Store {
    /// Takes over the `pieces` that this rank owns of every parameter.
    pub(crate) fn new(
        group: &ProcessGroup,
        reducer: Arc<Reducer>,
        prefetch: usize,
        pieces: Vec<Values>,
    ) -> Self {
        Self {
            group: group.clone(),
            reducer,
            prefetch,
            state: Mutex::new(State {
                pieces,
                gathered: VecDeque::new(),
                passes: Default::default(),
                failure: None,
            }),
        }
    }

    /// What this rank owns.
    pub(crate) fn pieces(&self) -> Vec<Values> {
        self.lock().pieces.clone()
    }

    /// Changes what this rank owns; what was gathered before is given up.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut [Values]) -> R) -> R {
        let mut state = self.lock();
        state.gathered.clear();
        for pass in &mut state.passes {
            pass.last = None;
        }
        change(&mut state.pieces)
    }

    /// Lets `then` read `pieces` in place of those that are kept here.
    pub(crate) fn lend<R>(&self, pieces: Vec<Values>, then: impl FnOnce() -> R) -> R {
        let swap = |mut pieces: Vec<Values>| {
            self.release();
            std::mem::swap(&mut self.lock().pieces, &mut pieces);
            pieces
        };
        let own = swap(pieces);
        // Whoever catches a panic must not go on training with what was lent.
        let result = catch_unwind(AssertUnwindSafe(then));
        drop(swap(own));
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Gives up what is gathered.
    pub(crate) fn release(&self) {
        self.update(|_| ());
    }

    /// An error while a parameter was read, where none could be returned.
    pub(crate) fn failure(&self) -> Result<(), Error> {
        self.lock().failure.take().map_or(Ok(()), Err)
    }

    /// The whole of a parameter: its part of the gathered bucket, which is not copied in host memory.
    /// Every rank reads the same parameters in the same order.
    pub(crate) fn read(&self, parameter: usize) -> Result<WholeParameter, Error> {
        // None of it can be missing; to compute with the placeholder instead would be wrong unseen.
        let missing = |what: &str| Error::Device {
            reason: format!("parameter {parameter} was read, and its {what} is missing"),
        };
        let place = self.reducer.place_of(parameter);
        let (bucket, place) = place.ok_or_else(|| missing("bucket"))?;
        let mut state = self.lock();
        self.ensure(&mut state, bucket)?;
        self.look_ahead(&mut state, bucket)?;
        let Some(Gathered { content, .. }) = state
            .gathered
            .iter_mut()
            .find(|entry| entry.bucket == bucket)
        else {
            return Err(missing("gathered bucket"));
        };
        // Waits only now, when the next ones are under way.
        let coming = std::mem::replace(content, Content::Here(bytes::Bytes::new()));
        *content = coming.arrive()?;
        let part = content.part(place);
        part.ok_or_else(|| missing("part of the gathered bucket"))
    }

    /// Starts a bucket if it is not there, and makes it the one read last.
    fn ensure(&self, state: &mut State, bucket: usize) -> Result<(), Error> {
        let at = state
            .gathered
            .iter()
            .position(|entry| entry.bucket == bucket);
        let entry = match at.and_then(|at| state.gathered.remove(at)) {
            Some(entry) => entry,
            None => Gathered {
                bucket,
                content: Content::start(&self.group, &self.reducer, bucket, &state.pieces)?,
            },
        };
        state.gathered.push_back(entry);
        Ok(())
    }

    fn look_ahead(&self, state: &mut State, bucket: usize) -> Result<(), Error> {
        let layouts = self.reducer.layouts();
        let is_whole = |bucket: usize| layouts.get(bucket).is_some_and(BucketLayout::is_whole);
        let alike = |other: &usize| is_whole(*other) == is_whole(bucket);
        let before = (0..bucket).rev().filter(alike);
        let after = (bucket + 1..layouts.len()).filter(alike);
        let pass = &mut state.passes[usize::from(is_whole(bucket))];
        for next in pass.read(bucket, before, after, self.prefetch) {
            if !state.gathered.iter().any(|entry| entry.bucket == next) {
                self.ensure(state, next)?;
            }
        }
        // A block may lie in two buckets, so the one before is kept as well.
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ParameterSource for Store {
    fn whole(&self, parameter: usize) -> Option<WholeParameter> {
        match self.read(parameter) {
            Ok(values) => Some(values),
            Err(error) => {
                self.lock().failure.get_or_insert(error);
                None
            }
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({} parameters)", self.reducer.parameters().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads buckets 0, 2, 5 and 6 among others that are of the other kind.
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

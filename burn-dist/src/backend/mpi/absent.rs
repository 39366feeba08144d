//! Stands in for MPI in builds without it.

use std::sync::Arc;
use std::time::Duration;

use super::NoSession;
use crate::buffer::Buffer;
use crate::collective::{Descriptor, Failure};
use crate::shard::Cuts;
use crate::transport::{Reach, Transport, TransportError, Watch};
use crate::world::{Companion, Meeting, Topology, World};

/// MPI never runs.
#[derive(Debug)]
pub(crate) enum Session {}

/// No collectives.
#[derive(Debug)]
pub(crate) enum Collectives {}

impl Session {
    pub fn start() -> Result<Arc<Self>, NoSession> {
        Err(NoSession {
            action: "its start",
            reason: "this program was built without the feature `mpi`".to_owned(),
        })
    }

    pub fn of(_world: &World) -> Option<Arc<Self>> {
        None
    }

    pub fn rank(&self) -> usize {
        match *self {}
    }

    pub fn size(&self) -> usize {
        match *self {}
    }

    pub fn topology(&self) -> Topology {
        match *self {}
    }

    pub fn streams(
        self: &Arc<Self>,
        _ranks: &[usize],
        _number: u64,
        _place: usize,
        _reach: Reach,
    ) -> Result<Box<dyn Transport>, TransportError> {
        match **self {}
    }

    pub fn collectives(
        self: &Arc<Self>,
        _ranks: &[usize],
        _number: u64,
    ) -> Result<Collectives, TransportError> {
        match **self {}
    }
}

impl Companion for Session {
    fn meet(&self, _world: &World, _limit: Duration) -> Result<Meeting, String> {
        match *self {}
    }
}

impl Collectives {
    pub fn can(_what: &Descriptor) -> bool {
        false
    }

    pub fn run_on_slice(
        &mut self,
        _what: (&Descriptor, &Cuts),
        _data: &mut [u8],
        _watch: &Watch,
    ) -> Result<(), Failure> {
        match *self {}
    }

    pub fn run(
        &mut self,
        _what: (&Descriptor, &Cuts),
        _data: &mut Buffer,
        _watch: &Watch,
    ) -> Result<(), Failure> {
        match *self {}
    }
}

pub(crate) fn note_failure() {}

pub(crate) fn abort(_code: i32) {}

pub(crate) fn library() -> Option<String> {
    None
}

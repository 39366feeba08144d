//! How long a rank may wait, and what else ends the wait.
//!
//! Every wait of every transport goes through a [`Watch`], so that a dead or silent peer becomes
//! an error within the time-out wherever it happens.

use std::time::{Duration, Instant};

use crate::rendezvous::{Fault, FaultBoard};

/// The longest a rank sleeps before it looks at the fault board and the clock again.
const SLICE: Duration = Duration::from_millis(50);

/// A deadline and the news of failed peers.
#[derive(Clone, Debug)]
pub struct Watch {
    deadline: Instant,
    faults: FaultBoard,
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Debug)]
pub enum Interrupt {
    /// The deadline passed.
    TimedOut,
    /// A peer failed.
    Fault(Fault),
}

impl Watch {
    /// A watch that ends `limit` from now, or as soon as `faults` knows of a failed peer.
    pub fn new(limit: Duration, faults: FaultBoard) -> Self {
        Self { deadline: Instant::now() + limit, faults }
    }

    /// How long to sleep at most before asking again.
    ///
    /// # Errors
    /// When the wait is over: a peer failed, or the deadline passed.
    pub fn slice(&self) -> Result<Duration, Interrupt> {
        if let Some(fault) = self.faults.get() {
            return Err(Interrupt::Fault(fault));
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Interrupt::TimedOut);
        }
        Ok(left.min(SLICE))
    }
}

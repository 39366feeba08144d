//! Calls in which NCCL waits for other ranks without a limit. Only another thread can notice a
//! hang, and nothing can interrupt the call.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::NcclError;
use crate::ProcessGroup;
use crate::deadline::Allowance;

/// Time for NCCL to notice a known failure of another rank by itself: its own message is better.
const NEWS: Duration = Duration::from_secs(1);

/// The call that a thread is in, as other threads see it.
#[derive(Debug, Default)]
pub(super) struct Inside {
    call: Mutex<Option<OngoingCall>>,
}

#[derive(Debug)]
struct OngoingCall {
    limit: Duration,
    allowance: Allowance,
    /// Time since when a failure of another rank is known.
    fault: Option<Instant>,
    /// The error with which the call was given up.
    given_up: Option<NcclError>,
}

impl Inside {
    /// Runs `call`, which should return within `limit`.
    pub fn during<R>(&self, limit: Duration, call: impl FnOnce() -> R) -> R {
        *self.call.lock() = Some(OngoingCall {
            limit,
            allowance: Allowance::of(limit),
            fault: None,
            given_up: None,
        });
        let done = call();
        *self.call.lock() = None;
        done
    }

    /// Fails if the thread is in a call that will not return, and tells all ranks.
    ///
    /// # Errors
    /// [`NcclError::PeerFailed`] and [`NcclError::NotConnected`].
    pub fn check(&self, group: &ProcessGroup) -> Result<(), NcclError> {
        let known = self.is_given_up();
        self.look(group).inspect_err(|error| {
            if !known {
                group.abort(&error.to_string());
            }
        })
    }

    /// Does the same and tells nobody. For the end of a run, when ranks may be late.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn look(&self, group: &ProcessGroup) -> Result<(), NcclError> {
        let mut inside = self.call.lock();
        let Some(call) = &mut *inside else {
            return Ok(());
        };
        if let Some(error) = &call.given_up {
            return Err(error.clone());
        }
        match call.failure(group.fault()) {
            None => Ok(()),
            Some(error) => {
                call.given_up = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Whether the thread is in a call that was given up.
    fn is_given_up(&self) -> bool {
        let inside = self.call.lock();
        inside.as_ref().is_some_and(|call| call.given_up.is_some())
    }

    /// Whether the thread is in a call that will not return, without asking its group.
    pub fn is_lost(&self) -> bool {
        let mut inside = self.call.lock();
        let is_over = |call: &mut OngoingCall| {
            call.given_up.is_some() || call.allowance.left(Instant::now()).is_zero()
        };
        inside.as_mut().is_some_and(is_over)
    }
}

impl OngoingCall {
    fn failure(&mut self, fault: Option<String>) -> Option<NcclError> {
        if let Some(reason) = fault {
            let known = self.fault.get_or_insert_with(Instant::now);
            return (known.elapsed() > NEWS).then_some(NcclError::PeerFailed { reason });
        }
        let is_over = self.allowance.left(Instant::now()).is_zero();
        is_over.then_some(NcclError::NotConnected {
            seconds: self.limit.as_secs(),
        })
    }
}

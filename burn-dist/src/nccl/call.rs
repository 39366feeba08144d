//! Calls in which NCCL itself waits for other ranks, without an end if one of them does not come:
//! only another thread can notice that, and nothing can call back the one that is in there.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::NcclError;
use crate::ProcessGroup;
use crate::deadline::Allowance;

/// How long NCCL may take to notice by itself what is known of another rank: its own words are
/// better.
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
    /// Since when a fault of another rank has been known.
    fault: Option<Instant>,
    /// What was said when it was given up.
    given_up: Option<NcclError>,
}

impl Inside {
    /// Does `call`, which should come back within `limit`.
    pub fn during<R>(&self, limit: Duration, call: impl FnOnce() -> R) -> R {
        *self.lock() = Some(OngoingCall {
            limit,
            allowance: Allowance::of(limit),
            fault: None,
            given_up: None,
        });
        let done = call();
        *self.lock() = None;
        done
    }

    /// An error if the thread is in a call that will not come back, which all ranks are told.
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

    /// The same, told to nobody: at the end, where ranks may come as late as they like.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn look(&self, group: &ProcessGroup) -> Result<(), NcclError> {
        let mut inside = self.lock();
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
        let inside = self.lock();
        inside.as_ref().is_some_and(|call| call.given_up.is_some())
    }

    /// Whether the thread is in a call that will not come back, as far as can be told without its
    /// group.
    pub fn is_lost(&self) -> bool {
        let mut inside = self.lock();
        let is_over = |call: &mut OngoingCall| {
            call.given_up.is_some() || call.allowance.left(Instant::now()).is_zero()
        };
        inside.as_mut().is_some_and(is_over)
    }

    fn lock(&self) -> MutexGuard<'_, Option<OngoingCall>> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
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

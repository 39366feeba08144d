//! An operation in progress, which is polled.

use mpi::ffi;

use super::call::{MpiError, check};

/// An MPI request, or none.
#[derive(Debug)]
pub(super) struct Request(ffi::MPI_Request);

// SAFETY: a handle is an index or a pointer into the library; see `Communicator`.
unsafe impl Send for Request {}

impl Request {
    /// No operation: done from the start.
    pub fn none() -> Self {
        // SAFETY: reads a constant of the library.
        Self(unsafe { ffi::RSMPI_REQUEST_NULL })
    }

    /// Pointer for a function that returns a request.
    pub fn as_mut_ptr(&mut self) -> *mut ffi::MPI_Request {
        &mut self.0
    }

    /// Whether it is done, with the number of received bytes. Lets the library make progress.
    pub fn test(&mut self) -> Result<Option<usize>, MpiError> {
        let mut done = 0;
        // SAFETY: a status is plain numbers, for which zeros are valid.
        let mut status: ffi::MPI_Status = unsafe { std::mem::zeroed() };
        // SAFETY: the request belongs to a started operation, or is null; the other arguments are
        // ours.
        check("MPI_Test", unsafe {
            ffi::MPI_Test(&mut self.0, &mut done, &mut status)
        })?;
        if done == 0 {
            return Ok(None);
        }
        let mut count = 0;
        // SAFETY: the call above filled in the status.
        check("MPI_Get_count", unsafe {
            ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut count)
        })?;
        Ok(Some(usize::try_from(count).unwrap_or_default()))
    }

    /// Asks the library to cancel it; [`test`](Self::test) tells when it has.
    pub fn cancel(&mut self) {
        // SAFETY: cancelling is allowed for every request that is not null.
        unsafe {
            if self.0 != ffi::RSMPI_REQUEST_NULL {
                ffi::MPI_Cancel(&mut self.0);
            }
        }
    }
}

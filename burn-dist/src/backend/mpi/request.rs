//! An operation under way, which is asked now and then whether it is done.

use mpi::ffi;

use super::call::{MpiError, check};

/// A request of MPI's, or none.
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

    /// Where a function puts its request.
    pub fn as_mut_ptr(&mut self) -> *mut ffi::MPI_Request {
        &mut self.0
    }

    /// Whether it is done; with how many bytes, where it received some. Lets the library work.
    pub fn test(&mut self) -> Result<Option<usize>, MpiError> {
        let mut done = 0;
        // SAFETY: a status is plain numbers, for which zeros are as good as any.
        let mut status: ffi::MPI_Status = unsafe { std::mem::zeroed() };
        // SAFETY: the request is of an operation that was started, or none; the others are ours.
        check("MPI_Test", unsafe {
            ffi::MPI_Test(&mut self.0, &mut done, &mut status)
        })?;
        if done == 0 {
            return Ok(None);
        }
        let mut count = 0;
        // SAFETY: the status was filled in by the call above.
        check("MPI_Get_count", unsafe {
            ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut count)
        })?;
        Ok(Some(usize::try_from(count).unwrap_or_default()))
    }

    /// Asks the library to forget it; [`test`](Self::test) tells when it has.
    pub fn cancel(&mut self) {
        // SAFETY: cancelling is allowed for every request that is not null.
        unsafe {
            if self.0 != ffi::RSMPI_REQUEST_NULL {
                ffi::MPI_Cancel(&mut self.0);
            }
        }
    }
}

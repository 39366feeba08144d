//! The part of NCCL that this crate needs.

use super::NcclError;
use crate::Cuts;
use crate::collective::Descriptor;

/// Created by rank 0; the other ranks need it to connect.
pub(crate) type UniqueId = [u8; 128];

/// NCCL for one rank, on a stream of its own. All calls but `unique_id` come from one thread.
pub(crate) trait Nccl: Send + Sync + 'static {
    /// A connection to the other ranks.
    type Communicator;
    /// The elements of a collective in device memory, kept from being freed or moved.
    type Memory: Send + 'static;

    /// Makes the id of a new communicator, on rank 0.
    fn unique_id(&self) -> Result<UniqueId, NcclError>;

    /// Connects to the other ranks. Returns when all have called it.
    fn connect(
        &self,
        id: &UniqueId,
        size: usize,
        rank: usize,
    ) -> Result<Self::Communicator, NcclError>;

    /// Waits until the elements are computed.
    fn make_ready(&self, memory: &mut Self::Memory) -> Result<(), NcclError>;

    /// Enqueues a collective, in place, on the stream; `cuts` are the ranks' shards.
    fn enqueue(
        &self,
        communicator: &mut Self::Communicator,
        what: &Descriptor,
        cuts: &Cuts,
        memory: &mut Self::Memory,
    ) -> Result<(), NcclError>;

    /// Whether the stream is empty.
    fn is_done(&self, communicator: &mut Self::Communicator) -> Result<bool, NcclError>;

    /// An error that NCCL has noticed in the background.
    fn asynchronous_error(&self, communicator: &mut Self::Communicator) -> Result<(), NcclError>;

    /// Aborts the work on the stream and the communicator.
    fn abort(&self, communicator: Self::Communicator);

    /// Closes the communicator when nothing runs.
    fn close(&self, communicator: Self::Communicator);
}

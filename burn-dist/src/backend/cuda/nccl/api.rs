//! The little of NCCL that is needed.

use super::NcclError;
use crate::Cuts;
use crate::collective::Descriptor;

/// What rank 0 makes and all others need to meet it.
pub(crate) type UniqueId = [u8; 128];

/// NCCL for one rank, on one stream of its own. All calls but that for an id come from one thread.
pub(crate) trait Nccl: Send + Sync + 'static {
    /// The ranks, connected.
    type Communicator;
    /// The elements of a collective in device memory, kept from being freed or moved.
    type Memory: Send + 'static;

    /// Makes the id of a new communicator, on rank 0.
    fn unique_id(&self) -> Result<UniqueId, NcclError>;

    /// Meets the other ranks. Returns when all have come.
    fn connect(
        &self,
        id: &UniqueId,
        size: usize,
        rank: usize,
    ) -> Result<Self::Communicator, NcclError>;

    /// Waits until what computes the elements is done.
    fn make_ready(&self, memory: &mut Self::Memory) -> Result<(), NcclError>;

    /// Puts a collective, in place, on the stream; `cuts` says which shards are whose.
    fn enqueue(
        &self,
        communicator: &mut Self::Communicator,
        what: &Descriptor,
        cuts: &Cuts,
        memory: &mut Self::Memory,
    ) -> Result<(), NcclError>;

    /// Whether everything on the stream is done.
    fn is_done(&self, communicator: &mut Self::Communicator) -> Result<bool, NcclError>;

    /// What NCCL has noticed meanwhile.
    fn asynchronous_error(&self, communicator: &mut Self::Communicator) -> Result<(), NcclError>;

    /// Ends what runs on the stream, and the communicator with it.
    fn abort(&self, communicator: Self::Communicator);

    /// Takes leave of the others when nothing runs.
    fn close(&self, communicator: Self::Communicator);
}

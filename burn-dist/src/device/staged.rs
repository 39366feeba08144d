//! Collectives on a device's memory that go through host memory: where ranks share a device, or there is
//! no NCCL. What has to cross the bus does so once, in one piece, through memory that the driver has
//! pinned where it can.

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};

use crate::bucket::{DeviceCollectives, DeviceHandle, burn_dtype, gradient_dtype};
use crate::{Buffer, Cuts, Error, Handle, ProcessGroup, ReduceOp};

/// The collectives of a group, for tensors of `device`.
#[derive(Debug)]
pub(crate) struct Staged {
    pub group: ProcessGroup,
    pub device: Device,
}

impl Staged {
    fn shard(&self, len: usize, cuts: &Cuts) -> Range<usize> {
        cuts.shard(len, self.group.size(), self.group.rank())
    }

    /// A collective that begins with the elements `of` a tensor, and gives those of `result`.
    fn start(
        &self,
        flat: Tensor<1>,
        of: Range<usize>,
        result: Range<usize>,
        start: impl FnOnce(Buffer) -> Handle,
    ) -> Box<dyn DeviceHandle> {
        let buffer = read(flat, of);
        let device = self.device.clone();
        let handle = buffer.map(start);
        Box::new(Started {
            handle,
            result,
            device,
        })
    }
}

impl DeviceCollectives for Staged {
    fn start_mean(&self, flat: Tensor<1>) -> Box<dyn DeviceHandle> {
        let all = 0..flat.shape().num_elements();
        let mean = |buffer| self.group.start_all_reduce(buffer, ReduceOp::Mean);
        self.start(flat, all.clone(), all, mean)
    }

    fn start_mean_of_shard(&self, flat: Tensor<1>, cuts: &Cuts) -> Box<dyn DeviceHandle> {
        let len = flat.shape().num_elements();
        let mean = |buffer: Buffer| {
            let buffer = buffer.cut(cuts.clone());
            self.group.start_reduce_scatter(buffer, ReduceOp::Mean)
        };
        self.start(flat, 0..len, self.shard(len, cuts), mean)
    }

    fn start_gather(&self, flat: Tensor<1>, cuts: &Cuts) -> Box<dyn DeviceHandle> {
        let len = flat.shape().num_elements();
        let gather = |buffer: Buffer| self.group.start_all_gather(buffer.cut(cuts.clone()));
        self.start(flat, self.shard(len, cuts), 0..len, gather)
    }
}

/// A buffer as long as `flat`, with the elements in `place`; the others are arbitrary.
fn read(flat: Tensor<1>, place: Range<usize>) -> Result<Buffer, Error> {
    let unreadable = |reason: String| Error::Device { reason };
    let len = flat.shape().num_elements();
    let Some(dtype) = gradient_dtype(flat.dtype()) else {
        return Err(unreadable(format!("no rank can add {:?}", flat.dtype())));
    };
    let mut buffer = Buffer::recycled(dtype, len);
    if place.is_empty() {
        return Ok(buffer);
    }
    let bytes = place.start * dtype.size()..place.end * dtype.size();
    let part = match place.len() == len {
        true => flat,
        false => flat.slice(place),
    };
    let data = part.try_into_data();
    let data = data.map_err(|error| unreadable(error.to_string()))?;
    match buffer.bytes_mut().get_mut(bytes) {
        Some(target) if target.len() == data.as_bytes().len() => {
            target.copy_from_slice(data.as_bytes());
            Ok(buffer)
        }
        _ => Err(unreadable(format!(
            "it gave {} elements",
            data.num_elements()
        ))),
    }
}

struct Started {
    handle: Result<Handle, Error>,
    /// The elements that go back.
    result: Range<usize>,
    device: Device,
}

impl DeviceHandle for Started {
    fn wait(self: Box<Self>) -> Result<Tensor<1>, Error> {
        let buffer = self.handle?.wait()?;
        let (dtype, size) = (burn_dtype(buffer.dtype()), buffer.dtype().size());
        // Of an empty shard anything.
        let result = match self.result.is_empty() {
            true => 0..buffer.len().min(1),
            false => self.result,
        };
        let bytes = &buffer.bytes()[result.start * size..result.end * size];
        let mut data = TensorData::from_bytes_vec(bytes.to_vec(), [result.len()], dtype);
        self.device.staging(std::iter::once(&mut data));
        Ok(Tensor::from_data(data, (&self.device, dtype)))
    }
}

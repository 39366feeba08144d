//! Collectives on device memory that go through host memory, for ranks that share a device or lack
//! NCCL. Data crosses the bus once, in one piece, from memory that the runtime pins if it can.

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};

use crate::bucket::{DeviceCollectives, DeviceHandle, burn_dtype, gradient_dtype};
use crate::{Buffer, Compression, Cuts, Error, Handle, ProcessGroup, ReduceOp};

/// The collectives of a group, for tensors of `device`.
pub(crate) struct Staged {
    pub group: ProcessGroup,
    pub device: Device,
    /// Number format in which reductions travel.
    pub compression: Compression,
}

impl Staged {
    fn shard(&self, len: usize, cuts: &Cuts) -> Range<usize> {
        cuts.shard(len, self.group.size(), self.group.rank())
    }

    /// Starts a collective on the elements `of` the tensor; its result is the elements `result`.
    fn start(
        &self,
        flat: Tensor<1>,
        of: Range<usize>,
        result: Range<usize>,
        start: impl FnOnce(Buffer) -> Handle,
    ) -> Box<dyn DeviceHandle> {
        let buffer = read(flat, of).map(|buffer| buffer.compress(self.compression));
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

    fn start_gather(&self, flat: Tensor<1>, number: u32, cuts: &Cuts) -> Box<dyn DeviceHandle> {
        let len = flat.shape().num_elements();
        let gather = |buffer: Buffer| {
            let buffer = buffer.cut(cuts.clone()).numbered(number);
            self.group.start_all_gather(buffer)
        };
        self.start(flat, self.shard(len, cuts), 0..len, gather)
    }
}

/// A buffer as long as `flat`, with the elements in `place`; the others are arbitrary.
fn read(flat: Tensor<1>, place: Range<usize>) -> Result<Buffer, Error> {
    let unreadable = |reason: String| Error::Device { reason };
    let len = flat.shape().num_elements();
    let Some(dtype) = gradient_dtype(flat.dtype()) else {
        return Err(unreadable(format!(
            "{:?} cannot be reduced over ranks",
            flat.dtype()
        )));
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
            "the device returned {} elements",
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
        // Any element will do for an empty shard.
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

#[cfg(test)]
mod tests {
    use burn::tensor::DType as BurnDType;

    use super::*;
    use crate::bucket::Alone;
    use crate::group::GroupOptions;

    const LEN: usize = 11;

    /// The elements of rank `rank`: whole numbers, so that sums are exact in every type.
    fn own(rank: usize) -> Vec<f32> {
        (0..LEN).map(|i| ((i * (rank + 2)) % 5) as f32).collect()
    }

    fn numbers(tensor: Tensor<1>, dtype: BurnDType) -> Vec<f32> {
        assert_eq!(tensor.dtype(), dtype);
        tensor.into_data().convert::<f32>().try_to_vec().unwrap()
    }

    /// The conformance test of every implementation, as rank `rank` of `size`.
    fn conforms(
        on: &dyn DeviceCollectives,
        rank: usize,
        size: usize,
        dtype: BurnDType,
        cuts: &Cuts,
    ) {
        let flat = || Tensor::<1>::from_data(own(rank).as_slice(), (&Device::flex(), dtype));
        let all: Vec<Vec<f32>> = (0..size).map(own).collect();
        let sum = |i: usize| all.iter().map(|values| values[i]).sum::<f32>();
        let means: Vec<f32> = (0..LEN).map(|i| sum(i) / size as f32).collect();
        let near = |found: Vec<f32>, expected: &[f32]| {
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                assert!(
                    (found - expected).abs() < 0.02,
                    "{found} {expected}, {dtype:?}"
                );
            }
        };
        near(
            numbers(on.start_mean(flat()).wait().unwrap(), dtype),
            &means,
        );
        let shard = cuts.shard(LEN, size, rank);
        let mean = on.start_mean_of_shard(flat(), cuts).wait().unwrap();
        if !shard.is_empty() {
            near(numbers(mean, dtype), &means[shard]);
        }
        let gathered = on.start_gather(flat(), 1, cuts).wait().unwrap();
        let owner = |i: usize| (0..size).find(|r| cuts.shard(LEN, size, *r).contains(&i));
        let expected = (0..LEN).map(|i| all[owner(i).unwrap()][i]);
        assert_eq!(numbers(gathered, dtype), expected.collect::<Vec<_>>());
    }

    #[test]
    fn gathers_of_different_buckets_do_not_meet() {
        let groups = ProcessGroup::in_process(2, &GroupOptions::default()).unwrap();
        let gather = |group: ProcessGroup| {
            let number = 1 + group.rank() as u32;
            let staged = Staged {
                group,
                device: Device::flex(),
                compression: Compression::None,
            };
            let flat = Tensor::<1>::from_floats([1.0, 2.0], &Device::flex());
            let gathered = staged.start_gather(flat, number, &Cuts::Even).wait();
            gathered.map(drop).map_err(|error| error.to_string())
        };
        let found: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let gather = &gather;
            let spawn = |group| scope.spawn(move || gather(group));
            let ranks: Vec<_> = groups.into_iter().map(spawn).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let disagree = |found: &Result<(), String>| {
            let message = found.as_ref().unwrap_err();
            message.contains("in bucket 1") && message.contains("in bucket 2")
        };
        assert!(found.iter().any(disagree), "{found:?}");
    }

    #[test]
    fn device_collectives_of_every_type_and_cut_give_the_right_elements() {
        let types = [
            BurnDType::F32,
            BurnDType::F64,
            BurnDType::F16,
            BurnDType::BF16,
        ];
        for size in [1, 2, 3] {
            let mut ends = vec![4; size];
            ends[size - 1] = LEN;
            let groups = match size {
                1 => vec![ProcessGroup::single()],
                _ => ProcessGroup::in_process(size, &GroupOptions::default()).unwrap(),
            };
            let ends = Cuts::Ends(ends.into());
            std::thread::scope(|scope| {
                for group in groups {
                    let cuts = [Cuts::Even, ends.clone()];
                    scope.spawn(move || {
                        let rank = group.rank();
                        let staged = Staged {
                            group,
                            device: Device::flex(),
                            compression: Compression::None,
                        };
                        for (dtype, cuts) in
                            types.iter().flat_map(|t| cuts.iter().map(move |c| (t, c)))
                        {
                            conforms(&staged, rank, size, *dtype, cuts);
                            if size == 1 {
                                conforms(&Alone, rank, size, *dtype, cuts);
                            }
                        }
                    });
                }
            });
        }
    }
}

//! Reads numbers from a GPU asynchronously. The copy is queued at once, and the caller waits later,
//! so that the GPU has other work meanwhile. Burn starts a reading only when it is awaited, behind
//! that other work.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use burn::tensor::{DType, Tensor};
use burn_cubecl::kernel::into_contiguous;
use cubecl::future::block_on;

use super::matrix::primitive;

type Copy = Pin<Box<dyn Future<Output = Result<Vec<f32>, String>> + Send>>;

/// A reading that [`start_reading`] has begun.
pub struct Reading {
    copies: Vec<Copy>,
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reading").field(&self.copies.len()).finish()
    }
}

impl Reading {
    /// Waits for the numbers of all tensors, one tensor after the other.
    ///
    /// # Errors
    /// The device's message, if something failed on it before the copy.
    pub fn wait(self) -> Result<Vec<f32>, String> {
        let mut numbers = Vec::new();
        for copy in self.copies {
            numbers.extend(block_on(copy)?);
        }
        Ok(numbers)
    }
}

/// Begins to copy the numbers of all `tensors`, as f32, to host memory. For a device that
/// [`super::is_gpu`].
///
/// # Panics
/// If a tensor is not on a device that [`super::is_gpu`], or has autodiff.
pub fn start_reading(tensors: impl IntoIterator<Item = Tensor<1>>) -> Reading {
    Reading {
        copies: tensors.into_iter().map(copy).collect(),
    }
}

fn copy(tensor: Tensor<1>) -> Copy {
    let tensor = into_contiguous(primitive(tensor.cast(DType::F32)));
    let mut copy: Copy = Box::pin(async move {
        let count = tensor.meta.shape().num_elements();
        // Enqueued by this call, not by the await.
        let bytes = tensor.client.read_async(vec![tensor.handle.clone()]);
        yield_once().await;
        let bytes = bytes.await.map_err(|error| error.to_string())?;
        let numbers = bytes.iter().flat_map(|bytes| bytes.as_chunks().0);
        Ok(numbers
            .copied()
            .map(f32::from_ne_bytes)
            .take(count)
            .collect())
    });
    let is_there = copy
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_ready();
    debug_assert!(!is_there, "it has only begun");
    copy
}

/// Is pending at the first poll, then ready.
fn yield_once() -> impl Future<Output = ()> {
    let mut polls = 0;
    poll_fn(move |_| {
        polls += 1;
        match polls {
            1 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    })
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use burn::tensor::Tensor;

    use super::super::test_device::device;
    use super::*;

    #[test]
    fn what_was_there_when_it_began_is_read() {
        let Some(device) = device("what_was_there_when_it_began_is_read") else {
            return;
        };
        let values = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0], &device);
        let half = (values.clone() * 0.5).cast(DType::BF16);
        let reading = start_reading([values.clone().slice(1..3), half]);
        // In the same memory, if that was free.
        let later = values + 1.0;
        assert_eq!(reading.wait().unwrap(), [2.0, 3.0, 0.5, 1.0, 1.5, 2.0]);
        let later = start_reading([later]);
        assert_eq!(later.wait().unwrap(), [2.0, 3.0, 4.0, 5.0]);
    }
}

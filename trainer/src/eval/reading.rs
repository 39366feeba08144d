//! Numbers on their way from what computes them: a GPU is waited for only when they are wanted, so
//! that it gets other work meanwhile.

use burn::tensor::Tensor;

/// The numbers of some tensors, as `f32`, one tensor after the other.
#[derive(Debug)]
pub(crate) enum Reading {
    Known(Vec<f32>),
    OnItsWay(kernels::gpu::Reading),
}

impl Reading {
    /// Begins to read `tensors`, of which there is at least one.
    ///
    /// # Errors
    /// What failed on the device, in its words, where it is waited for.
    pub fn start(tensors: Vec<Tensor<1>>) -> Result<Self, String> {
        if tensors
            .iter()
            .all(|tensor| kernels::policy::on_gpu(&tensor.device()))
        {
            return Ok(Self::OnItsWay(kernels::gpu::start_reading(tensors)));
        }
        let mut numbers = Vec::new();
        for tensor in tensors {
            let data = tensor.try_into_data().map_err(|error| error.to_string())?;
            numbers.extend(data.iter::<f32>());
        }
        Ok(Self::Known(numbers))
    }

    /// Waits for them.
    ///
    /// # Errors
    /// What failed on the device, in its words.
    pub fn wait(self) -> Result<Vec<f32>, String> {
        match self {
            Self::Known(numbers) => Ok(numbers),
            Self::OnItsWay(reading) => reading.wait(),
        }
    }
}

//! Asynchronous reads from the device: the host waits only when it needs the numbers.

use burn::tensor::Tensor;

/// The values of some tensors as `f32`, one tensor after another.
#[derive(Debug)]
pub(crate) enum Reading {
    Known(Vec<f32>),
    OnItsWay(kernels::gpu::Reading),
}

impl Reading {
    /// Starts to read `tensors`, at least one.
    ///
    /// # Errors
    /// The device's error message, if this call waits.
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

    /// Waits for the values.
    ///
    /// # Errors
    /// The device's error message.
    pub fn wait(self) -> Result<Vec<f32>, String> {
        match self {
            Self::Known(numbers) => Ok(numbers),
            Self::OnItsWay(reading) => reading.wait(),
        }
    }
}

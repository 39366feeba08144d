//! Numbers of a training's state, where they are stepped: in host memory, or on a GPU.

use std::sync::Arc;

use burn::tensor::{DType, Device, ExecutionError, Tensor, TensorData};

/// What a rank keeps for the elements of a parameter that it owns: their values, their average, or what
/// the optimizer needs. Flat, in `f32`.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    /// In host memory. A snapshot shares them until they next change.
    Host(Arc<Vec<f32>>),
    /// On a device whose memory the processor does not share. Never empty.
    Device(Box<Tensor<1>>),
}

impl Values {
    /// Puts `values` on `device`, or leaves them in host memory.
    pub(crate) fn put(values: Vec<f32>, device: Option<&Device>) -> Self {
        match device.filter(|_| !values.is_empty()) {
            Some(device) => {
                let len = values.len();
                Self::on_device(Tensor::from_data(
                    TensorData::new(values, [len]),
                    (device, DType::F32),
                ))
            }
            None => Self::Host(Arc::new(values)),
        }
    }

    pub(crate) fn on_device(values: Tensor<1>) -> Self {
        Self::Device(Box::new(values))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Device(values) => values.shape().num_elements(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is in host memory; nothing of values on a device.
    pub(crate) fn host(&self) -> &[f32] {
        match self {
            Self::Host(values) => values,
            Self::Device(_) => &[],
        }
    }

    /// The same, to be changed. Copies only while a snapshot is being written.
    pub(crate) fn host_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Host(values) => Arc::make_mut(values).as_mut_slice(),
            Self::Device(_) => &mut [],
        }
    }

    /// On `device`, wherever they are.
    pub(crate) fn into_tensor(self, device: &Device) -> Tensor<1> {
        match self {
            Self::Host(values) => {
                Tensor::from_data(TensorData::from(values.as_slice()), (device, DType::F32))
            }
            Self::Device(values) => *values,
        }
    }

    /// Leaves nothing behind.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Host(Arc::default()))
    }

    /// A copy in host memory.
    ///
    /// # Errors
    /// What the device could not compute or give.
    pub(crate) fn read(self) -> Result<TensorData, ExecutionError> {
        match self {
            Self::Host(values) => Ok(TensorData::from(values.as_slice())),
            Self::Device(values) => values.try_into_data(),
        }
    }
}

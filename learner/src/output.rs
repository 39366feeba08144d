//! Outputs of all ranks that become one output of the global batch.

use std::collections::VecDeque;

use burn::tensor::{DType, Device, ExecutionError, Int, Tensor, TensorData};
use burn_train::metric::ItemLazy;
use burn_train::{
    ClassificationOutput, MultiLabelClassificationOutput, RegressionOutput, SequenceOutput,
};
use serde::{Deserialize, Serialize};

/// An output of a step that travels to rank 0, where the outputs of all ranks become one.
///
/// Metrics then see the output of the global batch, as in a training on one rank. Implemented for
/// burn-train's outputs. For one of your own, list its tensors in [`into_parts`](Self::into_parts)
/// and read them in the same order in [`from_parts`](Self::from_parts):
///
/// ```
/// use burn::tensor::{ExecutionError, Tensor};
/// use burn_train::metric::ItemLazy;
/// use learner::{GlobalOutput, Part, Parts};
///
/// struct Embedded {
///     loss: Tensor<1>,         // mean over the batch
///     embeddings: Tensor<2>,   // [batch, width]
/// }
/// # impl ItemLazy for Embedded {
/// #     fn sync(self) -> Result<Self, ExecutionError> { Ok(self) }
/// # }
///
/// impl GlobalOutput for Embedded {
///     fn into_parts(self) -> Result<Vec<Part>, ExecutionError> {
///         Ok(vec![Part::mean(self.loss)?, Part::rows(self.embeddings)?])
///     }
///
///     fn from_parts(parts: &mut Parts) -> Option<Self> {
///         let (loss, embeddings) = (parts.float()?, parts.float()?);
///         Some(Self { loss, embeddings })
///     }
/// }
/// ```
pub trait GlobalOutput: ItemLazy {
    /// Weight of the [means](Part::mean) in this output: tokens or pixels, for example. `None`
    /// weights them by the samples of the batch.
    fn weight(&self) -> Option<f64> {
        None
    }

    /// The tensors of this output.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    fn into_parts(self) -> Result<Vec<Part>, ExecutionError>;

    /// The output with these tensors; `None` if they do not fit.
    fn from_parts(parts: &mut Parts) -> Option<Self>;
}

/// A tensor of an output, and how those of all ranks become one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub(crate) data: TensorData,
    pub(crate) is_mean: bool,
}

impl Part {
    /// A mean over the batch, such as a loss. Ranks' means are averaged by weight.
    ///
    /// A tensor with several elements counts as [rows](Self::rows): a loss of every sample.
    ///
    /// # Errors
    /// Fails if the tensor cannot be read.
    pub fn mean(mean: Tensor<1>) -> Result<Self, ExecutionError> {
        let data = mean.without_autodiff().try_into_data()?;
        let is_mean = data.num_elements() == 1;
        Ok(Self { data, is_mean })
    }

    /// A tensor with a row for every sample. Ranks' rows follow each other in rank order.
    ///
    /// # Errors
    /// Fails if the tensor cannot be read.
    pub fn rows<const D: usize>(rows: Tensor<D>) -> Result<Self, ExecutionError> {
        let data = rows.without_autodiff().try_into_data()?;
        let is_mean = false;
        Ok(Self { data, is_mean })
    }

    /// As [`rows`](Self::rows), for integers.
    ///
    /// # Errors
    /// Fails if the tensor cannot be read.
    pub fn int_rows<const D: usize>(rows: Tensor<D, Int>) -> Result<Self, ExecutionError> {
        let data = rows.without_autodiff().try_into_data()?;
        let is_mean = false;
        Ok(Self { data, is_mean })
    }
}

/// The tensors of an output, to be read in the order of [`GlobalOutput::into_parts`].
#[derive(Debug)]
pub struct Parts {
    left: VecDeque<TensorData>,
    device: Device,
}

impl Parts {
    pub(crate) fn new(parts: Vec<Part>, device: &Device) -> Self {
        Self {
            left: parts.into_iter().map(|part| part.data).collect(),
            device: device.clone(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    fn next(&mut self, rank: usize, is_right: impl Fn(DType) -> bool) -> Option<TensorData> {
        let data = self.left.pop_front()?;
        (data.shape().len() == rank && is_right(data.dtype())).then_some(data)
    }

    /// The next tensor, if there is one and it holds floats in `D` dimensions.
    pub fn float<const D: usize>(&mut self) -> Option<Tensor<D>> {
        let data = self.next(D, |dtype| dtype.is_float())?;
        let dtype = data.dtype();
        Some(Tensor::from_data(data, (&self.device, dtype)))
    }

    /// The next tensor, if there is one and it holds integers in `D` dimensions.
    pub fn int<const D: usize>(&mut self) -> Option<Tensor<D, Int>> {
        let data = self.next(D, |dtype| dtype.is_int() || dtype.is_uint())?;
        let dtype = data.dtype();
        Some(Tensor::from_data(data, (&self.device, dtype)))
    }
}

impl GlobalOutput for ClassificationOutput {
    fn into_parts(self) -> Result<Vec<Part>, ExecutionError> {
        Ok(vec![
            Part::mean(self.loss)?,
            Part::rows(self.output)?,
            Part::int_rows(self.targets)?,
        ])
    }

    fn from_parts(parts: &mut Parts) -> Option<Self> {
        Some(Self::new(parts.float()?, parts.float()?, parts.int()?))
    }
}

impl GlobalOutput for MultiLabelClassificationOutput {
    fn into_parts(self) -> Result<Vec<Part>, ExecutionError> {
        Ok(vec![
            Part::mean(self.loss)?,
            Part::rows(self.output)?,
            Part::int_rows(self.targets)?,
        ])
    }

    fn from_parts(parts: &mut Parts) -> Option<Self> {
        Some(Self::new(parts.float()?, parts.float()?, parts.int()?))
    }
}

impl GlobalOutput for RegressionOutput {
    fn into_parts(self) -> Result<Vec<Part>, ExecutionError> {
        Ok(vec![
            Part::mean(self.loss)?,
            Part::rows(self.output)?,
            Part::rows(self.targets)?,
        ])
    }

    fn from_parts(parts: &mut Parts) -> Option<Self> {
        Some(Self::new(parts.float()?, parts.float()?, parts.float()?))
    }
}

impl GlobalOutput for SequenceOutput {
    fn into_parts(self) -> Result<Vec<Part>, ExecutionError> {
        let mut parts = vec![
            Part::mean(self.loss)?,
            Part::rows(self.logits)?,
            Part::int_rows(self.targets)?,
        ];
        if let Some(predictions) = self.predictions {
            parts.push(Part::int_rows(predictions)?);
        }
        Ok(parts)
    }

    fn from_parts(parts: &mut Parts) -> Option<Self> {
        let (loss, logits, targets) = (parts.float()?, parts.float()?, parts.int()?);
        let predictions = match parts.is_empty() {
            true => None,
            false => Some(parts.int()?),
        };
        Some(Self::new(loss, logits, predictions, targets))
    }
}

impl GlobalOutput for () {
    fn into_parts(self) -> Result<Vec<Part>, ExecutionError> {
        Ok(Vec::new())
    }

    fn from_parts(_parts: &mut Parts) -> Option<Self> {
        Some(())
    }
}

//! The averaged gradients of a step before the optimizer gets them, to read or to change.

use std::fmt;
use std::ops::Range;

use burn::tensor::Tensor;

use super::ParallelError;
use crate::bucket::{ParameterSpec, Reducer};

/// The gradients of the current step in [`Parallel::step_with`](super::Parallel::step_with).
///
/// They are means over all ranks and micro-batches, of the unscaled loss, and not clipped yet.
pub struct Gradients<'a> {
    pub(super) reducer: &'a Reducer,
    /// The factor that they are currently multiplied by.
    pub(super) scaled: Option<f64>,
}

impl Gradients<'_> {
    /// The Euclidean norm of every parameter's gradient. A collective call.
    ///
    /// In the order of [`Parallel::parameters`](super::Parallel::parameters); `None` if no rank had
    /// a gradient. Each norm covers the whole parameter under every strategy, and has the same bits
    /// on every rank.
    ///
    /// # Errors
    ///
    /// Fails if a collective fails or the device cannot return gradients.
    pub fn norms(&self) -> Result<Vec<Option<f64>>, ParallelError> {
        let norms = self.reducer.norms()?;
        let unscale = |norm: Option<f64>| norm.map(|norm| norm / self.scaled.unwrap_or(1.0));
        Ok(norms.into_iter().map(unscale).collect())
    }

    /// Calls `look` with this rank's part of every gradient, in the order of the parameters.
    ///
    /// The arguments are the parameter, the range of its elements in memory order, and their
    /// gradients. Under [`Ddp`](super::Strategy::Ddp) the range covers the whole parameter;
    /// otherwise every element is on one rank of a set of shards. Parameters without a gradient on
    /// any rank are left out.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot return gradients.
    pub fn for_each(
        &mut self,
        mut look: impl FnMut(&ParameterSpec, Range<usize>, Tensor<1>),
    ) -> Result<(), ParallelError> {
        self.map(|parameter, elements, gradient| {
            look(parameter, elements, gradient.clone());
            gradient
        })
    }

    /// Replaces this rank's part of every gradient by the result of `change`.
    ///
    /// The arguments are those of [`for_each`](Self::for_each). The result must be a tensor of the
    /// same length and type, on the same device and without autodiff. If several ranks have the
    /// same gradient, they must return the same bits; use the same seed for random numbers, for
    /// example.
    ///
    /// ```
    /// # use burn::{nn::{Linear, LinearConfig}, optim::SgdConfig, tensor::{Device, Tensor}};
    /// # use burn_dist::{ProcessGroup, parallel::{Parallel, ParallelError, Strategy}};
    /// # fn main() -> Result<(), ParallelError> {
    /// # let group = ProcessGroup::single();
    /// # let device = Device::flex().autodiff();
    /// # let model: Linear = LinearConfig::new(10, 1).init(&device);
    /// # let mut parallel = Parallel::new(model, SgdConfig::new(), Strategy::Ddp, &group)?;
    /// # let loss = parallel.model().forward(Tensor::<2>::ones([4, 10], &device)).square().mean();
    /// parallel.backward(loss)?;
    /// // As PyTorch's `clip_grad_value_`.
    /// parallel.step_with(1e-3, |gradients| {
    ///     gradients.map(|_, _, gradient| gradient.clamp(-0.5, 0.5))
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if a result does not match its gradient, or if the device cannot return gradients.
    pub fn map(
        &mut self,
        mut change: impl FnMut(&ParameterSpec, Range<usize>, Tensor<1>) -> Tensor<1>,
    ) -> Result<(), ParallelError> {
        let parameters = self.reducer.parameters();
        let changed = self.reducer.change(|index, elements, gradient| {
            let Some(spec) = parameters.get(index) else {
                return gradient;
            };
            match self.scaled {
                Some(scale) => change(spec, elements, gradient.div_scalar(scale)).mul_scalar(scale),
                None => change(spec, elements, gradient),
            }
        });
        Ok(changed?)
    }
}

impl fmt::Debug for Gradients<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gradients({:?})", self.reducer)
    }
}

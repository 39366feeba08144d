//! The gradients of a step between the ranks' mean and the optimizer, for those who look at them or
//! change them.

use std::fmt;
use std::ops::Range;

use burn::tensor::Tensor;

use super::ParallelError;
use crate::bucket::{ParameterSpec, Reducer};

/// The gradients that a step is about to be made with, in
/// [`Parallel::step_with`](super::Parallel::step_with): means over all ranks and micro-batches, of
/// the loss before it was scaled, and not clipped yet.
pub struct Gradients<'a> {
    pub(super) reducer: &'a Reducer,
    /// What they have been multiplied with.
    pub(super) scaled: Option<f64>,
}

impl Gradients<'_> {
    /// The Euclidean norm of every parameter's gradient, in the order of
    /// [`Parallel::parameters`](super::Parallel::parameters); none of those for which no rank had
    /// one. All of it, whatever the strategy leaves on this rank, and the same bits on every rank.
    /// A collective call.
    ///
    /// # Errors
    ///
    /// A failed collective, or gradients that the device does not give.
    pub fn norms(&self) -> Result<Vec<Option<f64>>, ParallelError> {
        let norms = self.reducer.norms()?;
        let unscale = |norm: Option<f64>| norm.map(|norm| norm / self.scaled.unwrap_or(1.0));
        Ok(norms.into_iter().map(unscale).collect())
    }

    /// Hands what this rank has of every gradient to `look`, in the order of the parameters: the
    /// parameter, the range of its elements in memory order, and their gradients. Under
    /// [`Ddp`](super::Strategy::Ddp) that is all of every parameter, else every element is on one
    /// rank of a set of shards. Those for which no rank had a gradient are left out.
    ///
    /// # Errors
    ///
    /// Gradients that the device does not give.
    pub fn for_each(
        &mut self,
        mut look: impl FnMut(&ParameterSpec, Range<usize>, Tensor<1>),
    ) -> Result<(), ParallelError> {
        self.map(|parameter, elements, gradient| {
            look(parameter, elements, gradient.clone());
            gradient
        })
    }

    /// The same, and puts what `change` makes of each in its place. It has to be a tensor of as
    /// many numbers of the same type, on the same device and without autodiff. Where several ranks
    /// have a gradient, they have to make the same of it, bit for bit: random numbers with the same
    /// seed, for example.
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
    /// A tensor that is not as the gradient was; gradients that the device does not give.
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

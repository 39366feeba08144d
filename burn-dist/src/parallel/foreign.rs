//! Backward passes and optimizer steps that other code runs, such as burn-train's.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::{Parallel, ParallelError, StepReport, Strategy, taken, tell_others};
use crate::autograd::{GradientSink, forget_depth, sum_no_more_over, sum_over};
use crate::bucket::Reducer;

impl<M: Module> Parallel<M> {
    /// Computes the gradients of one micro-batch with code that runs forward and backward itself.
    ///
    /// `run` gets the model, and its loss is a mean over `weight` samples. In the last micro-batch
    /// of a step, gradients travel while `run` is still in backward. `run` returns the gradients
    /// that Burn gives it for the model's parameters. Parameters that were read without a hook (see
    /// [`model`](Self::model)) have theirs there; all other gradients have gone to the hooks.
    ///
    /// Parameters without a gradient delay this: it is known only when `run` returns.
    ///
    /// Gradients of the step are means over the weights of all micro-batches and ranks, as after
    /// [`backward_weighted`](Self::backward_weighted). A rank without a batch passes a weight of 0
    /// and returns no gradients; under [`Strategy::Zero3`] every rank needs a batch.
    ///
    /// ```
    /// # use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
    /// # use burn::optim::{AdamWConfig, GradientsParams};
    /// # use burn_dist::{ProcessGroup, parallel::{Parallel, ParallelError, Strategy}};
    /// # fn main() -> Result<(), ParallelError> {
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(10, 1).init(&device);
    /// # let group = ProcessGroup::single();
    /// let mut parallel = Parallel::new(model, AdamWConfig::new(), Strategy::Ddp, &group)?;
    /// let batch = Tensor::<2>::ones([32, 10], &device);
    /// let loss = parallel.backward_by(32.0, |model| {
    ///     let loss = model.forward(batch).square().mean();
    ///     let gradients = GradientsParams::from_grads(loss.backward(), model);
    ///     (gradients, loss.detach())
    /// })?;
    /// parallel.step(1e-3)?;
    /// # let _ = loss;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`backward_weighted`](Self::backward_weighted). Also fails in `f16`, because the loss
    /// cannot be scaled here, and if `run` reads a parameter both with and without its hook.
    pub fn backward_by<T>(
        &mut self,
        weight: f64,
        run: impl FnOnce(&M) -> (GradientsParams, T),
    ) -> Result<T, ParallelError> {
        self.check_kind(true)?;
        self.check_weight(weight)?;
        if self.loss_scale.is_some() {
            let refused = ParallelError::Option {
                option: "the precision",
                value: self.options.precision.to_string(),
                expected: "f32 or bf16 if backward runs outside of Parallel: f16 needs a scaled loss",
            };
            return tell_others(&self.group, Err(refused));
        }
        let unit = self.unit(weight, |largest| largest)?;
        self.check_sums()?;
        let last = self.is_last_micro_batch();
        let scale = weight / unit;
        let scale = (scale != 1.0).then_some(scale);
        let begun = self.reducer.begin_forward(last, scale);
        self.in_order(begun)?;
        forget_depth();
        sum_over(self.sums.as_ref());
        let (gradients, result) = run(self.get());
        forget_depth();
        if let Some(sums) = &self.sums {
            sum_no_more_over(sums);
        }
        self.get().visit(&mut Unhooked {
            gradients,
            reducer: &self.reducer,
            next: 0,
        });
        tell_others(&self.group, self.check_store())?;
        self.check_sums()?;
        self.reducer.end_backward()?;
        self.add_weight(weight);
        self.end_micro_batch()?;
        Ok(result)
    }

    /// Waits for the gradients of all ranks, and updates the parameters with an optimizer of the
    /// caller's.
    ///
    /// `optimize` gets the gradients, clipped if requested, under the parameter ids of the model
    /// that was passed to [`new`](Self::new). It returns that model with the new parameters; its
    /// buffers are not used. The optimizer that was passed to `new` is not used either:
    /// [`SgdConfig`](burn::optim::SgdConfig) keeps no state. With fewer micro-batches than
    /// [`accumulate`](super::ParallelOptions::accumulate), it does what
    /// [`step_early`](Self::step_early) does.
    ///
    /// The caller's optimizer must compute the same bits on every rank.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step). Also fails with a strategy other than [`Strategy::Ddp`], with an
    /// average of the parameters, and if the returned model has other parameters.
    pub fn step_by(
        &mut self,
        learning_rate: f64,
        optimize: impl FnOnce(GradientsParams) -> M,
    ) -> Result<StepReport, ParallelError> {
        if self.options.strategy != Strategy::Ddp {
            let refused = ParallelError::Option {
                option: "the strategy",
                value: self.options.strategy.to_string(),
                expected: "ddp if the optimizer is outside of Parallel, which cannot shard it",
            };
            return tell_others(&self.group, Err(refused));
        }
        if self.ema.is_some() {
            let refused = ParallelError::Option {
                option: "ema",
                value: "on".to_owned(),
                expected: "off if the optimizer is outside of Parallel",
            };
            return tell_others(&self.group, Err(refused));
        }
        if self.micro_batches > 0 && self.micro_batches < self.micro_batches() {
            self.send_early("step_by")?;
        }
        self.step_on(
            learning_rate,
            1.0,
            |_, _| Ok(()),
            |parallel, factor| {
                let outcome = parallel.optimized(factor, optimize);
                tell_others(&parallel.group, outcome)
            },
        )
    }

    /// Replaces the parameters. `optimize` makes new ones of the gradients times `factor`.
    fn optimized(
        &mut self,
        factor: Option<f64>,
        optimize: impl FnOnce(GradientsParams) -> M,
    ) -> Result<(), ParallelError> {
        let mut averaged = Averaged {
            reducer: &self.reducer,
            factor,
            next: 0,
            gradients: GradientsParams::new(),
            outcome: Ok(()),
        };
        self.get().visit(&mut averaged);
        averaged.outcome?;
        let stepped = optimize(averaged.gradients);
        let mut values = Values(Vec::new());
        stepped.visit(&mut values);
        drop(stepped);
        let Values(values) = values;
        let sizes = self.parameters().iter().map(|spec| spec.num_elements());
        if !sizes.eq(values.iter().map(|values| values.shape().num_elements())) {
            let found = values.len();
            let reason =
                format!("the optimizer returned another model, with {found} trainable parameters");
            return Err(ParallelError::read("the model", reason));
        }
        let Some(model) = self.model.take() else {
            return Ok(());
        };
        let (model, homes, old) = taken::take_out(model);
        drop(old);
        self.model = Some(taken::put_back(model, homes, values));
        Ok(())
    }
}

/// Hands the gradients of parameters that were read without a hook to the reducer.
struct Unhooked<'a> {
    gradients: GradientsParams,
    reducer: &'a Reducer,
    /// Index of the next trainable parameter in visit order.
    next: usize,
}

impl ModuleVisitor for Unhooked<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let index = self.next;
        self.next += 1;
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            let gradient = gradient.without_autodiff();
            let elements = gradient.shape().num_elements();
            self.reducer.collect(index, gradient.reshape([elements]));
        }
    }
}

/// Collects the reduced gradients of a model that every rank has as a whole.
struct Averaged<'a> {
    reducer: &'a Reducer,
    factor: Option<f64>,
    next: usize,
    gradients: GradientsParams,
    outcome: Result<(), ParallelError>,
}

impl ModuleVisitor for Averaged<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() || self.outcome.is_err() {
            return;
        }
        let index = self.next;
        self.next += 1;
        match self.reducer.shards(&[index]) {
            Ok(mut found) => {
                let Some(gradient) = found.pop().flatten() else {
                    return;
                };
                let gradient = match self.factor {
                    Some(factor) => gradient.mul_scalar(factor),
                    None => gradient,
                };
                let gradient = gradient.reshape(param.shape());
                self.gradients.register::<D>(param.id, gradient);
            }
            Err(error) => self.outcome = Err(error.into()),
        }
    }
}

/// Collects the trainable parameters, flat and in visit order.
struct Values(Vec<Tensor<1>>);

impl ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            let values = param.base().inner();
            let elements = values.shape().num_elements();
            self.0.push(values.reshape([elements]));
        }
    }
}

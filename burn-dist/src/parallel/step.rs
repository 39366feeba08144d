//! One step: backward for every micro-batch, then the update or the decision to skip it.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::Tensor;

use super::update::{self, Stepper};
use super::{Gradients, Parallel, ParallelError, tell_others, unhooked};
use crate::autograd::{forget_depth, sum_no_more_over};
use crate::bucket::{Agreement, BucketError};
use crate::precision::LossScale;

/// Report of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Euclidean norm of all gradients together, before clipping and without the loss scale.
    ///
    /// Set if `clip_norm` is set or the loss is scaled.
    pub gradient_norm: Option<f64>,
    /// Whether the gradients were scaled down.
    pub clipped: bool,
    /// Whether the step changed parameters and optimizer. False if the norm was not finite.
    ///
    /// With a scaled loss a skipped step is normal, and the next steps use a smaller scale. Without
    /// one, training diverged. The norm is measured only if the loss is scaled or `clip_norm` is
    /// set; otherwise this is always true. `Some(f64::INFINITY)` measures and never clips.
    pub applied: bool,
    /// Time that the step waited for gradients in flight.
    pub waited: Duration,
    /// The loss scale of the gradients, in `f16`.
    pub loss_scale: Option<f64>,
    /// Steps skipped so far because the scaled loss overflowed.
    ///
    /// It also counts those before a resume. 0 without a loss scale.
    pub skipped_steps: u64,
    /// Sum of all weights of the step over all ranks, after
    /// [`backward_weighted`](Parallel::backward_weighted).
    pub weight: Option<f64>,
}

/// The decision on a step from its reduced gradients, and the factor to multiply them by.
struct Verdict {
    norm: Option<f64>,
    finite: bool,
    clipped: bool,
    factor: Option<f64>,
}

impl Verdict {
    /// The decision if the norm is not measured.
    fn unseen(scale: Option<f64>) -> Self {
        Self {
            norm: None,
            finite: true,
            clipped: false,
            factor: scale.map(|scale| 1.0 / scale),
        }
    }

    /// The decision for the gradient norm `norm` of the scaled loss. The norm is not finite if an
    /// element is not: squares of `f32` do not overflow in `f64`.
    fn of(norm: f64, scale: Option<f64>, limit: Option<f64>) -> Self {
        let unscale = scale.map(|scale| 1.0 / scale);
        let norm = norm * unscale.unwrap_or(1.0);
        let clip = limit
            .filter(|limit| norm.is_finite() && norm > *limit)
            .map(|limit| limit / (norm + 1e-6));
        Self {
            norm: Some(norm),
            finite: norm.is_finite(),
            clipped: clip.is_some(),
            factor: match (unscale, clip) {
                (None, None) => None,
                (unscale, clip) => Some(unscale.unwrap_or(1.0) * clip.unwrap_or(1.0)),
            },
        }
    }
}

impl<M: Module> Parallel<M> {
    /// Computes the gradients of one micro-batch's `loss`, a mean over its samples.
    ///
    /// The loss counts for `1 / accumulate` of the step. In the last micro-batch of a step,
    /// gradients travel while backward still runs; before that they stay on this rank. In `f16` the
    /// loss is scaled here.
    ///
    /// A loss belongs to one `Parallel`. If two of them contribute to one graph, the first backward
    /// consumes it and Burn panics at the second. Make one model of both;
    /// [groups](super::ParameterGroup) can step its parts differently.
    ///
    /// # Errors
    ///
    /// - The loss has no gradient or is not a scalar.
    /// - All micro-batches of the step are done.
    /// - A gradient does not fit its parameter.
    /// - A parameter was read in a way that [`model`](Parallel::model) forbids.
    /// - Another rank reported an error.
    ///
    /// The other ranks learn of it at once, and no rank can go on.
    pub fn backward(&mut self, loss: Tensor<1>) -> Result<(), ParallelError> {
        self.check_kind(false)?;
        let accumulate = self.options.accumulate;
        self.backward_of(loss, |loss| match accumulate {
            1 => loss,
            accumulate => loss.div_scalar(accumulate as f64),
        })?;
        self.end_micro_batch()
    }

    /// Computes the gradients of `loss` after `share` has scaled it to its part of the step.
    pub(super) fn backward_of(
        &mut self,
        loss: Tensor<1>,
        share: impl FnOnce(Tensor<1>) -> Tensor<1>,
    ) -> Result<(), ParallelError> {
        forget_depth();
        // Another model of this thread may be next.
        if let Some(sums) = &self.sums {
            sum_no_more_over(sums);
        }
        if !loss.is_tracked() {
            // The other ranks may have a loss, and would wait for this rank's gradients.
            return tell_others(&self.group, Err(ParallelError::UntrackedLoss));
        }
        let elements = loss.shape().num_elements();
        if elements != 1 {
            return tell_others(&self.group, Err(ParallelError::LossNotScalar { elements }));
        }
        // Reports a sum that failed during the forward pass. Otherwise the next sum would wait for
        // ranks that know of the failure.
        self.check_sums()?;
        let begun = self.reducer.begin_backward(self.is_last_micro_batch());
        self.in_order(begun)?;
        let mut loss = share(loss);
        if let Some(loss_scale) = &self.loss_scale {
            loss = loss.mul_scalar(loss_scale.scale());
        }
        let left = loss.backward();
        let read = unhooked::refuse(self.get(), &left);
        drop(left);
        tell_others(&self.group, read.and_then(|()| self.check_store()))?;
        self.check_sums()?;
        Ok(self.reducer.end_backward()?)
    }

    /// Waits for the gradients of all ranks, clips them if requested, and updates the parameters.
    ///
    /// The reduced gradients, which are the same on all ranks, decide whether a step is skipped. A
    /// skipped step counts for a learning-rate schedule. The learning rate must be finite and the
    /// same on all ranks. With one of Burn's schedules:
    ///
    /// ```
    /// # use burn::lr_scheduler::{LrScheduler, cosine::CosineAnnealingLrSchedulerConfig};
    /// # use burn::module::Module;
    /// # use burn_dist::parallel::{Parallel, ParallelError};
    /// # fn train<M: Module>(mut parallel: Parallel<M>) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut schedule = CosineAnnealingLrSchedulerConfig::new(1e-3, 10_000).init()?;
    /// // ...
    /// parallel.step(schedule.step().base())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - Micro-batches of the step are missing.
    /// - Learning rates differ between ranks or are not finite.
    /// - No parameter has a gradient.
    /// - A collective fails.
    /// - The loss scale has been at its floor for too many skipped steps.
    ///
    /// No rank can go on then.
    pub fn step(&mut self, learning_rate: f64) -> Result<StepReport, ParallelError> {
        self.step_on(learning_rate, 1.0, |_, _| Ok(()), update_by(learning_rate))
    }

    /// Does a [`step`](Self::step) that first passes the gradients to `then`, before clipping.
    ///
    /// In `f16` some gradients may not be finite; then the step is skipped.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step), and the error of `then`, which the other ranks receive. No rank can
    /// go on then.
    pub fn step_with(
        &mut self,
        learning_rate: f64,
        then: impl FnOnce(&mut Gradients<'_>) -> Result<(), ParallelError>,
    ) -> Result<StepReport, ParallelError> {
        let then = |parallel: &Self, scaled| {
            then(&mut Gradients {
                reducer: &parallel.reducer,
                scaled,
            })
        };
        self.step_on(learning_rate, 1.0, then, update_by(learning_rate))
    }

    /// Does a [`step`](Self::step) with fewer micro-batches than usual.
    ///
    /// For the end of data of unknown length, with fewer micro-batches than
    /// [`accumulate`](super::ParallelOptions::accumulate). Gradients are means over the
    /// micro-batches that were done. Every rank makes this call, after the same number of
    /// micro-batches.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step). Also fails without a micro-batch, if the ranks' numbers differ, and
    /// with [`virtual_ranks`](super::ParallelOptions::virtual_ranks).
    pub fn step_early(&mut self, learning_rate: f64) -> Result<StepReport, ParallelError> {
        let (done, accumulate) = (self.micro_batches, self.options.accumulate);
        self.send_early("step_early")?;
        let share = done as f64 / accumulate as f64;
        self.step_on(
            learning_rate,
            share,
            |_, _| Ok(()),
            update_by(learning_rate),
        )
    }

    /// Sends the gradients of a step with fewer micro-batches than usual, for the call `what`.
    pub(super) fn send_early(&mut self, what: &str) -> Result<(), ParallelError> {
        if self.shares.is_some() {
            return Err(ParallelError::WholeStepsOnly);
        }
        self.agree(what)?;
        if self.micro_batches == 0 {
            let none = "step_early was called before any backward of the step";
            return Err(BucketError::Order(none).into());
        }
        if self.micro_batches < self.options.accumulate {
            self.reducer.begin_backward(true)?;
            self.reducer.end_backward()?;
        }
        Ok(())
    }

    /// Steps on the gradients. Every loss has counted for 1 / accumulate, and together they make
    /// `share`. `then` is called once the gradients are there, with the factor in them. `update`
    /// gets the factor to multiply them by.
    pub(super) fn step_on(
        &mut self,
        learning_rate: f64,
        share: f64,
        then: impl FnOnce(&Self, Option<f64>) -> Result<(), ParallelError>,
        update: impl FnOnce(&mut Self, Option<f64>) -> Result<(), ParallelError>,
    ) -> Result<StepReport, ParallelError> {
        let begin = Instant::now();
        if !learning_rate.is_finite() {
            let refused = ParallelError::Option {
                option: "the learning rate",
                value: learning_rate.to_string(),
                expected: "finite",
            };
            return tell_others(&self.group, Err(refused));
        }
        let reads = self.store.as_ref().map_or(0, |store| store.take_reads());
        let mut said = Agreement::on(learning_rate, reads);
        if let Some(weight) = self.weights.of_step() {
            said = said.with_weights(weight, self.places());
        }
        let agreed = self.reducer.wait(&said);
        let agreed = self.in_order(agreed)?;
        if !agreed.on_rate {
            return Err(self.other_rates(learning_rate));
        }
        if !agreed.on_reads {
            return Err(self.other_reads(reads));
        }
        let weighted = self.weights.share(&agreed.weights)?;
        let share = weighted.map_or(share, |weighted| weighted.share);
        if !self.reducer.has_gradients() {
            // All ranks know it.
            return Err(ParallelError::NoGradients);
        }
        let waited = begin.elapsed();
        let scale = self.loss_scale.as_ref().map(LossScale::scale);
        let scaled = match (scale, share) {
            (None, 1.0) => None,
            (scale, share) => Some(scale.unwrap_or(1.0) * share),
        };
        tell_others(&self.group, then(self, scaled))?;
        let limit = self.options.clip_norm;
        let verdict = if scale.is_none() && limit.is_none() {
            Verdict::unseen(scaled)
        } else {
            Verdict::of(self.reducer.norm()?, scaled, limit)
        };
        if verdict.finite {
            update(self, verdict.factor)?;
        }
        self.end_shares()?;
        self.reducer.reset();
        self.end_step();
        if let Some(loss_scale) = &mut self.loss_scale {
            loss_scale.update(!verdict.finite)?;
        }
        Ok(StepReport {
            gradient_norm: verdict.norm,
            clipped: verdict.clipped,
            applied: verdict.finite,
            waited,
            loss_scale: scale,
            skipped_steps: self.loss_scale.as_ref().map_or(0, LossScale::skipped),
            weight: weighted.map(|weighted| weighted.total),
        })
    }

    /// The next backward begins a new step.
    pub(super) fn end_step(&mut self) {
        self.micro_batches = 0;
        self.weights.end_step();
    }

    fn update(&mut self, learning_rate: f64, factor: Option<f64>) -> Result<(), ParallelError> {
        let stepper = Stepper::new(
            &self.reducer,
            &mut self.optimizer,
            self.ema.as_mut(),
            (learning_rate, factor),
            self.options.strategy.shards(),
        );
        let outcome = if let Some(store) = &self.store {
            update::store(store, stepper)
        } else {
            let Some(model) = self.model.take() else {
                return Ok(());
            };
            let (model, outcome) = update::model(model, stepper);
            self.model = Some(model);
            outcome
        };
        let unstepped = self.optimizer.take_failure().map(|(index, reason)| {
            let path = self.parameters().get(index).map(|spec| spec.path.clone());
            ParallelError::read(&path.unwrap_or_default(), reason)
        });
        tell_others(&self.group, outcome.and(unstepped.map_or(Ok(()), Err)))
    }

    /// Tells the others of a call that is out of order here: they may wait for this rank's part of
    /// a step.
    pub(super) fn in_order<T>(&self, outcome: Result<T, BucketError>) -> Result<T, ParallelError> {
        match outcome {
            Err(error @ BucketError::Order(_)) => tell_others(&self.group, Err(error.into())),
            other => Ok(other?),
        }
    }

    /// The error for a learning rate that is not that of all ranks. All ranks see it.
    fn other_rates(&self, own: f64) -> ParallelError {
        self.differ(own.to_le_bytes(), |rates| {
            ParallelError::LearningRatesDiffer {
                rates: rates.into_iter().map(f64::from_le_bytes).collect(),
            }
        })
    }

    /// The error for evaluations with unequal numbers of forward passes. All ranks see it.
    fn other_reads(&self, own: u64) -> ParallelError {
        self.differ(own.to_le_bytes(), |reads| {
            ParallelError::EvaluationsDiffer {
                reads: reads.into_iter().map(u64::from_le_bytes).collect(),
            }
        })
    }

    /// Gathers the words of all ranks, and ends the training with the error made of them.
    fn differ(
        &self,
        own: [u8; 8],
        error: impl FnOnce(Vec<[u8; 8]>) -> ParallelError,
    ) -> ParallelError {
        let words = match self.group.gather_bytes(&own) {
            Ok(words) => words,
            Err(error) => return error.into(),
        };
        let word = |bytes: Vec<u8>| bytes.try_into().unwrap_or_default();
        let error = error(words.into_iter().map(word).collect());
        self.reducer.refuse(&error.to_string());
        error
    }

    pub(super) fn check_sums(&self) -> Result<(), ParallelError> {
        match &self.sums {
            Some(sums) => tell_others(&self.group, sums.failure().map_err(ParallelError::from)),
            None => Ok(()),
        }
    }

    /// Fails if a layer read a parameter that could not be gathered.
    pub(super) fn check_store(&self) -> Result<(), ParallelError> {
        match &self.store {
            Some(store) => Ok(store.failure()?),
            None => Ok(()),
        }
    }
}

/// The update by the own optimizer.
fn update_by<M: Module>(
    learning_rate: f64,
) -> impl FnOnce(&mut Parallel<M>, Option<f64>) -> Result<(), ParallelError> {
    move |parallel, factor| parallel.update(learning_rate, factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_factor_unscales_and_clips() {
        let verdict = Verdict::of(8.0, None, Some(16.0));
        assert!(verdict.finite && !verdict.clipped && verdict.factor.is_none());
        let verdict = Verdict::of(8.0, Some(4.0), Some(16.0));
        assert_eq!((verdict.norm, verdict.factor), (Some(2.0), Some(0.25)));
        let verdict = Verdict::of(8.0, Some(4.0), Some(1.0));
        assert!(verdict.clipped);
        assert_eq!(verdict.factor, Some(0.25 * (1.0 / (2.0 + 1e-6))));
        for norm in [f64::INFINITY, f64::NAN] {
            let verdict = Verdict::of(norm, Some(4.0), Some(1.0));
            assert!(!verdict.finite && !verdict.clipped);
        }
    }
}

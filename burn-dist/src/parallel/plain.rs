//! Plain copies of the model, for evaluation, for export and at the end of training.
//!
//! Burn's `materialize()` removes more than training added: it folds in what the user's model came
//! with, such as LoRA adapters, and the trained parameters are gone. So a bare copy of the model is
//! kept from before, without values. It receives the values of the trained model in visit order.

use std::any::Any;
use std::collections::VecDeque;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor};

use super::replicas::AutodiffPlace;
use super::visited::keeps_path;
use super::{Parallel, ParallelError, autocast, statistics, tell_others};
use crate::autograd::{full_precision, sum_no_more_over};
use crate::zero::{ShardedParameters, gather_values};

impl<M: Module> Parallel<M> {
    /// A plain copy for evaluation or export: no autodiff, no hooks, no dropout, the same paths.
    ///
    /// It keeps what the model came with, such as LoRA adapters, and shares memory with the model
    /// until the next step. Parameters are the master weights, so evaluation computes in `f32`.
    ///
    /// Under [`Strategy::Zero3`](super::Strategy::Zero3) this is a collective call, and the copy is
    /// whole on every rank for as long as it lives. Under the other strategies a rank may call it
    /// alone.
    ///
    /// # Errors
    ///
    /// Fails if a collective fails, or if the model's modules are visited in another order than
    /// they are mapped.
    pub fn valid(&self) -> Result<M, ParallelError> {
        self.plain(Purpose::Evaluation, None)
    }

    /// The copy of [`valid`](Self::valid) with averaged parameters.
    ///
    /// `None` unless [`ParallelOptions::ema`](super::ParallelOptions::ema) or
    /// [`ParallelOptions::swa`](super::ParallelOptions::swa) is set. Buffers, such as running
    /// statistics, are the current ones. A collective call in all stages of ZeRO.
    ///
    /// # Errors
    ///
    /// As [`valid`](Self::valid).
    pub fn valid_ema(&self) -> Result<Option<M>, ParallelError> {
        let Some(ema) = &self.ema else {
            return Ok(None);
        };
        let averages = match self.options.strategy.shards() {
            true => gather_values(&self.reducer, ema.all())?,
            false => ema.all().to_vec(),
        };
        self.plain(Purpose::Evaluation, Some(averages)).map(Some)
    }

    /// The model to evaluate and export: [`valid_ema`](Self::valid_ema) if set, else
    /// [`valid`](Self::valid).
    ///
    /// A collective call whenever that method is one.
    ///
    /// # Errors
    ///
    /// As [`valid`](Self::valid).
    pub fn for_evaluation(&self) -> Result<M, ParallelError> {
        match self.valid_ema()? {
            Some(model) => Ok(model),
            None => self.valid(),
        }
    }

    /// Passes the model [`for_evaluation`](Self::for_evaluation) to `then`.
    ///
    /// Under [`Strategy::Zero3`](super::Strategy::Zero3) the model is never whole: parameters are
    /// gathered when a layer reads them. So every rank must run the same number of forward passes
    /// (see [`gathers`](Self::gathers)), and the model cannot be used outside `then`.
    ///
    /// # Errors
    ///
    /// As [`valid`](Self::valid).
    pub fn evaluate_with<R>(&self, then: impl FnOnce(&M) -> R) -> Result<R, ParallelError> {
        match &self.store {
            None => Ok(then(&self.for_evaluation()?)),
            Some(store) => self.lend(store, |model| {
                let model = match self.options.precision.cast_to() {
                    Some(_) => statistics::cast(model, FloatDType::F32),
                    None => model,
                };
                full_precision(|| then(&model))
            }),
        }
    }

    /// Does the same as [`evaluate_with`](Self::evaluate_with) in the precision of the training.
    ///
    /// Parameters are cast when a layer reads them, as in [`autocast`]; inputs have the type
    /// [`compute_dtype`](Self::compute_dtype). PyTorch users evaluate like this under autocast.
    ///
    /// # Errors
    ///
    /// As [`valid`](Self::valid).
    pub fn evaluate_autocast<R>(&self, then: impl FnOnce(&M) -> R) -> Result<R, ParallelError> {
        match &self.store {
            None => Ok(then(&autocast(
                self.for_evaluation()?,
                self.options.precision,
            )?)),
            Some(store) => self.lend(store, |model| then(&model)),
        }
    }

    /// Evaluates a model without autodiff, whose parameters are gathered when a layer reads them.
    fn lend<R>(
        &self,
        store: &ShardedParameters,
        then: impl FnOnce(M) -> R,
    ) -> Result<R, ParallelError> {
        self.no_more_sums();
        let model = self.get().valid();
        let pieces = match &self.ema {
            Some(ema) => ema.all().to_vec(),
            None => store.pieces(),
        };
        let result = store.lend(pieces, || then(model));
        store.failure()?;
        Ok(result)
    }

    /// Whether a forward pass is a collective call, because it gathers parameters.
    pub fn gathers(&self) -> bool {
        self.store.is_some()
    }

    /// Ends the training and returns the model, trainable as it was passed to [`new`](Self::new).
    ///
    /// The same parameters are frozen, and adapters are adapters. A collective call under
    /// [`Strategy::Zero3`](super::Strategy::Zero3).
    ///
    /// # Errors
    ///
    /// As [`valid`](Self::valid).
    pub fn into_model(self) -> Result<M, ParallelError> {
        self.plain(Purpose::Training, None)
    }

    /// The model without hooks, with the current parameters or their `averages`.
    fn plain(
        &self,
        purpose: Purpose,
        averages: Option<Vec<Tensor<1>>>,
    ) -> Result<M, ParallelError> {
        self.no_more_sums();
        let gathers = self.store.is_some() && averages.is_none();
        let parameter = |index: usize, device: &Device| match (&averages, &self.store) {
            (Some(averages), _) => match averages.get(index) {
                Some(average) => Ok(Some(average.clone().to_device(device))),
                None => Err(self.unreadable(index, "it has no average")),
            },
            (None, Some(store)) => Ok(Some(store.read(index)?)),
            (None, None) => Ok(None),
        };
        let model = self.bare.with_values(self.get(), purpose, parameter);
        if let Some(store) = &self.store {
            store.release();
        }
        let model = match gathers {
            true => tell_others(&self.group, model)?,
            // Perhaps no other rank makes such a copy.
            false => model?,
        };
        Ok(match self.options.precision.cast_to() {
            Some(_) => statistics::cast(model, FloatDType::F32),
            None => model,
        })
    }

    /// Sums nothing over ranks until the next forward pass of training: a rank may evaluate alone.
    fn no_more_sums(&self) {
        if let Some(sums) = &self.sums {
            sum_no_more_over(sums);
        }
    }

    fn unreadable(&self, index: usize, reason: &str) -> ParallelError {
        let path = self.parameters().get(index).map(|spec| spec.path.clone());
        ParallelError::read(&path.unwrap_or_default(), reason)
    }
}

/// The purpose of a plain copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Evaluation,
    /// Parameters are on an autodiff device again, like the model's.
    Training,
}

/// A model without hooks and without values, for evaluation.
pub(super) struct Bare<M>(M);

impl<M: Module> Bare<M> {
    /// The bare copy of a `model` whose parameters are all initialized.
    pub(super) fn of(model: &M) -> Self {
        // A clone would share the model's running statistics, and lose them for both.
        Self(model.valid().map(&mut Empty))
    }

    /// A copy with the values of `model`, which is the same model with hooks. `parameter` may
    /// return other values, flat, for a trainable parameter by its index and device.
    fn with_values(
        &self,
        model: &M,
        purpose: Purpose,
        parameter: impl FnMut(usize, &Device) -> Result<Option<Tensor<1>>, ParallelError>,
    ) -> Result<M, ParallelError> {
        // Running statistics keep the last update apart from their value until the next read.
        // `valid` folds it into the state that the model shares with its copy.
        drop(model.valid());
        let mut take = Take {
            path: Vec::new(),
            purpose,
            parameter,
            next: 0,
            tensors: VecDeque::new(),
            outcome: Ok(()),
        };
        model.visit(&mut take);
        take.outcome?;
        // Every copy needs running statistics of its own, as in `of`.
        let bare = self.0.valid();
        let bare = match purpose {
            Purpose::Evaluation => bare,
            Purpose::Training => bare.train(),
        };
        let mut put = Put {
            path: Vec::new(),
            tensors: take.tensors,
            outcome: Ok(()),
        };
        let model = bare.map(&mut put);
        put.outcome?;
        match put.tensors.is_empty() {
            true => Ok(model),
            false => Err(another_order(&put.path)),
        }
    }
}

fn another_order(path: &[String]) -> ParallelError {
    ParallelError::Read {
        path: path.join("."),
        reason: "a module is visited in the order in which it is mapped".to_owned(),
    }
}

/// Replaces every tensor by one element that pretends to have its shape.
struct Empty;

impl ModuleMapper for Empty {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            if !value.dtype().is_float() || value.shape().num_elements() == 0 {
                return value;
            }
            let one = Tensor::<D>::zeros([1; D], (&value.device(), value.dtype()));
            one.expand(value.shape())
        })
    }
}

struct Take<F> {
    path: Vec<String>,
    purpose: Purpose,
    parameter: F,
    /// Index of the next trainable parameter in visit order.
    next: usize,
    /// Tensors of all kinds and dimensions, in visit order.
    tensors: VecDeque<Box<dyn Any>>,
    outcome: Result<(), ParallelError>,
}

impl<F> Take<F>
where
    F: FnMut(usize, &Device) -> Result<Option<Tensor<1>>, ParallelError>,
{
    /// The value of a float tensor on the plain device.
    fn value<const D: usize>(&mut self, value: Tensor<D>, trains: bool) -> Option<Tensor<D>> {
        if self.outcome.is_err() {
            return None;
        }
        if !trains {
            return Some(value);
        }
        let index = self.next;
        self.next += 1;
        match (self.parameter)(index, &value.device()) {
            Ok(None) => Some(value),
            Ok(Some(flat)) if flat.shape().num_elements() == value.shape().num_elements() => {
                let dtype = FloatDType::from(value.dtype());
                Some(flat.reshape(value.shape()).cast(dtype))
            }
            Ok(Some(flat)) => {
                let (found, shape) = (flat.shape().num_elements(), value.shape());
                self.outcome = Err(ParallelError::Read {
                    path: self.path.join("."),
                    reason: format!("gathered {found} elements for shape {shape:?}"),
                });
                None
            }
            Err(error) => {
                self.outcome = Err(error);
                None
            }
        }
    }
}

impl<F> ModuleVisitor for Take<F>
where
    F: FnMut(usize, &Device) -> Result<Option<Tensor<1>>, ParallelError>,
{
    keeps_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let own = param.base();
        let place = AutodiffPlace::of(&own);
        let Some(value) = self.value(own.inner(), param.is_require_grad()) else {
            return;
        };
        self.tensors.push_back(Box::new(match self.purpose {
            Purpose::Evaluation => value,
            Purpose::Training => place.restore(value),
        }));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let value = param.base();
        self.tensors.push_back(Box::new(match self.purpose {
            Purpose::Evaluation => value.inner(),
            Purpose::Training => value,
        }));
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let value = param.base();
        self.tensors.push_back(Box::new(match self.purpose {
            Purpose::Evaluation => value.inner(),
            Purpose::Training => value,
        }));
    }
}

/// Replaces tensors by others in visit order.
struct Put {
    path: Vec<String>,
    tensors: VecDeque<Box<dyn Any>>,
    outcome: Result<(), ParallelError>,
}

impl Put {
    fn next<T: 'static>(&mut self) -> Option<T> {
        let tensor = self.tensors.pop_front();
        let tensor = tensor.and_then(|tensor| tensor.downcast::<T>().ok());
        if tensor.is_none() && self.outcome.is_ok() {
            self.outcome = Err(another_order(&self.path));
        }
        tensor.map(|tensor| *tensor)
    }
}

impl ModuleMapper for Put {
    keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.next::<Tensor<D>>() {
            Some(value) => param.map(|_| value),
            None => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self.next::<Tensor<D, Int>>() {
            Some(value) => param.map(|_| value),
            None => param,
        }
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        match self.next::<Tensor<D, Bool>>() {
            Some(value) => param.map(|_| value),
            None => param,
        }
    }
}

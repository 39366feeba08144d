//! Plain copies of the model: for evaluation and export, and what is left when training ends.
//!
//! Burn's `materialize()` takes off more than what was put on for training: it also folds in what
//! the user's model came with, such as LoRA adapters, and the parameters that were trained are
//! gone. So a bare copy of the model is kept from before, without values, and is given those of the
//! model in training, in visit order.

use std::any::Any;
use std::collections::VecDeque;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor};

use super::replicas::AutodiffPlace;
use super::{Parallel, ParallelError, autocast, statistics, tell_others};
use crate::autograd::{full_precision, sum_no_more_over};
use crate::zero::{ShardedParameters, gather_values};

impl<M: Module> Parallel<M> {
    /// A plain copy for evaluation or export: without autodiff and without hooks, dropout off, the
    /// same paths; what the model came with, such as LoRA adapters, is still there. It shares
    /// memory with the model until the next step. Parameters are the master weights, so evaluation
    /// computes in `f32`.
    ///
    /// Under [`Strategy::Zero3`](super::Strategy::Zero3) a collective call that makes the model
    /// whole on every rank, as long as the copy lives. In the other strategies a rank may make it
    /// alone.
    ///
    /// # Errors
    ///
    /// A failed collective; a model whose modules are visited in another order than they are
    /// mapped.
    pub fn valid(&self) -> Result<M, ParallelError> {
        self.plain(Purpose::Evaluation, None)
    }

    /// As [`valid`](Self::valid), with the averages of the parameters over the steps in their
    /// place, if [`ParallelOptions::ema`](super::ParallelOptions::ema) is set. Buffers, such as
    /// running statistics, are as they are. A collective call under ZeRO, in all of its stages.
    ///
    /// # Errors
    ///
    /// As of [`valid`](Self::valid).
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

    /// What is to be evaluated and exported: [`valid_ema`](Self::valid_ema) where averages are
    /// kept, else [`valid`](Self::valid). A collective call where those are.
    ///
    /// # Errors
    ///
    /// As of [`valid`](Self::valid).
    pub fn for_evaluation(&self) -> Result<M, ParallelError> {
        match self.valid_ema()? {
            Some(model) => Ok(model),
            None => self.valid(),
        }
    }

    /// Hands the model [`for_evaluation`](Self::for_evaluation) to `then`.
    ///
    /// Under [`Strategy::Zero3`](super::Strategy::Zero3) it is not made whole: a layer's parameters
    /// are gathered when the layer reads them, so every rank has to run the same number of forward
    /// passes ([`gathers`](Self::gathers) tells), and the model is of no use anywhere else.
    ///
    /// # Errors
    ///
    /// As of [`valid`](Self::valid).
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

    /// As [`evaluate_with`](Self::evaluate_with), in the precision that the model trains in: its
    /// parameters are cast where they are read, as [`autocast`] has them, so it takes inputs of
    /// [`compute_dtype`](Self::compute_dtype). PyTorch's users evaluate so, under the autocast of
    /// their training.
    ///
    /// # Errors
    ///
    /// As of [`valid`](Self::valid).
    pub fn evaluate_autocast<R>(&self, then: impl FnOnce(&M) -> R) -> Result<R, ParallelError> {
        match &self.store {
            None => Ok(then(&autocast(
                self.for_evaluation()?,
                self.options.precision,
            )?)),
            Some(store) => self.lend(store, |model| then(&model)),
        }
    }

    /// Evaluates without autodiff a model whose parameters are gathered where they are read.
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

    /// Whether a forward pass is a collective call, because parameters are gathered in it.
    pub fn gathers(&self) -> bool {
        self.store.is_some()
    }

    /// Ends the training and returns the model, trainable as it was given to [`new`](Self::new):
    /// the same parameters are frozen, and adapters are adapters. A collective call under
    /// [`Strategy::Zero3`](super::Strategy::Zero3).
    ///
    /// # Errors
    ///
    /// As of [`valid`](Self::valid).
    pub fn into_model(self) -> Result<M, ParallelError> {
        self.plain(Purpose::Training, None)
    }

    /// The model as it was before anything was put on it, with the parameters as they are now or
    /// with their `averages`.
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
            // It may be that no other rank makes such a copy.
            false => model?,
        };
        Ok(match self.options.precision.cast_to() {
            Some(_) => statistics::cast(model, FloatDType::F32),
            None => model,
        })
    }

    /// A rank may evaluate alone: nothing is added up over ranks until the next forward pass of a
    /// training.
    fn no_more_sums(&self) {
        if let Some(sums) = &self.sums {
            sum_no_more_over(sums);
        }
    }

    fn unreadable(&self, index: usize, reason: &str) -> ParallelError {
        let path = self.parameters().get(index).map(|spec| spec.path.clone());
        ParallelError::Read {
            path: path.unwrap_or_default(),
            reason: reason.to_owned(),
        }
    }
}

/// What a plain copy is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Evaluation,
    /// Its parameters are on an autodiff device again, as the model's are.
    Training,
}

/// A model before anything is put on it for training, without values, for evaluation.
pub(super) struct Bare<M>(M);

impl<M: Module> Bare<M> {
    /// Of a `model` whose parameters have all come to exist.
    pub(super) fn of(model: &M) -> Self {
        // A clone would share the model's running statistics, and lose them for both.
        Self(model.valid().map(&mut Empty))
    }

    /// With the values of `model`: the same one, with more put on it. Of parameters in training
    /// `parameter` may give others, flat, by their index and device.
    fn with_values(
        &self,
        model: &M,
        purpose: Purpose,
        parameter: impl FnMut(usize, &Device) -> Result<Option<Tensor<1>>, ParallelError>,
    ) -> Result<M, ParallelError> {
        // Running statistics keep the last update apart from their value until they are next read.
        // `valid` folds it in, in the state that the model shares with its copy.
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
        // As above: every copy has running statistics of its own.
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
        reason: "a module is visited in another order than it is mapped".to_owned(),
    }
}

/// Leaves of every tensor one element that pretends to have its shape.
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
    /// Index of the trainable parameter that is visited next.
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
                    reason: format!("{found} elements were gathered for {shape:?}"),
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
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

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

/// Puts tensors in the places of those that are there, in visit order.
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
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

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

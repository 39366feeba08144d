//! Burn's optimizers for single parameters, chosen at run time.
//!
//! Burn's module optimizer keeps state by parameter id, and ids differ between ranks. Here state is
//! kept by index in visit order. AdamW, Adam and SGD are stepped in one pass with Burn's
//! arithmetic; Burn steps everything else.

mod offload;

use std::fmt;
use std::sync::Arc;

use burn::optim::{
    AdaGrad, AdaGradConfig, Adafactor, AdafactorConfig, Adam, AdamConfig, AdamW, AdamWConfig, Adan,
    AdanConfig, DynOptimizer, DynState, Lamb, LambConfig, Lion, LionConfig, Muon, MuonConfig,
    Optimizer, RmsProp, RmsPropConfig, Sgd, SgdConfig,
};
use burn::tensor::{DType, Device, FloatDType, Shape, Tensor};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::groups::{self, ParameterGroup, StepRule};
use super::state::{Rebuild, rebuild};
use super::{ParallelError, ParameterSpec};
use crate::backend::is_host;
use crate::bucket::{BucketError, FusedStep, Reducer};
use crate::flat::Part;
use crate::fused::{Fused, FusedState, steps_on};
use crate::thread_limit::NoThreads;

/// Number of elements from which Burn's CPU backend sums on several threads.
///
/// The split over threads varies from call to call and with the number of threads, and with it the
/// last bits of the sum.
const SUMMED_BY_THREADS: usize = 4 * 1024 * 1024;

/// An optimizer for single parameters.
///
/// Any of Burn's configurations converts into it, and any [`burn::optim::Optimizer`] through
/// [`new`](Self::new). Parameters in `f16` and `bf16` are stepped in `f32`.
#[derive(Clone)]
pub struct ParameterOptimizer {
    pub(super) optimizer: Arc<dyn DynOptimizer>,
    /// In the order in which they were added.
    pub(super) groups: Vec<ParameterGroup>,
    /// Whether the configuration sets Burn's clipping of single tensors.
    pub(super) clips_each_parameter: bool,
    /// Whether it can step any part of a parameter by itself.
    pub(super) element_wise: bool,
    /// Whether it steps only parameters with two dimensions.
    pub(super) matrices_only: bool,
    pub(super) fused: Option<Fused>,
    /// Rebuilds its state in double precision.
    pub(super) in_double: Option<Rebuild>,
    /// Its type and, if known, its settings, for comparison between ranks.
    pub(super) settings: Arc<str>,
}

impl ParameterOptimizer {
    /// Wraps an optimizer that is already built.
    ///
    /// Its settings are unknown, so ranks cannot compare them as they do for configurations. For
    /// `f64` parameters a checkpoint of its state is refused, because Burn would read it in `f32`.
    pub fn new<O: Optimizer>(optimizer: O) -> Self {
        Self {
            settings: std::any::type_name::<O>().into(),
            optimizer: Arc::new(optimizer),
            groups: Vec::new(),
            clips_each_parameter: false,
            element_wise: false,
            matrices_only: false,
            fused: None,
            in_double: None,
        }
    }

    /// Declares that each element's step depends only on its own value, gradient and state.
    ///
    /// Sharding may then cut parameters. Without this, it gives every rank whole parameters, with
    /// as equal a number of elements as possible. Burn's configurations are known.
    #[must_use]
    pub fn element_wise(mut self) -> Self {
        self.element_wise = true;
        self
    }

    /// Steps the parameters of `group` with its own optimizer.
    ///
    /// A parameter that several groups select belongs to the group that was added first.
    ///
    /// ```
    /// # use burn::optim::AdamWConfig;
    /// # use burn_dist::parallel::{ParameterGroup, ParameterOptimizer, is_norm_or_bias};
    /// let adamw = AdamWConfig::new().with_weight_decay(0.05);
    /// let no_decay = adamw.clone().with_weight_decay(0.0);
    /// let optimizer = ParameterOptimizer::from(adamw).with_group(ParameterGroup::new(
    ///     "norms and biases",
    ///     is_norm_or_bias,
    ///     no_decay,
    /// ));
    /// ```
    #[must_use]
    pub fn with_group(mut self, group: ParameterGroup) -> Self {
        self.clips_each_parameter |= group.clips_each_parameter();
        self.groups.push(group);
        self
    }

    /// Checks that this optimizer can step a model with these parameters.
    ///
    /// Every group needs a parameter, and every parameter a shape that its optimizer takes.
    /// [`Parallel::new`](super::Parallel::new) checks the same; this needs no ranks.
    ///
    /// # Errors
    /// [`ParallelError::EmptyGroup`] and [`ParallelError::NotAMatrix`].
    pub fn check(&self, parameters: &[ParameterSpec]) -> Result<(), ParallelError> {
        groups::choose(self, parameters).map(drop)
    }
}

impl fmt::Debug for ParameterOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ParameterOptimizer")
    }
}

/// The part of a parameter that an optimizer needs at once.
#[derive(PartialEq)]
enum Steps {
    Elements,
    Tensors,
    Matrices,
}

macro_rules! from_config {
    ($($config:ty, $optimizer:ty, $steps:expr, $fused:expr;)*) => {
        $(impl From<$config> for ParameterOptimizer {
            fn from(config: $config) -> Self {
                let fused: fn(&$config) -> Option<Fused> = $fused;
                let name = stringify!($optimizer);
                Self {
                    settings: match serde_json::to_string(&config) {
                        Ok(settings) => format!("{name} {settings}").into(),
                        Err(_) => name.into(),
                    },
                    optimizer: Arc::new(config.build()),
                    groups: Vec::new(),
                    clips_each_parameter: config.init().has_gradient_clipping(),
                    element_wise: $steps == Steps::Elements,
                    matrices_only: $steps == Steps::Matrices,
                    fused: fused(&config),
                    in_double: Some(rebuild::<$optimizer>),
                }
            }
        })*
    };
}
from_config!(
    AdaGradConfig, AdaGrad, Steps::Elements, |_| None;
    AdafactorConfig, Adafactor, Steps::Tensors, |_| None;
    AdamConfig, Adam, Steps::Elements, |config| Fused::adam(config);
    AdamWConfig, AdamW, Steps::Elements, |config| Fused::adamw(config);
    AdanConfig, Adan, Steps::Elements, |_| None;
    LambConfig, Lamb, Steps::Tensors, |_| None;
    LionConfig, Lion, Steps::Elements, |_| None;
    MuonConfig, Muon, Steps::Matrices, |_| None;
    RmsPropConfig, RmsProp, Steps::Elements, |_| None;
    SgdConfig, Sgd, Steps::Elements, |config| Fused::sgd(config);
);

impl StepRule {
    /// Whether a step of a parameter with `elements` elements may sum on several threads.
    fn sums_by_threads(&self, elements: usize) -> bool {
        self.whole.is_some() && elements >= SUMMED_BY_THREADS
    }
}

fn single_thread() -> Result<ThreadPool, ParallelError> {
    let builder = ThreadPoolBuilder::new().num_threads(1);
    let builder = builder.thread_name(|_| "optimizer".to_owned());
    builder.build().map_err(|error| ParallelError::Thread {
        reason: NoThreads::behind(&error).map_or(error.to_string(), |limit| limit.to_string()),
    })
}

/// Optimizer state for the elements of a parameter that this rank owns.
#[derive(Clone)]
pub(super) enum KeptState {
    /// In the parameter's shape, or flat if it may be a part.
    Burn(DynState),
    Fused(Box<FusedState>),
}

impl KeptState {
    pub(super) fn fused(state: FusedState) -> Self {
        Self::Fused(Box::new(state))
    }
}

/// A parameter to step, flat.
pub(super) struct Stepping<'a> {
    pub index: usize,
    pub part: Part<'a>,
    /// The shape that Burn's optimizers see.
    pub shape: Shape,
}

/// An optimizer with the state of every parameter.
pub(super) struct OptimizerState {
    /// Step rule of each parameter.
    choices: Vec<StepRule>,
    states: Vec<Option<KeptState>>,
    /// A single thread, if a step would otherwise sum on several threads.
    alone: Option<ThreadPool>,
    /// Device of the steps.
    device: Device,
    /// Whether that differs from the device of the parameters.
    offloads: bool,
    /// The first parameters that could not be stepped, by the index of one, and the reason.
    failure: Option<(usize, String)>,
}

impl OptimizerState {
    /// State for parameters on `device`; with `offload`, it is kept in host memory.
    pub(super) fn new(
        optimizer: &ParameterOptimizer,
        parameters: &[ParameterSpec],
        device: Device,
        offload: bool,
    ) -> Result<Self, ParallelError> {
        let offloads = offload && !is_host(&device);
        let device = if offloads { Device::flex() } else { device };
        let fuses = steps_on(&device);
        let mut choices = groups::choose(optimizer, parameters)?;
        for (choice, parameter) in choices.iter_mut().zip(parameters) {
            choice.fused = choice
                .fused
                .filter(|_| fuses && parameter.dtype == crate::DType::F32);
        }
        let sums = |(choice, parameter): (&StepRule, &ParameterSpec)| {
            choice.sums_by_threads(parameter.num_elements())
        };
        let alone = is_host(&device) && choices.iter().zip(parameters).any(sums);
        Ok(Self {
            choices,
            states: vec![None; parameters.len()],
            alone: alone.then(single_thread).transpose()?,
            device,
            offloads,
            failure: None,
        })
    }

    /// Device of the steps and of the state.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// The parameter that could not be stepped since the last call, and the reason.
    pub(super) fn take_failure(&mut self) -> Option<(usize, String)> {
        self.failure.take()
    }

    /// Step rule of the parameter with this index.
    pub(super) fn choice(&self, index: usize) -> Option<&StepRule> {
        self.choices.get(index)
    }

    /// Whether the optimizer needs the whole parameter, by parameter.
    pub(super) fn whole(&self) -> Vec<bool> {
        let whole = |choice: &StepRule| choice.whole.is_some();
        self.choices.iter().map(whole).collect()
    }

    /// State of the parameter with this index, if it has one yet.
    pub(super) fn state(&self, index: usize) -> Option<KeptState> {
        self.states.get(index).cloned().flatten()
    }

    pub(super) fn set_state(&mut self, index: usize, state: Option<KeptState>) {
        if let Some(place) = self.states.get_mut(index) {
            *place = state;
        }
    }

    /// The new value of the parameter with this index after a step with its gradient times
    /// `factor`. Both tensors are on the same plain device.
    ///
    /// Parameters in half precision are stepped in `f32`, because Burn rebuilds saved state in
    /// `f32`. One thread steps large parameters that are stepped as a whole, so that sums have the
    /// same bits on every rank and in every run.
    fn step_by_burn<const D: usize>(
        &mut self,
        index: usize,
        learning_rate: f64,
        value: Tensor<D>,
        gradient: Tensor<D>,
        factor: Option<f64>,
    ) -> Tensor<D> {
        let (Some(choice), Some(place)) = (self.choices.get(index), self.states.get_mut(index))
        else {
            return value;
        };
        let rate = learning_rate * choice.lr_factor;
        let state = match place.take() {
            Some(KeptState::Burn(state)) => Some(state),
            _ => None,
        };
        let (shape, dtype) = (value.shape(), value.dtype());
        let [value, gradient] = match dtype {
            DType::F16 | DType::BF16 => [value, gradient].map(|t| t.cast(FloatDType::F32)),
            _ => [value, gradient],
        };
        // Applied in `f32`: the factor removes a loss scale that keeps gradients representable in
        // half precision.
        let gradient = match factor {
            Some(factor) => gradient.mul_scalar(factor),
            None => gradient,
        };
        let alone = self.alone.as_ref();
        let alone = alone.filter(|_| choice.sums_by_threads(value.shape().num_elements()));
        let (value, gradient) = (value.into_bridge(), gradient.into_bridge());
        let step = || choice.optimizer.step_dyn(D, rate, value, gradient, state);
        let (value, state) = match alone {
            Some(thread) => thread.install(step),
            None => step(),
        };
        *place = state.map(KeptState::Burn);
        let value = Tensor::<D>::from_bridge(value);
        if value.shape() != shape {
            let stepped = value.shape();
            let reason =
                format!("the optimizer returned {stepped:?} for a parameter of shape {shape:?}");
            self.failure.get_or_insert((index, reason));
            return Tensor::zeros(shape, (&value.device(), dtype));
        }
        match value.dtype() == dtype {
            true => value,
            false => value.cast(FloatDType::from(dtype)),
        }
    }

    /// The shape in which `len` elements of the parameter with this index are stepped: its own if
    /// its optimizer needs the whole parameter.
    pub(super) fn shape(&self, index: usize, len: usize) -> Shape {
        let whole = self.choices.get(index).and_then(|c| c.whole.as_ref());
        match whole {
            Some(shape) if shape.iter().product::<usize>() == len => Shape::from(shape.clone()),
            _ => Shape::new([len]),
        }
    }

    /// The new values of several parameters, in their order. Parameters without a gradient on any
    /// rank, or that [could not be stepped](Self::take_failure), keep the old ones.
    pub(super) fn step(
        &mut self,
        reducer: &Reducer,
        learning_rate: f64,
        parameters: Vec<Stepping<'_>>,
        factor: Option<f64>,
    ) -> Result<Vec<Tensor<1>>, BucketError> {
        if self.offloads {
            return self.step_offloaded(reducer, learning_rate, parameters, factor);
        }
        let (mut fused, mut by_burn) = (Vec::new(), Vec::new());
        let mut is_fused = Vec::with_capacity(parameters.len());
        for parameter in parameters {
            let index = parameter.index;
            let choice = self.choices.get(index);
            let own = choice.and_then(|choice| Some((choice.fused?, choice.lr_factor)));
            is_fused.push(own.map(|_| index));
            match own {
                Some((own, lr_factor)) => fused.push(FusedStep {
                    parameter: index,
                    fused: own,
                    learning_rate: learning_rate * lr_factor,
                    values: parameter.part,
                    state: self.take_fused(index),
                }),
                None => by_burn.push(parameter),
            }
        }
        let indices: Vec<usize> = by_burn.iter().map(|parameter| parameter.index).collect();
        let gradients = reducer.shards(&indices)?;
        let by_burn = by_burn.into_iter().zip(gradients);
        let by_burn = by_burn.map(|(parameter, gradients)| {
            let Stepping {
                index,
                mut part,
                shape,
            } = parameter;
            let Some(gradients) = gradients else {
                return part.get();
            };
            let tensors = [part.take(), gradients];
            part.put(self.step_flat(index, learning_rate, tensors, factor, shape))
        });
        let mut by_burn = by_burn.collect::<Vec<_>>().into_iter();
        let factor = factor.map(|factor| factor as f32);
        let mut fused = reducer.step(fused, factor)?.into_iter();
        let results = is_fused.into_iter().filter_map(|is_fused| match is_fused {
            Some(index) => {
                let (values, state) = fused.next()?;
                self.set_state(index, state.map(KeptState::fused));
                Some(values)
            }
            None => by_burn.next(),
        });
        Ok(results.collect())
    }

    /// Takes out the state of a parameter that is stepped in one pass.
    fn take_fused(&mut self, index: usize) -> Option<FusedState> {
        match self.states.get_mut(index).and_then(Option::take) {
            Some(KeptState::Fused(state)) => Some(*state),
            _ => None,
        }
    }

    /// Does a [`step`](Self::step) of flat values and gradients, seen in `shape`.
    fn step_flat(
        &mut self,
        index: usize,
        learning_rate: f64,
        [values, gradients]: [Tensor<1>; 2],
        factor: Option<f64>,
        shape: Shape,
    ) -> Tensor<1> {
        let len = values.shape().num_elements();
        macro_rules! by_dimensions {
            ($($dimensions:literal)*) => {
                match shape.num_dims() {
                    $($dimensions => {
                        let values = values.reshape::<$dimensions, _>(shape.clone());
                        let gradients = gradients.reshape::<$dimensions, _>(shape);
                        self.step_by_burn(index, learning_rate, values, gradients, factor).reshape([len])
                    })*
                    // Burn's tensors have no more dimensions.
                    _ => values,
                }
            };
        }
        by_dimensions!(0 1 2 3 4 5 6 7 8)
    }
}

#[cfg(test)]
mod tests;

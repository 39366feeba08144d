//! An exponential moving average of the parameters, which often evaluates better than the
//! parameters themselves (Polyak & Juditsky 1992, <https://doi.org/10.1137/0330046>).
//!
//! The average of a parameter is flat, so that it can be sharded like other state. It lies on the
//! device that steps the parameter.

use std::collections::HashSet;
use std::ops::Range;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use serde_json::Value;

use super::replicas::AutodiffPlace;
use super::visited::keeps_path;
use super::{ParallelError, ParameterSpec, StateSourceRead, state};
use crate::bucket::{BucketError, Reducer};
use crate::flat;

/// Name of the average in a saved state.
pub(super) const NAME: &str = "ema";
const UPDATES: &str = "updates";
const COUNTED: &str = "counted";

/// Options of the moving average of the parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmaOptions {
    /// Share of the average that a step keeps, in [0, 1). 0.9999 averages about the last 10,000
    /// steps.
    pub decay: f64,
    /// Whether the first steps keep less, so that the random initial parameters are soon forgotten.
    ///
    /// Step `t` keeps `min(decay, (1 + t) / (10 + t))`, as in TensorFlow.
    pub warmup: bool,
}

impl EmaOptions {
    /// Share of the average that the next update keeps, after `updates` others.
    fn decay_after(&self, updates: u64) -> f64 {
        if !self.warmup {
            return self.decay;
        }
        let updates = updates as f64;
        self.decay.min((1.0 + updates) / (10.0 + updates))
    }

    pub(super) fn check(&self) -> Result<(), ParallelError> {
        if (0.0..1.0).contains(&self.decay) {
            return Ok(());
        }
        Err(ParallelError::Option {
            option: "ema.decay",
            value: self.decay.to_string(),
            expected: "in [0, 1)",
        })
    }
}

/// Options of stochastic weight averaging: the mean of the parameters at regular steps of the last
/// part of a training (Izmailov et al. 2018, <https://arxiv.org/abs/1803.05407>).
///
/// Running statistics of batch normalizations are not averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwaOptions {
    /// Number of the first step that counts, from 1. Until then the average equals the parameters.
    ///
    /// Steps are those of the training, see [`Parallel::set_steps`](super::Parallel::set_steps).
    pub start: u64,
    /// Steps between two that count, at least 1.
    pub every: u64,
}

impl SwaOptions {
    /// Whether the parameters after `step` count.
    fn counts(&self, step: u64) -> bool {
        let later = step.checked_sub(self.start);
        later.is_some_and(|later| later.checked_rem(self.every) == Some(0))
    }

    pub(super) fn check(&self) -> Result<(), ParallelError> {
        if self.every > 0 {
            return Ok(());
        }
        Err(ParallelError::Option {
            option: "swa.every",
            value: self.every.to_string(),
            expected: "at least 1",
        })
    }
}

/// The way in which parameters are averaged.
#[derive(Clone, Copy, Debug)]
pub(super) enum Averaging {
    Exponential(EmaOptions),
    Mean(SwaOptions),
}

/// The average of every trainable parameter.
pub(super) struct Ema {
    averaging: Averaging,
    /// Updates so far: for a mean, steps of the training.
    updates: u64,
    /// Steps that count in a mean.
    counted: u64,
    /// This rank's part of each average, by index in visit order.
    values: Vec<Tensor<1>>,
}

impl Ema {
    /// Starts at `values`, this rank's part of every parameter.
    pub(super) fn new(averaging: Averaging, values: Vec<Tensor<1>>) -> Self {
        Self {
            averaging,
            updates: 0,
            counted: 0,
            values,
        }
    }

    /// Starts again at `values`.
    pub(super) fn start_at(&mut self, values: Vec<Tensor<1>>) {
        *self = Self::new(self.averaging, values);
    }

    /// Begins the update after a step; returns the weight of the new parameters, unless it is 0.
    pub(super) fn begin_update(&mut self) -> Option<f32> {
        let before = self.updates;
        self.updates += 1;
        let weight = match &self.averaging {
            Averaging::Exponential(options) => 1.0 - options.decay_after(before),
            Averaging::Mean(options) if options.counts(self.updates) => {
                self.counted += 1;
                1.0 / self.counted as f64
            }
            // There is no mean yet.
            Averaging::Mean(_) if self.counted == 0 => 1.0,
            Averaging::Mean(_) => 0.0,
        };
        (weight > 0.0).then_some(weight as f32)
    }

    /// Sets the number of steps of the training so far, for a mean.
    pub(super) fn set_steps(&mut self, steps: u64) {
        if matches!(self.averaging, Averaging::Mean(_)) {
            self.updates = steps;
        }
    }

    /// Adds the new flat values of several parameters, for the parts that this rank owns.
    pub(super) fn update(
        &mut self,
        reducer: &Reducer,
        parameters: &[(usize, Tensor<1>)],
        weight: f32,
    ) -> Result<(), BucketError> {
        let mut indices = Vec::new();
        let mut tensors = Vec::new();
        for (index, values) in parameters {
            let place = self.values.get_mut(*index);
            if let Some(place) = place.filter(|place| flat::len(place) > 0) {
                let values = values.clone().cast(FloatDType::F32);
                tensors.push([flat::take(place), values]);
                indices.push(*index);
            }
        }
        for (index, average) in indices.into_iter().zip(reducer.blend(tensors, weight)?) {
            self.values[index] = average;
        }
        Ok(())
    }

    /// This rank's part of every average.
    pub(super) fn all(&self) -> &[Tensor<1>] {
        &self.values
    }

    /// The average of the parameter with this index.
    pub(super) fn get(&self, index: usize) -> Option<&Tensor<1>> {
        self.values.get(index)
    }

    /// Scalars that a saved state needs besides the averages.
    pub(super) fn scalars(&self) -> Vec<(String, Value)> {
        let updates = (UPDATES.to_owned(), self.updates.into());
        match self.averaging {
            Averaging::Exponential(_) => vec![updates],
            Averaging::Mean(_) => vec![updates, (COUNTED.to_owned(), self.counted.into())],
        }
    }

    /// Continues from a saved state on `device`; false if it has no averages.
    pub(super) fn restore(
        &mut self,
        (parameters, owned): (&[ParameterSpec], &[Range<usize>]),
        device: &Device,
        source: &dyn StateSourceRead,
    ) -> Result<bool, ParallelError> {
        let scalars = state::scalars(source, NAME);
        let Some(updates) = scalars.get(UPDATES) else {
            return Ok(false);
        };
        self.updates = updates.as_u64().ok_or_else(|| {
            ParallelError::restore(NAME, format!("{updates} is not a valid number of updates"))
        })?;
        // An average of another kind counts nothing: a mean begins with its first own step.
        self.counted = scalars.get(COUNTED).and_then(Value::as_u64).unwrap_or(0);
        let saved: HashSet<String> = source.names().into_iter().collect();
        let read = |(parameter, owned): (&ParameterSpec, &Range<usize>)| {
            let mut name = tensor_name(&parameter.path);
            if !saved.contains(&name) {
                // The parameter was frozen when the state was saved: its average is its value.
                name = state::model_name(&parameter.path);
            }
            let values = state::read_owned(source, &name, parameter, owned);
            let average = values.map(|values| flat::put(values, device));
            average.map_err(|reason| ParallelError::restore(&name, reason))
        };
        let all = parameters.iter().zip(owned);
        self.values = all.map(read).collect::<Result<_, _>>()?;
        Ok(true)
    }
}

/// Replaces parameters of `model` by their averages, if `source` has them.
pub(super) fn load<M: Module>(model: M, source: &dyn StateSourceRead) -> Result<M, ParallelError> {
    let mut load = Load {
        path: Vec::new(),
        source,
        averaged: source.names().into_iter().collect(),
        outcome: Ok(()),
    };
    let model = model.map(&mut load);
    load.outcome.map(|()| model)
}

/// Reads an average, which must have the shape `expected`.
fn read(
    source: &dyn StateSourceRead,
    path: &str,
    expected: &[usize],
) -> Result<Vec<f32>, ParallelError> {
    let name = tensor_name(path);
    let failed = |reason: String| ParallelError::restore(&name, reason);
    let data = source.read(&name).map_err(failed)?;
    let shape = data.shape().to_vec();
    match data.try_into_vec::<f32>() {
        Ok(values) if shape == expected => Ok(values),
        _ => Err(failed(format!(
            "expected an f32 tensor of shape {expected:?}"
        ))),
    }
}

/// Name of a parameter's average in a saved state.
pub(super) fn tensor_name(path: &str) -> String {
    format!("{NAME}/{path}")
}

struct Load<'a> {
    path: Vec<String>,
    source: &'a dyn StateSourceRead,
    /// Names of the averages in the source.
    averaged: HashSet<String>,
    outcome: Result<(), ParallelError>,
}

impl ModuleMapper for Load<'_> {
    keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.path.join(".");
        if self.outcome.is_err() || !self.averaged.contains(&tensor_name(&path)) {
            return param;
        }
        match read(self.source, &path, &param.lazy_shape().to_vec()) {
            Ok(values) => param.map(|value| {
                let place = AutodiffPlace::of(&value);
                let data = TensorData::new(values, value.shape());
                place.restore(Tensor::from_data(
                    data,
                    (&value.device().inner(), value.dtype()),
                ))
            }),
            Err(error) => {
                self.outcome = Err(error);
                param
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_updates_keep_less() {
        let options = EmaOptions {
            decay: 0.99,
            warmup: true,
        };
        assert_eq!(options.decay_after(0), 0.1);
        assert_eq!(options.decay_after(90), 0.91);
        assert_eq!(options.decay_after(10_000), 0.99);
        let plain = EmaOptions {
            warmup: false,
            ..options
        };
        assert_eq!(plain.decay_after(0), 0.99);
    }

    /// The weights of the next `steps` updates; 0 if there is none.
    fn weights(ema: &mut Ema, steps: usize) -> Vec<f32> {
        let weight = |_| ema.begin_update().unwrap_or(0.0);
        (0..steps).map(weight).collect()
    }

    fn mean(start: u64, every: u64) -> Ema {
        Ema::new(Averaging::Mean(SwaOptions { start, every }), Vec::new())
    }

    /// Weights that make the mean of the parameters after steps 4, 6 and 8.
    #[test]
    fn a_mean_counts_regular_steps_alike() {
        let found = weights(&mut mean(4, 2), 8);
        assert_eq!(found, [1.0, 1.0, 1.0, 1.0, 0.0, 0.5, 0.0, 1.0 / 3.0]);
        assert_eq!(weights(&mut mean(1, 1), 3), [1.0, 0.5, 1.0 / 3.0]);
        assert!(SwaOptions { start: 1, every: 0 }.check().is_err());
    }

    #[test]
    fn a_mean_that_begins_in_a_resumed_run_counts_the_steps_of_the_training() {
        let mut late = mean(6, 2);
        late.set_steps(4);
        assert_eq!(weights(&mut late, 4), [1.0, 1.0, 0.0, 0.5]);
        // Begun late: the steps before have no part in it.
        let mut later = mean(2, 2);
        later.set_steps(5);
        assert_eq!(weights(&mut later, 3), [1.0, 0.0, 0.5]);
    }

    #[test]
    fn an_average_that_never_forgets_or_is_negative_is_refused() {
        for decay in [1.0, -0.1, f64::NAN] {
            let options = EmaOptions {
                decay,
                warmup: true,
            };
            assert!(options.check().is_err());
        }
    }
}

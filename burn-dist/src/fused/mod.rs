//! AdamW, Adam and SGD in one pass over a range of elements: vectorised in host memory, one kernel
//! on a GPU (`gpu`).
//!
//! Burn's optimizers make a pass, and a temporary of the parameter's size, for every operation.
//! Here the same operations run in the same order on one element after the other. The result equals
//! Burn's, except for the last bit, at the speed of memory. It does not depend on how a parameter
//! is cut.

mod gpu;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};
use serde::Serialize;
use serde_json::Value;

use crate::backend::gpu::Kernels;
use crate::backend::is_host;
use crate::flat;
use crate::reduce::vectorised;

pub(crate) use gpu::{OnDevice, step_on_device};

/// Smallest number of elements for one thread.
const PART: usize = 1 << 15;

/// A supported optimizer with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fused {
    Adam(Adam),
    Sgd(Sgd),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Adam {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    /// Weight of the parameter that is added to the gradient.
    penalty: Option<f32>,
    /// Weight decay of the parameter itself, times the learning rate.
    decoupled_decay: f32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sgd {
    penalty: Option<f32>,
    momentum: Option<Momentum>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Momentum {
    momentum: f32,
    /// 1 − dampening.
    intake: f32,
    nesterov: bool,
}

impl Momentum {
    /// Weights of the velocity and the gradient in the next velocity. The first velocity is the
    /// gradient, whatever the dampening.
    fn keep_and_intake(&self, has_velocity: bool) -> (f32, f32) {
        match has_velocity {
            true => (self.momentum, self.intake),
            false => (0.0, 1.0),
        }
    }
}

/// Whether these steps can run on `device`.
pub(crate) fn steps_on(device: &Device) -> bool {
    is_host(device) || Kernels::on(device).is_some()
}

/// Optimizer state for the elements of a parameter that this rank owns.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a model has at most one entry per parameter"
)]
pub(crate) enum FusedState {
    Adam {
        /// Number of steps so far.
        time: u64,
        moments: [Tensor<1>; 2],
    },
    Sgd {
        velocity: Option<Tensor<1>>,
    },
}

/// The fields of Burn's configurations, which are private but can be serialized.
struct Fields(Value);

impl Fields {
    fn of(config: &impl Serialize) -> Option<Self> {
        serde_json::to_value(config).ok().map(Self)
    }

    fn number(&self, path: &str) -> Option<f32> {
        // An `f32` in JSON keeps its value as `f64`, so nothing is lost.
        Some(self.0.pointer(path)?.as_f64()? as f32)
    }

    fn flag(&self, path: &str) -> Option<bool> {
        self.0.pointer(path)?.as_bool()
    }

    /// A field that may be `null`.
    fn optional<T>(&self, path: &str, read: impl FnOnce(&Self) -> Option<T>) -> Option<Option<T>> {
        match self.0.pointer(path)? {
            Value::Null => Some(None),
            _ => read(self).map(Some),
        }
    }
}

impl Fused {
    /// Burn's AdamW; `None` for variants that Burn steps (AMSGrad, cautious decay).
    pub(crate) fn adamw(config: &impl Serialize) -> Option<Self> {
        let fields = Fields::of(config)?;
        if fields.flag("/amsgrad")? || fields.flag("/cautious_weight_decay")? {
            return None;
        }
        Some(Self::Adam(Adam {
            beta_1: fields.number("/beta_1")?,
            beta_2: fields.number("/beta_2")?,
            epsilon: fields.number("/epsilon")?,
            penalty: None,
            decoupled_decay: fields.number("/weight_decay")?,
        }))
    }

    /// Burn's Adam; `None` for AMSGrad.
    pub(crate) fn adam(config: &impl Serialize) -> Option<Self> {
        let fields = Fields::of(config)?;
        if fields.flag("/amsgrad")? {
            return None;
        }
        Some(Self::Adam(Adam {
            beta_1: fields.number("/beta_1")?,
            beta_2: fields.number("/beta_2")?,
            epsilon: fields.number("/epsilon")?,
            penalty: fields.optional("/weight_decay", |f| f.number("/weight_decay/penalty"))?,
            decoupled_decay: 0.0,
        }))
    }

    /// Burn's SGD.
    pub(crate) fn sgd(config: &impl Serialize) -> Option<Self> {
        let fields = Fields::of(config)?;
        let momentum = |f: &Fields| {
            let dampening = f.0.pointer("/momentum/dampening")?.as_f64()?;
            Some(Momentum {
                momentum: f.number("/momentum/momentum")?,
                intake: (1.0 - dampening) as f32,
                nesterov: f.flag("/momentum/nesterov")?,
            })
        };
        Some(Self::Sgd(Sgd {
            penalty: fields.optional("/weight_decay", |f| f.number("/weight_decay/penalty"))?,
            momentum: fields.optional("/momentum", momentum)?,
        }))
    }

    /// Steps `values` with `gradients` times `factor`, both of the same length. Without a state it
    /// makes the first step.
    ///
    /// # Errors
    /// Returns the reason if the state cannot be read.
    pub(crate) fn step(
        &self,
        learning_rate: f64,
        values: &mut [f32],
        gradients: &[f32],
        factor: Option<f32>,
        state: &mut Option<FusedState>,
    ) -> Result<(), String> {
        match self {
            Self::Adam(adam) => adam.step(learning_rate, values, gradients, factor, state),
            Self::Sgd(sgd) => sgd.step(learning_rate as f32, values, gradients, factor, state),
        }
    }
}

impl Adam {
    fn step(
        &self,
        learning_rate: f64,
        values: &mut [f32],
        gradients: &[f32],
        factor: Option<f32>,
        state: &mut Option<FusedState>,
    ) -> Result<(), String> {
        // Zero moments make a first step: 0·β + g·(1 − β) is g·(1 − β).
        let (time, mut moments) = match state.take() {
            Some(FusedState::Adam { time, moments }) => (time + 1, moments),
            _ => (1, [(); 2].map(|()| zeros(values.len()))),
        };
        let Self {
            beta_1,
            beta_2,
            epsilon,
            penalty,
            ..
        } = *self;
        let (factor_1, factor_2) = (1.0 - beta_1, 1.0 - beta_2);
        let AdamNumbers {
            corrections: [correct_1, correct_2],
            keep,
            rate,
        } = self.numbers(learning_rate, time);
        let step = |values: &mut [f32],
                    gradients: &[f32],
                    [moment_1, moment_2]: [&mut [f32]; 2]| {
            vectorised(
                #[inline(always)]
                || {
                    let moments = moment_1.iter_mut().zip(moment_2);
                    for ((value, gradient), (m, v)) in values.iter_mut().zip(gradients).zip(moments)
                    {
                        let mut gradient = scaled(*gradient, factor);
                        if let Some(penalty) = penalty {
                            gradient += *value * penalty;
                        }
                        *m = *m * beta_1 + gradient * factor_1;
                        *v = *v * beta_2 + gradient * gradient * factor_2;
                        let delta = (*m / correct_1) / ((*v / correct_2).sqrt() + epsilon);
                        *value = *value * keep - delta * rate;
                    }
                },
            );
        };
        let [first, second] = &mut moments;
        flat::change(first, |first| {
            let step = |second: &mut [f32]| in_parts(values, gradients, [first, second], &step);
            flat::change(second, step)
        })
        .flatten()?;
        *state = Some(FusedState::Adam { time, moments });
        Ok(())
    }

    /// The numbers that change from step to step, for step `time`, from 1.
    fn numbers(&self, learning_rate: f64, time: u64) -> AdamNumbers {
        let steps = i32::try_from(time).unwrap_or(i32::MAX);
        let decay = learning_rate * f64::from(self.decoupled_decay);
        AdamNumbers {
            corrections: [self.beta_1, self.beta_2].map(|beta| 1.0 - beta.powi(steps)),
            keep: match decay == 0.0 {
                true => 1.0,
                false => (1.0 - decay) as f32,
            },
            rate: learning_rate as f32,
        }
    }
}

/// The numbers of Adam that change from step to step.
struct AdamNumbers {
    /// Divisors of the moments, because they began at zero.
    corrections: [f32; 2],
    /// Factor of the parameters.
    keep: f32,
    rate: f32,
}

impl Sgd {
    fn step(
        &self,
        rate: f32,
        values: &mut [f32],
        gradients: &[f32],
        factor: Option<f32>,
        state: &mut Option<FusedState>,
    ) -> Result<(), String> {
        let penalty = self.penalty;
        let Some(momentum) = self.momentum else {
            *state = Some(FusedState::Sgd { velocity: None });
            let step = |values: &mut [f32], gradients: &[f32], []: [&mut [f32]; 0]| {
                vectorised(
                    #[inline(always)]
                    || {
                        for (value, gradient) in values.iter_mut().zip(gradients) {
                            let gradient = scaled(*gradient, factor);
                            *value -= decayed(*value, gradient, penalty) * rate;
                        }
                    },
                );
            };
            in_parts(values, gradients, [], &step);
            return Ok(());
        };
        let before = match state.take() {
            Some(FusedState::Sgd { velocity }) => velocity,
            _ => None,
        };
        let (keep, intake) = momentum.keep_and_intake(before.is_some());
        let mut velocity = before.unwrap_or_else(|| zeros(values.len()));
        let step = |values: &mut [f32], gradients: &[f32], [held]: [&mut [f32]; 1]| {
            vectorised(
                #[inline(always)]
                || {
                    for ((value, gradient), held) in values.iter_mut().zip(gradients).zip(held) {
                        let gradient = scaled(*gradient, factor);
                        let gradient = decayed(*value, gradient, penalty);
                        *held = gradient * intake + *held * keep;
                        let delta = if momentum.nesterov {
                            *held * momentum.momentum + gradient
                        } else {
                            *held
                        };
                        *value -= delta * rate;
                    }
                },
            );
        };
        flat::change(&mut velocity, |held| {
            in_parts(values, gradients, [held], &step)
        })?;
        *state = Some(FusedState::Sgd {
            velocity: Some(velocity),
        });
        Ok(())
    }
}

/// State before the first step, in host memory.
fn zeros(len: usize) -> Tensor<1> {
    flat::put(vec![0.0; len], &Device::flex())
}

// As closures these two would be calls in the loops, which would then not be vector code.
#[inline(always)]
fn scaled(gradient: f32, factor: Option<f32>) -> f32 {
    match factor {
        Some(factor) => gradient * factor,
        None => gradient,
    }
}

#[inline(always)]
fn decayed(value: f32, gradient: f32, penalty: Option<f32>) -> f32 {
    match penalty {
        Some(penalty) => value * penalty + gradient,
        None => gradient,
    }
}

/// Steps `values` with their gradients and state on all threads. Splits into halves until a part is
/// too small to be worth it.
fn in_parts<const N: usize>(
    values: &mut [f32],
    gradients: &[f32],
    kept: [&mut [f32]; N],
    step: &(impl Fn(&mut [f32], &[f32], [&mut [f32]; N]) + Sync),
) {
    let middle = values.len().min(gradients.len()) / 2;
    if middle < PART || rayon::current_num_threads() == 1 {
        return step(values, gradients, kept);
    }
    let (left, right) = values.split_at_mut(middle);
    let (left_gradients, right_gradients) = gradients.split_at(middle);
    let mut right_kept = [(); N].map(|()| Default::default());
    let mut places = right_kept.iter_mut();
    let left_kept = kept.map(|kept| {
        let (left, right) = kept.split_at_mut(middle.min(kept.len()));
        if let Some(place) = places.next() {
            *place = right;
        }
        left
    });
    rayon::join(
        || in_parts(left, left_gradients, left_kept, step),
        || in_parts(right, right_gradients, right_kept, step),
    );
}

impl FusedState {
    /// The tensors, named as Burn flattens them.
    pub(crate) fn tensors(&self) -> Vec<(&'static str, Tensor<1>)> {
        match self {
            Self::Adam {
                moments: [first, second],
                ..
            } => vec![
                ("momentum.moment_1", first.clone()),
                ("momentum.moment_2", second.clone()),
            ],
            Self::Sgd { velocity } => velocity
                .iter()
                .map(|velocity| ("momentum.velocity", velocity.clone()))
                .collect(),
        }
    }

    /// The scalars, named as Burn flattens them.
    pub(crate) fn scalars(&self) -> Vec<(&'static str, Value)> {
        match self {
            Self::Adam { time, .. } => vec![("momentum.time", (*time).into())],
            Self::Sgd { .. } => Vec::new(),
        }
    }
}

impl Fused {
    /// The state from `tensors` and `scalars`; `None` if they belong to another optimizer.
    pub(crate) fn restore(
        &self,
        mut tensors: BTreeMap<String, Tensor<1>>,
        scalars: &BTreeMap<String, Value>,
    ) -> Option<FusedState> {
        let mut take = |name: &str| tensors.remove(name);
        let state = match self {
            Self::Adam(_) => FusedState::Adam {
                time: scalars.get("momentum.time")?.as_u64()?,
                moments: [take("momentum.moment_1")?, take("momentum.moment_2")?],
            },
            Self::Sgd(sgd) => FusedState::Sgd {
                velocity: match sgd.momentum {
                    Some(_) => Some(take("momentum.velocity")?),
                    None => None,
                },
            },
        };
        (tensors.is_empty() && scalars.len() == state.scalars().len()).then_some(state)
    }
}

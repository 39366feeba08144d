//! AdamW, Adam and SGD in one vectorised pass over a range of elements in host memory.
//!
//! Burn's optimizers make a pass, and a temporary of the parameter's size, for every operation.
//! Here the same operations are done in the same order on one element after the other, so the
//! result is Burn's but for the last bit, at the speed of the memory. How a parameter is cut into
//! ranges changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::reduce::vectorised;

/// Elements that one thread steps at least.
const PART: usize = 1 << 15;

/// An optimizer that is known here, with its numbers.
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
    /// Added to the gradient times the parameter.
    penalty: Option<f32>,
    /// Of the parameter itself, times the learning rate.
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

/// What an optimizer keeps for the elements of a parameter that this rank owns. A snapshot shares
/// the values until they next change.
#[derive(Clone, Debug)]
pub(crate) enum FusedState {
    Adam {
        /// Steps that were done.
        time: u64,
        moment_1: Arc<Vec<f32>>,
        moment_2: Arc<Vec<f32>>,
    },
    Sgd {
        velocity: Option<Arc<Vec<f32>>>,
    },
}

/// The fields of Burn's configurations, which are private but can be serialized.
struct Fields(Value);

impl Fields {
    fn of(config: &impl Serialize) -> Option<Self> {
        serde_json::to_value(config).ok().map(Self)
    }

    fn number(&self, path: &str) -> Option<f32> {
        // An `f32` is in JSON what it is as `f64`, so nothing is lost.
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
    /// Burn's AdamW; `None` for variants that are left to Burn (AMSGrad, cautious decay).
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

    /// Steps `values` by the gradients times `factor`; all of one length. Starts with the state
    /// that a first step has if there is none.
    pub(crate) fn step(
        &self,
        learning_rate: f64,
        values: &mut [f32],
        gradients: &[f32],
        factor: Option<f32>,
        state: &mut Option<FusedState>,
    ) {
        let scale = |gradient: f32| factor.map_or(gradient, |factor| gradient * factor);
        match self {
            Self::Adam(adam) => adam.step(learning_rate, values, gradients, scale, state),
            Self::Sgd(sgd) => sgd.step(learning_rate as f32, values, gradients, scale, state),
        }
    }
}

impl Adam {
    fn step(
        &self,
        learning_rate: f64,
        values: &mut [f32],
        gradients: &[f32],
        scale: impl Fn(f32) -> f32 + Copy + Sync,
        state: &mut Option<FusedState>,
    ) {
        // Zero moments make a first step: 0·β + g·(1 − β) is g·(1 − β).
        let zeros = || Arc::new(vec![0.0f32; values.len()]);
        if !matches!(state, Some(FusedState::Adam { .. })) {
            *state = Some(FusedState::Adam {
                time: 0,
                moment_1: zeros(),
                moment_2: zeros(),
            });
        }
        let Some(FusedState::Adam {
            time,
            moment_1,
            moment_2,
        }) = state
        else {
            return;
        };
        *time += 1;
        let Self {
            beta_1,
            beta_2,
            epsilon,
            penalty,
            decoupled_decay,
        } = *self;
        let steps = i32::try_from(*time).unwrap_or(i32::MAX);
        let (factor_1, factor_2) = (1.0 - beta_1, 1.0 - beta_2);
        let (correct_1, correct_2) = (1.0 - beta_1.powi(steps), 1.0 - beta_2.powi(steps));
        let decay = learning_rate * f64::from(decoupled_decay);
        let keep = if decay == 0.0 {
            1.0
        } else {
            (1.0 - decay) as f32
        };
        let rate = learning_rate as f32;
        // Copies only while a snapshot is being written.
        let moment_1 = Arc::make_mut(moment_1).as_mut_slice();
        let moment_2 = Arc::make_mut(moment_2).as_mut_slice();
        let step = |values: &mut [f32],
                    gradients: &[f32],
                    [moment_1, moment_2]: [&mut [f32]; 2]| {
            vectorised(
                #[inline(always)]
                || {
                    let moments = moment_1.iter_mut().zip(moment_2);
                    for ((value, gradient), (m, v)) in values.iter_mut().zip(gradients).zip(moments)
                    {
                        let mut gradient = scale(*gradient);
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
        in_parts(values, gradients, [moment_1, moment_2], &step);
    }
}

impl Sgd {
    fn step(
        &self,
        rate: f32,
        values: &mut [f32],
        gradients: &[f32],
        scale: impl Fn(f32) -> f32 + Copy + Sync,
        state: &mut Option<FusedState>,
    ) {
        let penalty = self.penalty;
        let decayed = move |value: f32, gradient: f32| match penalty {
            Some(penalty) => value * penalty + scale(gradient),
            None => scale(gradient),
        };
        let Some(momentum) = self.momentum else {
            *state = Some(FusedState::Sgd { velocity: None });
            let step = |values: &mut [f32], gradients: &[f32], []: [&mut [f32]; 0]| {
                vectorised(
                    #[inline(always)]
                    || {
                        for (value, gradient) in values.iter_mut().zip(gradients) {
                            *value -= decayed(*value, *gradient) * rate;
                        }
                    },
                );
            };
            in_parts(values, gradients, [], &step);
            return;
        };
        let before = match state.take() {
            Some(FusedState::Sgd { velocity }) => velocity,
            _ => None,
        };
        // The first velocity is the gradient, whatever the dampening.
        let (keep, intake) = match before {
            Some(_) => (momentum.momentum, momentum.intake),
            None => (0.0, 1.0),
        };
        let mut velocity = before.unwrap_or_else(|| Arc::new(vec![0.0; values.len()]));
        let held = Arc::make_mut(&mut velocity).as_mut_slice();
        let step = |values: &mut [f32], gradients: &[f32], [held]: [&mut [f32]; 1]| {
            vectorised(
                #[inline(always)]
                || {
                    for ((value, gradient), held) in values.iter_mut().zip(gradients).zip(held) {
                        let gradient = decayed(*value, *gradient);
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
        in_parts(values, gradients, [held], &step);
        *state = Some(FusedState::Sgd {
            velocity: Some(velocity),
        });
    }
}

/// Steps `values`, with their gradients and what is kept for them, by all threads: in halves, until a
/// part is too small to be worth the handing over.
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
    pub(crate) fn tensors(&self) -> Vec<(&'static str, Arc<Vec<f32>>)> {
        match self {
            Self::Adam {
                moment_1, moment_2, ..
            } => vec![
                ("momentum.moment_1", moment_1.clone()),
                ("momentum.moment_2", moment_2.clone()),
            ],
            Self::Sgd { velocity } => velocity
                .iter()
                .map(|velocity| ("momentum.velocity", velocity.clone()))
                .collect(),
        }
    }

    /// The numbers, named as Burn flattens them.
    pub(crate) fn scalars(&self) -> Vec<(&'static str, Value)> {
        match self {
            Self::Adam { time, .. } => vec![("momentum.time", (*time).into())],
            Self::Sgd { .. } => Vec::new(),
        }
    }
}

impl Fused {
    /// The state that `tensors` and `scalars` are of; `None` if they are another optimizer's.
    pub(crate) fn restore(
        &self,
        mut tensors: BTreeMap<String, Vec<f32>>,
        scalars: &BTreeMap<String, Value>,
    ) -> Option<FusedState> {
        let mut take = |name: &str| tensors.remove(name).map(Arc::new);
        let state = match self {
            Self::Adam(_) => FusedState::Adam {
                time: scalars.get("momentum.time")?.as_u64()?,
                moment_1: take("momentum.moment_1")?,
                moment_2: take("momentum.moment_2")?,
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

#[cfg(test)]
mod tests {
    use burn::optim::decay::WeightDecayConfig;
    use burn::optim::momentum::MomentumConfig;
    use burn::optim::{AdamConfig, AdamWConfig, Optimizer, SgdConfig};
    use burn::tensor::{Device, Tensor, TensorData};
    use proptest::prelude::*;

    use super::*;

    fn tensor(values: &[f32]) -> Tensor<1> {
        Tensor::from_data(
            TensorData::new(values.to_vec(), [values.len()]),
            &Device::flex(),
        )
    }

    /// Five steps with Burn and here must agree, and in every bit if done in two pieces.
    fn assert_equal(optimizer: &impl Optimizer, fused: Fused, values: &[f32], cut: usize) {
        let (mut whole, mut state) = (values.to_vec(), None);
        let (mut left, mut right) = (values[..cut].to_vec(), values[cut..].to_vec());
        let (mut left_state, mut right_state) = (None, None);
        let (mut expected, mut expected_state) = (tensor(values), None);
        for step in 0..5 {
            let gradients: Vec<f32> = values
                .iter()
                .map(|value| (value * 3.0 + step as f32).sin() * 0.1)
                .collect();
            let rate = 0.003 * (step + 1) as f64;
            let factor = (step > 2).then_some(0.37f32);
            let scaled: Vec<f32> = gradients
                .iter()
                .map(|g| g * factor.unwrap_or(1.0))
                .collect();
            let (next, next_state) =
                optimizer.step(rate, expected, tensor(&scaled), expected_state);
            (expected, expected_state) = (next, next_state);
            fused.step(rate, &mut whole, &gradients, factor, &mut state);
            fused.step(rate, &mut left, &gradients[..cut], factor, &mut left_state);
            fused.step(
                rate,
                &mut right,
                &gradients[cut..],
                factor,
                &mut right_state,
            );
        }
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let expected: Vec<f32> = expected.into_data().try_to_vec().unwrap();
        for (whole, expected) in whole.iter().zip(&expected) {
            assert!(
                (whole - expected).abs() <= 1e-6 * expected.abs().max(0.01),
                "{whole} {expected}"
            );
        }
        assert_eq!(bits(&[left, right].concat()), bits(&whole));
    }

    proptest! {
        #[test]
        fn steps_are_burns(
            values in prop::collection::vec(-2.0f32..2.0, 1..300),
            cut in 0usize..300,
            decay in prop::option::of(0.0f32..0.3),
            nesterov in any::<bool>(),
            dampening in prop_oneof![Just(0.0), Just(0.1)],
        ) {
            let cut = cut.min(values.len());
            let adamw = AdamWConfig::new().with_weight_decay(decay.unwrap_or(0.0)).with_epsilon(1e-8);
            assert_equal(&adamw.build(), Fused::adamw(&adamw).unwrap(), &values, cut);
            let penalty = decay.map(WeightDecayConfig::new);
            let adam = AdamConfig::new().with_weight_decay(penalty.clone());
            assert_equal(&adam.build(), Fused::adam(&adam).unwrap(), &values, cut);
            let momentum = MomentumConfig { momentum: 0.9, dampening, nesterov };
            let sgd = SgdConfig::new().with_momentum(Some(momentum)).with_weight_decay(penalty.clone());
            assert_equal(&sgd.build(), Fused::sgd(&sgd).unwrap(), &values, cut);
            let plain = SgdConfig::new().with_weight_decay(penalty);
            assert_equal(&plain.build(), Fused::sgd(&plain).unwrap(), &values, cut);
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let len = 5 * PART + 7;
        let wave = |phase: f32| (0..len).map(move |i| (i as f32 * 0.37 + phase).sin());
        let gradients: Vec<f32> = wave(1.0).collect();
        let momentum = MomentumConfig {
            momentum: 0.9,
            dampening: 0.1,
            nesterov: true,
        };
        let sgd = SgdConfig::new();
        for fused in [
            Fused::adamw(&AdamWConfig::new()).unwrap(),
            Fused::sgd(&sgd).unwrap(),
            Fused::sgd(&sgd.with_momentum(Some(momentum))).unwrap(),
        ] {
            let (mut whole, mut pieces): (Vec<f32>, Vec<f32>) = wave(0.0).map(|x| (x, x)).unzip();
            let (mut state, mut states) = (None, vec![None; len.div_ceil(1000)]);
            for _ in 0..2 {
                fused.step(0.1, &mut whole, &gradients, Some(0.5), &mut state);
                let parts = pieces.chunks_mut(1000).zip(gradients.chunks(1000));
                for ((values, gradients), state) in parts.zip(&mut states) {
                    fused.step(0.1, values, gradients, Some(0.5), state);
                }
            }
            assert!(whole == pieces, "{fused:?}");
        }
    }

    #[test]
    fn variants_are_left_to_burn() {
        assert!(Fused::adamw(&AdamWConfig::new().with_amsgrad(true)).is_none());
        assert!(Fused::adamw(&AdamWConfig::new().with_cautious_weight_decay(true)).is_none());
        assert!(Fused::adam(&AdamConfig::new().with_amsgrad(true)).is_none());
    }

    #[test]
    fn state_is_restored_or_refused() {
        let fused = Fused::adamw(&AdamWConfig::new()).unwrap();
        let mut state = None;
        fused.step(0.1, &mut [1.0, 2.0], &[0.5, 0.25], None, &mut state);
        let state = state.unwrap();
        let tensors = || {
            let named = |(name, values): (&str, Arc<Vec<f32>>)| (name.to_owned(), values.to_vec());
            state
                .tensors()
                .into_iter()
                .map(named)
                .collect::<BTreeMap<_, _>>()
        };
        let named = |(name, value): (&str, Value)| (name.to_owned(), value);
        let scalars: BTreeMap<_, _> = state.scalars().into_iter().map(named).collect();
        let restored = fused.restore(tensors(), &scalars).unwrap();
        assert_eq!(format!("{restored:?}"), format!("{state:?}"));
        assert!(fused.restore(BTreeMap::new(), &scalars).is_none());
        let mut more = tensors();
        more.insert("momentum.max_moment_2".to_owned(), vec![0.0; 2]);
        assert!(fused.restore(more, &scalars).is_none());
        let sgd = Fused::sgd(&SgdConfig::new()).unwrap();
        assert!(sgd.restore(tensors(), &scalars).is_none());
    }
}

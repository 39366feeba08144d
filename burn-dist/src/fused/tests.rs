//! Compares with Burn's own optimizers.

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

/// Five steps here and with Burn must agree, and be bit-identical if done in two pieces.
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
        let (next, next_state) = optimizer.step(rate, expected, tensor(&scaled), expected_state);
        (expected, expected_state) = (next, next_state);
        fused
            .step(rate, &mut whole, &gradients, factor, &mut state)
            .unwrap();
        fused
            .step(rate, &mut left, &gradients[..cut], factor, &mut left_state)
            .unwrap();
        fused
            .step(
                rate,
                &mut right,
                &gradients[cut..],
                factor,
                &mut right_state,
            )
            .unwrap();
    }
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let expected: Vec<f32> = expected.into_data().try_to_vec().unwrap();
    for (whole, expected) in whole.iter().zip(&expected) {
        // A value near zero has the rounding errors of the steps there, 0.045 in all.
        assert!(
            (whole - expected).abs() <= 1e-6 * expected.abs().max(0.045),
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
            fused
                .step(0.1, &mut whole, &gradients, Some(0.5), &mut state)
                .unwrap();
            let parts = pieces.chunks_mut(1000).zip(gradients.chunks(1000));
            for ((values, gradients), state) in parts.zip(&mut states) {
                fused
                    .step(0.1, values, gradients, Some(0.5), state)
                    .unwrap();
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
    fused
        .step(0.1, &mut [1.0, 2.0], &[0.5, 0.25], None, &mut state)
        .unwrap();
    let state = state.unwrap();
    let tensors = || {
        let named = |(name, values): (&str, Tensor<1>)| (name.to_owned(), values);
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
    more.insert("momentum.max_moment_2".to_owned(), zeros(2));
    assert!(fused.restore(more, &scalars).is_none());
    let sgd = Fused::sgd(&SgdConfig::new()).unwrap();
    assert!(sgd.restore(tensors(), &scalars).is_none());
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod on_gpu {
    use super::*;
    use crate::backend::gpu::Kernels;

    /// The GPU, if present; says so if not.
    fn gpu() -> Option<burn::tensor::Device> {
        use crate::device::DeviceChoice;
        use crate::world::World;
        let asked = std::env::var("BURN_DIST_TEST_DEVICE").ok();
        let choice = asked
            .as_deref()
            .map_or(DeviceChoice::Wgpu, |name| name.parse().unwrap());
        match World::single().choose_device(choice) {
            Ok(chosen) => Some(chosen.device),
            Err(error) if asked.is_some() => panic!("{error}"),
            Err(error) => {
                eprintln!("SKIPPED: steps of optimizers on wgpu: {error}");
                None
            }
        }
    }

    /// One of every kind that has a kernel.
    fn variants() -> [Fused; 5] {
        let penalty = Some(WeightDecayConfig::new(0.01));
        let momentum = |dampening, nesterov| {
            let momentum = MomentumConfig {
                momentum: 0.9,
                dampening,
                nesterov,
            };
            SgdConfig::new().with_momentum(Some(momentum))
        };
        let decayed = momentum(0.1, false).with_weight_decay(penalty.clone());
        [
            Fused::sgd(&SgdConfig::new().with_weight_decay(penalty.clone())).unwrap(),
            Fused::sgd(&momentum(0.0, true)).unwrap(),
            Fused::sgd(&decayed).unwrap(),
            Fused::adam(&AdamConfig::new().with_weight_decay(penalty)).unwrap(),
            Fused::adamw(&AdamWConfig::new().with_weight_decay(0.1)).unwrap(),
        ]
    }

    /// Steps one parameter alone.
    fn step_one(
        fused: Fused,
        values: Tensor<1>,
        gradients: Tensor<1>,
        factor: Option<f32>,
        state: &mut Option<FusedState>,
    ) -> Tensor<1> {
        let parameter = OnDevice {
            fused,
            learning_rate: 0.03,
            values,
            gradients,
            state: state.take(),
        };
        let kernels = Kernels::on(&parameter.values.device()).unwrap();
        let (values, stepped) = step_on_device(kernels, vec![parameter], factor).remove(0);
        *state = stepped;
        values
    }

    #[test]
    fn steps_on_a_device_are_those_in_host_memory_and_change_no_snapshot() {
        let Some(device) = gpu() else {
            return;
        };
        for fused in variants() {
            // With and without whole vectors, and more than a cube.
            for len in [1, 7, 64, 5000] {
                // Copies: a device may return a view of its memory.
                let numbers = |data: TensorData| data.try_to_vec::<f32>().unwrap();
                let wave = |phase: f32| (0..len).map(move |i| (i as f32 * 0.37 + phase).sin());
                let mut expected: Vec<f32> = wave(0.0).collect();
                let there = |values: &[f32]| Tensor::<1>::from_floats(values, &device);
                let mut found = there(&expected);
                let (mut state, mut found_state) = (None, None);
                let (mut snapshots, mut states) = (Vec::new(), Vec::new());
                for step in 0..4u8 {
                    let gradients: Vec<f32> = wave(f32::from(step)).map(|g| g * 0.1).collect();
                    let factor = (step > 1).then_some(0.37);
                    fused
                        .step(0.03, &mut expected, &gradients, factor, &mut state)
                        .unwrap();
                    let gradients = there(&gradients);
                    let before = found.clone();
                    found = step_one(fused, found, gradients, factor, &mut found_state);
                    if step % 2 == 0 {
                        snapshots.push((before.clone(), numbers(before.into_data())));
                        let kept = found_state.clone().unwrap().tensors();
                        let kept = kept.into_iter().map(|(_, values)| values);
                        states.extend(kept.map(|v| (v.clone(), numbers(v.into_data()))));
                    }
                }
                let close = |found: Vec<f32>, expected: &[f32]| {
                    assert_eq!(found.len(), expected.len());
                    for (found, expected) in found.iter().zip(expected) {
                        let off = (found - expected).abs();
                        assert!(
                            off <= 2e-6 * expected.abs().max(0.1),
                            "{fused:?}, {len}: {found} {expected}"
                        );
                    }
                };
                close(numbers(found.into_data()), &expected);
                let kept = found_state.unwrap().tensors().into_iter();
                for ((_, found), (_, expected)) in kept.zip(state.unwrap().tensors()) {
                    close(numbers(found.into_data()), &numbers(expected.into_data()));
                }
                for (held, then) in snapshots {
                    assert_eq!(numbers(held.into_data()), then, "{fused:?}");
                }
                for (held, then) in states {
                    assert_eq!(numbers(held.into_data()), then, "{fused:?}");
                }
            }
        }
    }

    /// Parts have other lengths, and so vectors of another length than the whole.
    #[test]
    fn a_part_is_stepped_on_a_device_bit_for_bit_as_in_the_whole() {
        let Some(device) = gpu() else {
            return;
        };
        let numbers = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
        let wave = |phase: f32| (0..4096).map(move |i| (i as f32 * 0.37 + phase).sin());
        let start: Vec<f32> = wave(0.0).collect();
        for fused in variants() {
            let stepped = |place: std::ops::Range<usize>| {
                let there =
                    |values: &[f32]| Tensor::<1>::from_floats(&values[place.clone()], &device);
                let (mut values, mut state) = (there(&start), None);
                for step in 0..4u8 {
                    let gradients: Vec<f32> = wave(f32::from(step)).map(|g| g * 0.1).collect();
                    let factor = (step > 1).then_some(0.37);
                    let gradients = there(&gradients);
                    values = step_one(fused, values, gradients, factor, &mut state);
                }
                numbers(values)
            };
            let whole = stepped(0..4096);
            for place in [0..2047, 2047..4096, 1..3, 2..1000] {
                assert!(
                    stepped(place.clone()) == whole[place.clone()],
                    "{fused:?}, {place:?}"
                );
            }
        }
    }

    /// Many parameters, with and without whole vectors, one without elements, some stepped before,
    /// and two optimizers with two learning rates.
    #[test]
    fn parameters_stepped_together_are_those_stepped_alone_bit_for_bit() {
        let Some(device) = gpu() else {
            return;
        };
        let kernels = Kernels::on(&device).unwrap();
        let numbers = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
        let wave = |len: usize, phase: f32| {
            let values: Vec<f32> = (0..len).map(|i| (i as f32 * 0.37 + phase).sin()).collect();
            Tensor::<1>::from_floats(values.as_slice(), &device)
        };
        let lengths = [
            4, 1, 1000, 7, 256, 0, 64, 1024, 3, 300, 10, 5000, 2048, 12, 513,
        ];
        let all = variants();
        for pair in all.windows(2) {
            let parameter = |place: usize| OnDevice {
                fused: pair[usize::from(place.is_multiple_of(5))],
                learning_rate: if place.is_multiple_of(3) { 0.03 } else { 0.01 },
                values: wave(lengths[place % lengths.len()], place as f32),
                gradients: wave(lengths[place % lengths.len()], 0.5 + place as f32),
                state: None,
            };
            let count = 2 * lengths.len();
            let first: Vec<_> = (0..count).step_by(2).map(parameter).collect();
            let begun = step_on_device(kernels, first, Some(0.37));
            let both = |begun: &[(Tensor<1>, Option<FusedState>)]| {
                let mut begun = begun.iter();
                let parameters = (0..count).map(|place| match place % 2 {
                    0 => {
                        let (values, state) = begun.next().unwrap().clone();
                        OnDevice {
                            values,
                            state,
                            ..parameter(place)
                        }
                    }
                    _ => parameter(place),
                });
                parameters.collect::<Vec<_>>()
            };
            let together = step_on_device(kernels, both(&begun), Some(0.5));
            assert_eq!(together.len(), count);
            for (place, (alone, (values, state))) in
                both(&begun).into_iter().zip(together).enumerate()
            {
                let (alone, alone_state) =
                    step_on_device(kernels, vec![alone], Some(0.5)).remove(0);
                assert!(numbers(values) == numbers(alone), "{pair:?}, {place}");
                let (state, alone_state) = (state.unwrap(), alone_state.unwrap());
                assert_eq!(state.scalars(), alone_state.scalars());
                for ((_, kept), (_, alone)) in
                    state.tensors().into_iter().zip(alone_state.tensors())
                {
                    let [kept, alone] =
                        [kept, alone].map(|v| v.into_data().try_to_vec::<f32>().unwrap());
                    assert!(kept == alone, "{pair:?}, {place}");
                }
            }
        }
    }
}

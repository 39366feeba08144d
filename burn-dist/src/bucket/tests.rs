//! The reducer by itself, called as the hooks call it.

mod interplay;

use burn::tensor::{Device, Shape, Tensor, TensorData};

use super::layout::{BucketSizes, ParameterSpec};
use super::reducer::{Gradients, Reducer};
use crate::autograd::GradientSink;
use crate::{DType, ProcessGroup};

const LEN: usize = 3;
/// Every parameter has a bucket of its own.
const SMALL: BucketSizes = BucketSizes {
    first: 1,
    others: 1,
};

fn reducer_of(dtypes: &[DType]) -> Reducer {
    let spec = |(index, dtype): (usize, &DType)| ParameterSpec {
        path: format!("p{index}"),
        shape: vec![LEN],
        dtype: *dtype,
    };
    let parameters = dtypes.iter().enumerate().map(spec).collect();
    let (alone, keep) = (ProcessGroup::single(), Gradients::Whole);
    Reducer::new(&alone, parameters, &[], SMALL, keep).unwrap()
}

fn reducer(parameters: usize) -> Reducer {
    reducer_of(&vec![DType::F32; parameters])
}

fn gradient(value: f32) -> Tensor<1> {
    Tensor::full([LEN], value, &Device::flex())
}

/// One use comes to its end in backward, as the hook operation does it.
fn fire(reducer: &Reducer, parameter: usize, value: f32) {
    reducer.collect(parameter, gradient(value));
    reducer.released(parameter);
}

fn result(reducer: &Reducer, parameter: usize, factor: Option<f64>) -> Option<Vec<f32>> {
    let gradient = reducer
        .gradient(parameter, &Shape::new([LEN]), factor)
        .unwrap();
    let like = Tensor::<1>::zeros([LEN], &Device::flex());
    gradient.map(|gradient| {
        let tensor = gradient.into_tensor(&Shape::new([LEN]), &like);
        let data = tensor.into_data().convert::<f32>();
        data.try_to_vec().unwrap()
    })
}

#[test]
fn buckets_are_sent_during_backward_in_layout_order() {
    let reducer = reducer(4);
    for parameter in 0..4 {
        reducer.used(parameter);
    }
    reducer.begin_backward(true).unwrap();
    assert_eq!(reducer.sent(), 0);
    fire(&reducer, 3, 1.0);
    assert_eq!(reducer.sent(), 1);
    // Out of turn: waits for parameter 2.
    fire(&reducer, 1, 1.0);
    assert_eq!(reducer.sent(), 1);
    fire(&reducer, 2, 1.0);
    assert_eq!(reducer.sent(), 3);
    fire(&reducer, 0, 1.0);
    assert_eq!(reducer.sent(), 4);
}

#[test]
fn a_bucket_waits_for_every_use() {
    let reducer = reducer(1);
    reducer.used(0);
    reducer.used(0);
    reducer.begin_backward(true).unwrap();
    fire(&reducer, 0, 1.0);
    assert_eq!(reducer.sent(), 0);
    fire(&reducer, 0, 2.0);
    assert_eq!(reducer.sent(), 1);
    reducer.end_backward().unwrap();
    reducer.wait().unwrap();
    assert_eq!(result(&reducer, 0, None), Some(vec![3.0; LEN]));
}

fn replicated(keep: Gradients) -> Reducer {
    let spec = |index| ParameterSpec {
        path: format!("p{index}"),
        shape: vec![LEN],
        dtype: DType::F32,
    };
    let parameters = (0..6).map(spec).collect();
    let group = ProcessGroup::single();
    let reducer = Reducer::new(&group, parameters, &[], SMALL, keep).unwrap();
    reducer.replicated(Some(group))
}

#[test]
fn shards_go_on_to_their_replicas_in_the_last_backward_alone_while_it_runs() {
    for keep in [Gradients::Scattered, Gradients::Sharded] {
        let reducer = replicated(keep);
        for last in [false, true] {
            (0..6).for_each(|parameter| reducer.used(parameter));
            reducer.begin_backward(last).unwrap();
            for parameter in (1..6).rev() {
                fire(&reducer, parameter, 1.0);
            }
            // Two buckets are still on their way to the first mean.
            assert_eq!(reducer.replicating() > 0, last, "{keep:?}");
            fire(&reducer, 0, 2.0);
            reducer.end_backward().unwrap();
        }
        reducer.wait().unwrap();
        assert_eq!(reducer.replicating(), 0);
        for (parameter, expected) in [(0, 4.0), (5, 2.0)] {
            let check = |values: &[f32]| assert_eq!(values, [expected; LEN]);
            reducer.with_owned(parameter, check).unwrap();
        }
    }
}

#[test]
fn a_gradient_whose_shard_has_gone_on_comes_too_late() {
    for keep in [Gradients::Scattered, Gradients::Sharded] {
        let reducer = replicated(keep);
        (0..6).for_each(|parameter| reducer.used(parameter));
        reducer.begin_backward(true).unwrap();
        for parameter in (1..6).rev() {
            fire(&reducer, parameter, 1.0);
        }
        reducer.used(5);
        fire(&reducer, 5, 1.0);
        let message = reducer.end_backward().unwrap_err().to_string();
        assert!(message.contains("p5"), "{message}");
    }
}

#[test]
fn what_the_graph_does_not_use_holds_nothing_up() {
    let reducer = reducer(3);
    reducer.used(0);
    reducer.begin_backward(true).unwrap();
    assert_eq!(reducer.sent(), 2);
    fire(&reducer, 0, 1.0);
    assert_eq!(reducer.sent(), 3);
    reducer.end_backward().unwrap();
    reducer.wait().unwrap();
    assert_eq!(result(&reducer, 2, None), None);
    assert_eq!(result(&reducer, 0, None), Some(vec![1.0; LEN]));
}

#[test]
fn a_use_in_another_graph_is_flushed() {
    let reducer = reducer(2);
    reducer.used(1);
    reducer.used(0);
    reducer.begin_backward(true).unwrap();
    fire(&reducer, 0, 1.0);
    assert_eq!(reducer.sent(), 0);
    reducer.end_backward().unwrap();
    assert_eq!(reducer.sent(), 2);
}

#[test]
fn a_step_starts_from_nothing() {
    let reducer = reducer(2);
    let step = |parameters: &[usize], value: f32| {
        for last in [false, true] {
            for parameter in parameters {
                reducer.used(*parameter);
            }
            reducer.begin_backward(last).unwrap();
            for parameter in parameters {
                fire(&reducer, *parameter, value);
            }
            reducer.end_backward().unwrap();
        }
        reducer.wait().unwrap();
        let results = [0, 1].map(|parameter| result(&reducer, parameter, None));
        reducer.reset();
        results
    };
    let all = |value| Some(vec![value; LEN]);
    assert_eq!(step(&[0, 1], 1.0), [all(2.0), all(2.0)]);
    assert_eq!(step(&[0], 2.0), [all(4.0), None]);
}

#[test]
fn every_float_type_is_summed_measured_and_scaled() {
    let dtypes = [DType::F32, DType::F16, DType::BF16, DType::F64];
    let reducer = reducer_of(&dtypes);
    for last in [false, true] {
        for parameter in 0..dtypes.len() {
            reducer.used(parameter);
        }
        reducer.begin_backward(last).unwrap();
        for (parameter, dtype) in dtypes.into_iter().enumerate() {
            let data = TensorData::from([1.5f32, -2.0, 0.25]);
            let (data, dtype) = match dtype {
                DType::F16 => (data.convert::<half::f16>(), burn::tensor::DType::F16),
                DType::BF16 => (data.convert::<half::bf16>(), burn::tensor::DType::BF16),
                DType::F64 => (data.convert::<f64>(), burn::tensor::DType::F64),
                _ => (data, burn::tensor::DType::F32),
            };
            reducer.collect(parameter, Tensor::from_data(data, (&Device::flex(), dtype)));
            reducer.released(parameter);
        }
        reducer.end_backward().unwrap();
    }
    reducer.wait().unwrap();
    let one = 9.0 + 16.0 + 0.25;
    assert_eq!(reducer.norm().unwrap(), f64::sqrt(4.0 * one));
    for parameter in 0..dtypes.len() {
        let halved = result(&reducer, parameter, Some(0.5));
        assert_eq!(halved, Some(vec![1.5, -2.0, 0.25]));
    }
}

#[test]
fn integers_are_no_gradients() {
    let parameters = vec![ParameterSpec {
        path: "table".into(),
        shape: vec![LEN],
        dtype: DType::I32,
    }];
    let error = Reducer::new(
        &ProcessGroup::single(),
        parameters,
        &[],
        SMALL,
        Gradients::Whole,
    )
    .unwrap_err();
    assert!(error.to_string().starts_with("parameter `table` holds i32"));
}

mod resident {
    //! Gradients that stay on a device, which the processor plays, against those that do not.

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::bucket::resident::{DeviceHandle, DeviceReduce};
    use crate::group::GroupOptions;
    use crate::{Error, ReduceOp};

    /// Reduces on the device, which is the processor.
    #[derive(Debug)]
    struct There {
        group: ProcessGroup,
        started: AtomicUsize,
    }

    struct Started(ProcessGroup, Tensor<1>);

    impl DeviceReduce for There {
        fn start_mean(&self, flat: Tensor<1>) -> Box<dyn DeviceHandle> {
            self.started.fetch_add(1, Ordering::SeqCst);
            Box::new(Started(self.group.clone(), flat))
        }
    }

    impl DeviceHandle for Started {
        fn wait(self: Box<Self>) -> Result<Tensor<1>, Error> {
            let mut values: Vec<f32> = self.1.into_data().try_to_vec().unwrap();
            self.0.all_reduce(&mut values, ReduceOp::Mean)?;
            Ok(Tensor::from_floats(values.as_slice(), &Device::flex()))
        }
    }

    /// What a rank has after a step of two micro-batches with a parameter that is used twice, one
    /// that only rank 0 uses, and one that nobody uses.
    fn step(reducer: &Reducer, rank: usize) -> (Vec<Option<Vec<f32>>>, f64) {
        for micro_batch in 0..2 {
            let value = (1 + rank + 10 * micro_batch) as f32;
            let uses = [vec![0, 0, 1], vec![0, 0]][rank].clone();
            for parameter in &uses {
                reducer.used(*parameter);
            }
            reducer.begin_backward(micro_batch == 1).unwrap();
            for parameter in uses {
                fire(reducer, parameter, value);
            }
            reducer.end_backward().unwrap();
        }
        reducer.wait().unwrap();
        let norm = reducer.norm().unwrap();
        let all = (0..3).map(|parameter| result(reducer, parameter, Some(0.5)));
        let all = all.collect();
        reducer.reset();
        (all, norm)
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Place {
        Host,
        Staged,
        There,
    }

    fn ranks(place: Place, keep: Gradients, size: usize) -> Vec<(Vec<Option<Vec<f32>>>, f64)> {
        let groups = match size {
            1 => vec![ProcessGroup::single()],
            size => ProcessGroup::in_process(size, &GroupOptions::default()).unwrap(),
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = groups
                .into_iter()
                .map(|group| {
                    scope.spawn(move || {
                        let spec = |index| ParameterSpec {
                            path: format!("p{index}"),
                            shape: vec![LEN],
                            dtype: DType::F32,
                        };
                        let parameters = (0..3).map(spec).collect();
                        let sizes = BucketSizes {
                            first: 1,
                            others: 100,
                        };
                        let mut reducer =
                            Reducer::new(&group, parameters, &[], sizes, keep).unwrap();
                        let there = Arc::new(There {
                            group: group.clone(),
                            started: AtomicUsize::new(0),
                        });
                        let reduce =
                            (place == Place::There).then(|| there.clone() as Arc<dyn DeviceReduce>);
                        if place != Place::Host {
                            reducer = reducer.on_device(Device::flex(), reduce);
                        }
                        let first = step(&reducer, group.rank());
                        let second = step(&reducer, group.rank());
                        assert_eq!(first, second, "something is left of the first step");
                        let sent = match (place, keep, group.size()) {
                            (Place::There, Gradients::Whole, 2) => 4,
                            _ => 0,
                        };
                        assert_eq!(there.started.load(Ordering::SeqCst), sent);
                        first
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn gradients_on_a_device_are_those_in_host_memory() {
        for size in [1, 2] {
            let expected = ranks(Place::Host, Gradients::Whole, size);
            for place in [Place::Staged, Place::There] {
                let found = ranks(place, Gradients::Whole, size);
                for ((found, norm), (expected, expected_norm)) in found.iter().zip(&expected) {
                    assert_eq!(found, expected, "{place:?}, {size} ranks");
                    assert!((norm / expected_norm - 1.0).abs() < 1e-6);
                }
            }
            for keep in [Gradients::Scattered, Gradients::Sharded] {
                let expected = ranks(Place::Host, keep, size);
                assert_eq!(ranks(Place::Staged, keep, size), expected, "{keep:?}");
            }
        }
    }

    #[test]
    fn a_gradient_on_a_device_that_does_not_fit_or_comes_late_is_an_error() {
        let reducer = reducer(1).on_device(Device::flex(), None);
        reducer.used(0);
        reducer.begin_backward(true).unwrap();
        reducer.collect(0, Tensor::zeros([LEN + 1], &Device::flex()));
        let message = reducer.end_backward().unwrap_err().to_string();
        assert!(message.contains("has 4 elements"), "{message}");

        let reducer = super::reducer(1).on_device(Device::flex(), None);
        reducer.begin_backward(true).unwrap();
        reducer.used(0);
        fire(&reducer, 0, 1.0);
        let message = reducer.end_backward().unwrap_err().to_string();
        assert!(message.contains("p0"), "{message}");
    }

    /// A device whose reductions fail.
    #[derive(Debug)]
    struct Broken;

    impl DeviceReduce for Broken {
        fn start_mean(&self, _flat: Tensor<1>) -> Box<dyn DeviceHandle> {
            Box::new(Self)
        }
    }

    impl DeviceHandle for Broken {
        fn wait(self: Box<Self>) -> Result<Tensor<1>, Error> {
            Err(crate::CollectiveError::NoProgress.into())
        }
    }

    #[test]
    fn a_device_that_fails_on_one_rank_ends_the_step_on_all_of_them() {
        let options = GroupOptions {
            first_timeout: Duration::from_secs(20),
            timeout: Duration::from_secs(20),
            ..GroupOptions::default()
        };
        let groups = ProcessGroup::in_process(2, &options).unwrap();
        let step = |group: ProcessGroup| {
            let reduce: Arc<dyn DeviceReduce> = match group.rank() {
                0 => Arc::new(Broken),
                _ => Arc::new(There {
                    group: group.clone(),
                    started: AtomicUsize::new(0),
                }),
            };
            let parameters = vec![ParameterSpec {
                path: "p0".into(),
                shape: vec![LEN],
                dtype: DType::F32,
            }];
            let reducer = Reducer::new(&group, parameters, &[], SMALL, Gradients::Whole).unwrap();
            let reducer = reducer.on_device(Device::flex(), Some(reduce));
            reducer.begin_backward(true).unwrap();
            reducer.end_backward().unwrap();
            // The group outlives the step, so nobody is missed.
            (reducer.wait().unwrap_err().to_string(), group)
        };
        let reason = crate::CollectiveError::NoProgress.to_string();
        std::thread::scope(|scope| {
            let step = &step;
            let spawn = |group| scope.spawn(move || step(group));
            let threads: Vec<_> = groups.into_iter().map(spawn).collect();
            let ends: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            for (error, _) in &ends {
                assert!(error.contains(&reason), "{error}");
            }
        });
    }
}

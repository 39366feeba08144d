//! The reducer alone, called as the hooks call it.

mod interplay;

use burn::tensor::{Device, Tensor, TensorData};

use super::agreement::Agreement;
use super::layout::{BucketSizes, ParameterSpec};
use super::partition::{KeptGradients, Partition};
use super::reducer::Reducer;
use super::store::HostStore;
use crate::autograd::GradientSink;
use crate::{DType, ProcessGroup};

const LEN: usize = 3;
/// Every parameter has a bucket of its own.
const SMALL: BucketSizes = BucketSizes {
    first: 1,
    others: 1,
};

fn in_host_memory(partition: Partition) -> Reducer {
    Reducer::new(Box::new(HostStore::new(partition).unwrap()))
}

/// Waits for the gradients of a step, as a step does.
fn wait(reducer: &Reducer) {
    assert!(reducer.wait(&Agreement::on(0.1, 0)).unwrap().on_rate);
}

fn reducer_of(dtypes: &[DType]) -> Reducer {
    let spec = |(index, dtype): (usize, &DType)| ParameterSpec {
        path: format!("p{index}"),
        shape: vec![LEN],
        dtype: *dtype,
    };
    let parameters = dtypes.iter().enumerate().map(spec).collect();
    let (alone, keep) = (ProcessGroup::single(), KeptGradients::Whole);
    in_host_memory(Partition::new(&alone, parameters, &[], SMALL, keep).unwrap())
}

fn reducer(parameters: usize) -> Reducer {
    reducer_of(&vec![DType::F32; parameters])
}

fn gradient(value: f32) -> Tensor<1> {
    Tensor::full([LEN], value, &Device::flex())
}

/// Ends one use in backward, as the hook operation does.
fn fire(reducer: &Reducer, parameter: usize, value: f32) {
    reducer.collect(parameter, gradient(value));
    reducer.released(parameter);
}

fn result(reducer: &Reducer, parameter: usize) -> Option<Vec<f32>> {
    let gradient = reducer.shards(&[parameter]).unwrap().pop().flatten();
    gradient.map(|gradient| gradient.into_data().convert::<f32>().try_to_vec().unwrap())
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
    // Out of order: waits for parameter 2.
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
    wait(&reducer);
    assert_eq!(result(&reducer, 0), Some(vec![3.0; LEN]));
}

fn replicated(keep: KeptGradients) -> Reducer {
    let spec = |index| ParameterSpec {
        path: format!("p{index}"),
        shape: vec![LEN],
        dtype: DType::F32,
    };
    let parameters = (0..6).map(spec).collect();
    let group = ProcessGroup::single();
    let partition = Partition::new(&group, parameters, &[], SMALL, keep).unwrap();
    in_host_memory(partition.replicated(Some(group)))
}

#[test]
fn shards_go_on_to_their_replicas_in_the_last_backward_alone_while_it_runs() {
    for keep in [KeptGradients::Scattered, KeptGradients::Sharded] {
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
        wait(&reducer);
        assert_eq!(reducer.replicating(), 0);
        for (parameter, expected) in [(0, 4.0), (5, 2.0)] {
            assert_eq!(result(&reducer, parameter), Some(vec![expected; LEN]));
        }
    }
}

#[test]
fn a_gradient_whose_shard_has_gone_on_comes_too_late() {
    for keep in [KeptGradients::Scattered, KeptGradients::Sharded] {
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
    wait(&reducer);
    assert_eq!(result(&reducer, 2), None);
    assert_eq!(result(&reducer, 0), Some(vec![1.0; LEN]));
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
        wait(&reducer);
        let results = [0, 1].map(|parameter| result(&reducer, parameter));
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
    wait(&reducer);
    let one = 9.0 + 16.0 + 0.25;
    assert_eq!(reducer.norm().unwrap(), f64::sqrt(4.0 * one));
    for parameter in 0..dtypes.len() {
        let sum = result(&reducer, parameter);
        assert_eq!(sum, Some(vec![3.0, -4.0, 0.5]));
    }
}

#[test]
fn integers_are_no_gradients() {
    let parameters = vec![ParameterSpec {
        path: "table".into(),
        shape: vec![LEN],
        dtype: DType::I32,
    }];
    let (alone, keep) = (ProcessGroup::single(), KeptGradients::Whole);
    let error = Partition::new(&alone, parameters, &[], SMALL, keep)
        .err()
        .unwrap();
    assert!(error.to_string().starts_with("parameter `table` holds i32"));
}

mod resident {
    //! Compares gradients on a device, which the CPU imitates, with gradients in host memory.

    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::bucket::store::{Alone, DeviceCollectives, DeviceHandle, DeviceStore, Resident};
    use crate::device::Staged;
    use crate::group::GroupOptions;
    use crate::{Compression, Cuts, Error};

    /// The CPU as a device of its own.
    pub(super) fn there(within: &ProcessGroup, across: Option<&ProcessGroup>) -> Resident {
        let staged = |group: &ProcessGroup| -> Arc<dyn DeviceCollectives> {
            match group.size() {
                1 => Arc::new(Alone),
                _ => Arc::new(Staged {
                    group: group.clone(),
                    device: Device::flex(),
                    compression: Compression::None,
                }),
            }
        };
        Resident {
            device: Device::flex(),
            within: staged(within),
            across: across.map(staged),
        }
    }

    pub(super) fn on_device(partition: Partition, resident: Resident) -> Reducer {
        Reducer::new(Box::new(DeviceStore::new(partition, resident)))
    }

    /// The gradients of a rank after a step of two micro-batches, with a parameter that is used
    /// twice, one that only rank 0 uses, and one that nobody uses.
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
        wait(reducer);
        let norm = reducer.norm().unwrap();
        // A rank keeps nothing of parameters that it does not own.
        let some = |values: &Vec<f32>| !values.is_empty();
        let all = (0..3).map(|parameter| result(reducer, parameter).filter(some));
        let all = all.collect();
        reducer.reset();
        (all, norm)
    }

    fn ranks(here: bool, keep: KeptGradients, size: usize) -> Vec<(Vec<Option<Vec<f32>>>, f64)> {
        let groups = match size {
            1 => vec![ProcessGroup::single()],
            size => ProcessGroup::in_process(size, &GroupOptions::default()).unwrap(),
        };
        let run = |group: ProcessGroup| {
            let spec = |index| ParameterSpec {
                path: format!("p{index}"),
                shape: vec![LEN],
                dtype: DType::F32,
            };
            let sizes = BucketSizes {
                first: 1,
                others: 100,
            };
            let parameters = (0..3).map(spec).collect();
            let partition = Partition::new(&group, parameters, &[], sizes, keep).unwrap();
            let reducer = match here {
                true => in_host_memory(partition),
                false => on_device(partition, there(&group, None)),
            };
            let first = step(&reducer, group.rank());
            let second = step(&reducer, group.rank());
            assert_eq!(first, second, "something is left of the first step");
            first
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = groups
                .into_iter()
                .map(|group| scope.spawn(|| run(group)))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn gradients_on_a_device_are_those_in_host_memory() {
        for size in [1, 2] {
            for keep in [
                KeptGradients::Whole,
                KeptGradients::Scattered,
                KeptGradients::Sharded,
            ] {
                let (expected, found) = (ranks(true, keep, size), ranks(false, keep, size));
                for ((found, norm), (expected, expected_norm)) in found.iter().zip(&expected) {
                    assert_eq!(found, expected, "{keep:?}, {size} ranks");
                    assert!((norm / expected_norm - 1.0).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn a_gradient_on_a_device_that_does_not_fit_or_comes_late_is_an_error() {
        let new = || {
            let parameters = vec![ParameterSpec {
                path: "p0".into(),
                shape: vec![LEN],
                dtype: DType::F32,
            }];
            let (alone, keep) = (ProcessGroup::single(), KeptGradients::Whole);
            let partition = Partition::new(&alone, parameters, &[], SMALL, keep).unwrap();
            on_device(partition, there(&alone, None))
        };
        let reducer = new();
        reducer.used(0);
        reducer.begin_backward(true).unwrap();
        reducer.collect(0, Tensor::zeros([LEN + 1], &Device::flex()));
        let message = reducer.end_backward().unwrap_err().to_string();
        assert!(message.contains("has 4 elements"), "{message}");

        let reducer = new();
        reducer.begin_backward(true).unwrap();
        reducer.used(0);
        fire(&reducer, 0, 1.0);
        let message = reducer.end_backward().unwrap_err().to_string();
        assert!(message.contains("p0"), "{message}");
    }

    /// A device whose collectives fail.
    #[derive(Debug)]
    struct Broken;

    impl DeviceCollectives for Broken {
        fn start_mean(&self, _flat: Tensor<1>) -> Box<dyn DeviceHandle> {
            Box::new(Self)
        }

        fn start_mean_of_shard(&self, _flat: Tensor<1>, _cuts: &Cuts) -> Box<dyn DeviceHandle> {
            Box::new(Self)
        }

        fn start_gather(
            &self,
            _flat: Tensor<1>,
            _number: u32,
            _cuts: &Cuts,
        ) -> Box<dyn DeviceHandle> {
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
        let step = |group: ProcessGroup, keep: KeptGradients| {
            let mut resident = there(&group, None);
            if group.rank() == 0 {
                resident.within = Arc::new(Broken);
            }
            let parameters = vec![ParameterSpec {
                path: "p0".into(),
                shape: vec![LEN],
                dtype: DType::F32,
            }];
            let partition = Partition::new(&group, parameters, &[], SMALL, keep).unwrap();
            let reducer = on_device(partition, resident);
            reducer.begin_backward(true).unwrap();
            reducer.end_backward().unwrap();
            // The group outlives the step, so no rank is missing.
            (
                reducer
                    .wait(&Agreement::on(0.1, 0))
                    .err()
                    .unwrap()
                    .to_string(),
                group,
            )
        };
        let reason = crate::CollectiveError::NoProgress.to_string();
        for keep in [
            KeptGradients::Whole,
            KeptGradients::Scattered,
            KeptGradients::Sharded,
        ] {
            let groups = ProcessGroup::in_process(2, &options).unwrap();
            std::thread::scope(|scope| {
                let step = &step;
                let spawn = |group| scope.spawn(move || step(group, keep));
                let threads: Vec<_> = groups.into_iter().map(spawn).collect();
                let ends: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
                for (error, _) in &ends {
                    assert!(error.contains(&reason), "{error}");
                }
            });
        }
    }
}

//! Steps must not depend on the number of threads nor on the place of the state.

use burn::tensor::TensorData;

use super::*;
use crate::ProcessGroup;
use crate::autograd::GradientSink;
use crate::bucket::{
    Agreement, Alone, BucketSizes, DeviceStore, HostStore, KeptGradients, Partition, Resident,
};

/// Rows and columns: more elements than one thread sums.
const SHAPE: [usize; 2] = [1024, 4097];

/// The values after two steps with this number of Burn's threads.
fn stepped(optimizer: ParameterOptimizer, threads: usize) -> Vec<u32> {
    let spec = ParameterSpec {
        path: "weight".to_owned(),
        shape: SHAPE.to_vec(),
        dtype: crate::DType::F32,
    };
    let mut state = OptimizerState::new(&optimizer, &[spec], Device::flex(), false).unwrap();
    let values = |scale: f32| -> Tensor<2> {
        let value = |i: usize| ((i * 2_654_435_761 % 65_521) as f32 / 65_521.0 - 0.3) * scale;
        let values: Vec<f32> = (0..SHAPE[0] * SHAPE[1]).map(value).collect();
        Tensor::from_data(TensorData::new(values, SHAPE), &Device::flex())
    };
    let outer = ThreadPoolBuilder::new().num_threads(threads).build();
    let stepped = outer.unwrap().install(|| {
        let first = state.step_by_burn(0, 0.1, values(1.0), values(0.01), None);
        state.step_by_burn(0, 0.1, first, values(0.02), None)
    });
    let values: Vec<f32> = stepped.into_data().try_into_vec().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// Sums over threads vary by chance too, but with the number of threads they nearly always do.
#[test]
fn large_parameters_are_stepped_alike_by_any_number_of_threads() {
    let optimizers: [fn() -> ParameterOptimizer; 3] = [
        || LambConfig::new().with_weight_decay(0.1).into(),
        || AdafactorConfig::new().into(),
        || ParameterOptimizer::new(LambConfig::new().build()),
    ];
    for optimizer in optimizers {
        let expected = stepped(optimizer(), 1);
        for threads in [2, 3, 4, 7] {
            assert!(stepped(optimizer(), threads) == expected, "{threads}");
        }
    }
}

/// Two steps of three parameters, the second without a gradient. They are offloaded from a device
/// that the CPU imitates, or stepped in host memory.
fn stepped_together(optimizer: ParameterOptimizer, offload: bool) -> Vec<Vec<f32>> {
    let types = [crate::DType::F32, crate::DType::F32, crate::DType::F16];
    let spec = |dtype| ParameterSpec {
        path: "weight".to_owned(),
        shape: vec![2, 3],
        dtype,
    };
    let (device, specs) = (Device::flex(), types.map(spec));
    let mut state = OptimizerState::new(&optimizer, &specs, device.clone(), false).unwrap();
    state.offloads = offload;
    let (group, sizes) = (ProcessGroup::single(), BucketSizes::default());
    let partition =
        Partition::new(&group, specs.to_vec(), &[], sizes, KeptGradients::Whole).unwrap();
    let reducer = Reducer::new(match offload {
        false => Box::new(HostStore::new(partition).unwrap()),
        true => Box::new(DeviceStore::new(
            partition,
            Resident {
                device: device.clone(),
                within: Arc::new(Alone),
                across: None,
            },
        )),
    });
    let numbers = |index: usize, scale: f32| {
        let number = |i: usize| ((i * (index + 2)) % 5) as f32 * scale - 0.1;
        let data = TensorData::from((0..6).map(number).collect::<Vec<f32>>().as_slice());
        let dtype = match types[index] {
            crate::DType::F16 => DType::F16,
            _ => DType::F32,
        };
        Tensor::<1>::from_data(data, (&device, dtype))
    };
    let mut values: Vec<Tensor<1>> = (0..3).map(|index| numbers(index, 1.0)).collect();
    for scale in [0.5, 0.25] {
        reducer.used(0);
        reducer.used(2);
        reducer.begin_backward(true).unwrap();
        for index in [0, 2] {
            reducer.collect(index, numbers(index, scale));
            reducer.released(index);
        }
        reducer.end_backward().unwrap();
        reducer.wait(&Agreement::on(0.1, 0)).unwrap();
        let stepping = values.iter_mut().enumerate();
        let stepping = stepping.map(|(index, values)| Stepping {
            index,
            shape: state.shape(index, 6),
            part: Part::all(values),
        });
        let stepping = stepping.collect();
        state.step(&reducer, 0.1, stepping, Some(0.5)).unwrap();
        assert!(state.take_failure().is_none());
        reducer.reset();
    }
    let numbers = values.into_iter().map(|values| {
        let data = values.into_data().convert::<f32>();
        data.try_to_vec().unwrap()
    });
    numbers.collect()
}

#[test]
fn offloaded_steps_are_those_in_host_memory() {
    let optimizers: [fn() -> ParameterOptimizer; 4] = [
        || AdamWConfig::new().with_weight_decay(0.1).into(),
        || SgdConfig::new().into(),
        || LionConfig::new().into(),
        // Needs the shape.
        || MuonConfig::new().into(),
    ];
    for optimizer in optimizers {
        let expected = stepped_together(optimizer(), false);
        let offloaded = stepped_together(optimizer(), true);
        for (offloaded, expected) in offloaded.iter().flatten().zip(expected.iter().flatten()) {
            assert!(
                (offloaded - expected).abs() < 1e-6,
                "{offloaded} {expected}"
            );
        }
    }
}

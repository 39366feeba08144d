//! Steps that must not depend on how many threads there are.

use super::*;

/// Rows and columns; more elements than one thread adds up.
const SHAPE: [usize; 2] = [1024, 4097];

/// The values after two steps where Burn has so many threads.
fn stepped(optimizer: ParameterOptimizer, threads: usize) -> Vec<u32> {
    let spec = ParameterSpec {
        path: "weight".to_owned(),
        shape: SHAPE.to_vec(),
        dtype: crate::DType::F32,
    };
    let mut state = OptimizerState::new(&optimizer, &[spec], None).unwrap();
    let values = |scale: f32| -> Tensor<2> {
        let value = |i: usize| ((i * 2_654_435_761 % 65_521) as f32 / 65_521.0 - 0.3) * scale;
        let values: Vec<f32> = (0..SHAPE[0] * SHAPE[1]).map(value).collect();
        Tensor::from_data(TensorData::new(values, SHAPE), &Device::flex())
    };
    let outer = ThreadPoolBuilder::new().num_threads(threads).build();
    let stepped = outer.unwrap().install(|| {
        let first = state.step(0, 0.1, values(1.0), values(0.01), None);
        state.step(0, 0.1, first, values(0.02), None)
    });
    let values: Vec<f32> = stepped.into_data().try_into_vec().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// How sums over threads come out also differs with chance; with their number they differ nearly always.
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

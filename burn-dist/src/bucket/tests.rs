//! The reducer by itself, called as the hooks call it.

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
    Reducer::new(&ProcessGroup::single(), parameters, SMALL, Gradients::Whole).unwrap()
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
    gradient.map(|gradient| gradient.convert::<f32>().try_to_vec().unwrap())
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
    let error =
        Reducer::new(&ProcessGroup::single(), parameters, SMALL, Gradients::Whole).unwrap_err();
    assert!(error.to_string().starts_with("parameter `table` holds i32"));
}

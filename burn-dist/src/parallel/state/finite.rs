//! Checks that a state is finite. A gradient that is not finite spoils everything computed from it,
//! and the resulting state must not replace a good checkpoint.

use burn::tensor::{DType, TensorData, bf16, f16};

use super::StateValues;

impl StateValues {
    /// The first NaN or infinity among all values that training changes, with its tensor's name.
    pub fn first_not_finite(&self) -> Option<(&str, f64)> {
        let whole = self.tensors.iter().map(|(name, data)| (name, data));
        let parts = self.parts.iter().map(|part| (&part.name, &part.data));
        whole
            .chain(parts)
            .filter(|(name, _)| !self.fixed.contains(*name))
            .find_map(|(name, data)| Some((name.as_str(), not_finite(data)?)))
    }
}

/// The first NaN or infinity. Integers have none.
fn not_finite(data: &TensorData) -> Option<f64> {
    let bytes = data.as_bytes();
    match data.dtype() {
        DType::F64 => find(bytes, f64::from_ne_bytes),
        DType::F32 | DType::Flex32 => find(bytes, |value| f32::from_ne_bytes(value).into()),
        DType::F16 => find(bytes, |value| f16::from_ne_bytes(value).into()),
        DType::BF16 => find(bytes, |value| bf16::from_ne_bytes(value).into()),
        _ => None,
    }
}

fn find<const WIDTH: usize>(bytes: &[u8], value: impl Fn([u8; WIDTH]) -> f64) -> Option<f64> {
    let (values, _) = bytes.as_chunks();
    let mut values = values.iter().map(|bytes| value(*bytes));
    values.find(|value| !value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::super::StatePart;
    use super::*;

    #[test]
    fn what_is_no_number_is_found_in_every_type_and_place() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, 6] {
                    let mut values = vec![-1.5f32; 7];
                    let good = TensorData::new(values.clone(), [7]).convert_dtype(dtype);
                    values[at] = bad;
                    let data = TensorData::new(values, [7]).convert_dtype(dtype);
                    let mut state = StateValues {
                        tensors: vec![("model/a".to_owned(), good.clone())],
                        ..StateValues::default()
                    };
                    assert_eq!(state.first_not_finite(), None);
                    state.parts.push(StatePart {
                        name: "optimizer/a/moment_2".to_owned(),
                        shape: vec![14],
                        start: 7,
                        data: data.clone(),
                    });
                    let (name, value) = state.first_not_finite().unwrap();
                    assert_eq!(name, "optimizer/a/moment_2");
                    assert!(value == f64::from(bad) || (value.is_nan() && bad.is_nan()));
                    state.tensors.push(("model/b".to_owned(), data));
                    assert_eq!(state.first_not_finite().unwrap().0, "model/b");
                    state.fixed.insert("model/b".to_owned());
                    assert_eq!(state.first_not_finite().unwrap().0, "optimizer/a/moment_2");
                }
            }
        }
        let integers = TensorData::new(vec![i32::MAX, -1], [2]);
        assert_eq!(not_finite(&integers), None);
    }
}

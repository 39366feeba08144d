//! Decodes bytes of a file into `f32` values.

use burn::tensor::{bf16, f16};

/// Element types of stored weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Float {
    F64,
    F32,
    F16,
    BF16,
}

impl Float {
    /// The values of `bytes`, which are little-endian. `None` if the length is not a multiple of an
    /// element's.
    ///
    /// f64 is rounded to the nearest f32; the other types are exact.
    pub(super) fn decode(self, bytes: &[u8]) -> Option<Vec<f32>> {
        match self {
            Self::F64 => elements(bytes, |raw| f64::from_le_bytes(raw) as f32),
            Self::F32 => elements(bytes, f32::from_le_bytes),
            Self::F16 => elements(bytes, |raw| f16::from_le_bytes(raw).to_f32()),
            Self::BF16 => elements(bytes, |raw| bf16::from_le_bytes(raw).to_f32()),
        }
    }
}

fn elements<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Option<Vec<f32>> {
    let (elements, rest) = bytes.as_chunks::<N>();
    rest.is_empty()
        .then(|| elements.iter().map(|raw| value(*raw)).collect())
}

/// The transpose of the row-major matrix `values` with rows of `columns` elements.
pub(super) fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns)
        .flat_map(|column| values.iter().skip(column).step_by(columns).copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_gives_its_values() {
        let values = [1.5f32, -0.25, 0.0];
        let bytes = |raw: Vec<Vec<u8>>| raw.concat();
        let encoded = [
            (
                Float::F64,
                bytes(values.map(|v| f64::from(v).to_le_bytes().to_vec()).into()),
            ),
            (
                Float::F32,
                bytes(values.map(|v| v.to_le_bytes().to_vec()).into()),
            ),
            (
                Float::F16,
                bytes(
                    values
                        .map(|v| f16::from_f32(v).to_le_bytes().to_vec())
                        .into(),
                ),
            ),
            (
                Float::BF16,
                bytes(
                    values
                        .map(|v| bf16::from_f32(v).to_le_bytes().to_vec())
                        .into(),
                ),
            ),
        ];
        for (float, bytes) in encoded {
            assert_eq!(float.decode(&bytes), Some(values.to_vec()), "{float:?}");
            assert_eq!(float.decode(&bytes[1..]), None, "{float:?}");
        }
    }

    #[test]
    fn transposing_exchanges_rows_and_columns() {
        let matrix = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(transposed(&matrix, 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(transposed(&transposed(&matrix, 3), 2), matrix);
        assert!(transposed(&[], 0).is_empty());
    }
}

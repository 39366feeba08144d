//! Writes tensors in the safetensors format to any writer.

use std::collections::BTreeMap;
use std::io::{self, Write};

use safetensors::View;
use safetensors::tensor::{Metadata, TensorInfo};

/// The header is padded to a multiple of this.
const ALIGNMENT: usize = size_of::<u64>();

/// Writes `tensors` with `info`, byte for byte as safetensors' `serialize_to_file`.
///
/// `info` is written in the order of its keys.
///
/// # Errors
/// Fails if `out` refuses or the header cannot be encoded.
pub fn write_tensors<V: View>(
    out: &mut impl Write,
    mut tensors: Vec<(&str, V)>,
    info: &BTreeMap<String, String>,
) -> io::Result<()> {
    // The format requires the widest elements first, so that all are aligned.
    tensors.sort_by(|(one, left), (other, right)| {
        right.dtype().cmp(&left.dtype()).then(one.cmp(other))
    });
    let mut end = 0;
    let mut infos = Vec::with_capacity(tensors.len());
    for (name, tensor) in &tensors {
        let begin = end;
        end += tensor.data_len();
        let info = TensorInfo {
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            data_offsets: (begin, end),
        };
        infos.push(((*name).to_owned(), info));
    }
    let metadata = Metadata::new(None, infos).map_err(io::Error::other)?;
    let of_tensors = serde_json::to_string(&metadata)?;
    let rest = of_tensors.strip_prefix('{').unwrap_or_default();
    let comma = if rest == "}" { "" } else { "," };
    let info = serde_json::to_string(info)?;
    let mut header = format!("{{\"__metadata__\":{info}{comma}{rest}").into_bytes();
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (name, tensor) in tensors {
        let data = tensor.data();
        if data.len() != tensor.data_len() {
            let reason = format!("tensor `{name}` has {} bytes", data.len());
            return Err(io::Error::other(reason));
        }
        out.write_all(&data)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn files_are_those_of_safetensors_to_the_byte() {
        let bytes: Vec<u8> = (0..64).collect();
        let view =
            |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
        let tensors = [
            ("b", view(Dtype::F32, &[4, 2], &bytes[..32])),
            ("a\"é#0", view(Dtype::F32, &[2], &bytes[..8])),
            ("z", view(Dtype::I64, &[], &bytes[..8])),
            ("y", view(Dtype::BOOL, &[3], &bytes[..3])),
            ("none", view(Dtype::BF16, &[0], &[])),
        ];
        for count in 0..=tensors.len() {
            let tensors = tensors[..count].to_vec();
            let info = ("format".to_owned(), "burn-dist".to_owned());
            let theirs =
                safetensors::serialize(tensors.clone(), Some(HashMap::from([info.clone()])));
            let mut ours = Vec::new();
            write_tensors(&mut ours, tensors, &BTreeMap::from([info])).unwrap();
            assert_eq!(ours, theirs.unwrap(), "{count} tensors");
        }
    }
}

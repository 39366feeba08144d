//! Writes a state dict as `torch.save` does: a zip archive of a pickle and a file for each tensor.
//!
//! The pickle makes a dictionary of tensors from `torch._utils._rebuild_tensor_v2`, the storages of
//! floats and integers, and `collections.OrderedDict`, which `torch.load(weights_only=True)`
//! allows. The values are stored uncompressed at multiples of 64 bytes, so that PyTorch can map
//! them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use safetensors::{Dtype, View};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Folder of all files in the archive.
const ROOT: &str = "archive";
/// Name in that folder of the metadata, which PyTorch ignores: a JSON object of strings.
pub(super) const ABOUT: &str = "about.json";
/// Alignment of the values, as PyTorch writes them.
const ALIGNMENT: u16 = 64;
/// Largest file without the extension of zip for large ones.
const LARGE: usize = u32::MAX as usize;

/// Writes `tensors` by name, in their order, and the metadata `about`.
///
/// # Errors
/// Fails if `out` does, or if a tensor is neither f32 nor i64.
pub(super) fn write<V: View>(
    out: impl Write,
    tensors: &[(&str, V)],
    about: &BTreeMap<String, String>,
) -> io::Result<()> {
    let mut archive = ZipWriter::new_stream(out);
    let begin = |archive: &mut ZipWriter<_>, name: &str, len: usize| {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .with_alignment(ALIGNMENT)
            .large_file(len > LARGE);
        archive.start_file(format!("{ROOT}/{name}"), options)
    };
    let pickle = pickle(tensors)?;
    begin(&mut archive, "data.pkl", pickle.len())?;
    archive.write_all(&pickle)?;
    begin(&mut archive, "byteorder", 0)?;
    archive.write_all(b"little")?;
    let about = serde_json::to_vec(about)?;
    begin(&mut archive, ABOUT, about.len())?;
    archive.write_all(&about)?;
    for (index, (_, tensor)) in tensors.iter().enumerate() {
        begin(&mut archive, &format!("data/{index}"), tensor.data_len())?;
        archive.write_all(&tensor.data())?;
    }
    begin(&mut archive, "version", 0)?;
    archive.write_all(b"3\n")?;
    archive.finish()?;
    Ok(())
}

/// A pickle of protocol 2 that makes the dictionary of all tensors.
fn pickle<V: View>(tensors: &[(&str, V)]) -> io::Result<Vec<u8>> {
    // PROTO 2, EMPTY_DICT, MARK
    let mut out = b"\x80\x02}(".to_vec();
    for (index, (name, tensor)) in tensors.iter().enumerate() {
        let storage = match tensor.dtype() {
            Dtype::F32 => "FloatStorage",
            Dtype::I64 => "LongStorage",
            other => return Err(io::Error::other(format!("{name} is {other:?}"))),
        };
        let shape = tensor.shape();
        let len = shape.iter().product();
        text(&mut out, name);
        global(&mut out, "torch._utils", "_rebuild_tensor_v2");
        // The arguments, and in them the persistent id of the storage.
        out.extend(b"((");
        text(&mut out, "storage");
        global(&mut out, "torch", storage);
        text(&mut out, &index.to_string());
        text(&mut out, "cpu");
        integer(&mut out, len);
        // TUPLE, BINPERSID
        out.extend(b"tQ");
        integer(&mut out, 0);
        integers(&mut out, shape);
        integers(&mut out, &strides(shape));
        // NEWFALSE: requires no gradient.
        out.push(0x89);
        global(&mut out, "collections", "OrderedDict");
        // EMPTY_TUPLE, REDUCE: no hooks. TUPLE, REDUCE: the tensor.
        out.extend(b")RtR");
    }
    // SETITEMS, STOP
    out.extend(b"u.");
    Ok(out)
}

/// Steps between the elements of each dimension, row-major.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = Vec::with_capacity(shape.len());
    let mut step = 1;
    for size in shape.iter().rev() {
        strides.push(step);
        step *= (*size).max(1);
    }
    strides.reverse();
    strides
}

fn global(out: &mut Vec<u8>, module: &str, name: &str) {
    out.extend(format!("c{module}\n{name}\n").bytes());
}

/// BINUNICODE
fn text(out: &mut Vec<u8>, text: &str) {
    out.push(b'X');
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.bytes());
}

/// MARK, the numbers, TUPLE
fn integers(out: &mut Vec<u8>, numbers: &[usize]) {
    out.push(b'(');
    numbers.iter().for_each(|number| integer(out, *number));
    out.push(b't');
}

fn integer(out: &mut Vec<u8>, number: usize) {
    match i32::try_from(number) {
        // BININT
        Ok(small) => {
            out.push(b'J');
            out.extend(small.to_le_bytes());
        }
        // LONG1: eight bytes, of which the highest bit is the sign.
        Err(_) => {
            out.extend([0x8a, 8]);
            out.extend((number as u64).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::weights::source::Source;

    /// A tensor of one value, for the test.
    struct Filled {
        dtype: Dtype,
        shape: Vec<usize>,
        bytes: Vec<u8>,
    }

    impl View for Filled {
        fn dtype(&self) -> Dtype {
            self.dtype
        }

        fn shape(&self) -> &[usize] {
            &self.shape
        }

        fn data(&self) -> Cow<'_, [u8]> {
            self.bytes.as_slice().into()
        }

        fn data_len(&self) -> usize {
            self.bytes.len()
        }
    }

    fn floats(shape: &[usize]) -> (Filled, Vec<f32>) {
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|i| i as f32 - 1.5)
            .collect();
        let tensor = Filled {
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            bytes: values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
        };
        (tensor, values)
    }

    #[test]
    fn tensors_of_every_shape_are_read_back() {
        let shapes = [&[2, 3, 4][..], &[5], &[], &[0, 3], &[300, 300]];
        let all: Vec<_> = shapes.iter().map(|shape| floats(shape)).collect();
        let names: Vec<String> = (0..all.len())
            .map(|i| format!("layer {i}.wëight"))
            .collect();
        let mut tensors = Vec::new();
        let mut expected = Vec::new();
        for (name, (tensor, values)) in names.iter().zip(all) {
            expected.push((name, tensor.shape.clone(), values));
            tensors.push((name.as_str(), tensor));
        }
        tensors.push((
            "bn.num_batches_tracked",
            Filled {
                dtype: Dtype::I64,
                shape: Vec::new(),
                bytes: (1_i64 << 40).to_le_bytes().to_vec(),
            },
        ));
        let about = BTreeMap::from([("model".to_owned(), "{\"a\": 1}".to_owned())]);
        let file = tempfile::NamedTempFile::new().unwrap();
        write(file.as_file(), &tensors, &about).unwrap();

        let mut source = Source::open(file.path()).unwrap();
        assert_eq!(source.about()["model"], "{\"a\": 1}");
        assert!(!source.is_native());
        assert_eq!(source.entries().len(), tensors.len());
        for (name, shape, values) in expected {
            assert_eq!(source.entries()[name].shape, shape, "{name}");
            assert_eq!(source.read(name).unwrap(), values, "{name}");
        }
        assert_eq!(source.batches("")["bn.num_batches_tracked"], 1 << 40);
        // The same tensors give the same bytes.
        let mut again = Vec::new();
        write(&mut again, &tensors, &about).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), again);
    }

    #[test]
    fn values_are_at_places_that_can_be_mapped() {
        let (tensor, values) = floats(&[7]);
        let mut bytes = Vec::new();
        write(&mut bytes, &[("a", tensor)], &BTreeMap::new()).unwrap();
        let wanted: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let place = bytes
            .windows(wanted.len())
            .position(|part| part == wanted)
            .unwrap();
        assert_eq!(place % usize::from(ALIGNMENT), 0);
    }

    #[test]
    fn sizes_beyond_31_bits_are_written_whole() {
        let mut out = Vec::new();
        integer(&mut out, 1 << 33);
        assert_eq!(out, [0x8a, 8, 0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(strides(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(strides(&[0, 3]), [3, 1]);
    }
}

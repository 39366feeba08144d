//! The IDX format of MNIST: a magic number, the dimensions, then the bytes; plain or gzip.
//!
//! The reader is strict, because a truncated or padded file would silently give wrong pixels.
//! Format: <http://yann.lecun.com/exdb/mnist/>.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::DatasetError;

/// Larger than any set of this family (EMNIST: 0.55 GB); the files are held in memory.
const MAX_BYTES: u64 = 1 << 30;
pub(crate) const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const UNSIGNED_BYTE: u8 = 0x08;

/// An array of bytes with `N` dimensions, the last one contiguous.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Idx<const N: usize> {
    pub(crate) dimensions: [usize; N],
    pub(crate) bytes: Vec<u8>,
}

/// Reads an IDX file of unsigned bytes with `N` dimensions. The content shows whether it is
/// compressed.
pub(crate) fn read_file<const N: usize>(path: &Path) -> Result<Idx<N>, DatasetError> {
    let file = File::open(path).map_err(DatasetError::io("open", path))?;
    read(BufReader::with_capacity(1 << 16, file), path)
}

/// Does [`read_file`] with a reader.
fn read<const N: usize>(mut reader: impl BufRead, path: &Path) -> Result<Idx<N>, DatasetError> {
    let start = reader.fill_buf().map_err(DatasetError::io("read", path))?;
    if start.starts_with(&GZIP_MAGIC) {
        parse(MultiGzDecoder::new(reader), path)
    } else {
        parse(reader, path)
    }
}

/// Parses uncompressed content.
fn parse<const N: usize>(mut reader: impl Read, path: &Path) -> Result<Idx<N>, DatasetError> {
    let malformed = |offset: u64, reason: String| DatasetError::Malformed {
        path: path.to_owned(),
        offset,
        reason,
    };
    let header_len = 4 + 4 * N as u64;
    let header = read_up_to(&mut reader, header_len, 0, path)?;
    let Some((magic, sizes)) = header.split_first_chunk::<4>() else {
        return Err(truncated(path, header_len, header.len() as u64));
    };
    let expected = [0, 0, UNSIGNED_BYTE, N as u8];
    if *magic != expected {
        let reason = format!(
            "it starts with {magic:02x?}, but an IDX file of {N} dimensions starts with \
             {expected:02x?}"
        );
        return Err(malformed(0, reason));
    }
    if sizes.len() != 4 * N {
        return Err(truncated(path, header_len, header.len() as u64));
    }

    let mut dimensions = [0; N];
    let mut promised = 1u64;
    for (dimension, size) in dimensions.iter_mut().zip(sizes.as_chunks::<4>().0) {
        let size = u32::from_be_bytes(*size);
        *dimension = size as usize;
        promised = promised.saturating_mul(u64::from(size));
    }
    if promised > MAX_BYTES {
        let reason = format!(
            "its header announces {dimensions:?} bytes, more than the maximum of {MAX_BYTES}"
        );
        return Err(malformed(4, reason));
    }
    let whole = header_len + promised;
    let bytes = read_up_to(&mut reader, promised, header_len, path)?;
    if bytes.len() as u64 != promised {
        return Err(truncated(path, whole, header_len + bytes.len() as u64));
    }
    // Reading on also makes the decoder verify the checksum after the last byte.
    match io::copy(&mut reader.take(1), &mut io::sink()) {
        Ok(0) => Ok(Idx { dimensions, bytes }),
        Ok(_) => Err(DatasetError::Trailing {
            path: path.to_owned(),
            expected: whole,
        }),
        Err(error) => Err(read_error(error, whole, path)),
    }
}

/// Reads `len` bytes, or the rest. Memory grows as bytes arrive, not with the stated length.
fn read_up_to(
    reader: &mut impl Read,
    len: u64,
    offset: u64,
    path: &Path,
) -> Result<Vec<u8>, DatasetError> {
    let mut bytes = Vec::new();
    match reader.take(len).read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        // A truncated compressed file: the caller sees that bytes are missing.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(bytes),
        Err(error) => Err(read_error(error, offset + bytes.len() as u64, path)),
    }
}

fn read_error(error: io::Error, offset: u64, path: &Path) -> DatasetError {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    match error.kind() {
        InvalidData | InvalidInput | UnexpectedEof => DatasetError::Malformed {
            path: path.to_owned(),
            offset,
            reason: format!("cannot decompress it ({error})"),
        },
        _ => DatasetError::io("read", path)(error),
    }
}

fn truncated(path: &Path, expected: u64, found: u64) -> DatasetError {
    DatasetError::Truncated {
        path: path.to_owned(),
        expected,
        found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;
    use std::io::Write;

    fn read3(content: &[u8]) -> Result<Idx<3>, DatasetError> {
        read(content, Path::new("images"))
    }

    fn idx(dimensions: [u32; 3], bytes: &[u8]) -> Vec<u8> {
        let mut content = vec![0, 0, UNSIGNED_BYTE, 3];
        dimensions
            .iter()
            .for_each(|size| content.extend(size.to_be_bytes()));
        content.extend(bytes);
        content
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn plain_and_compressed_give_the_same() {
        let content = idx([2, 1, 3], &[1, 2, 3, 4, 5, 6]);
        let expected = Idx {
            dimensions: [2, 1, 3],
            bytes: vec![1, 2, 3, 4, 5, 6],
        };
        assert_eq!(read3(&content).unwrap(), expected);
        assert_eq!(read3(&gzip(&content)).unwrap(), expected);
    }

    #[test]
    fn wrong_magic_is_named_with_its_place() {
        for magic in [[0, 0, 8, 1], [0, 0, 9, 3], [1, 0, 8, 3], *b"<htm"] {
            let mut content = idx([1, 1, 1], &[7]);
            content[..4].copy_from_slice(&magic);
            let error = read3(&content).unwrap_err();
            assert!(
                matches!(error, DatasetError::Malformed { offset: 0, .. }),
                "{error}"
            );
        }
    }

    #[test]
    fn every_cut_is_noticed() {
        let content = idx([2, 2, 2], &[9; 8]);
        for len in 0..content.len() {
            let error = read3(&content[..len]).unwrap_err();
            assert!(
                matches!(error, DatasetError::Truncated { .. }),
                "{len}: {error}"
            );
        }
        let compressed = gzip(&content);
        for len in 0..compressed.len() {
            assert!(read3(&compressed[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn trailing_bytes_are_refused() {
        let mut content = idx([1, 1, 1], &[7]);
        content.push(0);
        for content in [gzip(&content), content] {
            let error = read3(&content).unwrap_err();
            assert!(
                matches!(error, DatasetError::Trailing { expected: 17, .. }),
                "{error}"
            );
        }
        let mut content = gzip(&idx([1, 1, 1], &[7]));
        content.push(0);
        assert!(read3(&content).is_err());
    }

    #[test]
    fn damaged_compression_is_noticed() {
        let mut content = gzip(&idx([4, 4, 4], &[7; 64]));
        let checksum = content.len() - 6;
        content[checksum] ^= 1;
        let error = read3(&content).unwrap_err();
        assert!(matches!(error, DatasetError::Malformed { .. }), "{error}");
    }

    #[test]
    fn a_bomb_is_read_no_further_than_its_header_promises() {
        let mut content = idx([1, 1, 1], &[7]);
        content.resize(64 << 20, 0);
        let error = read3(&gzip(&content)).unwrap_err();
        assert!(matches!(error, DatasetError::Trailing { .. }), "{error}");
        // The stated length is bounded, and memory grows only as bytes arrive.
        let error = read3(&gzip(&idx([u32::MAX; 3], &[]))).unwrap_err();
        assert!(
            matches!(error, DatasetError::Malformed { offset: 4, .. }),
            "{error}"
        );
        let error = read3(&gzip(&idx([1000, 1000, 1000], &[]))).unwrap_err();
        assert!(matches!(error, DatasetError::Truncated { .. }), "{error}");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(content in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read3(&content);
            let _ = read3(&gzip(&content));
        }

        #[test]
        fn arbitrary_headers_are_read_exactly(dimensions in prop::array::uniform3(prop_oneof![0u32..5, any::<u32>()]),
                                              bytes in prop::collection::vec(any::<u8>(), 0..130), compress: bool) {
            let mut content = idx(dimensions, &bytes);
            if compress {
                content = gzip(&content);
            }
            let promised = dimensions.iter().fold(1u64, |product, &size| product.saturating_mul(u64::from(size)));
            match read3(&content) {
                Ok(idx) => {
                    prop_assert_eq!(promised, bytes.len() as u64);
                    prop_assert_eq!(idx.bytes, bytes);
                }
                Err(_) => prop_assert_ne!(promised, bytes.len() as u64),
            }
        }

        #[test]
        fn one_flipped_bit_in_a_compressed_file_is_noticed(bit in 0usize..1000) {
            let content = idx([3, 4, 5], &[3; 60]);
            let mut compressed = gzip(&content);
            let bit = bit % (compressed.len() * 8);
            compressed[bit / 8] ^= 1 << (bit % 8);
            // Bits of the gzip header that do not concern the content (time, system) may change.
            if let Ok(read) = read3(&compressed) {
                prop_assert_eq!(read.bytes, vec![3; 60]);
            }
        }
    }
}

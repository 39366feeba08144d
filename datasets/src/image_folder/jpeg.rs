//! Reads the markers of a JPEG: coding, sampling, and the end of the image. Phones append films and
//! other data, in which any marker may occur, so the end cannot be searched from the back.

/// Marker codes (ITU-T T.81, table B.1).
const START_OF_IMAGE: u8 = 0xD8;
const END_OF_IMAGE: u8 = 0xD9;
const START_OF_SCAN: u8 = 0xDA;
const PROGRESSIVE: u8 = 0xC2;
/// Segments with colour profiles (ISO 15076-1, B.4).
const PROFILE: u8 = 0xE2;

/// The frame header (ITU-T T.81, B.2.2).
#[derive(Debug, Clone, PartialEq, Eq)]
struct Frame {
    /// The marker before it, which gives the coding.
    code: u8,
    /// Bits of a sample.
    precision: u8,
    height: u16,
    width: u16,
    /// Sampling factors of each component, horizontal and vertical.
    sampling: Vec<[u8; 2]>,
}

impl Frame {
    /// Finds the header from the beginning of a file.
    fn find(mut bytes: &[u8]) -> Option<Self> {
        while let Some((code, behind)) = next_marker(bytes, false) {
            bytes = behind;
            if matches!(code, START_OF_IMAGE | END_OF_IMAGE) {
                continue;
            }
            let length = usize::from(u16::from_be_bytes(*behind.first_chunk()?));
            match code {
                START_OF_SCAN => return None,
                // The code of Huffman tables lies among the codes of frames.
                0xC0..=0xCF if !matches!(code, 0xC4 | 0xC8 | 0xCC) => {
                    return Self::read(code, behind.get(2..)?);
                }
                _ => bytes = behind.get(length..)?,
            }
        }
        None
    }

    fn read(code: u8, segment: &[u8]) -> Option<Self> {
        let (head, components) = segment.split_first_chunk::<6>()?;
        let [precision, h1, h0, w1, w0, count] = *head;
        let components = components.as_chunks::<3>().0;
        let components = components.get(..usize::from(count))?;
        let sampling = components.iter().map(|[_, both, _]| [both >> 4, both & 15]);
        Some(Self {
            code,
            precision,
            height: u16::from_be_bytes([h1, h0]),
            width: u16::from_be_bytes([w1, w0]),
            sampling: sampling.collect(),
        })
    }

    /// The largest factors.
    fn most(&self) -> [u8; 2] {
        let most = |side: usize| self.sampling.iter().map(|both| both[side]).max();
        [0, 1].map(|side| most(side).unwrap_or(0))
    }
}

/// The kind of the JPEG in `bytes`, if this crate does not decode it correctly.
pub(super) fn unsupported(bytes: &[u8]) -> Option<String> {
    let frame = Frame::find(bytes)?;
    let coded = match frame.code {
        0xC3 | 0xC7 | 0xCB | 0xCF => "lossless coding",
        0xC5 | 0xC6 | 0xCD | 0xCE => "hierarchical coding",
        0xC9 | 0xCA => "arithmetic coding",
        _ if frame.precision != 8 => {
            return Some(format!("JPEG with samples of {} bits", frame.precision));
        }
        _ if !matches!(frame.sampling.len(), 1 | 3 | 4) => {
            return Some(format!("JPEG with {} components", frame.sampling.len()));
        }
        PROGRESSIVE => return unsupported_sampling(&frame),
        _ => {
            let apart = first_scan(bytes).is_some_and(|count| count < frame.sampling.len());
            let coded = "JPEG (baseline) with its components in separate scans; save it as progressive or \
                 interleaved";
            return match apart {
                true => Some(coded.into()),
                false => unsupported_sampling(&frame),
            };
        }
    };
    Some(format!("JPEG with {coded}"))
}

/// Number of components in the first scan.
fn first_scan(mut bytes: &[u8]) -> Option<usize> {
    while let Some((code, behind)) = next_marker(bytes, false) {
        bytes = behind;
        if matches!(code, START_OF_IMAGE | END_OF_IMAGE) {
            continue;
        }
        if code == START_OF_SCAN {
            return behind.get(2).map(|count| usize::from(*count));
        }
        let length = usize::from(u16::from_be_bytes(*behind.first_chunk()?));
        bytes = behind.get(length..)?;
    }
    None
}

fn unsupported_sampling(frame: &Frame) -> Option<String> {
    if is_sampled_as_usual(&frame.sampling) {
        return None;
    }
    let factors = frame.sampling.iter().map(|[h, v]| format!("{h}×{v}"));
    let factors: Vec<String> = factors.collect();
    Some(format!(
        "JPEG with component sampling {}; save it with 4:4:4, 4:2:2 or 4:2:0 chroma subsampling",
        factors.join(", ")
    ))
}

/// Largest number of blocks in one unit of an interleaved scan (ITU-T T.81, B.2.3).
const MOST_BLOCKS: u32 = 10;

/// Whether the decoder agrees with libjpeg, as tested with all factors from 1 to 4 of each
/// component. Luma, and black, must have the finest sampling, and the others must be coarser by
/// whole factors.
fn is_sampled_as_usual(sampling: &[[u8; 2]]) -> bool {
    let known = |[h, _]: &[u8; 2]| matches!(h, 1 | 2 | 4);
    let (first, others) = match sampling {
        [only] => return known(only),
        [luma, chroma @ ..] if chroma.len() == 2 => (luma, chroma),
        [first, chroma @ .., black] if chroma.len() == 2 && black == first => (first, chroma),
        _ => return false,
    };
    let [h, v] = *first;
    let fits =
        |other: &[u8; 2]| known(other) && h % other[0] == 0 && (other[1] == 1 || other[1] == v);
    let blocks: u32 = sampling
        .iter()
        .map(|[h, v]| u32::from(*h) * u32::from(*v))
        .sum();
    known(first) && others.iter().all(fits) && blocks <= MOST_BLOCKS
}

/// Bytes for the coefficients of a progressive image, because any scan may change any of them; 0
/// for other images.
pub(super) fn coefficients(bytes: &[u8]) -> u64 {
    let Some(frame) = Frame::find(bytes).filter(|frame| frame.code == PROGRESSIVE) else {
        return 0;
    };
    let [most_h, most_v] = frame.most().map(|most| u64::from(most.max(1)));
    let units = |side: u16, most: u64| u64::from(side).div_ceil(8 * most);
    let (across, down) = (units(frame.width, most_h), units(frame.height, most_v));
    let of_unit = frame
        .sampling
        .iter()
        .map(|[h, v]| u64::from(*h) * u64::from(*v));
    // Blocks of 64 numbers of 16 bits.
    across * down * of_unit.sum::<u64>() * 64 * 2
}

/// Bytes of the segments of a colour profile in the available part of the header.
pub(super) fn colour_profile(mut bytes: &[u8]) -> u64 {
    let mut total = 0;
    while let Some((code, behind)) = next_marker(bytes, false) {
        bytes = behind;
        match code {
            START_OF_IMAGE | END_OF_IMAGE => continue,
            START_OF_SCAN => break,
            _ => {}
        }
        let length = behind
            .first_chunk()
            .map_or(0, |length| usize::from(u16::from_be_bytes(*length)));
        total += if code == PROFILE { length as u64 } else { 0 };
        bytes = behind.get(length.max(2)..).unwrap_or_default();
    }
    total
}

/// Number of scans of the image at the beginning of `bytes`. Each may go over all of it.
pub(super) fn scans(bytes: &[u8]) -> u64 {
    let mut scans = 0;
    walk(bytes, |code| scans += u64::from(code == START_OF_SCAN));
    scans
}

/// Whether the image at the beginning of `bytes` has its end. Thumbnails, which have ends of their
/// own, lie within segments.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    walk(bytes, |_| {})
}

/// Passes the code of every marker to `see`. Returns whether the image has an end.
fn walk(bytes: &[u8], mut see: impl FnMut(u8)) -> bool {
    let mut rest = bytes;
    let mut in_scan = false;
    while let Some((code, behind)) = next_marker(rest, in_scan) {
        rest = behind;
        see(code);
        match code {
            END_OF_IMAGE => return true,
            START_OF_IMAGE => {}
            _ => {
                in_scan = code == START_OF_SCAN;
                let length = behind
                    .first_chunk()
                    .map(|length| u16::from_be_bytes(*length));
                let segment = usize::from(length.unwrap_or(u16::MAX));
                rest = behind.get(segment..).unwrap_or_default();
            }
        }
    }
    false
}

/// The code of the next marker, and the bytes after it. Within a scan 0xFF 0x00 stands for a byte,
/// and restart markers occur.
fn next_marker(mut bytes: &[u8], in_scan: bool) -> Option<(u8, &[u8])> {
    loop {
        let at = bytes.iter().position(|byte| *byte == 0xFF)?;
        bytes = bytes.get(at + 1..)?;
        let (code, behind) = bytes.split_first()?;
        match code {
            // Any number of fill bytes may come before a code.
            0xFF => {}
            0x00 | 0x01 | 0xD0..=0xD7 => bytes = behind,
            _ if in_scan && *code < 0xC0 => bytes = behind,
            _ => return Some((*code, behind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use image::codecs::jpeg::JpegEncoder;
    use image::{ExtendedColorType, Rgb, RgbImage};
    use proptest::prelude::*;

    use super::*;

    fn jpeg() -> Vec<u8> {
        let image = RgbImage::from_fn(40, 30, |x, y| Rgb([(x * y * 37 % 251) as u8; 3]));
        let mut bytes = Vec::new();
        let encoded = JpegEncoder::new(&mut bytes).encode(&image, 40, 30, ExtendedColorType::Rgb8);
        encoded.unwrap();
        bytes
    }

    /// The same image with another one in a segment.
    fn with_thumbnail() -> Vec<u8> {
        let (image, thumbnail) = (jpeg(), jpeg());
        let length = u16::try_from(thumbnail.len() + 2).unwrap();
        let segment = [&[0xFF, 0xE1][..], &length.to_be_bytes(), &thumbnail].concat();
        [&image[..2], &segment, &image[2..]].concat()
    }

    #[test]
    fn no_beginning_is_whole() {
        for image in [jpeg(), with_thumbnail()] {
            assert!(is_whole(&image));
            for len in 0..image.len() {
                assert!(!is_whole(&image[..len]), "{len} of {}", image.len());
            }
        }
    }

    #[test]
    fn what_follows_does_not_matter() {
        let tails = [
            &[0xFF, 0xDA][..],
            &[0; 100],
            &[0xFF, 0xD8, 0xFF, 0xDA, 0, 2],
        ];
        for tail in tails {
            assert!(is_whole(&[&jpeg()[..], tail].concat()));
        }
    }

    proptest! {
        #[test]
        fn anything_has_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            is_whole(&bytes);
        }
    }
}

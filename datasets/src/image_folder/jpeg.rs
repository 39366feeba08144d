//! Where a JPEG ends: phones append films and other data behind it, in which any marker may occur, so the end is not
//! found from behind.

/// Marker codes (ITU-T T.81, table B.1).
const START_OF_IMAGE: u8 = 0xD8;
const END_OF_IMAGE: u8 = 0xD9;
const START_OF_SCAN: u8 = 0xDA;

/// Whether the image that starts at the beginning of `bytes` has its end. Thumbnails, which have ends of their own, lie
/// within segments.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let mut in_scan = false;
    while let Some((code, behind)) = next_marker(rest, in_scan) {
        rest = behind;
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

/// The code of the next marker, and what is behind it. Within a scan 0xFF 0x00 stands for a byte, and there are markers
/// at which a decoder starts anew.
fn next_marker(mut bytes: &[u8], in_scan: bool) -> Option<(u8, &[u8])> {
    loop {
        let at = bytes.iter().position(|byte| *byte == 0xFF)?;
        bytes = bytes.get(at + 1..)?;
        let (code, behind) = bytes.split_first()?;
        match code {
            // As many as an encoder likes may come before a code.
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

    /// The same image with a segment in which lies another.
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

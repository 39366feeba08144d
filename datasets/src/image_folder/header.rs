//! Reads the header of an image file and checks that it is complete, from a few kilobytes.

use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::Path;

use image::metadata::Orientation;
use image::{ColorType, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

use super::unusable::Unusable;
use super::{MAX_SIDE, budget, decode, jpeg};

/// The supported formats.
const FORMATS: &str = "JPEG, PNG, WebP, BMP, TIFF and PNM";
/// Enough for most headers; otherwise the whole file is read.
const HEAD: u64 = 1 << 15;
/// Enough for data after the pixels; otherwise the whole file is read.
const TAIL: u64 = 1 << 12;
/// Larger files are refused.
const MAX_FILE: u64 = 256 << 20;

/// Largest size of data beside the pixels, such as a colour profile: a few kilobytes can expand to
/// gigabytes.
const MAX_BESIDE: u64 = 16 << 20;

/// Facts that need no decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) grey: bool,
}

/// Reads the header of `path`, or describes what is wrong with the file.
pub(super) fn read(path: &Path) -> Result<Header, Unusable> {
    let mut file = open(path)?;
    let len = file.metadata().map_err(|error| unreadable(&error))?.len();
    let mut bytes = Vec::new();
    let mut head = file.by_ref().take(HEAD);
    head.read_to_end(&mut bytes)
        .map_err(|error| unreadable(&error))?;
    let format = format(&bytes)?;
    if len > HEAD {
        let mut end = Vec::new();
        file.seek(SeekFrom::End(-(TAIL as i64)))
            .and_then(|_| file.read_to_end(&mut end))
            .map_err(|error| unreadable(&error))?;
        let header = decoder(&bytes, format).map(|(decoder, _)| header(&decoder));
        if let Ok(header) = header
            && tells_its_end(format)
            && has_end(format, &bytes, &end, len)
        {
            return Ok(header);
        }
        bytes = read_whole(path)?;
    }
    let (decoder, _) = decoder(&bytes, format)?;
    let header = header(&decoder);
    drop(decoder);
    verify_whole(format, &bytes)?;
    if !tells_its_end(format) {
        decode::decoded(bytes)?;
    }
    Ok(header)
}

/// The content of `path`.
pub(super) fn read_whole(path: &Path) -> Result<Vec<u8>, Unusable> {
    let mut bytes = Vec::new();
    let mut file = open(path)?.take(MAX_FILE + 1);
    file.read_to_end(&mut bytes)
        .map_err(|error| unreadable(&error))?;
    match bytes.len() as u64 > MAX_FILE {
        true => Err(format!("it is larger than the maximum of {MAX_FILE} bytes").into()),
        false => Ok(bytes),
    }
}

/// The format of an image that starts with `bytes`.
pub(super) fn format(bytes: &[u8]) -> Result<ImageFormat, Unusable> {
    use ImageFormat::{Bmp, Jpeg, Png, Pnm, Tiff, WebP};
    match image::guess_format(bytes) {
        Ok(format @ (Jpeg | Png | WebP | Bmp | Tiff | Pnm)) => Ok(format),
        Ok(other) => Err(Unusable::Unsupported(format!(
            "the format {other:?}; supported are {FORMATS}"
        ))),
        Err(_) if bytes.is_empty() => Err(Unusable::Other("it is empty".into())),
        Err(_) => Err(Unusable::Other(format!(
            "it is not an image in a supported format ({FORMATS})"
        ))),
    }
}

/// Facts about a picture before it is decoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// The necessary rotation.
    pub(super) orientation: Orientation,
    /// Bytes needed until it is scaled; see [`budget::need`].
    pub(super) need: u64,
}

/// A decoder that refuses images that are too large or of a kind that it decodes wrongly, and the
/// known facts.
pub(super) fn decoder(
    bytes: &[u8],
    format: ImageFormat,
) -> Result<(impl ImageDecoder + '_, Known), Unusable> {
    if let Some(kind) = (format == ImageFormat::Jpeg)
        .then(|| jpeg::unsupported(bytes))
        .flatten()
    {
        return Err(Unusable::Unsupported(kind));
    }
    let beside = match format {
        ImageFormat::Jpeg => jpeg::colour_profile(bytes),
        _ => 0,
    };
    if beside > MAX_BESIDE {
        return Err(Unusable::Other(format!(
            "its color profile has {} MiB, more than the maximum of {} MiB",
            beside >> 20,
            MAX_BESIDE >> 20
        )));
    }
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::default();
    limits.max_image_width = u32::try_from(4 * MAX_SIDE).ok();
    limits.max_image_height = limits.max_image_width;
    limits.max_alloc = Some(match format {
        // This decoder does not count the pixels; a larger profile is ignored.
        ImageFormat::Png => MAX_BESIDE,
        _ => budget::BYTES,
    });
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|error| damaged(&error))?;
    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 {
        return Err(Unusable::Other("it has no pixels".into()));
    }
    // A damaged Exif block does not make the picture unusable.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let need = budget::need(&decoder, format, orientation, bytes);
    if need > budget::BYTES {
        return Err(Unusable::Other(format!(
            "its {width}x{height} pixels need {} MiB to decode, more than the maximum of {} MiB; \
             make it smaller",
            need >> 20,
            budget::BYTES >> 20
        )));
    }
    if let ColorType::Rgb32F | ColorType::Rgba32F = decoder.color_type() {
        return Err(Unusable::Unsupported(
            "floating-point pixels of unknown range".into(),
        ));
    }
    Ok((decoder, Known { orientation, need }))
}

/// Whether a few kilobytes of a file of this format show that it is complete. Others must be
/// decoded.
fn tells_its_end(format: ImageFormat) -> bool {
    matches!(
        format,
        ImageFormat::Jpeg | ImageFormat::Png | ImageFormat::WebP
    )
}

/// Refuses a truncated file; decoders fill some of these with grey.
pub(super) fn verify_whole(format: ImageFormat, bytes: &[u8]) -> Result<(), Unusable> {
    let is_whole = match format {
        ImageFormat::Jpeg => jpeg::is_whole(bytes),
        _ if !tells_its_end(format) => true,
        _ => has_end(format, bytes, bytes, bytes.len() as u64),
    };
    match is_whole {
        true => Ok(()),
        false => Err(Unusable::Other("it is truncated".into())),
    }
}

/// Whether a file of `len` bytes that starts with `head` and ends with `end` is complete, as far as
/// these show it.
fn has_end(format: ImageFormat, head: &[u8], end: &[u8], len: u64) -> bool {
    let last = |mark: &[u8]| end.windows(mark.len()).rposition(|window| window == mark);
    match format {
        // An end of image after the last start of a scan. Neither occurs within compressed data,
        // but both occur in a thumbnail, which comes first, and may occur in appended data.
        ImageFormat::Jpeg => last(b"\xff\xd9").is_some_and(|at| last(b"\xff\xda") < Some(at)),
        ImageFormat::Png => last(b"IEND").is_some(),
        _ => {
            let promised = head.get(4..).and_then(|rest| rest.first_chunk::<4>());
            promised.is_some_and(|promised| 8 + u64::from(u32::from_le_bytes(*promised)) <= len)
        }
    }
}

fn header(decoder: &impl ImageDecoder) -> Header {
    use ColorType::{L8, L16, La8, La16};
    let grey = matches!(decoder.color_type(), L8 | La8 | L16 | La16);
    Header { grey }
}

fn open(path: &Path) -> Result<File, Unusable> {
    File::open(path).map_err(|error| unreadable(&error))
}

fn unreadable(error: &std::io::Error) -> Unusable {
    Unusable::Other(format!("cannot read it ({error})"))
}

pub(super) fn damaged(error: &ImageError) -> Unusable {
    match error {
        ImageError::Limits(_) => Unusable::Other(format!("it is too large ({error})")),
        ImageError::Unsupported(_) => Unusable::Unsupported(error.to_string()),
        _ => Unusable::Other(format!("it is damaged ({error})")),
    }
}

//! Decodes a file to the planes of an image of the wanted size.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat};

use super::budget::{self, Share};
use super::unusable::Unusable;
use super::{header, jpeg};
use crate::Area;

/// Longest time for decoding one picture. The largest accepted ones take seconds.
const LIMIT: Duration = Duration::from_secs(60);
/// A decoder that was stopped, or got no CPU, has used at most this much of its time.
const TICK: Duration = Duration::from_millis(100);
/// Bytes (pixels times passes of the decoder) that every machine decodes in less than a second, so
/// that no limit is needed.
const SHORT: u64 = 32 << 20;

/// The format of the images.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    /// 1 or 3.
    pub(super) channels: usize,
    /// Height and width.
    pub(super) size: usize,
    /// Length of the shorter side before the centre is cropped; at least `size`.
    pub(super) resize: usize,
}

/// A decoded file, upright.
pub(super) struct Picture {
    image: DynamicImage,
    /// Share of the memory for all pictures.
    _share: Share<'static>,
}

/// The visible part of a picture.
#[derive(Debug, Clone, Copy)]
struct View {
    /// Pixels outside do not count.
    area: Area,
    /// The visible part of the area: left, top, width and height; `None` for all of it. In a
    /// reduction, pixels around it in the area contribute to its outermost pixels.
    cut: Option<[f64; 4]>,
}

impl Picture {
    /// Decodes `path`, or describes what is wrong with the file.
    pub(super) fn open(path: &Path) -> Result<Self, Unusable> {
        decoded(header::read_whole(path)?)
    }

    /// Number of rows.
    pub(super) fn height(&self) -> usize {
        self.image.height() as usize
    }

    /// Number of columns.
    pub(super) fn width(&self) -> usize {
        self.image.width() as usize
    }

    /// Scales the shorter side to `target.resize` and crops the centre, in one step: only the
    /// result is computed. Sizes and offsets are rounded as in torchvision.
    pub(super) fn centre(self, target: Target, planes: &mut [u8]) -> Result<(), String> {
        let (width, height) = (self.image.width(), self.image.height());
        let shorter = width.min(height);
        let (left, wide) = cut(width, shorter, target);
        let (top, high) = cut(height, shorter, target);
        let view = View {
            area: Area {
                top: 0,
                left: 0,
                height: self.height(),
                width: self.width(),
            },
            cut: Some([left, top, wide, high]),
        };
        self.scale(view, target, planes)
    }

    /// Scales `area`, a part of the picture, ignoring the pixels around it.
    pub(super) fn part(self, area: Area, target: Target, planes: &mut [u8]) -> Result<(), String> {
        self.scale(View { area, cut: None }, target, planes)
    }

    fn scale(self, view: View, target: Target, planes: &mut [u8]) -> Result<(), String> {
        let sides = (self.image.width(), self.image.height());
        if target.channels == 1 {
            return scale::<U8>(&to_grey(self.image), sides, view, target.size, planes);
        }
        let mut scaled = vec![0; planes.len()];
        scale::<U8x3>(&to_rgb(self.image), sides, view, target.size, &mut scaled)?;
        separate(&scaled, planes);
        Ok(())
    }
}

/// Turns a panic of a decoder into a reason.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, Unusable>) -> Result<T, Unusable> {
    contained::run(work)
        .unwrap_or_else(|panic| Err(Unusable::Other(format!("its decoder failed ({panic})"))))
}

/// Decodes the content `file`; waits until there is memory for it.
pub(super) fn decoded(file: Vec<u8>) -> Result<Picture, Unusable> {
    guarded(|| decode_within(LIMIT, file))
}

fn decode_within(limit: Duration, file: Vec<u8>) -> Result<Picture, Unusable> {
    let format = header::format(&file)?;
    let (decoder, known) = header::decoder(&file, format)?;
    header::verify_whole(format, &file)?;
    let Some(share) = budget::ALL.take(known.need) else {
        return Err(Unusable::Other("it is too large".into()));
    };
    let rounds = match format {
        ImageFormat::Jpeg => jpeg::scans(&file),
        _ => 1,
    };
    let work = decoder.total_bytes().saturating_mul(rounds);
    if work.max(file.len() as u64) <= SHORT {
        return upright(decoder, known.orientation, share);
    }
    drop(decoder);
    limited(limit, move || {
        let (decoder, known) = header::decoder(&file, format)?;
        upright(decoder, known.orientation, share)
    })
}

fn upright(
    decoder: impl ImageDecoder,
    orientation: Orientation,
    share: Share<'static>,
) -> Result<Picture, Unusable> {
    let decoded = DynamicImage::from_decoder(decoder);
    let mut image = decoded.map_err(|error| header::damaged(&error))?;
    image.apply_orientation(orientation);
    Ok(Picture {
        image,
        _share: share,
    })
}

/// Runs `work` in a thread and waits no longer than `limit`: a decoder cannot be stopped. The
/// thread keeps its memory until it ends.
fn limited<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> Result<T, Unusable> + Send + 'static,
) -> Result<T, Unusable> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("decoder".into())
        .spawn(move || sender.send(guarded(work)))
        .map_err(|error| Unusable::Other(format!("cannot start a decoder thread ({error})")))?;
    let mut left = limit;
    loop {
        let tick = left.min(TICK);
        match receiver.recv_timeout(tick) {
            Ok(done) => return done,
            Err(RecvTimeoutError::Timeout) if left > tick => left -= tick,
            Err(RecvTimeoutError::Timeout) => {
                return Err(Unusable::Other(format!(
                    "decoding takes longer than the {} s allowed; make the image smaller",
                    limit.as_secs()
                )));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Unusable::Other("its decoder ended unexpectedly".into()));
            }
        }
    }
}

/// Red, green and blue of every pixel; transparent pixels fade to black.
fn to_rgb(image: DynamicImage) -> Vec<u8> {
    if !image.color().has_alpha() {
        return image.into_rgb8().into_raw();
    }
    let rgba = image.into_rgba8().into_raw();
    let pixels = rgba.as_chunks::<4>().0.iter();
    pixels
        .flat_map(|&[red, green, blue, alpha]| [red, green, blue].map(|value| fade(value, alpha)))
        .collect()
}

/// The brightness of every pixel.
fn to_grey(image: DynamicImage) -> Vec<u8> {
    if image.color().has_color() {
        let rgb = to_rgb(image);
        let pixels = rgb.as_chunks::<3>().0.iter();
        return pixels.map(|&pixel| brightness(pixel)).collect();
    }
    if !image.color().has_alpha() {
        return image.into_luma8().into_raw();
    }
    let grey = image.into_luma_alpha8().into_raw();
    let pixels = grey.as_chunks::<2>().0.iter();
    pixels.map(|&[value, alpha]| fade(value, alpha)).collect()
}

fn fade(value: u8, alpha: u8) -> u8 {
    ((u16::from(value) * u16::from(alpha) + 127) / 255) as u8
}

fn brightness([red, green, blue]: [u8; 3]) -> u8 {
    let sum = 299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue);
    ((sum + 500) / 1000) as u8
}

/// Writes the visible part of `pixels`, a picture of width and height `sides`, to `scaled`, a
/// square of `size`: bilinear, with a filter as wide as the reduction needs.
///
/// Generic over one kind of pixels: the library's function for all kinds compiles 13 versions.
fn scale<P: PixelTrait>(
    pixels: &[u8],
    (width, height): (u32, u32),
    view: View,
    size: usize,
    scaled: &mut [u8],
) -> Result<(), String> {
    let failed = |reason: &dyn std::fmt::Display| format!("cannot resize it ({reason})");
    let picture = TypedImageRef::<P>::from_buffer(width, height, pixels);
    let picture = picture.map_err(|error| failed(&error))?;
    let Area {
        top,
        left,
        height,
        width,
    } = view.area;
    // They are sides of a picture, which have 32 bits.
    let [left, top, width, height] = [left, top, width, height].map(|side| side as u32);
    let area = TypedCroppedImage::from_ref(&picture, left, top, width, height);
    let area = area.map_err(|error| failed(&error))?;
    let mut options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    if let Some([left, top, width, height]) = view.cut {
        options = options.crop(left, top, width, height);
    }
    let scaled = TypedImage::<P>::from_buffer(size as u32, size as u32, scaled);
    let mut scaled = scaled.map_err(|error| failed(&error))?;
    Resizer::new()
        .resize_typed(&area, &mut scaled, &options)
        .map_err(|error| failed(&error))
}

/// Start and length of the crop along a side of `len` pixels, both before scaling.
fn cut(len: u32, shorter: u32, target: Target) -> (f64, f64) {
    let (len, shorter) = (u64::from(len), u64::from(shorter.max(1)));
    let (size, resize) = (target.size as u64, target.resize as u64);
    let scaled = (resize * len / shorter).max(1);
    let excess = scaled.saturating_sub(size);
    let half = excess / 2;
    // Halves are rounded to the even number.
    let offset = half + (excess % 2) * (half % 2);
    let (len, scale) = (len as f64, len as f64 / scaled as f64);
    let start = offset as f64 * scale;
    (start, (size as f64 * scale).min(len - start))
}

/// Converts pixels one after another to planes one after another.
fn separate(pixels: &[u8], planes: &mut [u8]) {
    let pixels = pixels.as_chunks::<3>().0;
    let mut planes = planes.chunks_exact_mut(pixels.len().max(1));
    let (Some(red), Some(green), Some(blue)) = (planes.next(), planes.next(), planes.next()) else {
        return;
    };
    for (((pixel, red), green), blue) in pixels.iter().zip(red).zip(green).zip(blue) {
        [*red, *green, *blue] = *pixel;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::time::Instant;

    use image::RgbImage;

    use super::*;

    fn reason<T>(result: Result<T, Unusable>) -> String {
        result
            .err()
            .map(|reason| reason.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn nobody_waits_longer_than_the_limit() {
        let begin = Instant::now();
        let slow = || {
            thread::sleep(Duration::from_secs(20));
            Ok(())
        };
        let said = reason(limited(Duration::from_millis(150), slow));
        assert!(said.contains("takes longer than"), "{said}");
        assert!(begin.elapsed() < Duration::from_secs(10));
        assert_eq!(limited(LIMIT, || Ok(7)), Ok(7));
        let said = reason(limited::<()>(LIMIT, || panic!("a bug of a decoder")));
        assert!(said.contains("a bug of a decoder"), "{said}");
    }

    #[test]
    fn large_pictures_have_a_limit_of_time() {
        let picture = RgbImage::new(4000, 3000);
        assert!(picture.len() as u64 > SHORT);
        let mut png = Cursor::new(Vec::new());
        picture.write_to(&mut png, ImageFormat::Png).unwrap();
        let png = png.into_inner();
        let said = reason(decode_within(Duration::ZERO, png.clone()));
        assert!(said.contains("takes longer than"), "{said}");
        let decoded = decode_within(LIMIT, png);
        assert!(decoded.is_ok_and(|picture| picture.width() == 4000));
    }
}

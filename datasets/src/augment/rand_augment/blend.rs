//! Brightness, colour, contrast and sharpness: blend an image with a degenerate version of itself.
//!
//! With a change of `by`, the image has weight `1 + by` and the degenerate version `-by`: below 0
//! the result lies between them, above 0 on the other side of the image. Values are clamped to
//! bytes and truncated.

use crate::ImageShape;

/// Blends one value.
fn blend(by: f32, image: u8, other: f32) -> u8 {
    // The cast saturates.
    ((1.0 + by) * f32::from(image) - by * other) as u8
}

/// Blends with black.
pub(in crate::augment) fn brightness(by: f32, image: &mut [u8]) {
    for value in image {
        *value = blend(by, *value, 0.0);
    }
}

/// Blends with the image in grey. Images other than RGB have no colour and stay.
pub(in crate::augment) fn color(by: f32, plane: usize, image: &mut [u8]) {
    let Some((red, green, blue)) = split(plane, image) else {
        return;
    };
    for ((red, green), blue) in red.iter_mut().zip(green).zip(blue) {
        let grey = f32::from(luminance(*red, *green, *blue));
        for value in [red, green, blue] {
            *value = blend(by, *value, grey);
        }
    }
}

/// Blends with the mean of the image in grey.
pub(in crate::augment) fn contrast(by: f32, plane: usize, image: &mut [u8]) {
    let (sum, values) = match split(plane, image) {
        Some((red, green, blue)) => {
            let pixels = red.iter().zip(green.iter()).zip(blue.iter());
            let greys = pixels.map(|((&red, &green), &blue)| luminance(red, green, blue));
            (greys.map(u64::from).sum::<u64>(), plane)
        }
        None => (image.iter().copied().map(u64::from).sum(), image.len()),
    };
    let mean = sum as f32 / values as f32;
    for value in image {
        *value = blend(by, *value, mean);
    }
}

/// Blends with the image smoothed by the kernel (1 1 1, 1 5 1, 1 1 1) / 13, and writes to `to`. The
/// outermost pixels stay.
pub(in crate::augment) fn sharpness(by: f32, shape: ImageShape, from: &[u8], to: &mut [u8]) {
    let ImageShape { height, width, .. } = shape;
    to.copy_from_slice(from);
    if height < 3 || width < 3 {
        return;
    }
    let plane = height * width;
    for (from, to) in from.chunks_exact(plane).zip(to.chunks_exact_mut(plane)) {
        for y in 1..height - 1 {
            let row = |y: usize| &from[y * width..][..width];
            let to = &mut to[y * width + 1..][..width - 2];
            sharpen_row(by, [row(y - 1), row(y), row(y + 1)], to);
        }
    }
}

/// The middle one of three rows, without its ends.
fn sharpen_row(by: f32, rows: [&[u8]; 3], to: &mut [u8]) {
    let [above, middle, below] = rows.map(|row| row.windows(3));
    for (to, ((above, middle), below)) in to.iter_mut().zip(above.zip(middle).zip(below)) {
        let sum = |three: &[u8]| three.iter().copied().map(u16::from).sum::<u16>();
        let weighted = sum(above) + sum(middle) + sum(below) + 4 * u16::from(middle[1]);
        let smooth = (weighted + 6) / 13; // To the nearest; 13 is odd.
        *to = blend(by, middle[1], smooth.into());
    }
}

/// The three planes of a colour image.
pub(in crate::augment) fn split(
    plane: usize,
    image: &mut [u8],
) -> Option<(&mut [u8], &mut [u8], &mut [u8])> {
    if image.len() != 3 * plane {
        return None;
    }
    let (red, rest) = image.split_at_mut(plane);
    let (green, blue) = rest.split_at_mut(plane);
    Some((red, green, blue))
}

/// A pixel in grey (ITU-R BT.601, truncated).
fn luminance(red: u8, green: u8, blue: u8) -> u8 {
    (0.2989 * f32::from(red) + 0.587 * f32::from(green) + 0.114 * f32::from(blue)) as u8
}

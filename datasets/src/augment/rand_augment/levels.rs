//! Posterize, solarize, auto-contrast and equalize: map every value of a channel.

/// Sets the lowest `bits` of every value to 0.
pub(in crate::augment) fn posterize(bits: u32, image: &mut [u8]) {
    let kept = 0xff_u8.checked_shl(bits).unwrap_or(0);
    for value in image {
        *value &= kept;
    }
}

/// Inverts the values from `threshold` on.
pub(in crate::augment) fn solarize(threshold: f32, image: &mut [u8]) {
    for value in image {
        if f32::from(*value) >= threshold {
            *value = 255 - *value;
        }
    }
}

/// Stretches the range of each plane to 0..=255; a plane with a single value stays.
pub(in crate::augment) fn auto_contrast(plane: usize, image: &mut [u8]) {
    for plane in image.chunks_exact_mut(plane) {
        let (low, high) = plane.iter().fold((255, 0), |(low, high), &value| {
            (value.min(low), value.max(high))
        });
        if low >= high {
            continue;
        }
        let range = u16::from(high - low);
        for value in plane {
            *value = (255 * u16::from(*value - low) / range) as u8;
        }
    }
}

/// Equalizes the histogram of each plane, as Pillow's `ImageOps.equalize`: a value becomes the
/// number of lower values, in units of a 255th of all but the highest ones.
pub(in crate::augment) fn equalize(plane: usize, image: &mut [u8]) {
    for plane in image.chunks_exact_mut(plane) {
        let mut counts = [0_usize; 256];
        for &value in plane.iter() {
            counts[usize::from(value)] += 1;
        }
        let highest = plane.iter().max().map_or(0, |&value| usize::from(value));
        let step = (plane.len() - counts[highest]) / 255;
        if step == 0 {
            continue;
        }
        let mut lower = step / 2;
        let table = counts.map(|count| {
            let level = lower / step;
            lower += count;
            level.min(255) as u8
        });
        for value in plane {
            *value = table[usize::from(*value)];
        }
    }
}

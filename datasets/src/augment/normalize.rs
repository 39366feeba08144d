//! Converts bytes to normalised values.

use crate::{DatasetError, ImageShape, Normalization};

/// Normalises the images of one data set.
#[derive(Debug, Clone)]
pub(crate) struct Normalizer {
    plane: usize,
    channels: Vec<Line>,
}

/// `scale * byte + offset`, in f32: the compiler vectorises this loop, which is several times
/// faster than a table of 256 values.
#[derive(Debug, Clone, Copy)]
struct Line {
    scale: f32,
    offset: f32,
}

impl Normalizer {
    pub(crate) fn new(shape: ImageShape, by: &Normalization) -> Result<Self, DatasetError> {
        let unusable = |reason| Err(DatasetError::Normalization { reason });
        let channels = shape.channels;
        if by.mean.len() != channels || by.std.len() != channels {
            return unusable(format!(
                "{} means and {} standard deviations for {channels} channels",
                by.mean.len(),
                by.std.len()
            ));
        }
        let mut lines = Vec::with_capacity(by.mean.len());
        for (&mean, &std) in by.mean.iter().zip(&by.std) {
            if !mean.is_finite() || !std.is_finite() || std <= 0.0 {
                return unusable(format!("mean {mean} with standard deviation {std}"));
            }
            let (mean, std) = (f64::from(mean), f64::from(std));
            lines.push(Line {
                scale: (1.0 / (255.0 * std)) as f32,
                offset: (-mean / std) as f32,
            });
        }
        Ok(Normalizer {
            plane: shape.height.saturating_mul(shape.width),
            channels: lines,
        })
    }

    /// Factor and offset of each channel's bytes.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (f32, f32)> + '_ {
        self.channels.iter().map(|line| (line.scale, line.offset))
    }

    /// Writes the normalised `image` to `out` (both channel, row, column).
    pub(crate) fn convert(&self, image: &[u8], out: &mut [f32]) {
        let plane = self.plane.max(1);
        let planes = image.chunks_exact(plane).zip(out.chunks_exact_mut(plane));
        for (&Line { scale, offset }, (image, out)) in self.channels.iter().zip(planes) {
            for (out, &byte) in out.iter_mut().zip(image) {
                *out = f32::from(byte) * scale + offset;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: ImageShape = ImageShape {
        channels: 2,
        height: 3,
        width: 4,
    };

    #[test]
    fn values_are_normalised_per_channel() {
        let by = Normalization {
            mean: vec![0.5, 0.25],
            std: vec![0.5, 0.125],
        };
        let normalizer = Normalizer::new(SHAPE, &by).unwrap();
        let mut out = [0.0; 24];
        normalizer.convert(&[255; 24], &mut out);
        assert!(out[..12].iter().all(|value| (value - 1.0).abs() < 1e-6));
        assert!(out[12..].iter().all(|value| (value - 6.0).abs() < 1e-6));
    }

    #[test]
    fn unusable_statistics_are_refused() {
        for (mean, std) in [
            (vec![0.5], vec![0.5]),
            (vec![0.5; 2], vec![0.5, 0.0]),
            (vec![0.5, f32::NAN], vec![0.5; 2]),
            (vec![0.5; 2], vec![0.5, f32::INFINITY]),
        ] {
            assert!(Normalizer::new(SHAPE, &Normalization { mean, std }).is_err());
        }
    }

    proptest! {
        #[test]
        fn values_are_those_of_the_definition(byte: u8, mean in 0.0f32..1.0, std in 0.05f32..1.0) {
            let by = Normalization { mean: vec![mean; 2], std: vec![std; 2] };
            let mut out = [f32::NAN; 24];
            Normalizer::new(SHAPE, &by).unwrap().convert(&[byte; 24], &mut out);
            let expected = (f64::from(byte) / 255.0 - f64::from(mean)) / f64::from(std);
            // The two rounded terms, in units of the standard deviation.
            let terms = (f64::from(byte) / 255.0 + f64::from(mean)) / f64::from(std);
            for value in out {
                prop_assert!((f64::from(value) - expected).abs() <= 3e-7 * terms);
            }
        }
    }
}

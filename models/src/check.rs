//! Checks of configurations that all models share: sizes, rates, and products that overflow.

use crate::ModelError;

/// Largest number of blocks: far above any network that trains, and quick to build.
const MOST_BLOCKS: usize = 10_000;

/// Refuses a size of zero.
pub(crate) fn sizes(
    model: &'static str,
    sizes: &[(&'static str, usize)],
) -> Result<(), ModelError> {
    match sizes.iter().find(|(_, size)| *size == 0) {
        Some((field, _)) => Err(ModelError::Zero { model, field }),
        None => Ok(()),
    }
}

/// Refuses a rate outside `[0, 1)`.
pub(crate) fn rates(model: &'static str, rates: &[(&'static str, f64)]) -> Result<(), ModelError> {
    match rates.iter().find(|(_, rate)| !(0.0..1.0).contains(rate)) {
        Some((field, value)) => Err(ModelError::Dropout {
            model,
            field,
            value: *value,
        }),
        None => Ok(()),
    }
}

/// Refuses too many blocks, before memory is allocated for them.
pub(crate) fn blocks(model: &'static str, blocks: usize) -> Result<(), ModelError> {
    if blocks <= MOST_BLOCKS {
        return Ok(());
    }
    Err(ModelError::TooDeep {
        model,
        blocks,
        most: MOST_BLOCKS,
    })
}

/// Refuses images smaller than `minimum` in one direction.
pub(crate) fn image(
    model: &'static str,
    [height, width]: [usize; 2],
    minimum: usize,
) -> Result<(), ModelError> {
    if height.min(width) >= minimum {
        return Ok(());
    }
    Err(ModelError::ImageTooSmall {
        model,
        height,
        width,
        minimum,
    })
}

/// Refuses a weight whose number of bytes overflows. It is given by its dimensions.
pub(crate) fn weight(model: &'static str, dimensions: &[usize]) -> Result<(), ModelError> {
    dimensions
        .iter()
        .try_fold(size_of::<f32>(), |bytes, size| bytes.checked_mul(*size))
        // Memory is never larger than this.
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .map(|_| ())
        .ok_or(ModelError::TooLarge { model })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_named() {
        assert!(sizes("m", &[("a", 1), ("b", 2)]).is_ok());
        let error = sizes("m", &[("a", 1), ("b", 0)]).unwrap_err().to_string();
        assert_eq!(error, "m: `b` is 0, but must be at least 1");
        assert!(rates("m", &[("p", 0.0)]).is_ok());
        for rate in [1.0, -0.1, f64::NAN] {
            assert!(rates("m", &[("p", rate)]).is_err());
        }
        assert!(blocks("m", 10_000).is_ok());
        let error = blocks("m", 10_001).unwrap_err().to_string();
        assert_eq!(error, "m: 10001 blocks are too many; the maximum is 10000");
        assert!(image("m", [4, 4], 4).is_ok());
        assert!(image("m", [3, 4], 4).is_err());
        assert!(image("m", [4, 3], 4).is_err());
        assert!(weight("m", &[3, 1 << 20]).is_ok());
        assert!(weight("m", &[usize::MAX, 2]).is_err());
        assert!(weight("m", &[usize::MAX / 6, 1]).is_err());
    }
}

//! Rejects batch normalizations that would get one value per channel in training.
//!
//! The variance of one value is zero, so the output is the same for every image and nothing is
//! learned. PyTorch rejects it, too.

use datasets::ImageShape;
use models::ImageClassifier;

use crate::config::{Batching, Config};
use crate::error::TrainError;

/// Checks that `size` ranks train no batch normalization of `model` on one value per channel.
///
/// # Errors
/// [`TrainError::OneValue`] if they do.
pub(crate) fn check(
    config: &Config,
    batching: Batching,
    size: usize,
    shape: ImageShape,
    model: &impl ImageClassifier,
) -> Result<(), TrainError> {
    let Some(of_image) = model.normalized_values([shape.channels, shape.height, shape.width])
    else {
        return Ok(());
    };
    let ranks = match config.parallel.sync_batch_norm {
        true => size,
        false => 1,
    };
    let images = batching.micro.saturating_mul(ranks);
    match of_image.saturating_mul(images) {
        1 => Err(TrainError::OneValue {
            together: size > 1,
            accumulate: batching.accumulate,
        }),
        _ => Ok(()),
    }
}

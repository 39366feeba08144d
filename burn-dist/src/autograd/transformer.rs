//! Burn's transformer with the input of each layer marked.

use burn::nn::transformer::TransformerEncoder;
use burn::tensor::{Bool, Tensor};

use super::boundary;

/// Computes what `encoder.forward` does, with a [`boundary`] before each layer.
///
/// `TransformerEncoder::forward` runs its layers in a loop of its own, so gradients of all layers
/// would be sent at the end of backward. Here those of a layer are sent when backward has left it.
/// `input` and the result are \[samples, length, width\], `mask_pad` is \[samples, length\] and
/// `mask_attn` \[samples, length, length\], as in Burn.
///
/// ```
/// use burn::nn::transformer::TransformerEncoderConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_dist::autograd::transformer_encoder;
///
/// let device = Device::flex();
/// let encoder = TransformerEncoderConfig::new(8, 16, 2, 3).init(&device);
/// let output = transformer_encoder(&encoder, Tensor::ones([1, 4, 8], &device), None, None);
/// assert_eq!(output.dims(), [1, 4, 8]);
/// ```
pub fn transformer_encoder(
    encoder: &TransformerEncoder,
    input: Tensor<3>,
    mask_pad: Option<Tensor<2, Bool>>,
    mask_attn: Option<Tensor<3, Bool>>,
) -> Tensor<3> {
    encoder.layers.iter().fold(input, |x, layer| {
        layer.forward(boundary(x), mask_pad.clone(), mask_attn.clone())
    })
}

#[cfg(test)]
mod tests {
    use burn::nn::attention::generate_autoregressive_mask;
    use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
    use burn::tensor::{Device, Distribution};

    use super::*;

    #[test]
    fn the_values_are_those_of_burn() {
        let device = Device::flex();
        let config = TransformerEncoderConfig::new(8, 16, 2, 3).with_dropout(0.0);
        let encoder = config.init(&device);
        let input = Tensor::<3>::random([2, 5, 8], Distribution::Default, &device);
        let mask = generate_autoregressive_mask(2, 5, &device);
        let burns = TransformerEncoderInput::new(input.clone()).mask_attn(mask.clone());
        let burns = encoder.forward(burns).into_data();
        let ours = transformer_encoder(&encoder, input, None, Some(mask)).into_data();
        assert_eq!(ours, burns);
    }
}

//! The key maps of this crate's models.

use super::{KeyMap, Positions};
use crate::{Cnn, ConvNext, CscCnn, PlainWideResNet, ResNet, Transformer, UNet, Vit, WideResNet};

/// A model with a reference implementation in PyTorch.
pub trait PyTorchKeys {
    /// Names of the tensors in the reference's state dict: the same unless told otherwise.
    fn key_map(&self) -> KeyMap {
        KeyMap::same()
    }

    /// Name of the reference's last layer, which depends on the number of classes: `fc` in most.
    fn head(&self) -> &'static str {
        "fc"
    }

    /// The model's position embedding, which may come from another image size, if it has one.
    fn positions(&self) -> Option<Positions> {
        None
    }

    /// Names and last layers in the state dicts of other implementations.
    fn other_names(&self) -> Vec<(KeyMap, &'static str)> {
        Vec::new()
    }
}

/// Burn's names: there is no reference.
impl PyTorchKeys for Transformer {
    fn key_map(&self) -> KeyMap {
        KeyMap::same()
    }

    fn head(&self) -> &'static str {
        "head"
    }
}

/// Burn's names: there is no reference.
impl PyTorchKeys for UNet {
    fn key_map(&self) -> KeyMap {
        KeyMap::same()
    }

    fn head(&self) -> &'static str {
        "head"
    }
}

/// `conv1`, `conv2`, `fc1`, `fc2`, as in PyTorch's MNIST example.
impl PyTorchKeys for Cnn {
    fn head(&self) -> &'static str {
        "fc2"
    }
}

/// `layer1.0`, `layer1.1`, `fc`, as in CSC's course.
///
/// `layer1` and `layer2` are `Sequential`s of convolution (0), batch normalization (1), ReLU and
/// pooling.
impl PyTorchKeys for CscCnn {
    fn key_map(&self) -> KeyMap {
        KeyMap::constant(&[
            (r"^(layer\d)\.conv\.", "$1.0."),
            (r"^(layer\d)\.bn\.", "$1.1."),
        ])
    }
}

/// `block1.layer.0.convShortcut`, otherwise our names, as in xternalz/WideResNet-pytorch.
impl PyTorchKeys for WideResNet {
    fn key_map(&self) -> KeyMap {
        KeyMap::constant(&[(r"\.conv_shortcut\.", ".convShortcut.")])
    }
}

/// `input_block.cbr.0`, `block1.layer1.cbr.1`, `block1.scale`, `fc`, as in the Olivia guide.
///
/// `cbr` is a `Sequential` of convolution, batch normalization and ReLU.
impl PyTorchKeys for PlainWideResNet {
    fn key_map(&self) -> KeyMap {
        KeyMap::constant(&[(r"\.conv\.", ".cbr.0."), (r"\.bn\.", ".cbr.1.")])
    }
}

/// `layer1.0.downsample.0`, otherwise our names, as in torchvision and timm.
impl PyTorchKeys for ResNet {
    fn key_map(&self) -> KeyMap {
        KeyMap::constant(&[
            (r"\.downsample\.conv\.", ".downsample.0."),
            (r"\.downsample\.bn\.", ".downsample.1."),
        ])
    }
}

/// Our names, as in timm's `VisionTransformer` with `global_pool="token"` or `"avg"`.
///
/// torchvision's names are in [`KeyMap::torchvision_vit`].
impl PyTorchKeys for Vit {
    fn head(&self) -> &'static str {
        "head"
    }

    fn positions(&self) -> Option<Positions> {
        Some(Vit::positions(self))
    }

    fn other_names(&self) -> Vec<(KeyMap, &'static str)> {
        vec![(KeyMap::torchvision_vit(), "heads.head")]
    }
}

/// `stem.0`, `stages.1.downsample.0`, otherwise our names, as in timm's `ConvNeXt`.
///
/// torchvision's names are in [`KeyMap::torchvision_convnext`], those of the authors' repository in
/// [`KeyMap::original_convnext`].
impl PyTorchKeys for ConvNext {
    fn key_map(&self) -> KeyMap {
        KeyMap::constant(&[
            (r"^stem\.conv\.", "stem.0."),
            (r"^stem\.norm\.", "stem.1."),
            (r"\.downsample\.norm\.", ".downsample.0."),
            (r"\.downsample\.conv\.", ".downsample.1."),
        ])
    }

    fn head(&self) -> &'static str {
        "head.fc"
    }

    fn other_names(&self) -> Vec<(KeyMap, &'static str)> {
        vec![
            (KeyMap::torchvision_convnext(), "classifier.2"),
            (KeyMap::original_convnext(), "head"),
        ]
    }
}

impl KeyMap {
    /// Names of our [`ConvNext`] in a state dict of torchvision's `convnext_tiny` and its
    /// relatives.
    pub fn torchvision_convnext() -> Self {
        Self::constant(&[
            (r"^stem\.conv\.", "features.0.0."),
            (r"^stem\.norm\.", "features.0.1."),
            (r"^head\.norm\.", "classifier.0."),
            (r"^head\.fc\.", "classifier.2."),
            (r"^stages\.0\.blocks\.", "features.1."),
            (r"^stages\.1\.blocks\.", "features.3."),
            (r"^stages\.2\.blocks\.", "features.5."),
            (r"^stages\.3\.blocks\.", "features.7."),
            (r"^stages\.1\.downsample\.", "features.2."),
            (r"^stages\.2\.downsample\.", "features.4."),
            (r"^stages\.3\.downsample\.", "features.6."),
            (r"^(features\.[246])\.norm\.", "$1.0."),
            (r"^(features\.[246])\.conv\.", "$1.1."),
            (r"\.gamma$", ".layer_scale"),
            (r"\.conv_dw\.", ".block.0."),
            (r"\.norm\.", ".block.2."),
            (r"\.mlp\.fc1\.", ".block.3."),
            (r"\.mlp\.fc2\.", ".block.5."),
        ])
    }

    /// Names of our [`ConvNext`] in the files of the authors' repository.
    pub fn original_convnext() -> Self {
        Self::constant(&[
            (r"^stem\.conv\.", "downsample_layers.0.0."),
            (r"^stem\.norm\.", "downsample_layers.0.1."),
            (r"^head\.norm\.", "norm."),
            (r"^head\.fc\.", "head."),
            (
                r"^stages\.(\d)\.downsample\.norm\.",
                "downsample_layers.$1.0.",
            ),
            (
                r"^stages\.(\d)\.downsample\.conv\.",
                "downsample_layers.$1.1.",
            ),
            (r"\.blocks\.", "."),
            (r"\.conv_dw\.", ".dwconv."),
            (r"\.mlp\.fc1\.", ".pwconv1."),
            (r"\.mlp\.fc2\.", ".pwconv2."),
        ])
    }

    /// Names of our [`Vit`](crate::Vit) in a state dict of torchvision's `VisionTransformer`.
    ///
    /// That is `vit_b_16` and its relatives: `class_token`, `conv_proj`, `encoder.pos_embedding`,
    /// `encoder.layers.encoder_layer_N`, `encoder.ln`, `heads.head`. torchvision always has a class
    /// token.
    pub fn torchvision_vit() -> Self {
        Self::constant(&[
            (r"^cls_token$", "class_token"),
            (r"^pos_embed$", "encoder.pos_embedding"),
            (r"^patch_embed\.proj\.", "conv_proj."),
            (r"^norm\.", "encoder.ln."),
            (r"^head\.", "heads.head."),
            (r"^blocks\.(\d+)\.", "encoder.layers.encoder_layer_${1}."),
            (r"\.norm1\.", ".ln_1."),
            (r"\.norm2\.", ".ln_2."),
            (r"\.attn\.qkv\.", ".self_attention.in_proj_"),
            (r"\.attn\.proj\.", ".self_attention.out_proj."),
            (r"\.mlp\.fc1\.", ".mlp.0."),
            (r"\.mlp\.fc2\.", ".mlp.3."),
        ])
    }

    /// A map from patterns in this file; the tests compile each of them.
    fn constant(rules: &[(&str, &str)]) -> Self {
        rules
            .iter()
            .fold(Self::same(), |keys, (pattern, replacement)| {
                keys.rule(pattern, *replacement)
                    .expect("the patterns of this file are valid")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_call_the_parts_of_a_convnext_otherwise() {
        let cases = [
            (
                "stem.conv.weight",
                "features.0.0.weight",
                "downsample_layers.0.0.weight",
            ),
            (
                "stem.norm.bias",
                "features.0.1.bias",
                "downsample_layers.0.1.bias",
            ),
            (
                "stages.2.downsample.norm.weight",
                "features.4.0.weight",
                "downsample_layers.2.0.weight",
            ),
            (
                "stages.3.downsample.conv.bias",
                "features.6.1.bias",
                "downsample_layers.3.1.bias",
            ),
            (
                "stages.0.blocks.2.gamma",
                "features.1.2.layer_scale",
                "stages.0.2.gamma",
            ),
            (
                "stages.2.blocks.8.conv_dw.weight",
                "features.5.8.block.0.weight",
                "stages.2.8.dwconv.weight",
            ),
            (
                "stages.3.blocks.0.norm.bias",
                "features.7.0.block.2.bias",
                "stages.3.0.norm.bias",
            ),
            (
                "stages.1.blocks.1.mlp.fc2.weight",
                "features.3.1.block.5.weight",
                "stages.1.1.pwconv2.weight",
            ),
            ("head.norm.weight", "classifier.0.weight", "norm.weight"),
            ("head.fc.bias", "classifier.2.bias", "head.bias"),
        ];
        let (torchvision, original) = (KeyMap::torchvision_convnext(), KeyMap::original_convnext());
        for (name, of_torchvision, of_original) in cases {
            assert_eq!(torchvision.key(name), of_torchvision);
            assert_eq!(original.key(name), of_original);
        }
    }

    #[test]
    fn torchvision_calls_the_parts_of_a_vit_otherwise() {
        let keys = KeyMap::torchvision_vit();
        let cases = [
            ("cls_token", "class_token"),
            ("pos_embed", "encoder.pos_embedding"),
            ("patch_embed.proj.weight", "conv_proj.weight"),
            (
                "blocks.11.norm1.weight",
                "encoder.layers.encoder_layer_11.ln_1.weight",
            ),
            (
                "blocks.0.attn.qkv.bias",
                "encoder.layers.encoder_layer_0.self_attention.in_proj_bias",
            ),
            (
                "blocks.0.attn.proj.weight",
                "encoder.layers.encoder_layer_0.self_attention.out_proj.weight",
            ),
            (
                "blocks.2.mlp.fc2.bias",
                "encoder.layers.encoder_layer_2.mlp.3.bias",
            ),
            ("norm.weight", "encoder.ln.weight"),
            ("head.bias", "heads.head.bias"),
        ];
        for (name, key) in cases {
            assert_eq!(keys.key(name), key);
        }
    }
}

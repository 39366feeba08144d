//! `[model]` becomes a model.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use burn_dist::parallel::{ParameterSpec, ParameterState};
use datasets::Dataset;
use models::weights::PyTorchKeys;
use models::{ImageClassifier, ModelError, Pooling, Stem};

use crate::config::{
    CnnConfig, Config, ModelConfig, PoolingName, ResNetConfig, StemName, VitConfig, VitPreset,
    WidePreset, WideResNetConfig,
};

/// Longest side of images, in pixels, for which a residual network's stem keeps their size.
const SMALL_IMAGE: usize = 64;

/// What is done with a model once it is known which type it has.
pub trait WithModel {
    /// What comes of it.
    type Output;

    /// Does it.
    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> Self::Output;
}

/// Builds the model for the images and classes of `data`, with random parameters, and hands it to
/// `then`.
///
/// # Errors
/// If it cannot take such images.
pub fn build<W: WithModel>(
    config: &ModelConfig,
    data: &dyn Dataset,
    device: &Device,
    then: W,
) -> Result<W::Output, ModelError> {
    Ok(match config {
        ModelConfig::Cnn(cnn) => then.call(self::cnn(cnn, data).init(device)?),
        ModelConfig::CscCnn(_) => then.call(csc_cnn(data).init(device)?),
        ModelConfig::WideResNet(wide) if wide.preset == WidePreset::Olivia => {
            then.call(plain_wide_resnet(wide, data).init(device)?)
        }
        ModelConfig::WideResNet(wide) => then.call(wide_resnet(wide, data).init(device)?),
        ModelConfig::ResNet(resnet) => then.call(self::resnet(resnet, data).init(device)?),
        ModelConfig::Vit(vit) => then.call(self::vit(vit, data).init(device)?),
    })
}

fn cnn(config: &CnnConfig, data: &dyn Dataset) -> models::CnnConfig {
    let shape = data.shape();
    models::CnnConfig::new()
        .with_channels(shape.channels)
        .with_height(shape.height)
        .with_width(shape.width)
        .with_classes(classes(data))
        .with_filters(config.filters)
        .with_hidden(config.hidden)
        .with_dropout_conv(config.dropout_conv)
        .with_dropout_hidden(config.dropout_hidden)
}

fn csc_cnn(data: &dyn Dataset) -> models::CscCnnConfig {
    let shape = data.shape();
    models::CscCnnConfig::new()
        .with_channels(shape.channels)
        .with_height(shape.height)
        .with_width(shape.width)
        .with_classes(classes(data))
}

fn wide_resnet(config: &WideResNetConfig, data: &dyn Dataset) -> models::WideResNetConfig {
    // Filled in when the configuration was read.
    let (depth, widen) = (config.depth.unwrap_or(28), config.widen.unwrap_or(10));
    models::WideResNetConfig::new(depth, widen, classes(data))
        .with_channels(data.shape().channels)
        .with_dropout(config.dropout.unwrap_or_default())
}

fn plain_wide_resnet(
    config: &WideResNetConfig,
    data: &dyn Dataset,
) -> models::PlainWideResNetConfig {
    let shape = data.shape();
    models::PlainWideResNetConfig::olivia(classes(data))
        .with_channels(shape.channels)
        .with_height(shape.height)
        .with_width(shape.width)
        .with_dropout(config.dropout.unwrap_or_default())
}

fn resnet(config: &ResNetConfig, data: &dyn Dataset) -> models::ResNetConfig {
    let shape = data.shape();
    let stem = match config.stem {
        StemName::Cifar => Stem::Cifar,
        StemName::ImageNet => Stem::ImageNet,
        StemName::Auto if shape.height.max(shape.width) <= SMALL_IMAGE => Stem::Cifar,
        StemName::Auto => Stem::ImageNet,
    };
    let model = match config.depth {
        50 => models::ResNetConfig::resnet50(classes(data)),
        _ => models::ResNetConfig::resnet18(classes(data)),
    };
    model.with_channels(shape.channels).with_stem(stem)
}

fn vit(config: &VitConfig, data: &dyn Dataset) -> models::VitConfig {
    let shape = data.shape();
    let mut vit = match config.preset {
        VitPreset::Tiny => models::VitConfig::tiny(classes(data)),
        VitPreset::Small => models::VitConfig::small(classes(data)),
        VitPreset::Base => models::VitConfig::base(classes(data)),
        VitPreset::B16 => models::VitConfig::vit_b_16(classes(data)),
    };
    vit.channels = shape.channels;
    vit.height = shape.height;
    vit.width = shape.width;
    vit.patch = config.patch.unwrap_or(vit.patch);
    vit.dim = config.dim.unwrap_or(vit.dim);
    vit.depth = config.depth.unwrap_or(vit.depth);
    vit.heads = config.heads.unwrap_or(vit.heads);
    vit.mlp_ratio = config.mlp_ratio.unwrap_or(vit.mlp_ratio);
    vit.pooling = match config.pooling {
        PoolingName::ClassToken => Pooling::ClassToken,
        PoolingName::Mean => Pooling::Mean,
    };
    vit.dropout = config.dropout;
    vit.drop_path = config.drop_path;
    vit
}

fn classes(data: &dyn Dataset) -> usize {
    data.class_names().len()
}

/// The trainable parameters of `model`, which is on an autodiff device, as they are trained: in f32. Running
/// statistics are not among them.
pub fn parameters<M: Module>(model: &M) -> Vec<ParameterSpec> {
    let mut lister = Lister {
        path: Vec::new(),
        parameters: Vec::new(),
    };
    model.visit(&mut lister);
    lister.parameters
}

/// What a training keeps of each of the [`parameters`] of `model`: what its optimizer does, and the parameter's
/// average if there is to be one.
pub fn states<M: Module>(model: &M, config: &Config) -> Vec<ParameterState> {
    let state = |parameter: &ParameterSpec| {
        let state = config.optimizer.state_of(parameter);
        let averages = config.ema.options().map_or(0, |_| state.elements);
        ParameterState {
            kept: state.kept + averages,
            ..state
        }
    };
    parameters(model).iter().map(state).collect()
}

struct Lister {
    path: Vec<String>,
    parameters: Vec<ParameterSpec>,
}

impl ModuleVisitor for Lister {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // To look at a parameter that nobody has used yet would make it come to exist.
        if !param.is_initialized() || param.is_require_grad() {
            self.parameters.push(ParameterSpec {
                path: self.path.join("."),
                shape: param.lazy_shape().to_vec(),
                dtype: burn_dist::DType::F32,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_kept_beside_what_the_optimizer_keeps() {
        let device = Device::flex().autodiff();
        let model = models::CnnConfig::new().init(&device).unwrap();
        let kept = |config: &Config| -> Vec<u64> {
            let states = states(&model, config).into_iter();
            states.map(|state| state.kept).collect()
        };
        let loaded = crate::config::Loaded::load("mnist-cnn.toml", &[]);
        let mut config = loaded.unwrap().config;
        let without = kept(&config);
        config.ema.decay = Some(0.99);
        let elements = states(&model, &config)
            .into_iter()
            .map(|state| state.elements);
        let expected: Vec<u64> = without.iter().zip(elements).map(|(a, b)| a + b).collect();
        assert_eq!(kept(&config), expected);
    }
}

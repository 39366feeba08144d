//! Workloads: models of the zoo with generated images of their usual size.

use trainer::config::Loaded;

use super::{LEARNING_RATE, MOMENTUM, SEED};
use crate::error::BenchError;

/// A model and its images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// The MNIST CNN with 1,199,882 parameters, 28×28 grey images, dropout on.
    Cnn,
    /// WRN-16-4 with 2.8 million parameters, 32×32 colour images, 100 classes.
    #[value(name = "wrn-16-4")]
    Wrn16x4,
    /// WRN-28-10 with 36.5 million parameters, the same images.
    #[value(name = "wrn-28-10")]
    Wrn28x10,
    /// The WideResNet of the Olivia guide with 17.2 million parameters, the same images.
    Olivia,
    /// ResNet-50 with 23.7 million parameters, 224×224 colour images, 100 classes.
    #[value(name = "resnet-50")]
    ResNet50,
    /// ViT-B/16 with 86 million parameters, 224×224 colour images, 100 classes.
    #[value(name = "vit-b-16")]
    VitB16,
    /// ViT-Tiny with 5.4 million parameters, 32×32 colour images in patches of 4, 100 classes.
    VitTiny,
    /// ViT-Base with 85 million parameters (width 768, depth 12, 12 heads), the same images.
    VitBase,
}

/// The optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Optimizer {
    /// SGD with momentum: one number of state per parameter.
    Sgd,
    /// AdamW: two numbers of state per parameter.
    #[value(name = "adamw")]
    AdamW,
}

/// Numbers of images.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Images per step over all ranks.
    pub batch: usize,
    /// Training images.
    pub train: usize,
    /// Test images.
    pub test: usize,
}

impl Sizes {
    /// The smallest possible numbers.
    pub fn one_batch() -> Self {
        Self {
            batch: 1,
            train: 1,
            test: 1,
        }
    }
}

impl Workload {
    /// Description of the model and its images.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Cnn => "CNN with 1,199,882 parameters, 28 x 28 grey images, dropout on",
            Self::Wrn16x4 => "WRN-16-4, 32 x 32 colour images, 100 classes",
            Self::Wrn28x10 => "WRN-28-10, 32 x 32 colour images, 100 classes",
            Self::Olivia => "WideResNet of the Olivia guide, 32 x 32 colour images, 100 classes",
            Self::ResNet50 => "ResNet-50, 224 x 224 colour images, 100 classes",
            Self::VitB16 => "ViT-B/16, 224 x 224 colour images, 100 classes",
            Self::VitTiny => "ViT-Tiny, 32 x 32 colour images in patches of 4, 100 classes",
            Self::VitBase => {
                "ViT of width 768 and depth 12, 32 x 32 colour images in patches of 4, 100 classes"
            }
        }
    }

    /// The trainer's configuration for one epoch, with an optimizer and more settings.
    ///
    /// # Errors
    /// Fails if the settings are invalid.
    pub fn config_with(
        self,
        sizes: Sizes,
        optimizer: Optimizer,
        sets: &[String],
    ) -> Result<Loaded, BenchError> {
        let colour = "name = \"generated\"\nclasses = 100";
        let large = "name = \"generated\"\nclasses = 100\nsize = 224";
        let (model, data) = match self {
            Self::Cnn => ("name = \"cnn\"", "name = \"digits\""),
            Self::Wrn16x4 => ("name = \"wide-resnet\"\npreset = \"wrn-16-4\"", colour),
            Self::Wrn28x10 => ("name = \"wide-resnet\"\npreset = \"wrn-28-10\"", colour),
            Self::Olivia => ("name = \"wide-resnet\"\npreset = \"olivia\"", colour),
            Self::ResNet50 => ("name = \"resnet\"\ndepth = 50", large),
            Self::VitB16 => ("name = \"vit\"\npreset = \"b-16\"", large),
            Self::VitTiny => ("name = \"vit\"\npreset = \"tiny\"", colour),
            Self::VitBase => ("name = \"vit\"\npreset = \"base\"", colour),
        };
        let Sizes { batch, train, test } = sizes;
        let optimizer = match optimizer {
            Optimizer::Sgd => {
                format!("name = \"sgd\"\nlr = {LEARNING_RATE}\nmomentum = {MOMENTUM}")
            }
            Optimizer::AdamW => "name = \"adamw\"".to_owned(),
        };
        let text = format!(
            "[model]\n{model}\n\
             [data]\n{data}\ntrain_samples = {train}\ntest_samples = {test}\n\
             [optimizer]\n{optimizer}\n\
             [train]\nepochs = 1\nbatch_size = {batch}\nseed = {SEED}\n\
             [checkpoint]\nevery_epochs = 0\n\
             [log]\nevery_steps = 1\n",
        );
        Ok(Loaded::parse("bench", "bench", &text, sets)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_workload_has_a_valid_configuration() {
        for workload in Workload::value_variants() {
            let loaded = workload.config_with(Sizes::one_batch(), Optimizer::Sgd, &[]);
            loaded.unwrap();
        }
    }
}

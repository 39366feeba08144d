//! The models in golden files.

use burn::tensor::Device;
use models::{
    CnnConfig, ConvNextConfig, CscCnnConfig, PlainWideResNetConfig, Pooling, ResNetConfig, Stem,
    VitConfig, WideResNetConfig,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::case::Case;
use super::compare::Table;

pub const MODELS: [&str; 7] = [
    "cnn",
    "csc-cnn",
    "wide-resnet",
    "plain-wide-resnet",
    "resnet",
    "vit",
    "convnext",
];

/// Fields of a configuration; each is taken once.
struct Sizes<'a> {
    case: &'a str,
    fields: Map<String, Value>,
}

impl Sizes<'_> {
    fn or<T: DeserializeOwned>(&mut self, field: &str, default: T) -> T {
        let Some(value) = self.fields.remove(field) else {
            return default;
        };
        serde_json::from_value(value)
            .unwrap_or_else(|error| panic!("{}: `{field}`: {error}", self.case))
    }

    fn get<T: DeserializeOwned>(&mut self, field: &str) -> T {
        let value: Option<T> = self.or(field, None);
        value.unwrap_or_else(|| panic!("{}: no `{field}`", self.case))
    }

    fn end(self) {
        let left: Vec<&String> = self.fields.keys().collect();
        assert!(left.is_empty(), "{}: unknown sizes {left:?}", self.case);
    }
}

/// Compares the model of `case`.
pub fn check(case: &Case) -> Table {
    let mut sizes = Sizes {
        case: &case.name,
        fields: case.sizes.clone(),
    };
    macro_rules! run {
        ($config:expr) => {{
            let config = $config;
            sizes.end();
            super::check(case, |device: &Device| config.init(device).unwrap())
        }};
    }
    match case.model.as_str() {
        "cnn" => run!(
            CnnConfig::new()
                .with_channels(sizes.get("channels"))
                .with_height(sizes.get("height"))
                .with_width(sizes.get("width"))
                .with_classes(sizes.get("classes"))
                .with_filters(sizes.get("filters"))
                .with_hidden(sizes.get("hidden"))
                .with_dropout_conv(0.0)
                .with_dropout_hidden(0.0)
        ),
        "csc-cnn" => run!(
            CscCnnConfig::new()
                .with_channels(sizes.get("channels"))
                .with_height(sizes.get("height"))
                .with_width(sizes.get("width"))
                .with_classes(sizes.get("classes"))
                .with_filters(sizes.get("filters"))
        ),
        "wide-resnet" => run!(
            WideResNetConfig::new(sizes.get("depth"), sizes.get("widen"), sizes.get("classes"))
                .with_channels(sizes.or("channels", 3))
                .with_base(sizes.or("base", 16))
        ),
        "plain-wide-resnet" => run!(
            PlainWideResNetConfig::new(sizes.get("classes"))
                .with_widths(sizes.get("widths"))
                .with_channels(sizes.or("channels", 3))
                .with_average_pool(sizes.or("average_pool", None))
                .with_dropout(0.0)
        ),
        "resnet" => run!(
            ResNetConfig::new(
                sizes.get("blocks"),
                sizes.get("bottleneck"),
                sizes.get("classes")
            )
            .with_width(sizes.or("width", 64))
            .with_channels(sizes.or("channels", 3))
            .with_stem(sizes.or("stem", Stem::ImageNet))
        ),
        "vit" => run!(
            VitConfig::new(
                sizes.get("dim"),
                sizes.get("depth"),
                sizes.get("heads"),
                sizes.get("classes")
            )
            .with_mlp_ratio(sizes.or("mlp_ratio", 4))
            .with_channels(sizes.or("channels", 3))
            .with_height(sizes.or("height", 32))
            .with_width(sizes.or("width", 32))
            .with_patch(sizes.or("patch", 4))
            .with_pooling(sizes.or("pooling", Pooling::ClassToken))
        ),
        "convnext" => run!(
            ConvNextConfig::new(
                sizes.get("depths"),
                sizes.get("widths"),
                sizes.get("classes")
            )
            .with_channels(sizes.or("channels", 3))
            .with_patch(sizes.or("patch", 4))
        ),
        other => panic!("{}: unknown model `{other}`; known: {MODELS:?}", case.name),
    }
}

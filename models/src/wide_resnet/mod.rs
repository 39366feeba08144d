//! Wide residual networks: few layers with many channels.

mod plain;
mod pre_activation;

pub use plain::{PlainWideResNet, PlainWideResNetConfig};
pub use pre_activation::{WideResNet, WideResNetConfig};

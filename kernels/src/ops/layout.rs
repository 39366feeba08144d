//! Conversions of images between layouts.

use burn::tensor::Tensor;

use crate::cpu::flex;
use crate::policy::{Engine, Layout, engine};

impl Layout {
    /// Converts \[batch, channels, height, width\] to this layout.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use kernels::ops::Layout;
    ///
    /// let images = Tensor::<4>::ones([1, 3, 4, 5], &Device::flex());
    /// assert_eq!(Layout::ChannelsLast.of_channels_first(images.clone()).dims(), [1, 4, 5, 3]);
    /// assert_eq!(Layout::ChannelsFirst.of_channels_first(images).dims(), [1, 3, 4, 5]);
    /// ```
    pub fn of_channels_first(self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::ChannelsFirst => x,
            Self::ChannelsLast if engine(&x) == Engine::Cpu => flex::channels_last(x),
            Self::ChannelsLast => x.permute([0, 2, 3, 1]),
        }
    }

    /// Converts this layout to \[batch, channels, height, width\].
    pub fn to_channels_first(self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::ChannelsFirst => x,
            Self::ChannelsLast if engine(&x) == Engine::Cpu => flex::channels_first(x),
            Self::ChannelsLast => x.permute([0, 3, 1, 2]),
        }
    }

    /// Converts \[batch, height, width, channels\] to this layout.
    pub fn of_channels_last(self, x: Tensor<4>) -> Tensor<4> {
        self.other().to_channels_first(x)
    }

    /// Converts this layout to \[batch, height, width, channels\].
    pub fn to_channels_last(self, x: Tensor<4>) -> Tensor<4> {
        self.other().of_channels_first(x)
    }

    fn other(self) -> Self {
        match self {
            Self::ChannelsFirst => Self::ChannelsLast,
            Self::ChannelsLast => Self::ChannelsFirst,
        }
    }

    /// Height and width of images.
    pub fn size(self, x: &Tensor<4>) -> [usize; 2] {
        let [_, a, b, c] = x.dims();
        match self {
            Self::ChannelsFirst => [b, c],
            Self::ChannelsLast => [a, b],
        }
    }
}

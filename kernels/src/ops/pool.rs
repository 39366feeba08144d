//! Pooling.

use burn::nn::pool::MaxPool2d;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Tensor, module};

use super::{even, in_f32};
use crate::cpu::flex;
use crate::gpu;
use crate::policy::{Engine, Layout, engine};

/// Window, stride and padding of [`max_pool2d`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Height and width of the window.
    pub window: [usize; 2],
    /// Stride down and to the right.
    pub stride: [usize; 2],
    /// Pixels around the image that never win; at most half a window.
    pub padding: [usize; 2],
    /// Layout of the images and of the result.
    pub layout: Layout,
}

impl PoolOptions {
    /// The options of Burn's layer.
    ///
    /// `None` if it has dilation, partial windows or uneven padding; then Burn must compute it.
    pub fn of(pool: &MaxPool2d, layout: Layout) -> Option<Self> {
        let plain = pool.dilation == [1, 1] && !pool.ceil_mode;
        Some(Self {
            window: pool.kernel_size,
            stride: pool.stride,
            padding: even(&pool.padding).filter(|_| plain)?,
            layout,
        })
    }
}

/// Computes the maximum of each window. Its gradient goes to the first pixel with that value.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kernels::ops::{Layout, PoolOptions, max_pool2d};
///
/// let options = PoolOptions {
///     window: [2, 2],
///     stride: [2, 2],
///     padding: [0, 0],
///     layout: Layout::ChannelsFirst,
/// };
/// let x = Tensor::ones([1, 3, 8, 6], &Device::flex());
/// assert_eq!(max_pool2d(x, options).dims(), [1, 3, 4, 3]);
/// ```
///
/// # Panics
/// Panics if a window does not fit into the images, as Burn's own operations do.
pub fn max_pool2d(x: Tensor<4>, options: PoolOptions) -> Tensor<4> {
    let PoolOptions {
        window,
        stride,
        padding,
        layout,
    } = options;
    let engine = engine(&x);
    if engine == Engine::Cpu {
        let options = flex::PoolOptions {
            kernel: window,
            stride,
            padding,
        };
        return layout.of_channels_last(flex::max_pool2d(layout.to_channels_last(x), options));
    }
    let x = layout.to_channels_first(x);
    let options = gpu::PoolOptions {
        window,
        stride,
        padding,
    };
    let out = match engine {
        Engine::Gpu => gpu::max_pool2d(x.clone(), options),
        _ => None,
    };
    layout.of_channels_first(out.unwrap_or_else(|| {
        let options = MaxPoolOptions::new(window)
            .with_stride(stride)
            .with_padding(padding);
        module::max_pool2d(x, options)
    }))
}

/// Computes the mean over the first `height` rows and `width` columns.
///
/// The result is \[batch, channels\]. Sums are in f32.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kernels::ops::{Layout, mean_of_pixels};
///
/// let x = Tensor::ones([2, 3, 8, 8], &Device::flex());
/// assert_eq!(mean_of_pixels(x, [8, 8], Layout::ChannelsFirst).dims(), [2, 3]);
/// ```
///
/// # Panics
/// Panics if `x` has fewer rows or columns.
pub fn mean_of_pixels(x: Tensor<4>, [height, width]: [usize; 2], layout: Layout) -> Tensor<2> {
    let whole = layout.size(&x) == [height, width];
    let [batch, _, _, _] = x.dims();
    let engine = engine(&x);
    if engine == Engine::Cpu {
        let x = layout.to_channels_last(x);
        let x = match whole {
            true => x,
            false => x.slice([0..batch, 0..height, 0..width]),
        };
        return flex::mean_of_pixels(x);
    }
    let x = layout.to_channels_first(x);
    let [_, channels, _, _] = x.dims();
    let out = match engine {
        Engine::Gpu => gpu::mean_of_pixels(x.clone(), [height, width]),
        _ => None,
    };
    out.unwrap_or_else(|| {
        let x = match whole {
            true => x,
            false => x.slice([0..batch, 0..channels, 0..height, 0..width]),
        };
        in_f32(x, |x| x.mean_dim(3).mean_dim(2)).flatten(1, 3)
    })
}

/// Computes the mean over tokens: \[batch, tokens, features\] to \[batch, features\].
///
/// On a GPU Burn computes it, in f32.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::ones([2, 5, 8], &Device::flex());
/// assert_eq!(kernels::ops::mean_of_tokens(x).dims(), [2, 8]);
/// ```
pub fn mean_of_tokens(x: Tensor<3>) -> Tensor<2> {
    match engine(&x) {
        Engine::Cpu => flex::mean_of_pixels(x.unsqueeze_dim(1)),
        Engine::Gpu | Engine::Burn => in_f32(x, |x| x.mean_dim(1)).squeeze_dim(1),
    }
}

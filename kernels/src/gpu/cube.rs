//! The kernels, written for CubeCL.

mod attention;
mod batch;
mod batch_norm;
mod channels;
mod choices;
mod column_sums;
mod conv;
mod cross_entropy;
mod dropout;
mod embed;
mod flash;
mod flat;
mod gelu;
mod layer_norm;
mod matrix;
mod max_pool;
mod mean;
mod multi_tensor;
mod operation;
mod optimizer;
mod reading;
mod relu;
mod rows;
mod softmax;
mod split;
mod squares;
mod sums;
mod tensor_cores;
#[cfg(all(test, feature = "cuda"))]
mod test_device;
mod tokens;
mod warpgroup;

pub use attention::attention;
pub use batch::StoredImages;
pub use batch_norm::{BatchMoments, batch_norm, batch_norm_train};
pub use choices::{Choices, keep_choices};
pub use conv::{conv2d, linear, multiplies_on};
pub use cross_entropy::cross_entropy;
pub use dropout::dropout;
pub use embed::embed;
pub use flat::{put_parts, take_parts};
pub use gelu::gelu;
pub use layer_norm::layer_norm;
pub use max_pool::max_pool2d;
pub use mean::mean_of_pixels;
pub use optimizer::{AdamStep, SgdStep, adam, blend, sgd, sgd_momentum};
pub use reading::{Reading, start_reading};
pub use relu::{add_relu, relu};
pub use softmax::softmax;
pub use squares::sums_of_squares;

use burn::backend::DispatchDevice;
use burn::tensor::Device;

/// Returns true if `device` is a GPU.
pub fn is_gpu(device: &Device) -> bool {
    matches!(
        device.clone().inner().as_dispatch(),
        DispatchDevice::Cube(_)
    )
}

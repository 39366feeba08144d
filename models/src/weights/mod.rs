//! Weights in the formats of PyTorch: reads and writes state dicts.
//!
//! A PyTorch state dict names its tensors after their modules, as Burn does. This module bridges
//! three differences: linear weights are transposed, normalization layers call their parameters
//! gamma and beta, and some modules have other names, which a [`KeyMap`] translates.
//!
//! ```no_run
//! # use burn::tensor::Device;
//! # use models::{CnnConfig, weights::{self, PyTorchKeys}};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = CnnConfig::new().init(&Device::flex())?;
//! let keys = model.key_map();
//! let model = weights::load(model, "mnist_cnn.pt", &keys)?;
//! weights::save(&model, "mnist_cnn.safetensors", &keys)?;
//! # Ok(())
//! # }
//! ```
//!
//! In Python: `model.load_state_dict(safetensors.torch.load_file("mnist_cnn.safetensors"))`. The
//! ending of the name decides the format: [`Container`].
//!
//! Both directions are strict: one error names all tensors that are missing, unexpected or of
//! another shape. [`Load`] can leave a layer out and resample the position embedding of a vision
//! transformer. PyTorch's batch counter `num_batches_tracked` has no counterpart here; [`batches`]
//! reads it, and [`Batches`] says what to write.

mod container;
mod error;
mod float;
mod key_map;
mod layout;
mod load;
mod place;
mod published;
mod save;
mod source;
mod torch_save;

pub use crate::positions::Positions;
pub use container::Container;
pub use error::{Mismatches, WeightsError};
pub use key_map::KeyMap;
pub use load::{Load, Taken, about, load};
pub use published::PyTorchKeys;
pub use save::{Batches, batches, save, save_from, save_with, state_dict};

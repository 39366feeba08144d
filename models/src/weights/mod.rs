//! Weights that PyTorch can read and that PyTorch wrote.
//!
//! A PyTorch state dict names its tensors after the modules they belong to; so does Burn. Three
//! things differ, and this module bridges them: linear weights are transposed, normalisation
//! layers call their parameters gamma and beta, and some modules have other names, which a
//! [`KeyMap`] translates.
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
//! In Python: `model.load_state_dict(safetensors.torch.load_file("mnist_cnn.safetensors"))`.
//!
//! Both directions are strict: a tensor that is missing, that is too many or that has another shape
//! is an error which names all such tensors, but that [`Load`] may leave a layer out and resample
//! the position embedding of a vision transformer. `num_batches_tracked`, the counter of PyTorch's
//! batch normalisation that has no counterpart here, is read by [`batches`] and written as the
//! caller says ([`Batches`]).

mod error;
mod float;
mod key_map;
mod layout;
mod load;
mod place;
mod published;
mod save;
mod source;

pub use crate::positions::Positions;
pub use error::{Mismatches, WeightsError};
pub use key_map::KeyMap;
pub use load::{Load, Taken, about, load};
pub use published::PyTorchKeys;
pub use save::{Batches, batches, save, save_from, save_with, state_dict};

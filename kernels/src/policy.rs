//! Decides whether the kernels for the CPU, those for GPUs, or Burn compute an operation.
//!
//! | device | type | [`Choice::Auto`] | [`Choice::Exact`] | [`Choice::Burn`] |
//! |---|---|---|---|---|
//! | Burn's CPU backend | f32 | CPU kernels | CPU kernels, direct convolutions | Burn |
//! | | others | Burn | Burn | Burn |
//! | GPU | f32 | GPU kernels | GPU kernels, Burn's convolutions | Burn |
//! | | others | GPU kernels | GPU kernels | Burn |
//! | others | all | Burn | Burn | Burn |
//!
//! A program has the kernels for GPUs if it is built with the feature `wgpu` or `cuda`. Burn
//! computes operations without a kernel for a device or a shape; their documentation says so.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

use burn::tensor::{DType, Device, Tensor};

use crate::KernelError;
use crate::cpu::ConvMethod;
use crate::cpu::flex::shared;
use crate::gpu;

/// The kernels that a user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// These kernels.
    #[default]
    Auto,
    /// Burn's own operations.
    Burn,
    /// These kernels, with convolutions as exact as a matrix product. Slower.
    ///
    /// They are direct instead of Winograd's on a CPU, and Burn's for f32 on GPUs.
    Exact,
}

impl Choice {
    /// All choices.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Burn, Self::Exact];

    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Burn => "burn",
            Self::Exact => "exact",
        }
    }

    /// The method of convolutions.
    pub fn method(self) -> ConvMethod {
        match self {
            Self::Exact => ConvMethod::Direct,
            Self::Auto | Self::Burn => ConvMethod::Auto,
        }
    }
}

/// Index in [`Choice::ALL`].
static CHOICE: AtomicU8 = AtomicU8::new(0);

thread_local! {
    static SCOPED: Cell<Option<Choice>> = const { Cell::new(None) };
}

/// Sets the choice of this process from now on.
pub fn choose(choice: Choice) {
    let index = Choice::ALL.iter().position(|other| *other == choice);
    CHOICE.store(index.unwrap_or_default() as u8, Ordering::Relaxed);
}

/// The choice in force on this thread.
pub fn chosen() -> Choice {
    let process = || Choice::ALL.get(usize::from(CHOICE.load(Ordering::Relaxed)));
    let scoped = SCOPED.get().or_else(|| process().copied());
    scoped.unwrap_or_default()
}

/// Runs `forward` with `choice` on this thread, whatever the process's choice.
///
/// Backward passes follow their forward passes.
pub fn scoped<R>(choice: Choice, forward: impl FnOnce() -> R) -> R {
    // Restored also if `forward` panics, because a caller may catch the panic.
    struct Restore(Option<Choice>);
    impl Drop for Restore {
        fn drop(&mut self) {
            SCOPED.set(self.0);
        }
    }
    let _restore = Restore(SCOPED.replace(Some(choice)));
    forward()
}

/// The implementation of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The kernels for the CPU ([`crate::cpu::flex`]).
    Cpu,
    /// The kernels for GPUs.
    Gpu,
    /// Burn's own operations.
    Burn,
}

/// Position of the channels in images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// \[batch, channels, height, width\], as in Burn and PyTorch.
    #[default]
    ChannelsFirst,
    /// \[batch, height, width, channels\].
    ChannelsLast,
}

/// The engine for an operation on `x`.
pub fn engine<const D: usize>(x: &Tensor<D>) -> Engine {
    let device = x.device();
    if on_cpu(&device) && x.dtype() == DType::F32 {
        Engine::Cpu
    } else if on_gpu(&device) && x.shape().num_elements() > 0 {
        Engine::Gpu
    } else {
        Engine::Burn
    }
}

/// The engine for a convolution of `x`.
///
/// The kernels for GPUs multiply 16 bits of each f32, so Burn computes exact convolutions.
pub fn engine_of_conv(x: &Tensor<4>) -> Engine {
    match engine(x) {
        Engine::Gpu if x.dtype() == DType::F32 && chosen() == Choice::Exact => Engine::Burn,
        engine => engine,
    }
}

/// The fastest layout of a model on `device` for images in `dtype`.
///
/// With channels last, activations are in f32. In bf16 the CPU kernels then round only the factors
/// of products ([`LinearOptions::bf16`](crate::ops::LinearOptions)).
pub fn layout(device: &Device, dtype: DType) -> Layout {
    match on_cpu(device) && matches!(dtype, DType::F32 | DType::BF16) {
        true => Layout::ChannelsLast,
        false => Layout::ChannelsFirst,
    }
}

/// Whether the GPU kernels are used on `device`: a GPU, unless [`Choice::Burn`] was chosen.
pub fn on_gpu(device: &Device) -> bool {
    chosen() != Choice::Burn && gpu::is_gpu(device)
}

/// Whether the CPU kernels are used on `device`: Burn's CPU backend, unless [`Choice::Burn`] was
/// chosen or this machine lacks the requested instruction set.
fn on_cpu(device: &Device) -> bool {
    chosen() != Choice::Burn && device.clone().inner() == Device::flex() && shared().is_ok()
}

/// Describes the kernels of models on `device` in words.
///
/// # Errors
/// As [`Kernels::new`](crate::cpu::Kernels::new), if the kernels are wanted.
pub fn describe(device: &Device) -> Result<String, KernelError> {
    if on_gpu(device) {
        let own = "burn, own normalizations, softmax and optimizers";
        let products = match gpu::multiplies_on(device) {
            true => ", convolutions and linear layers",
            false => "",
        };
        return Ok(format!("{own}{products}"));
    }
    if chosen() == Choice::Burn || device.clone().inner() != Device::flex() {
        return Ok("burn".to_owned());
    }
    let kernels = shared()?;
    let exact = if chosen() == Choice::Exact {
        ", exact"
    } else {
        ""
    };
    Ok(format!("own, {}{exact}", kernels.isa().name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_goes_before_the_process_and_ends() {
        let before = chosen();
        let x = Tensor::<1>::zeros([1], &Device::flex().autodiff());
        scoped(Choice::Exact, || {
            assert_eq!(chosen(), Choice::Exact);
            scoped(Choice::Burn, || {
                assert_eq!(engine(&x), Engine::Burn);
                assert_eq!(describe(&Device::flex()).as_deref(), Ok("burn"));
            });
            assert_eq!(engine(&x), Engine::Cpu);
            assert_eq!(engine(&x.clone().cast(DType::F16)), Engine::Burn);
            assert!(describe(&Device::flex()).unwrap().ends_with("exact"));
        });
        assert_eq!(chosen(), before);
    }
}

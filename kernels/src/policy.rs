//! Whether models compute with these kernels or with Burn's own operations.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

use burn::tensor::Device;

use crate::KernelError;
use crate::cpu::ConvMethod;
use crate::cpu::flex::shared;

/// What models compute with. Away from the CPU most operations are Burn's own in any case, but for
/// normalizations and softmax on GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// These kernels.
    #[default]
    Auto,
    /// Burn's own operations.
    Burn,
    /// These kernels, with direct convolutions in place of Winograd's: slower, with rounding errors
    /// as small as those of a matrix product.
    Exact,
}

impl Choice {
    const ALL: [Self; 3] = [Self::Auto, Self::Burn, Self::Exact];

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Burn => "burn",
            Self::Exact => "exact",
        }
    }

    /// How convolutions are computed.
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

/// Sets what the models of this process compute with from now on.
pub fn choose(choice: Choice) {
    let index = Choice::ALL.iter().position(|other| *other == choice);
    CHOICE.store(index.unwrap_or_default() as u8, Ordering::Relaxed);
}

/// What models compute with on this thread.
pub fn chosen() -> Choice {
    let process = || Choice::ALL.get(usize::from(CHOICE.load(Ordering::Relaxed)));
    let scoped = SCOPED.get().or_else(|| process().copied());
    scoped.unwrap_or_default()
}

/// Runs `forward` so that models use `choice` on this thread, whatever the process uses. Backward
/// passes follow the forward passes that they belong to.
pub fn scoped<R>(choice: Choice, forward: impl FnOnce() -> R) -> R {
    // Also when `forward` panics, which a caller may catch.
    struct Restore(Option<Choice>);
    impl Drop for Restore {
        fn drop(&mut self) {
            SCOPED.set(self.0);
        }
    }
    let _restore = Restore(SCOPED.replace(Some(choice)));
    forward()
}

/// How a model on `device` uses these kernels, if it does: on Burn's CPU backend, unless
/// [`Choice::Burn`] was chosen or the kernels cannot be had ([`shared`]).
pub fn chosen_for(device: &Device) -> Option<Choice> {
    let choice = chosen();
    let wanted = choice != Choice::Burn && device.clone().inner() == Device::flex();
    (wanted && shared().is_ok()).then_some(choice)
}

/// In words what models on `device` compute with.
///
/// # Errors
/// As [`Kernels::new`](crate::cpu::Kernels::new), where the kernels are wanted.
pub fn describe(device: &Device) -> Result<String, KernelError> {
    #[cfg(feature = "gpu")]
    if crate::gpu::computes_on(device) {
        let own = "burn, own normalizations, softmax and optimizers";
        let products = match crate::gpu::multiplies_on(device) {
            true => ", convolutions and linear layers",
            false => "",
        };
        return Ok(format!("{own}{products}"));
    }
    if chosen() == Choice::Burn || device.clone().inner() != Device::flex() {
        return Ok("burn".to_owned());
    }
    let kernels = shared()?;
    let bf16 = if kernels.has_bf16() { " with bf16" } else { "" };
    let exact = if chosen() == Choice::Exact {
        ", exact"
    } else {
        ""
    };
    Ok(format!("own, {}{bf16}{exact}", kernels.isa().name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_goes_before_the_process_and_ends() {
        let before = chosen();
        scoped(Choice::Exact, || {
            assert_eq!(chosen(), Choice::Exact);
            scoped(Choice::Burn, || {
                assert_eq!(chosen_for(&Device::flex()), None);
                assert_eq!(describe(&Device::flex()).as_deref(), Ok("burn"));
            });
            assert_eq!(chosen_for(&Device::flex().autodiff()), Some(Choice::Exact));
            assert!(describe(&Device::flex()).unwrap().ends_with("exact"));
        });
        assert_eq!(chosen(), before);
    }
}

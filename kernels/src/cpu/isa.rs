//! Which instruction set is used: the best of this CPU, or the one a switch asks for.

use crate::error::KernelError;

/// The environment variable that forces an instruction set.
pub const ISA_VARIABLE: &str = "BURN_DIST_KERNELS_ISA";

/// An instruction set that the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// AVX-512 (F, BW, DQ, VL): sixteen lanes.
    Avx512,
    /// AVX2 and FMA: eight lanes.
    Avx2,
    /// NEON: four lanes.
    Neon,
    /// Plain Rust, four lanes.
    Portable,
}

impl Isa {
    /// All instruction sets, the best first.
    pub const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// Returns its name in messages and in [`ISA_VARIABLE`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }

    /// Whether this CPU has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Neon => cfg!(target_arch = "aarch64") && !cfg!(miri),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx512 => {
                // FMA and AVX2 too, because the kernels for AVX-512 are compiled with them.
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && Self::Avx2.is_available()
            }
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            Self::Avx512 | Self::Avx2 => false,
        }
    }

    /// The instruction sets of this CPU, the best first.
    pub fn available() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|isa| isa.is_available())
            .collect()
    }

    /// The best instruction set of this CPU.
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .find(|isa| isa.is_available())
            .unwrap_or(Self::Portable)
    }

    /// The instruction set that [`ISA_VARIABLE`] names, or else the best.
    ///
    /// # Errors
    ///
    /// The variable holds no name of an instruction set, or one that this CPU lacks.
    pub fn from_env() -> Result<Self, KernelError> {
        match std::env::var_os(ISA_VARIABLE) {
            None => Ok(Self::best()),
            Some(value) => Self::parse(&value.to_string_lossy()),
        }
    }

    fn parse(value: &str) -> Result<Self, KernelError> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.name() == value)
            .ok_or_else(|| KernelError::IsaName {
                variable: ISA_VARIABLE,
                value: value.to_owned(),
            })?
            .checked()
            .map_err(|error| error.of_variable(ISA_VARIABLE))
    }

    /// Itself where this CPU has it.
    pub(crate) fn checked(self) -> Result<Self, KernelError> {
        if self.is_available() {
            return Ok(self);
        }
        let names: Vec<_> = Self::available().into_iter().map(Self::name).collect();
        Err(KernelError::IsaMissing {
            isa: self.name(),
            available: names.join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_sets() {
        for isa in Isa::available() {
            assert_eq!(Isa::parse(isa.name()), Ok(isa));
        }
        let error = Isa::parse("sse9").unwrap_err().to_string();
        assert!(error.contains("sse9") && error.contains("avx2"), "{error}");
    }

    #[test]
    fn a_missing_set_is_an_error_that_names_the_others() {
        let missing = Isa::ALL.into_iter().find(|isa| !isa.is_available());
        let missing = missing.expect("no processor has both AVX and NEON");
        let error = missing.checked().unwrap_err().to_string();
        assert!(error.contains("portable"), "{error}");
    }
}

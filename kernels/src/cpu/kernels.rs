//! The handle through which all kernels are called.

use crate::cpu::bf16::{BF16_VARIABLE, Bf16Path, Chosen};
use crate::cpu::isa::Isa;
use crate::cpu::table::{Table, table};
use crate::cpu::workspace::Workspace;
use crate::error::KernelError;

/// The kernels of one instruction set, with reusable scratch memory.
///
/// One value serves all threads. Its scratch memory grows to the needs of the largest calls and
/// stays until the value is dropped.
pub struct Kernels {
    pub(crate) table: &'static Table,
    pub(crate) workspace: Workspace,
    pub(crate) bf16: Chosen,
}

impl Kernels {
    /// Creates the kernels of this CPU's best instruction set.
    ///
    /// The variable [`crate::cpu::ISA_VARIABLE`] selects another one, and
    /// [`crate::cpu::BF16_VARIABLE`] the path of bf16 products.
    ///
    /// # Errors
    ///
    /// Fails if a variable names an unknown instruction set or path, or one that this CPU lacks.
    pub fn new() -> Result<Self, KernelError> {
        let kernels = Self::with_isa(Isa::from_env()?)?;
        if let Some(path) = Bf16Path::from_env()? {
            kernels
                .set_bf16_path(path)
                .map_err(|error| error.of_variable(BF16_VARIABLE))?;
        }
        Ok(kernels)
    }

    /// The kernels of the instruction set `isa`.
    ///
    /// # Errors
    ///
    /// This CPU lacks it.
    pub fn with_isa(isa: Isa) -> Result<Self, KernelError> {
        Ok(Self {
            table: table(isa.checked()?),
            workspace: Workspace::default(),
            bf16: Chosen::default(),
        })
    }

    /// Returns the instruction set in use.
    pub fn isa(&self) -> Isa {
        self.table.isa
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Kernels")
            .field("isa", &self.isa())
            .finish_non_exhaustive()
    }
}

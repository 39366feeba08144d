//! The handle through which all kernels are called.

use crate::cpu::isa::Isa;
use crate::cpu::table::{Table, table};
use crate::cpu::workspace::Workspace;
use crate::error::KernelError;

/// The kernels of one instruction set, with scratch memory that they reuse.
///
/// One value serves all threads. Its scratch memory grows to what the largest calls need and stays
/// until the value is dropped.
pub struct Kernels {
    pub(crate) table: &'static Table,
    pub(crate) workspace: Workspace,
}

impl Kernels {
    /// The kernels of the best instruction set of this processor, or of the one that the variable
    /// [`crate::cpu::ISA_VARIABLE`] names.
    ///
    /// # Errors
    ///
    /// The variable holds no name of an instruction set, or one that this processor lacks.
    pub fn new() -> Result<Self, KernelError> {
        Self::with_isa(Isa::from_env()?)
    }

    /// The kernels of the instruction set `isa`.
    ///
    /// # Errors
    ///
    /// This processor lacks it.
    pub fn with_isa(isa: Isa) -> Result<Self, KernelError> {
        Ok(Self {
            table: table(isa.checked()?),
            workspace: Workspace::default(),
        })
    }

    /// The instruction set in use.
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

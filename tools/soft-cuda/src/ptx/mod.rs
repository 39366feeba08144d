//! Parses a PTX module: its variables, its kernels, and their instructions, whose operands become
//! register numbers. Everything that an instruction reads is a register: constants, addresses of
//! symbols and special registers are registers that are filled before a block starts.
//!
//! The language is that of the PTX ISA, <https://docs.nvidia.com/cuda/parallel-thread-execution/>;
//! comments name its sections.

mod declaration;
mod function;
mod instruction;
mod module;
mod names;
mod special;
#[cfg(test)]
mod tests;
mod text;
mod types;

pub use declaration::{Space, Variable};
pub use function::{Function, Parameter, ThreadLimit};
pub use instruction::{Guard, Instruction, Operand, SINK};
pub use module::Module;
pub use names::Fill;
pub use special::{Axis, Special};
pub use types::Type;

/// Error in the text of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(pub String);

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

fn invalid<T>(what: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid(what.into()))
}

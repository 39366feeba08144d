//! A kernel with translated instructions.

use super::counts::Unit;
use super::operation::Operation;
use crate::ptx::{Fill, Function, Guard, Instruction, Invalid, Parameter, ThreadLimit};

/// A kernel that can be launched.
pub struct Kernel {
    /// Its name for `cuModuleGetFunction`.
    pub name: String,
    /// Places of the arguments.
    pub parameters: Vec<Parameter>,
    /// Total bytes of the parameters.
    pub parameter_bytes: usize,
    /// Limits on the threads of a block.
    pub threads: ThreadLimit,
    /// Bytes of static shared memory.
    pub shared: usize,
    /// Start of the dynamic shared memory.
    pub(super) dynamic_shared: usize,
    /// Bytes of local memory of a lane.
    pub local: usize,
    pub(super) registers: usize,
    pub(super) fills: Vec<(usize, Fill)>,
    pub(super) code: Vec<Translated>,
}

/// An executable instruction.
pub(super) struct Translated {
    pub guard: Option<Guard>,
    pub operation: Operation,
    pub unit: Unit,
    pub text: String,
}

impl Kernel {
    /// Translates a function.
    ///
    /// # Errors
    ///
    /// Fails for an unknown instruction.
    pub fn new(function: Function) -> Result<Self, Invalid> {
        let name = function.name;
        let code = function.code.into_iter();
        let code =
            code.map(|i| translated(i).map_err(|e| Invalid(format!("kernel `{name}`: {e}"))));
        Ok(Self {
            code: code.collect::<Result<_, _>>()?,
            name,
            parameters: function.parameters,
            parameter_bytes: function.parameter_bytes,
            threads: function.threads,
            shared: function.shared,
            dynamic_shared: function.dynamic_shared,
            local: function.local,
            registers: function.registers,
            fills: function.fills,
        })
    }
}

fn translated(instruction: Instruction) -> Result<Translated, Invalid> {
    let operation = Operation::of(&instruction);
    Ok(Translated {
        unit: Unit::of(&instruction),
        operation: operation.map_err(|e| Invalid(format!("{e}, `{}`", instruction.text)))?,
        guard: instruction.guard,
        text: instruction.text,
    })
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kernel `{}`", self.name)
    }
}

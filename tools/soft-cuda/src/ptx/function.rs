//! A kernel: parameters, registers, memory and instructions.

use std::collections::HashMap;

use super::names::Names;
use super::text::{Statement, is_name, split, statements};
use super::{Fill, Instruction, Invalid, Space, Variable, invalid};

/// Place of an argument in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Offset from the first one in bytes.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// Limit on the threads of a block (PTX ISA, "Performance-Tuning Directives").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadLimit {
    /// The device's limit.
    None,
    /// `.maxntid`: at most this many.
    AtMost(u64),
    /// `.reqntid`: exactly these.
    Exactly([u64; 3]),
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name for `cuModuleGetFunction`.
    pub name: String,
    /// In the order of the arguments.
    pub parameters: Vec<Parameter>,
    /// Bytes of all parameters.
    pub parameter_bytes: usize,
    /// Limit on the threads of a block.
    pub threads: ThreadLimit,
    /// Its instructions.
    pub code: Vec<Instruction>,
    /// Registers of a lane.
    pub registers: usize,
    /// Registers that are filled before a block starts.
    pub fills: Vec<(usize, Fill)>,
    /// Bytes of static shared memory.
    pub shared: usize,
    /// Start of the dynamic shared memory.
    pub dynamic_shared: usize,
    /// Bytes of local memory of a lane.
    pub local: usize,
}

/// The module's declarations before its functions.
#[derive(Clone, Debug, Default)]
pub(super) struct Surroundings {
    pub symbols: HashMap<String, Fill>,
    /// Bytes of shared memory.
    pub shared: usize,
}

/// "Kernel parameters" of the CUDA programming guide, from driver 12.1 on.
const MOST_PARAMETER_BYTES: usize = 32_764;
/// "Technical specifications per compute capability" of the same guide.
const MOST_LOCAL_BYTES: usize = 512 << 10;
const MOST_SHARED_BYTES: usize = 227 << 10;

/// Shared memory is laid out in pieces of this size, so that no kernel is misaligned because of an
/// earlier variable.
const SHARED_ALIGN: usize = 128;
const LOCAL_ALIGN: usize = 16;
/// Alignment of dynamic shared memory that TMA and swizzled layouts need.
const DYNAMIC_ALIGN: usize = 1024;

impl Function {
    /// Parses the text before its body, and the body without its brackets.
    pub(super) fn parse(
        head: &str,
        body: &str,
        surroundings: &Surroundings,
    ) -> Result<Self, Invalid> {
        let after = head.split(".entry").nth(1).unwrap_or("");
        let (name, after) = after.split_once('(').unwrap_or((after, ")"));
        let Some((list, directives)) = after.split_once(')') else {
            return invalid("parameters without an end");
        };
        // Without parameters, directives follow the name.
        let mut words = name.split_whitespace();
        let name = words.next().unwrap_or("").to_owned();
        if !is_name(&name) {
            return invalid(format!("name of a kernel `{name}`"));
        }
        let directives = words.chain(directives.split_whitespace());
        let directives = directives.collect::<Vec<_>>().join(" ");
        let mut builder = Builder::new(surroundings);
        for parameter in split(list) {
            builder.parameter(parameter)?;
        }
        let list = statements(body);
        builder.label(&list)?;
        for statement in &list {
            builder.statement(statement)?;
        }
        builder.finish(name, thread_limit(&directives)?)
    }
}

fn thread_limit(directives: &str) -> Result<ThreadLimit, Invalid> {
    let mut required = None;
    let mut most = None;
    for directive in directives.split('.') {
        let (word, numbers) = directive.split_once(' ').unwrap_or((directive, ""));
        if !matches!(word, "maxntid" | "reqntid") {
            continue;
        }
        let numbers: Result<Vec<u64>, _> = split(numbers).iter().map(|n| n.parse()).collect();
        let mut each = [1; 3];
        match numbers {
            Ok(n) if (1..=3).contains(&n.len()) => each[..n.len()].copy_from_slice(&n),
            _ => return invalid(format!("directive `{}`", directive.trim())),
        }
        if word == "reqntid" {
            required = Some(each);
        } else {
            most = Some(each.iter().fold(1u64, |all, n| all.saturating_mul(*n)));
        }
    }
    Ok(match (required, most) {
        (Some(each), _) => ThreadLimit::Exactly(each),
        (None, Some(most)) => ThreadLimit::AtMost(most),
        (None, None) => ThreadLimit::None,
    })
}

struct Builder {
    names: Names,
    parameters: Vec<Parameter>,
    parameter_bytes: usize,
    shared: usize,
    local: usize,
    code: Vec<Instruction>,
}

impl Builder {
    fn new(surroundings: &Surroundings) -> Self {
        Self {
            names: Names::new(surroundings.symbols.clone()),
            parameters: Vec::new(),
            parameter_bytes: 0,
            shared: surroundings.shared,
            local: 0,
            code: Vec::new(),
        }
    }

    fn parameter(&mut self, text: &str) -> Result<(), Invalid> {
        let variable = Variable::parse(text)?;
        let offset = self.parameter_bytes.next_multiple_of(variable.align);
        self.parameter_bytes = offset + variable.size;
        if variable.space != Space::Param || self.parameter_bytes > MOST_PARAMETER_BYTES {
            return invalid(format!("parameter `{text}`"));
        }
        self.names.symbol(variable.name, Fill::Parameter(offset));
        self.parameters.push(Parameter {
            offset,
            size: variable.size,
        });
        Ok(())
    }

    /// Labels are numbered before anything else, because branches also go forwards.
    fn label(&mut self, list: &[Statement]) -> Result<(), Invalid> {
        let mut next = 0;
        for statement in list {
            match statement {
                Statement::Label(name) => {
                    let before = self.names.labels.insert(name.clone(), next);
                    unique(name, before)?;
                }
                Statement::Text(text) if !text.starts_with('.') => next += 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn statement(&mut self, statement: &Statement) -> Result<(), Invalid> {
        match statement {
            Statement::Label(_) => {}
            Statement::Open => self.names.open(),
            Statement::Close => self.names.close()?,
            Statement::Text(text) if text.starts_with(".reg") => self.names.declare(text)?,
            Statement::Text(text) if text.starts_with('.') => self.variable(text)?,
            Statement::Text(text) => {
                let instruction = Instruction::parse(text, &mut self.names);
                let of = |e| Invalid(format!("{e} in `{text}`"));
                self.code.push(instruction.map_err(of)?);
            }
        }
        Ok(())
    }

    fn variable(&mut self, text: &str) -> Result<(), Invalid> {
        let variable = Variable::parse(text)?;
        let fill = match variable.space {
            Space::Local => {
                let at = self.local.next_multiple_of(variable.align.max(LOCAL_ALIGN));
                self.local = at + variable.size;
                Fill::Local(at)
            }
            Space::Shared => place_shared(&mut self.shared, &variable),
            _ => return invalid(format!("declaration `{text}`")),
        };
        if self.local > MOST_LOCAL_BYTES {
            return invalid("too much local memory");
        }
        self.names.symbol(variable.name, fill);
        Ok(())
    }

    fn finish(self, name: String, threads: ThreadLimit) -> Result<Function, Invalid> {
        if self.shared > MOST_SHARED_BYTES {
            return invalid("too much shared memory");
        }
        Ok(Function {
            name,
            parameters: self.parameters,
            parameter_bytes: self.parameter_bytes,
            threads,
            code: self.code,
            registers: self.names.registers,
            fills: self.names.fills,
            shared: self.shared,
            dynamic_shared: self.shared.next_multiple_of(DYNAMIC_ALIGN),
            local: self.local.next_multiple_of(LOCAL_ALIGN),
        })
    }
}

fn unique(label: &str, before: Option<usize>) -> Result<(), Invalid> {
    match before {
        Some(_) => invalid(format!("label `{label}` stands twice")),
        None => Ok(()),
    }
}

/// Returns the next place in shared memory.
pub(super) fn place_shared(used: &mut usize, variable: &Variable) -> Fill {
    if variable.external {
        return Fill::DynamicShared;
    }
    let at = used.next_multiple_of(variable.align.max(SHARED_ALIGN));
    *used = at.saturating_add(variable.size);
    Fill::Shared(at)
}

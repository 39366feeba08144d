//! An instruction in the form of its text.

use super::names::Names;
use super::text::{number, split};
use super::{Invalid, Space, Type, invalid};

/// The register for unused results: `_` (PTX ISA, "Operands").
pub const SINK: usize = 0;

/// `@%p` or `@!%p`: the lanes that execute an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Register of the predicate.
    pub register: usize,
    /// True if it must be false.
    pub negated: bool,
}

/// An operand of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register that the program declares, or [`SINK`].
    Register(usize),
    /// A register that is filled before a block starts.
    Value(usize),
    /// `{a, b}` or `a|b`
    Vector(Vec<Operand>),
    /// `[register + offset]`
    Address(usize, i64),
    /// The number of the instruction after a label.
    Target(usize),
}

/// An instruction whose operands have numbers.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// The lanes that execute it; all if `None`.
    pub guard: Option<Guard>,
    /// The first word.
    pub name: String,
    /// Its other words, except types.
    pub modifiers: Vec<String>,
    /// Its types in order.
    pub types: Vec<Type>,
    /// Its operands.
    pub operands: Vec<Operand>,
    /// Its whole text.
    pub text: String,
}

impl Instruction {
    pub(super) fn parse(text: &str, names: &mut Names) -> Result<Self, Invalid> {
        let mut rest = text;
        let mut guard = None;
        if let Some(after) = text.strip_prefix('@') {
            let Some((predicate, after)) = after.split_once(char::is_whitespace) else {
                return invalid("a guard without an instruction");
            };
            guard = Some(guard_of(predicate, names)?);
            rest = after.trim();
        }
        let (words, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let mut words = words.split('.');
        let name = words.next().unwrap_or("").to_owned();
        let (mut modifiers, mut types) = (Vec::new(), Vec::new());
        for word in words {
            match Type::of(word) {
                Some(of) => types.push(of),
                None => modifiers.push(word.to_owned()),
            }
        }
        // A wide product has wider numbers than the type.
        let wide = modifiers.iter().any(|word| word == "wide");
        let expected = types.last().copied().filter(|_| !wide);
        let operands = split(operands).into_iter();
        let operands = operands.map(|text| Operand::parse(text, expected, names));
        Ok(Self {
            guard,
            name,
            modifiers,
            types,
            operands: operands.collect::<Result<_, _>>()?,
            text: text.to_owned(),
        })
    }

    /// Returns true if one of its words is this.
    pub fn has(&self, word: &str) -> bool {
        self.modifiers.iter().any(|modifier| modifier == word)
    }

    /// Returns the first of its words that is one of these.
    pub fn find<'w>(&self, words: &[&'w str]) -> Option<&'w str> {
        let given = |word: &str| words.iter().copied().find(|w| *w == word);
        self.modifiers.iter().find_map(|word| given(word))
    }

    /// Refuses other words than these, because each may change the instruction's effect.
    pub fn only(&self, words: &[&str]) -> Result<(), Invalid> {
        match self.modifiers.iter().find(|m| !words.contains(&m.as_str())) {
            Some(_) => self.unknown(),
            None => Ok(()),
        }
    }

    /// Returns the error for an instruction that is not implemented.
    pub fn unknown<T>(&self) -> Result<T, Invalid> {
        invalid("unknown instruction")
    }

    /// Returns the first of its types.
    pub fn kind(&self) -> Result<Type, Invalid> {
        match self.types.first() {
            Some(&kind) => Ok(kind),
            None => invalid("no type"),
        }
    }

    /// Returns its space.
    pub fn space(&self) -> Space {
        let named = self.modifiers.iter().find_map(|word| Space::of(word));
        named.unwrap_or(Space::Generic)
    }

    /// Checks the number of operands, for instructions with few forms.
    pub fn takes(&self, counts: &[usize]) -> Result<(), Invalid> {
        if counts.contains(&self.operands.len()) {
            return Ok(());
        }
        invalid(format!("{} operands", self.operands.len()))
    }

    /// Returns the register that this operand is written to.
    pub fn destination(&self, operand: usize) -> Result<usize, Invalid> {
        match self.operands.get(operand) {
            Some(operand) => operand.destination(),
            None => invalid(format!("no operand {operand}")),
        }
    }

    /// Returns the register that this operand is read from.
    pub fn source(&self, operand: usize) -> Result<usize, Invalid> {
        match self.operands.get(operand) {
            Some(operand) => operand.source(),
            None => invalid(format!("no operand {operand}")),
        }
    }

    /// Returns register and offset of this operand.
    pub fn address(&self, operand: usize) -> Result<(usize, i64), Invalid> {
        match self.operands.get(operand) {
            Some(&Operand::Address(register, offset)) => Ok((register, offset)),
            _ => invalid(format!("operand {operand} is no address")),
        }
    }

    /// Returns the registers that this operand is written to, a vector or one.
    pub fn destinations(&self, operand: usize) -> Result<Vec<usize>, Invalid> {
        match self.operands.get(operand) {
            Some(Operand::Vector(all)) => all.iter().map(Operand::destination).collect(),
            _ => Ok(vec![self.destination(operand)?]),
        }
    }

    /// Returns the registers that this operand is read from, a vector or one.
    pub fn sources(&self, operand: usize) -> Result<Vec<usize>, Invalid> {
        match self.operands.get(operand) {
            Some(Operand::Vector(all)) => all.iter().map(Operand::source).collect(),
            _ => Ok(vec![self.source(operand)?]),
        }
    }

    /// Returns the two registers to write of `d|p`, whose second part is optional.
    pub fn pair(&self, operand: usize) -> Result<[usize; 2], Invalid> {
        match *self.destinations(operand)?.as_slice() {
            [first] => Ok([first, SINK]),
            [first, second] => Ok([first, second]),
            _ => invalid(format!("operand {operand}")),
        }
    }

    /// Returns true if this operand is a vector.
    pub fn is_vector(&self, operand: usize) -> bool {
        matches!(self.operands.get(operand), Some(Operand::Vector(_)))
    }
}

fn guard_of(predicate: &str, names: &mut Names) -> Result<Guard, Invalid> {
    let plain = predicate.strip_prefix('!');
    let name = plain.unwrap_or(predicate);
    match names.register(name) {
        Some(register) => Ok(Guard {
            register,
            negated: plain.is_some(),
        }),
        None => invalid(format!("unknown name `{name}`")),
    }
}

impl Operand {
    fn parse(text: &str, expected: Option<Type>, names: &mut Names) -> Result<Self, Invalid> {
        if let Some(inside) = text.strip_prefix('{') {
            let Some(inside) = inside.strip_suffix('}') else {
                return invalid(format!("operand `{text}`"));
            };
            let each = split(inside).into_iter();
            let each = each.map(|text| Self::single(text, expected, names));
            return Ok(Self::Vector(each.collect::<Result<_, _>>()?));
        }
        if let Some(inside) = text.strip_prefix('[') {
            return Self::memory(inside, names);
        }
        if let Some(&target) = names.labels.get(text) {
            return Ok(Self::Target(target));
        }
        if let Some((first, second)) = text.split_once('|') {
            let first = Self::single(first.trim(), None, names)?;
            let second = Self::single(second.trim(), None, names)?;
            return Ok(Self::Vector(vec![first, second]));
        }
        Self::single(text, expected, names)
    }

    fn single(text: &str, expected: Option<Type>, names: &mut Names) -> Result<Self, Invalid> {
        if text == "_" {
            return Ok(Self::Register(SINK));
        }
        if let Some(register) = names.register(text) {
            return Ok(Self::Register(register));
        }
        Ok(Self::Value(names.value(text, expected)?))
    }

    /// Parses the text after `[`.
    fn memory(text: &str, names: &mut Names) -> Result<Self, Invalid> {
        let bad = || Invalid(format!("address `[{text}`"));
        let inside = text.strip_suffix(']').ok_or_else(bad)?.trim();
        let (base, offset) = match inside.find(['+', '-']).filter(|&at| at > 0) {
            Some(at) => inside.split_at(at),
            None => (inside, "0"),
        };
        let offset = number(offset.trim_start_matches('+'), None).ok_or_else(bad)?;
        let base = base.trim();
        let register = match names.register(base) {
            Some(register) => register,
            None => names.value(base, None)?,
        };
        Ok(Self::Address(register, offset.cast_signed()))
    }

    fn source(&self) -> Result<usize, Invalid> {
        match *self {
            Self::Register(register) if register != SINK => Ok(register),
            Self::Value(register) => Ok(register),
            _ => invalid("an operand that cannot be read"),
        }
    }

    fn destination(&self) -> Result<usize, Invalid> {
        match *self {
            Self::Register(register) => Ok(register),
            _ => invalid("an operand that cannot be written"),
        }
    }
}

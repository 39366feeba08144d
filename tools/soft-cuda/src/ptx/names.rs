//! Meaning of the names within a function: registers, in scopes; labels; and values that fill a
//! register before a block starts.

use std::collections::HashMap;

use super::instruction::SINK;
use super::text::{is_name, number, split};
use super::{Invalid, Special, Type, invalid};

/// Value of a register that no instruction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// These bits.
    Constant(u64),
    /// The address of the parameter at this offset.
    Parameter(usize),
    /// This offset in shared memory.
    Shared(usize),
    /// The offset of the dynamic shared memory.
    DynamicShared,
    /// The address of this offset in the lane's local memory.
    Local(usize),
    /// The address of the module's variable of this number.
    Global(usize),
    /// The value of a special register.
    Special(Special),
}

#[derive(Default)]
struct Scope {
    registers: HashMap<String, usize>,
    /// `%r<10>`: ten registers, which get numbers on their first use.
    families: Vec<(String, u64)>,
}

/// The names of a function.
pub(super) struct Names {
    scopes: Vec<Scope>,
    symbols: HashMap<String, Fill>,
    pub labels: HashMap<String, usize>,
    filled: HashMap<Key, usize>,
    pub fills: Vec<(usize, Fill)>,
    /// Number of registers.
    pub registers: usize,
}

/// Equal fills share a register.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Constant(u64),
    Named(String),
}

impl Names {
    pub fn new(symbols: HashMap<String, Fill>) -> Self {
        Self {
            scopes: vec![Scope::default()],
            symbols,
            labels: HashMap::new(),
            filled: HashMap::new(),
            fills: Vec::new(),
            registers: SINK + 1,
        }
    }

    pub fn open(&mut self) {
        self.scopes.push(Scope::default());
    }

    pub fn close(&mut self) -> Result<(), Invalid> {
        if self.scopes.len() == 1 {
            return invalid("a bracket too many");
        }
        self.scopes.pop();
        Ok(())
    }

    /// `.reg .b32 %r<10>, x`
    pub fn declare(&mut self, statement: &str) -> Result<(), Invalid> {
        let bad = || Invalid(format!("declaration `{statement}`"));
        let mut rest = statement.strip_prefix(".reg").ok_or_else(bad)?.trim();
        while let Some(word) = rest.strip_prefix('.') {
            rest = word
                .split_once(char::is_whitespace)
                .ok_or_else(bad)?
                .1
                .trim();
        }
        for name in split(rest) {
            let scope = self.scopes.last_mut().ok_or_else(bad)?;
            let family = name.split_once('<').map(|(name, n)| (name.trim(), n));
            if !is_name(family.map_or(name, |family| family.0)) {
                return Err(bad());
            }
            if let Some((prefix, n)) = family {
                let n = n.strip_suffix('>').and_then(|n| number(n, None));
                scope.families.push((prefix.to_owned(), n.ok_or_else(bad)?));
            } else {
                scope.registers.insert(name.to_owned(), self.registers);
                self.registers += 1;
            }
        }
        Ok(())
    }

    pub fn symbol(&mut self, name: String, fill: Fill) {
        self.symbols.insert(name, fill);
    }

    /// Returns the declared register of this name.
    pub fn register(&mut self, name: &str) -> Option<usize> {
        for scope in self.scopes.iter_mut().rev() {
            if let Some(&register) = scope.registers.get(name) {
                return Some(register);
            }
            if scope.families.iter().any(|family| belongs(name, family)) {
                scope.registers.insert(name.to_owned(), self.registers);
                self.registers += 1;
                return Some(self.registers - 1);
            }
        }
        None
    }

    /// Returns the register that holds a symbol's address, a special register or a constant.
    pub fn value(&mut self, text: &str, expected: Option<Type>) -> Result<usize, Invalid> {
        if let Some(&fill) = self.symbols.get(text) {
            return Ok(self.fill(Key::Named(text.to_owned()), fill));
        }
        if let Some(special) = Special::of(text) {
            return Ok(self.fill(Key::Named(text.to_owned()), Fill::Special(special)));
        }
        let Some(bits) = number(text, expected) else {
            return invalid(format!("unknown name `{text}`"));
        };
        let bits = match expected.map(Type::size) {
            Some(4) => bits & 0xffff_ffff,
            Some(2) => bits & 0xffff,
            _ => bits,
        };
        Ok(self.fill(Key::Constant(bits), Fill::Constant(bits)))
    }

    fn fill(&mut self, key: Key, fill: Fill) -> usize {
        *self.filled.entry(key).or_insert_with(|| {
            self.fills.push((self.registers, fill));
            self.registers += 1;
            self.registers - 1
        })
    }
}

fn belongs(name: &str, (prefix, n): &(String, u64)) -> bool {
    let index = name.strip_prefix(prefix.as_str());
    let index = index.filter(|index| index.starts_with(|c: char| c.is_ascii_digit()));
    index.is_some_and(|index| index.parse::<u64>().is_ok_and(|index| index < *n))
}

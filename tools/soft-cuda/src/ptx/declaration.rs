//! Declarations of variables and parameters.

use super::text::{is_name, number, split};
use super::{Invalid, Type, invalid};

/// Memory of a variable (PTX ISA, "State Spaces").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

impl Space {
    /// Returns the space that a word of a declaration or an instruction names.
    pub fn of(word: &str) -> Option<Self> {
        // A cluster is one block, and functions other than kernels have no parameters here.
        Some(match word {
            "global" | "const" => Self::Global,
            "shared" | "shared::cta" | "shared::cluster" => Self::Shared,
            "local" => Self::Local,
            "param" | "param::entry" => Self::Param,
            _ => return None,
        })
    }
}

/// A variable or a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name in instructions.
    pub name: String,
    /// Its space.
    pub space: Space,
    /// True if its size is decided elsewhere: by the launch, for shared memory.
    pub external: bool,
    /// Type of an element.
    pub element: Type,
    /// Alignment in bytes.
    pub align: usize,
    /// Size in bytes.
    pub size: usize,
    /// Bits of its first elements; the others are zero.
    pub initial: Vec<u64>,
}

/// Larger than any space, and small enough that sums of sizes do not overflow.
const LARGEST: usize = 1 << 40;

impl Variable {
    /// Parses a declaration without its semicolon.
    pub(super) fn parse(text: &str) -> Result<Self, Invalid> {
        let (head, initial) = match text.split_once('=') {
            Some((head, initial)) => (head, Some(initial)),
            None => (text, None),
        };
        let (head, dimensions) = match head.find('[') {
            Some(at) => head.split_at(at),
            None => (head, ""),
        };
        // Words may follow each other without a space.
        let head = head.replace('.', " .");
        let words: Vec<&str> = head.split_whitespace().collect();
        let bad = || Invalid(format!("declaration `{}`", text.trim()));
        let (name, words) = words.split_last().ok_or_else(bad)?;
        let dotted = |word: &&str| word.strip_prefix('.').map(str::to_owned);
        let dotted: Vec<String> = words.iter().filter_map(dotted).collect();
        let element = dotted.iter().find_map(|w| Type::of(w)).ok_or_else(bad)?;
        let space = dotted.iter().find_map(|w| Space::of(w)).ok_or_else(bad)?;
        let vector = dotted.iter().any(|w| matches!(w.as_str(), "v2" | "v4"));
        if !is_name(name) || vector {
            return Err(bad());
        }
        let size = count(dimensions)
            .and_then(|n| n.checked_mul(element.size()))
            .filter(|&size| size <= LARGEST);
        let mut variable = Self {
            name: (*name).to_owned(),
            space,
            external: dotted.iter().any(|w| w == "extern"),
            element,
            align: alignment(words, element).ok_or_else(bad)?,
            size: size.ok_or_else(bad)?,
            initial: Vec::new(),
        };
        variable.initial = initial.map_or(Ok(Vec::new()), |text| values(text, element))?;
        if variable.initial.len() * element.size() > variable.size {
            return Err(bad());
        }
        Ok(variable)
    }

    /// Returns its initial bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let width = self.element.size().min(8);
        let each = self.initial.iter().flat_map(|v| {
            let bytes = v.to_le_bytes();
            bytes.into_iter().take(width)
        });
        let mut bytes: Vec<u8> = each.collect();
        bytes.resize(self.size, 0);
        bytes
    }
}

/// Returns the elements of `[4][8]`; one for an empty text.
fn count(dimensions: &str) -> Option<usize> {
    let mut all = 1usize;
    for dimension in dimensions.split(']') {
        let dimension = dimension.trim();
        if dimension.is_empty() {
            continue;
        }
        let n = dimension.strip_prefix('[')?.trim();
        let n = if n.is_empty() {
            0
        } else {
            usize::try_from(number(n, None)?).ok()?
        };
        all = all.checked_mul(n)?;
    }
    Some(all)
}

fn alignment(words: &[&str], element: Type) -> Option<usize> {
    // `.ptr .align 4` refers to the target of the parameter.
    let Some(at) = words.iter().position(|word| *word == ".align") else {
        return Some(element.size());
    };
    let n = words.get(at + 1)?.parse::<usize>().ok()?;
    let of_target = words[..at].contains(&".ptr");
    let n = if of_target { element.size() } else { n };
    (n.is_power_of_two() && n <= 4096).then_some(n)
}

fn values(text: &str, element: Type) -> Result<Vec<u64>, Invalid> {
    let text = text.trim().trim_start_matches('{').trim_end_matches('}');
    let value = |text: &str| match number(text, Some(element)) {
        Some(value) => Ok(value),
        None => invalid(format!("initial value `{text}`")),
    };
    split(text).into_iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_their_values() {
        let table = Variable::parse(".global .align 4 .b16 table[2][2] = {1, 0x203, -1}").unwrap();
        assert_eq!((table.size, table.align, table.element), (8, 4, Type::B16));
        assert_eq!(table.bytes(), [1, 0, 3, 2, 255, 255, 0, 0]);
    }

    #[test]
    fn parameters_and_dynamic_shared_memory() {
        let pointer = Variable::parse(".param .u64 .ptr .global .align 1 p_0").unwrap();
        assert_eq!((pointer.align, pointer.size), (8, 8));
        let bytes = Variable::parse(".param .align 4 .b8 p_1[56]").unwrap();
        assert_eq!(
            (bytes.align, bytes.size, bytes.space),
            (4, 56, Space::Param)
        );
        let shared = Variable::parse(".extern .shared .align 16 .b8 v[]").unwrap();
        assert!(shared.external && shared.size == 0);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            ".global",
            ".global .f32 a[99999999999999999999]",
            ".global .f32 a[2] = {1, 2, 3}",
            ".global .f32 a = other",
            ".shared .align 3 .f32 a",
            ".f32 a",
        ] {
            assert!(Variable::parse(text).is_err(), "{text}");
        }
    }
}

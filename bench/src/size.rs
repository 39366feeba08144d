//! Sizes in bytes in human-readable form: `64KiB`, `25MiB`, `1024`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Maximum size. MPI counts elements in a C `int`, and buckets are smaller.
const MAX: u64 = 2 << 30;

/// A number of bytes that holds whole `f32` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Size(u64);

impl Size {
    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// Number of `f32` elements that fit.
    pub fn elements(self) -> usize {
        (self.0 / 4) as usize
    }
}

/// Error of a size.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SizeError {
    /// Not a number with an optional unit.
    #[error(
        "`{0}` is not a size: write a whole number with KiB, MiB, GiB or nothing for bytes, e.g. 64KiB"
    )]
    Unreadable(String),
    /// No multiple of an element, or out of range.
    #[error("{0} bytes is no size to measure: it must be a multiple of 4 from 4 bytes to 2 GiB")]
    OutOfRange(u64),
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let unreadable = || SizeError::Unreadable(text.to_owned());
        let trimmed = text.trim();
        let (digits, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| trimmed.strip_suffix(name).map(|rest| (rest, *unit)))
            .unwrap_or((trimmed, 1));
        let number: u64 = digits.trim().parse().map_err(|_| unreadable())?;
        let bytes = number.checked_mul(unit).ok_or_else(unreadable)?;
        if !(4..=MAX).contains(&bytes) || !bytes.is_multiple_of(4) {
            return Err(SizeError::OutOfRange(bytes));
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, unit)| self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_binary() {
        assert_eq!("64KiB".parse(), Ok(Size(65_536)));
        assert_eq!(" 25 MiB ".parse(), Ok(Size(26_214_400)));
        assert_eq!("1024".parse(), Ok(Size(1024)));
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for text in ["", "KiB", "-4", "1.5MiB", "1MB", "99999999999999999999"] {
            assert!(
                matches!(text.parse::<Size>(), Err(SizeError::Unreadable(_))),
                "{text}"
            );
        }
        for text in ["0", "3", "1026", "3GiB"] {
            assert!(
                matches!(text.parse::<Size>(), Err(SizeError::OutOfRange(_))),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn shown_and_read_back(elements in 1u64..=MAX / 4) {
            let size = Size(elements * 4);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<Size>();
        }
    }
}

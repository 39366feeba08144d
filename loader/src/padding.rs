//! Sequences of different lengths in one rectangle.

use crate::LoaderError;

/// Pads sequences of different lengths to one length.
///
/// ```
/// use loader::Padding;
///
/// let batch = Padding::new(0).pad(&[vec![1, 2, 3], vec![4]])?;
/// assert_eq!(batch.values, [1, 2, 3, 4, 0, 0]);
/// assert_eq!((batch.lengths.as_slice(), batch.width), (&[3, 1][..], 3));
/// assert_eq!(batch.mask_pad(), [false, false, false, false, true, true]);
/// # Ok::<(), loader::LoaderError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Padding<T> {
    fill: T,
    multiple: usize,
    most: usize,
}

/// Sequences in one rectangle of shape \[sequences, width\].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Padded<T> {
    /// The values, row by row.
    pub values: Vec<T>,
    /// Number of values in each row before the padding.
    pub lengths: Vec<usize>,
    /// Number of columns.
    pub width: usize,
}

impl<T: Copy> Padding<T> {
    /// Pads with `fill` to the longest sequence of a batch.
    pub fn new(fill: T) -> Self {
        Padding {
            fill,
            multiple: 1,
            most: usize::MAX,
        }
    }

    /// Rounds the width up to a multiple of `multiple`, so that fewer different shapes occur.
    pub fn multiple_of(mut self, multiple: usize) -> Self {
        self.multiple = multiple.max(1);
        self
    }

    /// Cuts sequences of more than `length` values off at their end.
    pub fn at_most(mut self, length: usize) -> Self {
        self.most = length;
        self
    }

    /// Puts one sequence into each row.
    ///
    /// # Errors
    /// [`LoaderError::Memory`] if the rectangle does not fit into memory.
    pub fn pad<S: AsRef<[T]>>(&self, sequences: &[S]) -> Result<Padded<T>, LoaderError> {
        let cut = |sequence: &S| sequence.as_ref().len().min(self.most);
        let lengths: Vec<usize> = sequences.iter().map(cut).collect();
        let longest = lengths.iter().copied().max().unwrap_or_default();
        let width = longest.checked_next_multiple_of(self.multiple);
        let width = width.unwrap_or(usize::MAX);
        let len = width.saturating_mul(lengths.len());
        let mut values = Vec::new();
        let memory = |_| LoaderError::Memory {
            bytes: len.saturating_mul(size_of::<T>()),
        };
        values.try_reserve_exact(len).map_err(memory)?;
        for (row, (sequence, &length)) in sequences.iter().zip(&lengths).enumerate() {
            let kept = sequence.as_ref().get(..length).unwrap_or_default();
            values.extend_from_slice(kept);
            values.resize((row + 1) * width, self.fill);
        }
        Ok(Padded {
            values,
            lengths,
            width,
        })
    }
}

impl<T> Padded<T> {
    /// Number of sequences.
    pub fn rows(&self) -> usize {
        self.lengths.len()
    }

    /// Number of values without the padding: the weight of a loss over tokens.
    pub fn total(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// One value per element, row by row: `true` at the padding, as Burn's `mask_pad`.
    pub fn mask_pad(&self) -> Vec<bool> {
        let row = |&length: &usize| (0..self.width).map(move |column| column >= length);
        self.lengths.iter().flat_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_rounded_and_sequences_cut() {
        let sequences: [&[u8]; 3] = [b"abcdefg", b"", b"ab"];
        let padding = Padding::new(b'-').multiple_of(4);
        let batch = padding.pad(&sequences).unwrap();
        assert_eq!(batch.values, b"abcdefg---------ab------");
        assert_eq!((batch.rows(), batch.width, batch.total()), (3, 8, 9));
        let batch = padding.at_most(3).pad(&sequences).unwrap();
        assert_eq!(batch.values, b"abc-----ab--");
        assert_eq!(batch.lengths, [3, 0, 2]);
        let ends: Vec<bool> = b"000111110011".iter().map(|&bit| bit == b'1').collect();
        assert_eq!(batch.mask_pad(), ends);
    }

    #[test]
    fn a_batch_without_values_has_no_width() {
        let batch = Padding::new(0_u8).pad::<Vec<u8>>(&[]).unwrap();
        assert_eq!((batch.rows(), batch.width), (0, 0));
        let batch = Padding::new(0_u8).pad(&[vec![], vec![]]).unwrap();
        assert_eq!((batch.values, batch.width), (vec![], 0));
    }

    #[test]
    fn too_much_memory_is_an_error() {
        let padding = Padding::new(0_u64).multiple_of(usize::MAX);
        let error = padding.pad(&[vec![1], vec![2]]).unwrap_err();
        assert!(matches!(error, LoaderError::Memory { .. }), "{error}");
    }
}

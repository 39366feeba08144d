//! Checks that all ranks make the same call, with a maximum that they compute anyway.

/// Bytes that ranks compare.
const SAID: usize = 8;

/// A value in a form whose maximum over all ranks shows whether they agree: each byte and its
/// complement. The maxima are complements only if all ranks have the same byte.
pub(crate) struct Agreement([[u8; SAID]; 2]);

impl Agreement {
    /// Compares the ranks' learning rates.
    pub(crate) fn on_rate(learning_rate: f64) -> Self {
        let said = learning_rate.to_le_bytes();
        Self([said, said.map(|byte| !byte)])
    }

    /// The bytes that take part in the maximum.
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_flattened()
    }

    /// Whether all ranks gave the same value, from the maximum of their bytes.
    pub(super) fn is_reached(maximum: &[u8]) -> bool {
        let (most, least) = maximum.split_at(maximum.len() / 2);
        most.len() == SAID && most.iter().zip(least).all(|(most, not)| *most == !not)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_reached_where_all_say_the_same_to_the_bit() {
        let reached = |rates: &[f64]| {
            let mut maximum = vec![0; 2 * SAID];
            for rate in rates {
                for (most, own) in maximum.iter_mut().zip(Agreement::on_rate(*rate).bytes()) {
                    *most = (*most).max(*own);
                }
            }
            Agreement::is_reached(&maximum)
        };
        assert!(reached(&[0.1]) && reached(&[1e-3, 1e-3, 1e-3]));
        assert!(!reached(&[0.1, 0.1f64.next_up()]) && !reached(&[0.0, -0.0]));
        assert!(!reached(&[0.1, 0.2, 0.1]) && !Agreement::is_reached(&[]));
    }
}

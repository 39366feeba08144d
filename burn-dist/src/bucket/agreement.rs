//! Whether all ranks mean the same by a call, found out by a maximum that they take anyway.

/// Bytes that ranks compare.
const SAID: usize = 8;

/// What a rank says, in a form whose maximum over all ranks shows whether all of them say it: the
/// largest of a byte and of its complement are complements where all ranks have the same.
pub(crate) struct Agreement([[u8; SAID]; 2]);

impl Agreement {
    /// All ranks are to make their step with the same learning rate.
    pub(crate) fn on_rate(learning_rate: f64) -> Self {
        let said = learning_rate.to_le_bytes();
        Self([said, said.map(|byte| !byte)])
    }

    /// What takes part in the maximum.
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_flattened()
    }

    /// Whether all ranks have said the same, by the maximum of their bytes.
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

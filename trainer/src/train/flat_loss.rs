//! Warns about runs that learn nothing, because the loss is constant.

/// Steps with the same loss before the warning.
const STEPS: u64 = 10;

/// Detects a loss that stays the same.
#[derive(Debug, Default)]
pub(crate) struct FlatLoss {
    last: Option<f64>,
    /// Steps in a row with the last loss.
    steps: u64,
}

impl FlatLoss {
    /// Takes the loss of a step. Returns a warning once for each stretch of equal losses.
    pub fn see(&mut self, loss: f64) -> Option<String> {
        self.steps = match self.last == Some(loss) {
            true => self.steps.saturating_add(1),
            false => 1,
        };
        self.last = Some(loss);
        (self.steps == STEPS).then(|| {
            format!(
                "warning: the loss was {} in each of the last {STEPS} steps, so the model learns \
                 nothing. Check optimizer.lr and the labels (`trainer preview` shows them)",
                // Removes the sign of a zero.
                loss + 0.0
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(losses: impl IntoIterator<Item = f64>) -> usize {
        let mut flat = FlatLoss::default();
        losses.into_iter().filter_map(|loss| flat.see(loss)).count()
    }

    #[test]
    fn a_loss_that_stays_the_same_is_warned_of_once() {
        assert_eq!(warnings([2.5; 9]), 0);
        assert_eq!(warnings([2.5; 10]), 1);
        assert_eq!(warnings([2.5; 1000]), 1);
        assert_eq!(warnings((0..1000).map(|step| f64::from(step % 2))), 0);
        assert_eq!(
            warnings([2.5; 9].into_iter().chain([2.0]).chain([2.5; 9])),
            0
        );
    }
}

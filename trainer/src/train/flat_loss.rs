//! Runs that learn nothing, of which only a loss that stays the same tells.

use datasets::Dataset;

/// Steps of the same loss after which a person is told.
const STEPS: u64 = 10;

/// What there is to say of data from which nothing can be learned.
pub(crate) fn warning(data: &dyn Dataset) -> Option<String> {
    match data.class_names() {
        [only] => Some(format!(
            "warning: the data has one class, `{only}`, so the loss is always 0 and the model \
             learns nothing. Set data.dir to a folder with one subfolder per class"
        )),
        _ => None,
    }
}

/// Notices a loss that stays the same.
#[derive(Debug, Default)]
pub(crate) struct FlatLoss {
    last: Option<f64>,
    /// Steps in a row that had the last loss.
    steps: u64,
}

impl FlatLoss {
    /// Takes the loss of a step; gives a warning if all of the last steps had the same, once for
    /// each such time.
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
                // Without the sign of a zero.
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

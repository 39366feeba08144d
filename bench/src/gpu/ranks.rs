//! Compares two ranks that share the device with one: the same global batch must give the same
//! losses.

use serde_json::json;

use super::{Check, Found, Part};
use crate::error::BenchError;
use crate::report;
use crate::training::trained;

/// Compared steps.
const STEPS: usize = 20;
const BATCH: usize = 64;

/// Tolerance between losses of one and two ranks.
///
/// Sums have another order, and TensorFloat-32 products another size.
const TOLERATED: f64 = 5e-3;

impl Check<'_> {
    pub(super) fn ranks(&mut self) -> Result<(), BenchError> {
        for strategy in ["ddp", "zero-1", "zero-2", "zero-3"] {
            let found = self.compare(strategy);
            self.tell(Part::Ranks, strategy, found)?;
        }
        Ok(())
    }

    fn compare(&self, strategy: &str) -> Result<Found, String> {
        let one = self.losses(1, strategy)?;
        let two = self.losses(2, strategy)?;
        if one.len() != STEPS || two.len() != STEPS {
            return Err(format!("{} and {} losses", one.len(), two.len()));
        }
        let off = one.iter().zip(&two).map(|(a, b)| (a - b).abs() / a.abs());
        let worst = off.fold(0.0, |worst: f64, off| match off.is_nan() {
            true => f64::INFINITY,
            false => worst.max(off),
        });
        let learns = one.last() < one.first();
        Ok(Found {
            good: Some(worst <= TOLERATED && learns),
            words: format!(
                "losses of {STEPS} steps differ by up to {worst:.1e} (tolerated {TOLERATED:.0e}), \
                 from {:.3} to {:.3}",
                one[0],
                one[STEPS - 1]
            ),
            values: json!({ "one": one, "two": two }),
        })
    }

    /// The losses of a training whose model has no randomness.
    fn losses(&self, ranks: usize, strategy: &str) -> Result<Vec<f64>, String> {
        let out = self.child.folder().join("seconds.json");
        let losses = self.child.folder().join("losses.json");
        let mut command = self.child.command(&[
            trained::COMMAND,
            "--model",
            "cnn",
            "--set",
            "model.dropout_conv=0.0",
            "--set",
            "model.dropout_hidden=0.0",
        ]);
        command
            .args(["--set", &format!("train.device={}", self.args.device)])
            .args(["--set", &format!("parallel.strategy={strategy}")])
            .args(["--ranks", &ranks.to_string()])
            .args(["--batch", &BATCH.to_string()])
            .args(["--steps", &STEPS.to_string()])
            .arg("--out")
            .arg(&out)
            .arg("--losses")
            .arg(&losses);
        self.child
            .finish(&format!("ranks {strategy} {ranks}"), command)?;
        report::read(&losses).map_err(|error| error.to_string())
    }
}

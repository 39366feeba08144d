//! Cross-entropy of softmax against classes, with its gradient in the same pass.

use crate::cpu::elementwise::Rows;
use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::Shared;
use crate::cpu::vector::softmax::Ahead;
use crate::error::{KernelError, length};

const OP: &str = "cross-entropy";

impl Kernels {
    /// Computes each row's cross-entropy loss against its class, and the gradient of that loss.
    ///
    /// `logits` is \[rows, classes\], `targets` has one class per row. With a `smoothing` of `s`,
    /// the target has the probability `1 − s`, and `s` is spread over all classes (Szegedy et al.
    /// 2016, <https://arxiv.org/abs/1512.00567>, section 7). For the mean over the batch and its
    /// gradient, divide by the number of rows.
    ///
    /// # Errors
    ///
    /// Fails if a size is zero, if the length of a slice does not match the shape, if a class is no
    /// column, or if the smoothing lies outside 0 to 1.
    pub fn cross_entropy(
        &self,
        shape: Rows,
        smoothing: f32,
        logits: &[f32],
        targets: &[u32],
        losses: &mut [f32],
        gradient: &mut [f32],
    ) -> Result<(), KernelError> {
        let (elements, classes) = (shape.elements(OP)?, shape.columns);
        length(OP, "logits", logits.len(), elements)?;
        length(OP, "targets", targets.len(), shape.rows)?;
        length(OP, "losses", losses.len(), shape.rows)?;
        length(OP, "gradient", gradient.len(), elements)?;
        if !(0.0..=1.0).contains(&smoothing) {
            return Err(KernelError::Range {
                op: OP,
                what: "smoothing",
                range: "0 to 1",
            });
        }
        for (row, &class) in targets.iter().enumerate() {
            if class as usize >= classes {
                return Err(KernelError::Class {
                    row,
                    class,
                    classes,
                });
            }
        }
        let (losses, gradient) = (Shared::new(losses), Shared::new(gradient));
        self.row_pieces(shape, |start, rows| {
            let first = start / classes;
            // SAFETY: pieces are whole rows that do not overlap.
            let (losses, gradient) = unsafe {
                let gradient = gradient.slice(start..start + rows * classes);
                (losses.slice(first..first + rows), gradient)
            };
            let logits = &logits[start..start + gradient.len()];
            gradient.copy_from_slice(logits);
            let (p, logs) = (gradient.as_mut_ptr(), losses.as_mut_ptr());
            // SAFETY: there are `rows` rows of probabilities and as many losses.
            unsafe {
                (self.table.softmax)((rows, classes, classes), 1.0, p, logs, &Ahead::default())
            };
            let spread = smoothing / classes as f32;
            let pairs = logits
                .chunks_exact(classes)
                .zip(gradient.chunks_exact_mut(classes));
            let pairs = pairs.zip(losses.iter_mut()).zip(&targets[first..]);
            for (((logits, gradient), loss), &class) in pairs {
                let class = class as usize;
                *loss -= (1.0 - smoothing) * logits[class];
                gradient[class] -= 1.0 - smoothing;
                if smoothing > 0.0 {
                    *loss -= spread * logits.iter().sum::<f32>();
                    gradient.iter_mut().for_each(|value| *value -= spread);
                }
            }
        });
        Ok(())
    }
}

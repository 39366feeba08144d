//! Compares every model on a device with its golden files, in any number format.
//!
//! PyTorch computed the golden files on a CPU in `f32`. Logits, loss and the whole gradient are
//! compared as ‖difference‖ / ‖expected‖, the only useful measure in low precision. The golden
//! files and their models are those of the tests of `models`.

#[path = "../../../models/tests/golden/case.rs"]
#[allow(dead_code)]
mod case;
#[path = "../../../models/tests/golden/zoo.rs"]
#[allow(dead_code)]
mod zoo;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use burn::optim::SgdConfig;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use burn_dist::ProcessGroup;
use burn_dist::parallel::{LossScaleOptions, Parallel, ParallelOptions, Precision as Format};
use models::ImageClassifier;
use models::weights::{self, PyTorchKeys};
use serde_json::{Value, json};

use super::Precision;
use super::child::Left;
use crate::error::BenchError;
use case::Case;

/// Names as the golden tests expect them.
mod compare {
    /// Differences of one golden file, or the error.
    pub type Table = Result<super::Off, String>;
}

/// Relative differences from PyTorch.
#[derive(Clone, Copy, Debug)]
pub struct Off {
    logits: f64,
    loss: f64,
    gradient: f64,
}

impl Off {
    fn worst(&self) -> f64 {
        let all = [self.logits, self.loss, self.gradient];
        // NaN is worse than any number.
        all.into_iter().fold(0.0, |worst, off| match off.is_nan() {
            true => f64::INFINITY,
            false => off.max(worst),
        })
    }
}

/// Minimum tolerance. In `f32` it allows products in TensorFloat-32.
fn tolerated(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 5e-3,
        Precision::F16 => 3e-2,
        Precision::Bf16 => 2e-1,
    }
}

thread_local! {
    static SETTING: RefCell<Option<(Device, Precision)>> = const { RefCell::new(None) };
}

/// Compares all golden files in `folder`. Passes the result so far to `so_far` after each file,
/// because the time may end.
pub(super) fn run(
    folder: &Path,
    precision: Precision,
    device: &Device,
    so_far: impl Fn(&Left) -> Result<(), BenchError>,
) -> Result<Left, BenchError> {
    let unread = |source| BenchError::Unread {
        path: folder.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        if path.extension().is_some_and(|name| name == "safetensors") {
            files.push(path);
        }
    }
    files.sort();
    let least = tolerated(precision);
    let (mut lines, mut values, mut good) = (Vec::new(), Vec::new(), !files.is_empty());
    let sum_up = |lines: &[String], values: &[Value], good: bool| {
        let worst = values
            .iter()
            .filter_map(|value| value["gradient"].as_f64())
            .fold(0.0, f64::max);
        let head = format!(
            "{} of {} golden files, gradients off by up to {worst:.1e}, tolerated {least:.0e} or three times \
             the error of the CPU",
            values.len(),
            files.len()
        );
        let words: Vec<&str> = [&head]
            .into_iter()
            .chain(lines)
            .map(String::as_str)
            .collect();
        Left {
            good: Some(good),
            words: words.join("\n"),
            values: json!(values),
        }
    };
    for path in &files {
        let case = Case::open(path);
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        // Normalizations over the few values of a golden file amplify rounding in low precision. An
        // error that the CPU shows, too, is none of the device.
        SETTING.set(Some((Device::flex(), precision)));
        let here = match precision {
            Precision::F32 => 0.0,
            Precision::F16 | Precision::Bf16 => zoo::check(&case).map_or(0.0, |off| off.worst()),
        };
        let limit = least.max(3.0 * here);
        SETTING.set(Some((device.clone(), precision)));
        let table = zoo::check(&case);
        match &table {
            Ok(off) if off.worst() <= limit => {}
            Ok(off) => lines.push(format!(
                "{name}: off by {:.1e}, tolerated {limit:.1e}",
                off.worst()
            )),
            Err(reason) => lines.push(format!("{name}: {reason}")),
        }
        good &= table.as_ref().is_ok_and(|off| off.worst() <= limit);
        values.push(match table {
            Ok(off) => json!({
                "case": name,
                "logits": off.logits,
                "loss": off.loss,
                "gradient": off.gradient,
                "tolerated": limit,
            }),
            Err(reason) => json!({ "case": name, "error": reason }),
        });
        so_far(&sum_up(&lines, &values, good))?;
    }
    Ok(sum_up(&lines, &values, good))
}

/// Repeats one SGD step of a golden file with the model of `build`.
fn check<M>(case: &Case, build: impl Fn(&Device) -> M) -> compare::Table
where
    M: ImageClassifier + PyTorchKeys,
{
    let Some((device, precision)) = SETTING.with_borrow(Clone::clone) else {
        return Err("no device".to_owned());
    };
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let device = device.autodiff();
    let folder = tempfile::tempdir().map_err(|error| failed(&error))?;
    let path = folder.path().join("state.safetensors");
    case.write_state("param", &path);
    let model = build(&device);
    let keys = model.key_map();
    let model = weights::load(model, &path, &keys).map_err(|error| failed(&error))?;
    let options = ParallelOptions {
        precision: match precision {
            Precision::F32 => Format::F32,
            Precision::Bf16 => Format::Bf16,
            Precision::F16 => Format::F16,
        },
        loss_scale: LossScaleOptions {
            initial: 256.0,
            ..LossScaleOptions::default()
        },
        ..ParallelOptions::default()
    };
    let group = ProcessGroup::single();
    let mut parallel =
        Parallel::new(model, SgdConfig::new(), options, &group).map_err(|error| failed(&error))?;
    let images = case.images(&device).cast(parallel.compute_dtype());
    let logits = parallel.model().forward(images).cast(FloatDType::F32);
    let picked =
        log_softmax(logits.clone(), 1).gather(1, case.target(&device).unsqueeze_dim::<2>(1));
    let loss = picked.mean().neg();
    let found_loss = numbers(loss.clone().inner());
    parallel.backward(loss).map_err(|error| failed(&error))?;
    // With this rate the parameters move by their gradients.
    let report = parallel.step(1.0).map_err(|error| failed(&error))?;
    if !report.applied {
        return Err("the gradients are not finite".to_owned());
    }
    let after = parallel.valid().map_err(|error| failed(&error))?;
    let state = weights::state_dict(&after, &keys).map_err(|error| failed(&error))?;
    let (found, expected) = gradients(case, &state);
    Ok(Off {
        logits: distance(&numbers(logits.inner()), case.tensor("logits")),
        loss: distance(&found_loss, case.tensor("loss")),
        gradient: distance(&found, &expected),
    })
}

/// All gradients concatenated: ours, from the change of each parameter, and PyTorch's.
fn gradients(case: &Case, after: &BTreeMap<String, TensorData>) -> (Vec<f32>, Vec<f32>) {
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    for (key, gradient) in case.under("grad") {
        let before = case.tensor(&format!("param/{key}"));
        let after: Vec<f32> = after
            .get(key)
            .map(|data| data.iter::<f32>().collect())
            .unwrap_or_default();
        found.extend(
            before
                .iter()
                .zip(after)
                .map(|(before, after)| before - after),
        );
        expected.extend_from_slice(gradient);
    }
    (found, expected)
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// ‖found − expected‖ / ‖expected‖.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let square = |value: f32| f64::from(value) * f64::from(value);
    let off: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    let size: f64 = expected.iter().map(|b| square(*b)).sum();
    (off / size.max(f64::MIN_POSITIVE)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_relative_and_notice_what_is_missing() {
        assert_eq!(distance(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert_eq!(distance(&[0.0, 0.0], &[3.0, 4.0]), 1.0);
        assert_eq!(distance(&[1.0], &[1.0, 2.0]), f64::INFINITY);
        let off = Off {
            logits: 0.1,
            loss: f64::NAN,
            gradient: 0.2,
        };
        assert_eq!(off.worst(), f64::INFINITY);
    }

    #[test]
    fn on_the_processor_every_model_is_pytorchs() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden");
        let seen = RefCell::new(Vec::new());
        let left = run(&folder, Precision::F32, &Device::flex(), |left| {
            seen.borrow_mut().push(left.words.clone());
            Ok(())
        })
        .unwrap();
        assert_eq!(left.good, Some(true), "{}", left.words);
        let seen = seen.into_inner();
        assert!(seen[0].starts_with(&format!("1 of {} golden files", seen.len())));
        assert_eq!(seen.last(), Some(&left.words));
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(
            run(nothing.path(), Precision::F32, &Device::flex(), |_| Ok(()))
                .unwrap()
                .good,
            Some(false)
        );
    }
}

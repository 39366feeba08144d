//! Validates values: ranges, combinations, and features of this version.

use burn_dist::parallel::Precision;

use super::error::Fault;
use super::schedule;
use super::shard_within;
use super::{Config, EarlyStoppingConfig, task};

/// Maximum side of an image, in pixels.
pub(super) const MOST_PIXELS: usize = 8192;

/// Checks everything that does not depend on the world size.
pub fn check(config: &Config) -> Result<(), Fault> {
    task::check(config)?;
    config.model.check()?;
    if config.model.weights.is_none() && !config.weights.strict {
        let text = "`weights.strict` = false has no effect without `model.weights`";
        let fault = Fault::in_key("weights.strict", text);
        return Err(fault.help("remove it, or set model.weights to a weights file"));
    }
    config.data.check()?;
    config.optimizer.check()?;
    schedule::check(config)?;
    stopping(config)?;
    config.loss_scale.check()?;
    config.ema.check()?;

    let train = &config.train;
    in_range("train.epochs", train.epochs, 1, 1_000_000)?;
    if let Some(steps) = train.max_steps {
        in_range("train.max_steps", steps, 1, i64::MAX as u64)?;
    }
    if let Some(steps) = train.evaluate_every_steps {
        in_range("train.evaluate_every_steps", steps, 1, i64::MAX as u64)?;
    }
    if let Some(wanted) = train.eval_precision
        && ![Precision::F32, train.precision].contains(&wanted)
    {
        let (wanted, trained) = (wanted.name(), train.precision.name());
        let text = format!(
            "`train.eval_precision` = \"{wanted}\" must be \"f32\" or the same as `train.precision`"
        );
        let fault = Fault::in_key("train.eval_precision", text);
        return Err(fault.help(format!(
            "remove it to evaluate in \"{trained}\", the training precision"
        )));
    }
    if let Some(norm) = train.clip_norm {
        positive("train.clip_norm", norm)?;
    }
    if let Some(minutes) = train.max_minutes {
        positive("train.max_minutes", minutes)?;
    }
    if let Some(batches) = train.limit_batches {
        in_range("train.limit_batches", batches, 1, i64::MAX as u64)?;
    }
    if let Some(batches) = train.overfit_batches {
        in_range("train.overfit_batches", batches as u64, 1, 1 << 32)?;
    }
    fraction("train.label_smoothing", train.label_smoothing)?;
    // TOML integers are at most i64, and the resolved configuration is written as TOML.
    in_range("train.seed", train.seed, 0, i64::MAX as u64)?;

    if let Some(peak) = config.log.peak_tflops {
        positive("log.peak_tflops", peak)?;
    }
    let parallel = &config.parallel;
    in_range("parallel.bucket_mib", parallel.bucket_mib as u64, 1, 4096)?;
    in_range("parallel.prefetch", parallel.prefetch as u64, 0, 64)?;
    shard_within::check(parallel)?;
    in_range(
        "parallel.timeout_seconds",
        parallel.timeout_seconds,
        1,
        86_400,
    )?;
    in_range("parallel.abort_seconds", parallel.abort_seconds, 1, 86_400)?;
    in_range(
        "log.every_steps",
        config.log.every_steps,
        1,
        i64::MAX as u64,
    )
}

fn stopping(config: &Config) -> Result<(), Fault> {
    let checkpoint = &config.checkpoint;
    in_range("checkpoint.keep", checkpoint.keep, 1, 1_000_000)?;
    not_negative("checkpoint.every_minutes", checkpoint.every_minutes)?;
    let stopping = &config.early_stopping;
    if let Some(target) = stopping.target_accuracy {
        let good = (0.0..=1.0).contains(&target);
        ensure(good, "early_stopping.target_accuracy", target, "in [0, 1]")?;
    }
    if let Some(patience) = stopping.patience {
        in_range("early_stopping.patience", patience, 1, 1_000_000)?;
    }
    not_negative("early_stopping.min_delta", stopping.min_delta)?;
    let is_used = stopping.patience.is_some() && stopping.target_accuracy.is_none();
    let usual = EarlyStoppingConfig::default();
    let watches_other = |name: &String| name != config.task.kind.monitor();
    for (key, given) in [
        (
            "early_stopping.monitor",
            stopping.monitor.as_ref().is_some_and(watches_other),
        ),
        (
            "early_stopping.min_delta",
            stopping.min_delta != usual.min_delta,
        ),
    ] {
        if given && !is_used {
            let message = format!(
                "`{key}` has no effect without `early_stopping.patience`, or with a target accuracy"
            );
            let help = "set early_stopping.patience and no target_accuracy, or remove it";
            return Err(Fault::in_key(key, message).help(help));
        }
    }
    Ok(())
}

/// Checks an optional number.
pub(super) fn given_in_range(key: &str, value: Option<usize>, most: usize) -> Result<(), Fault> {
    value.map_or(Ok(()), |value| in_range(key, value as u64, 1, most as u64))
}

pub(super) fn in_range(key: &str, value: u64, least: u64, most: u64) -> Result<(), Fault> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Fault::in_key(
        key,
        format!("`{key}` = {value} must be from {least} to {most}"),
    ))
}

pub(super) fn positive(key: &str, value: f64) -> Result<(), Fault> {
    // Burn's optimizers compute in f32, in which the smallest doubles are zero.
    ensure(
        value.is_finite() && (value as f32) > 0.0 && (value as f32).is_finite(),
        key,
        value,
        "positive",
    )
}

pub(super) fn not_negative(key: &str, value: f64) -> Result<(), Fault> {
    ensure(
        value >= 0.0 && (value as f32).is_finite(),
        key,
        value,
        "zero or positive",
    )
}

pub(super) fn fraction(key: &str, value: f64) -> Result<(), Fault> {
    // In f32 as well: 1 - 1e-12 would become 1.
    ensure(
        (0.0..1.0).contains(&value) && (value as f32) < 1.0,
        key,
        value,
        "in [0, 1)",
    )
}

pub(super) fn ensure(good: bool, key: &str, value: f64, wanted: &str) -> Result<(), Fault> {
    if good {
        return Ok(());
    }
    // Avoids printing all digits of 1e300.
    let size = value.abs();
    let text = match size != 0.0 && size.is_finite() && !(1e-6..1e9).contains(&size) {
        true => format!("{value:e}"),
        false => value.to_string(),
    };
    let what = match size.is_finite() && !(value as f32).is_finite() {
        true => "too large for f32".to_owned(),
        false => format!("not {wanted}"),
    };
    Err(Fault::in_key(key, format!("`{key}` = {text} is {what}")))
}

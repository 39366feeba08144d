//! Validates values: ranges, combinations, and features of this version.

use burn_dist::parallel::{Precision, ShardWithin};
use burn_dist::{Compression, MOST_VIRTUAL_RANKS};

use super::error::Fault;
use super::schedule;
use super::shard_within;
use super::{
    Config, EarlyStoppingConfig, LossName, ParallelConfig, TrainConfig, class_weights, task,
};

/// Maximum side of an image, in pixels.
pub(super) const MOST_PIXELS: usize = 8192;

/// Checks everything that does not depend on the world size. Returns all faults.
pub fn check(config: &Config) -> Vec<Fault> {
    let mut checks = vec![task::check(config), config.model.check(), weights(config)];
    checks.extend(config.data.check());
    checks.extend(config.optimizer.check());
    checks.push(schedule::check(config));
    checks.extend(train(&config.train));
    checks.extend(stopping(config));
    checks.extend([config.loss_scale.check(), config.ema.check()]);
    checks.push(config.swa.check(&config.ema));
    checks.extend(parallel(&config.parallel));
    let log = &config.log;
    let peak = log
        .peak_tflops
        .map(|peak| positive("log.peak_tflops", peak));
    checks.extend(peak);
    checks.push(log.check());
    checks.push(in_range("log.every_steps", log.every_steps, 1, MOST));
    checks.into_iter().filter_map(Result::err).collect()
}

/// Largest integer of TOML.
const MOST: u64 = i64::MAX as u64;

fn weights(config: &Config) -> Result<(), Fault> {
    if config.model.weights.is_some() || config.weights.strict {
        return Ok(());
    }
    let text = "`weights.strict` = false has no effect without `model.weights`";
    let fault = Fault::in_key("weights.strict", text);
    Err(fault.help("remove it, or set model.weights to a weights file"))
}

fn train(train: &TrainConfig) -> Vec<Result<(), Fault>> {
    let least_one = |key, value: Option<u64>| value.map(|value| in_range(key, value, 1, MOST));
    let above_zero = |key, value: Option<f64>| value.map(|value| positive(key, value));
    let overfit = train.overfit_batches.map(|batches| batches as u64);
    let optional = [
        least_one("train.max_steps", train.max_steps),
        least_one("train.evaluate_every_steps", train.evaluate_every_steps),
        above_zero("train.clip_norm", train.clip_norm),
        above_zero("train.max_minutes", train.max_minutes),
        least_one("train.limit_batches", train.limit_batches),
        overfit.map(|batches| in_range("train.overfit_batches", batches, 1, 1 << 32)),
    ];
    let mut checks = vec![
        in_range("train.epochs", train.epochs, 1, 1_000_000),
        eval_precision(train),
        fraction("train.label_smoothing", train.label_smoothing),
        bce_threshold(train),
        class_weights::check(&train.class_weights),
        // The resolved configuration is written as TOML.
        in_range("train.seed", train.seed, 0, MOST),
    ];
    checks.extend(optional.into_iter().flatten());
    checks
}

fn bce_threshold(train: &TrainConfig) -> Result<(), Fault> {
    let Some(threshold) = train.bce_threshold else {
        return Ok(());
    };
    fraction("train.bce_threshold", threshold)?;
    if train.loss == LossName::Bce {
        return Ok(());
    }
    let text = "`train.bce_threshold` has no effect without `train.loss` = \"bce\"";
    let fault = Fault::in_key("train.bce_threshold", text);
    Err(fault.help("remove it, or set train.loss = \"bce\""))
}

fn eval_precision(train: &TrainConfig) -> Result<(), Fault> {
    let allowed = [Precision::F32, train.precision];
    let Some(wanted) = train
        .eval_precision
        .filter(|wanted| !allowed.contains(wanted))
    else {
        return Ok(());
    };
    let (wanted, trained) = (wanted.name(), train.precision.name());
    let text = format!(
        "`train.eval_precision` = \"{wanted}\" must be \"f32\" or the same as `train.precision`"
    );
    let fault = Fault::in_key("train.eval_precision", text);
    Err(fault.help(format!(
        "remove it to evaluate in \"{trained}\", the training precision"
    )))
}

/// Virtual ranks, and what they exclude.
fn virtual_ranks(parallel: &ParallelConfig) -> Result<(), Fault> {
    const KEY: &str = "parallel.virtual_ranks";
    let Some(count) = parallel.virtual_ranks else {
        return Ok(());
    };
    in_range(KEY, count as u64, 1, MOST_VIRTUAL_RANKS as u64)?;
    let excluded = [
        (
            "parallel.shard_within",
            parallel.shard_within != ShardWithin::All,
        ),
        ("parallel.sync_batch_norm", parallel.sync_batch_norm),
        (
            "parallel.compression",
            parallel.compression != Compression::None,
        ),
    ];
    match excluded.iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((key, _)) => {
            let text =
                format!("`{key}` cannot be used with `{KEY}`: results would depend on the ranks");
            Err(Fault::in_key(key, text).help("remove one of the two"))
        }
    }
}

fn parallel(parallel: &ParallelConfig) -> [Result<(), Fault>; 6] {
    let (bucket, prefetch) = (parallel.bucket_mib as u64, parallel.prefetch as u64);
    let (timeout, abort) = (parallel.timeout_seconds, parallel.abort_seconds);
    [
        in_range("parallel.bucket_mib", bucket, 1, 4096),
        in_range("parallel.prefetch", prefetch, 0, 64),
        shard_within::check(parallel),
        virtual_ranks(parallel),
        in_range("parallel.timeout_seconds", timeout, 1, 86_400),
        in_range("parallel.abort_seconds", abort, 1, 86_400),
    ]
}

fn stopping(config: &Config) -> Vec<Result<(), Fault>> {
    let (checkpoint, stopping) = (&config.checkpoint, &config.early_stopping);
    let target = stopping.target_accuracy.map(|target| {
        let good = (0.0..=1.0).contains(&target);
        ensure(good, "early_stopping.target_accuracy", target, "in [0, 1]")
    });
    let patience = stopping.patience;
    let patience =
        patience.map(|patience| in_range("early_stopping.patience", patience, 1, 1_000_000));
    let mut checks = vec![
        in_range("checkpoint.keep", checkpoint.keep, 1, 1_000_000),
        in_range(
            "checkpoint.in_memory_every_steps",
            checkpoint.in_memory_every_steps,
            1,
            MOST,
        ),
        not_negative("checkpoint.every_minutes", checkpoint.every_minutes),
        not_negative("early_stopping.min_delta", stopping.min_delta),
    ];
    checks.extend([target, patience].into_iter().flatten());
    if checkpoint.in_memory && !checkpoint.wanted() {
        let message = "checkpoint.in_memory = true needs checkpoints on disk too: the memory ends \
                       with the agents";
        let fault = Fault::in_key("checkpoint.in_memory", message);
        checks.push(Err(
            fault.help("set checkpoint.every_epochs or checkpoint.every_minutes")
        ));
    }
    if !checkpoint.in_memory && checkpoint.in_memory_every_steps != 1 {
        let text =
            "`checkpoint.in_memory_every_steps` has no effect without `checkpoint.in_memory`";
        let fault = Fault::in_key("checkpoint.in_memory_every_steps", text);
        checks.push(Err(fault.help("add checkpoint.in_memory = true")));
    }
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
            checks.push(Err(Fault::in_key(key, message).help(help)));
        }
    }
    checks
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
    let fault = Fault::in_key(key, format!("`{key}` = {text} is {what}"));
    Err(match percent(value).filter(|_| UNITS.contains(&wanted)) {
        Some(share) => fault.help(format!(
            "shares are from 0 to 1: write {share} for {text} %"
        )),
        None => fault,
    })
}

/// Names of ranges up to 1.
const UNITS: [&str; 4] = ["in [0, 1]", "in [0, 1)", "in (0, 1]", "between 0 and 1"];

/// The share that a value from 2 to 100 means as a percentage.
fn percent(value: f64) -> Option<String> {
    let share = format!("{:.6}", value / 100.0);
    let share = share.trim_end_matches('0').trim_end_matches('.');
    (2.0..=100.0).contains(&value).then(|| share.to_owned())
}

//! Whether values make sense: ranges, combinations, and what this version can do.

use super::Config;
use super::error::Fault;
use super::sections::{
    CheckpointConfig, Compression, DataName, DeviceName, EarlyStoppingConfig, ModelConfig,
    OptimizerConfig, Precision, ScheduleName, StrategyName,
};

/// Checks everything that does not depend on the world size.
pub fn check(config: &Config) -> Result<(), Fault> {
    unavailable(config)?;
    model(&config.model)?;
    data(config)?;
    optimizer(&config.optimizer)?;

    let train = &config.train;
    in_range("train.epochs", train.epochs, 1, 1_000_000)?;
    if let Some(steps) = train.max_steps {
        in_range("train.max_steps", steps, 1, i64::MAX as u64)?;
    }
    if let Some(norm) = train.clip_norm {
        positive("train.clip_norm", norm)?;
    }
    // TOML has no larger integers, and the resolved configuration is written as TOML.
    in_range("train.seed", train.seed, 0, i64::MAX as u64)?;

    let parallel = &config.parallel;
    in_range("parallel.bucket_mib", parallel.bucket_mib as u64, 1, 4096)?;
    in_range(
        "parallel.timeout_seconds",
        parallel.timeout_seconds,
        1,
        86_400,
    )?;
    in_range(
        "log.every_steps",
        config.log.every_steps,
        1,
        i64::MAX as u64,
    )
}

/// Refuses what can be written but is not built yet, rather than ignoring it.
fn unavailable(config: &Config) -> Result<(), Fault> {
    let not_yet = |available: bool, key: &str, value: &dyn std::fmt::Display| {
        if available {
            return Ok(());
        }
        Err(Fault::in_key(
            key,
            format!("`{key}` = {value} is not available in this version"),
        ))
    };
    let schedule = config.schedule.name;
    not_yet(
        schedule == ScheduleName::Constant,
        "schedule.name",
        &schedule,
    )?;
    let precision = config.train.precision;
    not_yet(precision == Precision::F32, "train.precision", &precision)?;
    let device = config.train.device;
    let available = matches!(device, DeviceName::Auto | DeviceName::Cpu);
    not_yet(available, "train.device", &device)?;
    let strategy = config.parallel.strategy;
    not_yet(
        strategy == StrategyName::Ddp,
        "parallel.strategy",
        &strategy,
    )?;
    let compression = config.parallel.compression;
    let available = compression == Compression::None;
    not_yet(available, "parallel.compression", &compression)?;

    let (checkpoint, off) = (&config.checkpoint, CheckpointConfig::default());
    let steps = checkpoint.every_steps;
    not_yet(steps == off.every_steps, "checkpoint.every_steps", &steps)?;
    let epochs = checkpoint.every_epochs;
    not_yet(
        epochs == off.every_epochs,
        "checkpoint.every_epochs",
        &epochs,
    )?;
    let keep = checkpoint.keep;
    not_yet(keep == off.keep, "checkpoint.keep", &keep)?;

    let EarlyStoppingConfig {
        target_accuracy,
        patience,
    } = config.early_stopping;
    if let Some(target) = target_accuracy {
        not_yet(false, "early_stopping.target_accuracy", &target)?;
    }
    if let Some(patience) = patience {
        not_yet(false, "early_stopping.patience", &patience)?;
    }
    Ok(())
}

fn model(model: &ModelConfig) -> Result<(), Fault> {
    match model {
        ModelConfig::Cnn(cnn) => {
            for filters in cnn.filters {
                in_range("model.filters", filters as u64, 1, 65_536)?;
            }
            in_range("model.hidden", cnn.hidden as u64, 1, 1 << 20)?;
            fraction("model.dropout_conv", cnn.dropout_conv)?;
            fraction("model.dropout_hidden", cnn.dropout_hidden)?;
            Ok(())
        }
    }
}

fn data(config: &Config) -> Result<(), Fault> {
    let data = &config.data;
    if data.name == DataName::Digits && data.dir.is_some() {
        return Err(Fault::in_key(
            "data.dir",
            "`data.dir` has no use for `digits`, which are generated",
        )
        .help("remove it, or choose another data.name"));
    }
    in_range("data.workers", data.workers as u64, 0, 256)?;
    for (key, samples) in [
        ("data.train_samples", data.train_samples),
        ("data.test_samples", data.test_samples),
    ] {
        if let Some(samples) = samples {
            in_range(key, samples as u64, 1, 100_000_000)?;
        }
    }
    Ok(())
}

fn optimizer(optimizer: &OptimizerConfig) -> Result<(), Fault> {
    positive("optimizer.lr", optimizer.lr())?;
    match optimizer {
        OptimizerConfig::Sgd(sgd) => {
            fraction("optimizer.momentum", sgd.momentum)?;
            if sgd.nesterov && sgd.momentum == 0.0 {
                return Err(Fault::in_key(
                    "optimizer.nesterov",
                    "`optimizer.nesterov` needs a momentum",
                )
                .help("set optimizer.momentum, for example to 0.9"));
            }
            not_negative("optimizer.weight_decay", sgd.weight_decay)
        }
        OptimizerConfig::Adam(adam) => {
            moments(adam.betas, adam.eps)?;
            not_negative("optimizer.weight_decay", adam.weight_decay)
        }
        OptimizerConfig::AdamW(adamw) => {
            moments(adamw.betas, adamw.eps)?;
            not_negative("optimizer.weight_decay", adamw.weight_decay)
        }
        OptimizerConfig::Adadelta(adadelta) => {
            fraction("optimizer.rho", adadelta.rho)?;
            positive("optimizer.eps", adadelta.eps)?;
            not_negative("optimizer.weight_decay", adadelta.weight_decay)
        }
    }
}

fn moments(betas: [f64; 2], eps: f64) -> Result<(), Fault> {
    for beta in betas {
        fraction("optimizer.betas", beta)?;
    }
    positive("optimizer.eps", eps)
}

fn in_range(key: &str, value: u64, least: u64, most: u64) -> Result<(), Fault> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Fault::in_key(
        key,
        format!("`{key}` = {value} is not in {least}..={most}"),
    ))
}

fn positive(key: &str, value: f64) -> Result<(), Fault> {
    // Burn's optimizers compute in f32, where the smallest doubles are zero.
    ensure(
        value.is_finite() && (value as f32) > 0.0 && (value as f32).is_finite(),
        key,
        value,
        "positive",
    )
}

fn not_negative(key: &str, value: f64) -> Result<(), Fault> {
    ensure(
        value >= 0.0 && (value as f32).is_finite(),
        key,
        value,
        "zero or positive",
    )
}

fn fraction(key: &str, value: f64) -> Result<(), Fault> {
    // As f32 too: 1 - 1e-12 would become 1.
    ensure(
        (0.0..1.0).contains(&value) && (value as f32) < 1.0,
        key,
        value,
        "in [0, 1)",
    )
}

fn ensure(good: bool, key: &str, value: f64, wanted: &str) -> Result<(), Fault> {
    if good {
        return Ok(());
    }
    Err(Fault::in_key(
        key,
        format!("`{key}` = {value} is not {wanted}"),
    ))
}

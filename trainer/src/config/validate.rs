//! Whether values make sense: ranges, combinations, and what this version can do.

use std::fmt::Display;

use super::Config;
use super::error::Fault;
use super::groups;
use super::optimizer::OptimizerConfig;
use super::schedule;
use super::shard_within;
use super::{
    DataConfig, EarlyStoppingConfig, ModelConfig, Precision, VitConfig, WidePreset,
    WideResNetConfig,
};

/// Checks everything that does not depend on the world size.
pub fn check(config: &Config) -> Result<(), Fault> {
    model(&config.model)?;
    if let (None, false) = (config.model.weights().0, config.weights.strict) {
        let text = "`weights.strict` = false has no use without `model.weights`";
        let fault = Fault::in_key("weights.strict", text);
        return Err(fault.help("remove it, or name the file of weights to start from"));
    }
    data(config)?;
    optimizer(&config.optimizer)?;
    schedule::check(config)?;
    stopping(config)?;
    config.loss_scale.check()?;
    config.ema.check()?;

    let train = &config.train;
    in_range("train.epochs", train.epochs, 1, 1_000_000)?;
    if let Some(steps) = train.max_steps {
        in_range("train.max_steps", steps, 1, i64::MAX as u64)?;
    }
    if let Some(wanted) = train.eval_precision
        && ![Precision::F32, train.precision].contains(&wanted)
    {
        let (wanted, trained) = (wanted.name(), train.precision.name());
        let text = format!(
            "`train.eval_precision` = \"{wanted}\" is neither \"f32\" nor `train.precision`"
        );
        let fault = Fault::in_key("train.eval_precision", text);
        return Err(fault.help(format!(
            "remove it to evaluate in \"{trained}\" as the training computes"
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
    // TOML has no larger integers, and the resolved configuration is written as TOML.
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

fn model(model: &ModelConfig) -> Result<(), Fault> {
    if let (None, true) = model.weights() {
        return Err(Fault::in_key(
            "model.new_head",
            "`model.new_head` has no use without `model.weights`",
        ));
    }
    match model {
        ModelConfig::Cnn(cnn) => {
            for filters in cnn.filters {
                in_range("model.filters", filters as u64, 1, 65_536)?;
            }
            in_range("model.hidden", cnn.hidden as u64, 1, 1 << 20)?;
            fraction("model.dropout_conv", cnn.dropout_conv)?;
            fraction("model.dropout_hidden", cnn.dropout_hidden)
        }
        ModelConfig::CscCnn(_) => Ok(()),
        ModelConfig::WideResNet(wide) => wide_resnet(wide),
        ModelConfig::ResNet(resnet) if [18, 50].contains(&resnet.depth) => Ok(()),
        ModelConfig::ResNet(resnet) => Err(Fault::in_key(
            "model.depth",
            format!("`model.depth` = {} is neither 18 nor 50", resnet.depth),
        )),
        ModelConfig::Vit(vit) => self::vit(vit),
    }
}

fn wide_resnet(wide: &WideResNetConfig) -> Result<(), Fault> {
    let sizes = [("model.depth", wide.depth), ("model.widen", wide.widen)];
    for (key, size) in sizes {
        match size {
            Some(size) if wide.preset == WidePreset::Olivia => {
                return Err(Fault::in_key(
                    key,
                    format!("`{key}` = {size} has no use for the preset `olivia`"),
                )
                .help("remove it, or choose another model.preset"));
            }
            Some(size) => in_range(key, size as u64, 1, 10_000)?,
            None => {}
        }
    }
    if let Some(depth) = wide.depth.filter(|depth| depth % 6 != 4 || *depth < 10) {
        return Err(Fault::in_key(
            "model.depth",
            format!("`model.depth` = {depth} is not 6n + 4 with n of at least 1"),
        )
        .help("for example 10, 16, 22, 28, 40"));
    }
    wide.dropout
        .map_or(Ok(()), |rate| fraction("model.dropout", rate))
}

fn vit(vit: &VitConfig) -> Result<(), Fault> {
    let sizes = [
        ("model.patch", vit.patch, 4096),
        ("model.dim", vit.dim, 65_536),
        ("model.depth", vit.depth, 1000),
        ("model.heads", vit.heads, 1024),
        ("model.mlp_ratio", vit.mlp_ratio, 64),
    ];
    for (key, size, most) in sizes {
        if let Some(size) = size {
            in_range(key, size as u64, 1, most)?;
        }
    }
    if let (Some(dim), Some(heads)) = (vit.dim, vit.heads)
        && dim % heads != 0
    {
        return Err(Fault::in_key(
            "model.heads",
            format!("`model.heads` = {heads} does not divide `model.dim` = {dim}"),
        ));
    }
    fraction("model.dropout", vit.dropout)?;
    fraction("model.drop_path", vit.drop_path)
}

fn data(config: &Config) -> Result<(), Fault> {
    let data = &config.data;
    have_use("data.name", data.name, &data.particular_keys())?;
    in_range("data.workers", data.workers as u64, 0, 256)?;
    for (key, number, most) in [
        ("data.train_samples", data.train_samples, 100_000_000),
        ("data.test_samples", data.test_samples, 100_000_000),
        ("data.size", data.size, 8192),
        ("data.resize", data.resize, 8192),
        ("data.channels", data.channels, 4),
        ("data.classes", data.classes, 1_000_000),
    ] {
        if let Some(number) = number {
            in_range(key, number as u64, 1, most)?;
        }
    }
    if let Some(resize) = data.resize
        && resize < data.folder_side()
    {
        let side = data.folder_side();
        return Err(Fault::in_key(
            "data.resize",
            format!("`data.resize` = {resize} is less than the side of the images, {side}"),
        )
        .help("images are cut out of what is scaled: make it larger, or data.size smaller"));
    }
    normalization(data)?;
    match data.validation {
        Some(share) => ensure(
            share > 0.0 && share < 1.0,
            "data.validation",
            share,
            "between 0 and 1",
        ),
        None => Ok(()),
    }
}

/// Whether the numbers fit the channels of the images shows when the data is opened.
fn normalization(data: &DataConfig) -> Result<(), Fault> {
    for (key, numbers) in [("data.mean", &data.mean), ("data.std", &data.std)] {
        if numbers.as_ref().is_some_and(Vec::is_empty) {
            let fault = Fault::in_key(key, format!("`{key}` has no number"));
            return Err(fault.help("give it one for each channel, or one for all"));
        }
    }
    for mean in data.mean.iter().flatten() {
        let good = (0.0..=1.0).contains(mean);
        ensure(good, "data.mean", *mean, "in [0, 1]").map_err(of_bytes)?;
    }
    for std in data.std.iter().flatten() {
        // Beyond, normalised values leave the range of f32, or are all the same.
        let good = (1e-6..=1e6).contains(std);
        ensure(good, "data.std", *std, "positive, from 1e-6 to 1e6").map_err(of_bytes)?;
    }
    Ok(())
}

fn of_bytes(fault: Fault) -> Fault {
    fault.help("it is that of values from 0 to 1: divide what is given for bytes by 255")
}

fn optimizer(optimizer: &OptimizerConfig) -> Result<(), Fault> {
    positive("optimizer.lr", optimizer.lr())?;
    not_negative("optimizer.weight_decay", optimizer.weight_decay())?;
    groups::check(optimizer)?;
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
            Ok(())
        }
        OptimizerConfig::Adam(adam) => moments(adam.betas, adam.eps),
        OptimizerConfig::AdamW(adamw) => moments(adamw.betas, adamw.eps),
        OptimizerConfig::Adadelta(adadelta) => {
            fraction("optimizer.rho", adadelta.rho)?;
            positive("optimizer.eps", adadelta.eps)
        }
        OptimizerConfig::Lion(lion) => decays(lion.betas),
        OptimizerConfig::Lamb(lamb) => moments(lamb.betas, lamb.eps),
        OptimizerConfig::Adafactor(adafactor) => {
            let decay = adafactor.beta2_decay;
            let good = decay.is_finite() && decay < 0.0;
            ensure(good, "optimizer.beta2_decay", decay, "below 0")?;
            for eps in adafactor.eps {
                positive("optimizer.eps", eps)?;
            }
            positive("optimizer.clip_threshold", adafactor.clip_threshold)
        }
        OptimizerConfig::Muon(muon) => {
            fraction("optimizer.momentum", muon.momentum)?;
            in_range("optimizer.ns_steps", muon.ns_steps, 1, 100)?;
            positive("optimizer.eps", muon.eps)?;
            positive("optimizer.adamw_lr", muon.adamw_lr())?;
            for beta in muon.adamw_betas {
                fraction("optimizer.adamw_betas", beta)?;
            }
            positive("optimizer.adamw_eps", muon.adamw_eps)
        }
    }
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
    for (key, given) in [
        ("early_stopping.monitor", stopping.monitor != usual.monitor),
        (
            "early_stopping.min_delta",
            stopping.min_delta != usual.min_delta,
        ),
    ] {
        if given && !is_used {
            let message =
                format!("`{key}` has no use without `early_stopping.patience`, or with a target");
            let help = "set early_stopping.patience and no target_accuracy, or remove it";
            return Err(Fault::in_key(key, message).help(help));
        }
    }
    Ok(())
}

fn decays(betas: [f64; 2]) -> Result<(), Fault> {
    for beta in betas {
        fraction("optimizer.betas", beta)?;
    }
    Ok(())
}

fn moments(betas: [f64; 2], eps: f64) -> Result<(), Fault> {
    decays(betas)?;
    positive("optimizer.eps", eps)
}

/// Refuses keys that are given and change nothing with this `name`, the value of `of`: their author believes that
/// they do. With each key, whether it is given and the names that have a use for it.
pub(super) fn have_use<N: Copy + PartialEq + Display>(
    of: &str,
    name: N,
    keys: &[(&str, bool, &[N])],
) -> Result<(), Fault> {
    for (key, given, users) in keys {
        if *given && !users.contains(&name) {
            let users: Vec<String> = users.iter().map(N::to_string).collect();
            let message = format!("`{key}` has no use for `{name}`");
            let help = format!("remove it, or choose another {of}: {}", users.join(", "));
            return Err(Fault::in_key(key, message).help(help));
        }
    }
    Ok(())
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

pub(super) fn not_negative(key: &str, value: f64) -> Result<(), Fault> {
    ensure(
        value >= 0.0 && (value as f32).is_finite(),
        key,
        value,
        "zero or positive",
    )
}

pub(super) fn fraction(key: &str, value: f64) -> Result<(), Fault> {
    // As f32 too: 1 - 1e-12 would become 1.
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
    // Of 1e300 nobody wants to see all digits.
    let size = value.abs();
    let text = match size != 0.0 && size.is_finite() && !(1e-6..1e9).contains(&size) {
        true => format!("{value:e}"),
        false => value.to_string(),
    };
    let what = match size.is_finite() && !(value as f32).is_finite() {
        true => "too large for 32 bits".to_owned(),
        false => format!("not {wanted}"),
    };
    Err(Fault::in_key(key, format!("`{key}` = {text} is {what}")))
}

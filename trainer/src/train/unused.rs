//! Warns about settings that do nothing in a run.

use burn_dist::Compression;
use burn_dist::group::{Algorithm, TransportKind};
use burn_dist::parallel::{Precision, Strategy};

use crate::config::Config;

/// The parts of a run that decide which settings matter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPlace {
    /// Whether the model is on the CPU.
    pub on_host: bool,
    /// Number of ranks.
    pub ranks: usize,
    /// Whether all ranks are known to share memory.
    pub shares_memory: bool,
    /// Whether agents started the ranks.
    pub has_agents: bool,
}

/// A warning for each setting that was changed and does nothing there.
pub(crate) fn warnings(config: &Config, place: RunPlace) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |is_idle: bool, setting: String, why: &str| {
        if is_idle {
            found.push(format!("warning: {setting} has no effect {why}"));
        }
    };
    let parallel = &config.parallel;
    check(
        parallel.offload_optimizer && place.on_host,
        "parallel.offload_optimizer = true".to_owned(),
        "on the CPU: the optimizer state is in host memory anyway",
    );
    let precision = config.train.precision;
    check(
        precision != Precision::F16 && config.loss_scale != Default::default(),
        "[loss_scale]".to_owned(),
        &format!("with train.precision = \"{precision}\": only f16 scales the loss"),
    );
    let strategy = parallel.strategy;
    check(
        strategy != Strategy::Zero3 && parallel.prefetch != 1,
        format!("parallel.prefetch = {}", parallel.prefetch),
        &format!("with parallel.strategy = \"{strategy}\": only zero-3 gathers parameters"),
    );
    let compression = parallel.compression;
    check(
        compression != Compression::None && place.shares_memory,
        format!("parallel.compression = \"{compression}\""),
        "on one host: the ranks share memory",
    );
    check(
        config.checkpoint.in_memory && !place.has_agents,
        "checkpoint.in_memory = true".to_owned(),
        "without `trainer launch`: only its agents keep memory while ranks start again",
    );
    if place.ranks == 1 {
        for (is_set, setting) in [
            (
                strategy != Strategy::Ddp,
                format!("parallel.strategy = \"{strategy}\""),
            ),
            (
                compression != Compression::None,
                format!("parallel.compression = \"{compression}\""),
            ),
            (
                parallel.sync_batch_norm,
                "parallel.sync_batch_norm = true".to_owned(),
            ),
            (
                parallel.transport != TransportKind::Auto,
                format!("parallel.transport = \"{}\"", parallel.transport),
            ),
            (
                parallel.algorithm != Algorithm::Auto,
                format!("parallel.algorithm = \"{}\"", parallel.algorithm),
            ),
        ] {
            check(is_set, setting, "with one rank");
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Loaded;

    fn found(settings: &[&str], place: RunPlace) -> Vec<String> {
        let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
        let loaded = Loaded::load("digits", &settings).unwrap();
        warnings(&loaded.config, place)
    }

    #[test]
    fn settings_that_do_nothing_are_named_where_they_do_nothing() {
        let cpu = RunPlace {
            on_host: true,
            ranks: 2,
            shares_memory: true,
            has_agents: false,
        };
        let cluster = RunPlace {
            on_host: false,
            ranks: 8,
            shares_memory: false,
            has_agents: true,
        };
        let alone = RunPlace {
            ranks: 1,
            shares_memory: false,
            ..cpu
        };
        for (setting, idle, useful) in [
            ("parallel.offload_optimizer=true", cpu, cluster),
            ("parallel.compression=bf16", cpu, cluster),
            ("parallel.compression=bf16", alone, cluster),
            ("parallel.strategy=zero-2", alone, cpu),
            ("parallel.sync_batch_norm=true", alone, cpu),
            ("parallel.transport=tcp", alone, cpu),
            ("checkpoint.in_memory=true", cpu, cluster),
        ] {
            let told = found(&[setting], idle);
            let name = setting.split('=').next().unwrap();
            assert_eq!(told.len(), 1, "{setting}: {told:?}");
            assert!(
                told[0].starts_with(&format!("warning: {name} = ")),
                "{told:?}"
            );
            assert_eq!(found(&[setting], useful), [""; 0], "{setting}");
        }
        let scale = "loss_scale.initial=1024.0";
        assert_eq!(
            found(&[scale], cpu),
            [
                "warning: [loss_scale] has no effect with train.precision = \"f32\": only f16 \
                 scales the loss"
            ]
        );
        assert_eq!(found(&[scale, "train.precision=f16"], cpu), [""; 0]);
        let prefetch = "parallel.prefetch=3";
        assert_eq!(found(&[prefetch], cpu).len(), 1);
        assert_eq!(found(&[prefetch, "parallel.strategy=zero-3"], cpu), [""; 0]);
        for place in [cpu, cluster, alone] {
            assert_eq!(found(&[], place), [""; 0]);
        }
    }
}

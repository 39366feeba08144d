//! Tests that the reference describes the code.

use serde_json::Value;

use super::reference::{Key, keys, markdown, toml};
use super::*;

/// Other settings that a key needs for this value.
fn context(key: &Key, value: &str) -> Vec<String> {
    let variant = key.variant.as_deref().unwrap_or_default();
    let mut sets = vec!["optimizer.name=sgd".to_owned()];
    sets.extend(
        match variant {
            "text" | "transformer" | "language" => [
                "task.name=language",
                "data.name=text",
                "model.name=transformer",
            ],
            "shapes" | "mask-folder" | "unet" | "segmentation" => [
                "task.name=segmentation",
                "data.name=shapes",
                "model.name=unet",
            ],
            _ => [
                "task.name=classification",
                "data.name=digits",
                "model.name=cnn",
            ],
        }
        .map(str::to_owned),
    );
    if let Some(variant) = &key.variant {
        sets.push(format!("{}.name={variant}", key.section));
    }
    let full = format!("{}.{}", key.section, key.name);
    if key.variant.as_deref() == Some("step") {
        let other = match key.name.as_str() {
            "milestones" => "schedule.milestone_steps=[1]",
            _ => "schedule.milestones=[1.0]",
        };
        sets.push(other.to_owned());
    }
    match full.as_str() {
        "optimizer.nesterov" => sets.push("optimizer.momentum=0.5".to_owned()),
        "data.resize" => sets.push("data.size=1".to_owned()),
        "schedule.lr_scaling" => sets.push("train.micro_batch_size=1".to_owned()),
        "early_stopping.monitor" => sets.push("early_stopping.patience=1".to_owned()),
        "data.evaluate" => sets.push("data.validation=0.25".to_owned()),
        "train.eval_precision" => sets.push(format!("train.precision={value}")),
        "train.bce_threshold" => sets.push("train.loss=bce".to_owned()),
        "checkpoint.in_memory_every_steps" => sets.push("checkpoint.in_memory=true".to_owned()),
        "swa.every_steps" => sets.push("swa.start=0.5".to_owned()),
        "log.mlflow_experiment" => sets.push("log.mlflow=http://localhost".to_owned()),
        "ema.warmup" => sets.push("ema.decay=0.5".to_owned()),
        _ => {}
    }
    sets
}

/// Valid values for this key, at least one.
fn legal(key: &Key) -> Vec<String> {
    if !key.values.is_empty() {
        return key.values.iter().map(|(value, _)| value.clone()).collect();
    }
    match (key.name.as_str(), &key.default) {
        ("depth", _) if key.variant.as_deref() == Some("wide-resnet") => vec!["22".to_owned()],
        ("mlflow", None) => vec!["http://127.0.0.1:5000".to_owned()],
        ("monitor", None) => vec!["loss".to_owned()],
        (_, Some(default)) => vec![toml(default).trim_matches('"').to_owned()],
        ("start", None) => vec!["0.75".to_owned()],
        ("validation" | "target_accuracy", None) => vec!["0.25".to_owned()],
        ("dim", None) => vec!["24".to_owned()],
        ("freeze", None) => vec!["[\"head.*\"]".to_owned()],
        ("groups", None) => vec!["[{match = \"*.bias\", lr_factor = 0.5}]".to_owned()],
        (_, None) => vec![
            match key.kind.as_str() {
                "integer" => "1",
                "number" => "0.5",
                "numbers" => "[0.5]",
                "4 integers" => "[1, 1, 1, 1]",
                "boolean" => "true",
                "string" => "some/path",
                other => panic!("say what a good value of {} is, a {other}", key.name),
            }
            .to_owned(),
        ],
    }
}

fn load(sets: &[String]) -> Result<Loaded, ConfigError> {
    Loaded::parse("empty.toml", "empty", "", sets)
}

#[test]
fn every_key_can_be_set_on_the_command_line() {
    let keys = keys();
    assert!(keys.len() > 60, "only {} keys", keys.len());
    for key in keys {
        for value in legal(&key) {
            let mut sets = context(&key, &value);
            sets.push(format!("{}.{}={value}", key.section, key.name));
            if let Err(error) = load(&sets) {
                let message = error.to_string();
                assert!(message.contains("not available"), "{sets:?}: {message}");
            }
        }
    }
}

#[test]
fn keys_that_almost_exist_are_refused_with_those_that_do() {
    for key in keys() {
        let mut sets = context(&key, "");
        sets.push(format!("{}.{}x=1", key.section, key.name));
        let error = load(&sets).unwrap_err();
        let helps = error.flaws().filter_map(|flaw| flaw.help_text());
        let helps: Vec<&str> = helps.collect();
        let message = format!("{error} | {}", helps.join(" | "));
        let expected = format!("did you mean `{}`?", key.name);
        assert!(message.contains("unknown key"), "{message}");
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn every_key_of_every_section_is_described() {
    let documented = keys();
    for (section, names) in sections() {
        for name in names {
            let found = documented
                .iter()
                .any(|key| key.section == section && key.name == name);
            // The names of [model] and [optimizer] are titles.
            assert!(found || name == "name", "{section}.{name}");
        }
    }
    for key in &documented {
        assert!(key.description.ends_with('.'), "{key:?}");
        assert!(!key.kind.is_empty(), "{key:?}");
    }
}

/// The value of "Default VALUE." in a description.
fn stated_default(description: &str) -> Option<Value> {
    let (_, rest) = description.rsplit_once("Default ")?;
    let text = match rest.strip_prefix('`') {
        Some(quoted) => quoted.split('`').next()?,
        None => rest
            .split([':', ',', ';', ' '])
            .next()?
            .trim_end_matches('.'),
    };
    let word = || Value::String(text.to_owned());
    Some(serde_json::from_str(text).unwrap_or_else(|_| word()))
}

#[test]
fn the_defaults_in_descriptions_are_those_of_the_code() {
    let same = |stated: &Value, actual: &Value| match (stated.as_f64(), actual.as_f64()) {
        (Some(stated), Some(actual)) => stated == actual,
        _ => stated == actual,
    };
    for key in keys() {
        let Some(default) = &key.default else {
            continue;
        };
        let stated = stated_default(&key.description);
        let stated = match (&stated, default) {
            (Some(Value::String(none)), Value::Array(_)) if none == "none" => {
                Some(Value::Array(vec![]))
            }
            _ => stated,
        };
        assert!(
            stated.as_ref().is_some_and(|stated| same(stated, default)),
            "{}.{}: the default is {default}, the description says {stated:?}",
            key.section,
            key.name
        );
    }
}

#[test]
fn the_file_in_the_repository_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/config.md");
    let file = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        file == markdown(),
        "docs/config.md is not what the code says; write it anew: trainer docs > docs/config.md"
    );
}

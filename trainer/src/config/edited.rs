//! A configuration file with one value changed. Everything else stays as written, comments too.

use std::ops::Range;

use super::source::{Sources, spans};
use super::{ConfigError, Loaded};

impl Loaded {
    /// The text of the configuration file with this `optimizer.lr`, without the `--set`s.
    ///
    /// # Errors
    /// Fails if the text cannot take the value.
    pub(crate) fn with_lr(&self, lr: f64) -> Result<String, ConfigError> {
        let file = self.sources.file();
        let alone = Sources::new("", file, &[]);
        let root = alone.parse().ok();
        let places = root.as_ref().map(spans).unwrap_or_default();
        let (lr_place, name) = (places.get("optimizer.lr"), places.get("optimizer.name"));
        let text = match (lr_place, name) {
            (Some(place), _) => Some(replaced(file, place.clone(), &format!("{lr:?}"))),
            (None, Some(name)) => added(file, name, lr),
            (None, None) if places.contains_key("optimizer") => None,
            (None, None) => Some(format!("{}\n\n[optimizer]\nlr = {lr:?}\n", file.trim_end())),
        };
        // The file may be written in a way that the above does not expect.
        let holds = |text: &String| {
            let table = text.parse::<toml::Table>().ok();
            let value = table
                .as_ref()
                .and_then(|table| table.get("optimizer")?.get("lr"));
            value.and_then(toml::Value::as_float) == Some(lr)
        };
        text.filter(holds).ok_or_else(|| {
            let message = "cannot write the learning rate into the configuration";
            let help = format!("write optimizer.lr = {lr:e} into it by hand");
            ConfigError::new(message.to_owned(), Some(help))
        })
    }
}

/// The text with another value at `place`.
fn replaced(text: &str, place: Range<usize>, value: &str) -> String {
    let (before, after) = (text.get(..place.start), text.get(place.end..));
    [before.unwrap_or_default(), value, after.unwrap_or_default()].concat()
}

/// The text with `lr` beside `optimizer.name`, whose value is at `name`.
fn added(text: &str, name: &Range<usize>, lr: f64) -> Option<String> {
    let before = text.get(..name.start)?;
    let line = before.rsplit('\n').next()?;
    if line.contains('{') {
        return Some(replaced(
            text,
            name.end..name.end,
            &format!(", lr = {lr:?}"),
        ));
    }
    // As in `optimizer.name = "adam"`.
    let (key, _) = line.split_once('=')?;
    let key = key.replacen("name", "lr", 1);
    let end = text
        .get(name.end..)?
        .find('\n')
        .map_or(text.len(), |end| name.end + end);
    Some(replaced(text, end..end, &format!("\n{key}= {lr:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(text: &str, sets: &[&str]) -> String {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let loaded = Loaded::parse("a.toml", "a", text, &sets).unwrap();
        let edited = loaded.with_lr(2e-3).unwrap();
        let again = Loaded::parse("a.toml", "a", &edited, &sets).unwrap();
        if sets.is_empty() {
            assert!(again.config.to_toml().unwrap().contains("lr = 0.002"));
        }
        edited
    }

    #[test]
    fn comments_and_order_stay() {
        let text = |lr: &str| {
            format!("# mine\n[optimizer]\nname = \"adam\" # good\n{lr}\n[model]\nname = \"cnn\"\n")
        };
        let old = text("lr  =  0.1   # too large\nweight_decay = 0.0");
        assert_eq!(
            edited(&old, &[]),
            text("lr  =  0.002   # too large\nweight_decay = 0.0")
        );
        assert_eq!(edited(&text(""), &[]), text("lr = 0.002\n"));
        let inline = "optimizer = { name = \"adam\", lr = 1e-1 }\nmodel.name = \"cnn\"\n";
        assert_eq!(edited(inline, &[]), inline.replace("1e-1", "0.002"));
        let dotted = "optimizer.name = \"adam\"\nmodel.name = \"cnn\"\n";
        let expected = "optimizer.name = \"adam\"\noptimizer.lr = 0.002\nmodel.name = \"cnn\"\n";
        assert_eq!(edited(dotted, &[]), expected);
        let without = edited("[model]\nname = \"cnn\"\n", &["optimizer.name=adam"]);
        assert_eq!(
            without,
            "[model]\nname = \"cnn\"\n\n[optimizer]\nlr = 0.002\n"
        );
    }
}

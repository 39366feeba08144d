//! `trainer init`: writes a new configuration with comments.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use super::failure::Failure;
use super::output::{self, Way};
use crate::config::template::template;
use crate::config::{Loaded, has_key, names_of, paths};
use crate::system::output::say;

/// Arguments of `trainer init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Writes this file.
    #[arg(value_name = "FILE", default_value = "train.toml", value_parser = paths::argument())]
    file: PathBuf,
    /// Chooses the data set. Without any choice, asks on a terminal.
    #[arg(long, value_name = "NAME")]
    data: Option<String>,
    /// Names the folder of the data.
    #[arg(long, value_name = "DIR")]
    dir: Option<String>,
    /// Chooses the model.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Chooses the optimizer.
    #[arg(long, value_name = "NAME")]
    optimizer: Option<String>,
    /// Chooses the task.
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
    /// Sets the number of epochs.
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// Sets another configuration key, for example train.batch_size=128. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Replaces an existing file.
    #[arg(long)]
    force: bool,
}

/// The chosen values, as TOML by `section.key`.
type Chosen = BTreeMap<String, String>;

/// Writes the file, after a check of what was chosen.
pub fn run(args: &InitArgs) -> Result<i32, Failure> {
    let file = &args.file;
    if file.exists() && !args.force {
        return Err(Failure::Usage(format!(
            "{} exists. Choose another name, or replace it with --force",
            file.display()
        )));
    }
    output::check("FILE", file, Way::Replaced)?;
    let mut chosen = args.chosen()?;
    if chosen.is_empty() && io::stdin().is_terminal() && io::stdout().is_terminal() {
        chosen = ask(&mut io::stdin().lock(), &mut io::stdout().lock())
            .map_err(|error| Failure::Usage(format!("cannot read the answers: {error}")))?;
    }
    complete(&mut chosen);
    let name = file.display().to_string();
    let text = template(&name, &chosen);
    Loaded::parse(&name, &stem(file), &text, &[])?;
    output::write(file, text.as_bytes())?;
    say(&format!(
        "{name}: check it with `trainer check {name}`, train with `trainer {name}`"
    ));
    Ok(0)
}

fn stem(file: &Path) -> String {
    file.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

impl InitArgs {
    fn chosen(&self) -> Result<Chosen, Failure> {
        let epochs = self.epochs.map(|epochs| epochs.to_string());
        let given = [
            ("task.name", &self.task),
            ("data.name", &self.data),
            ("data.dir", &self.dir),
            ("model.name", &self.model),
            ("optimizer.name", &self.optimizer),
            ("train.epochs", &epochs),
        ];
        let mut chosen = Chosen::new();
        for (key, value) in given {
            if let Some(value) = value {
                chosen.insert(key.to_owned(), toml_of(value));
            }
        }
        for set in &self.set {
            let Some((key, value)) = set.split_once('=').filter(|(key, _)| is_key(key.trim()))
            else {
                return Err(Failure::Usage(format!(
                    "`--set {set}` is no setting. Write it as --set section.key=value"
                )));
            };
            chosen.insert(key.trim().to_owned(), toml_of(value.trim()));
        }
        Ok(chosen)
    }
}

/// Whether it is `section.key`.
fn is_key(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let is_name = |name: &str| !name.is_empty() && name.chars().all(plain);
    text.split_once('.')
        .is_some_and(|(section, key)| is_name(section) && is_name(key))
}

/// The value as TOML: a text that is no TOML is a string.
fn toml_of(text: &str) -> String {
    match format!("value = {text}").parse::<toml::Table>() {
        Ok(table) if table.len() == 1 && !text.contains(['\n', '#']) => text.to_owned(),
        _ => toml::Value::from(text).to_string(),
    }
}

/// Adds a model for the task or the data, where none was chosen.
fn complete(chosen: &mut Chosen) {
    let value = |chosen: &Chosen, key: &str| {
        chosen
            .get(key)
            .map(|value| value.trim_matches('"').to_owned())
    };
    let task = match value(chosen, "data.name").as_deref() {
        Some("text") => Some("language"),
        Some("shapes" | "mask-folder") => Some("segmentation"),
        _ => None,
    };
    if let Some(task) = task {
        chosen
            .entry("task.name".to_owned())
            .or_insert_with(|| toml_of(task));
    }
    let (model, data) = match value(chosen, "task.name").as_deref() {
        Some("language") => ("transformer", Some("text")),
        Some("segmentation") => ("unet", Some("shapes")),
        _ => match value(chosen, "data.name").as_deref() {
            Some("image-folder" | "cifar-10" | "cifar-100") => ("resnet", None),
            _ => ("cnn", None),
        },
    };
    chosen
        .entry("model.name".to_owned())
        .or_insert_with(|| toml_of(model));
    if let Some(data) = data {
        chosen
            .entry("data.name".to_owned())
            .or_insert_with(|| toml_of(data));
    }
}

/// Questions, with the key that each sets.
const QUESTIONS: [(&str, &str); 5] = [
    ("data.name", "data set"),
    ("data.dir", "folder of the data"),
    ("model.name", "model"),
    ("optimizer.name", "optimizer"),
    ("train.epochs", "epochs"),
];

/// Asks for the most important values. An empty answer takes the default.
fn ask(answers: &mut impl BufRead, screen: &mut impl Write) -> io::Result<Chosen> {
    let mut chosen = Chosen::new();
    writeln!(screen, "An empty answer takes the default.")?;
    for (key, what) in QUESTIONS {
        let data = chosen.get("data.name").map(|name| name.trim_matches('"'));
        if key == "data.dir" && !data.is_some_and(|data| has_key("data", data, "dir")) {
            continue;
        }
        let names = key.strip_suffix(".name").map(names_of).unwrap_or_default();
        let all = match names.is_empty() {
            true => String::new(),
            false => format!(" ({})", names.join(", ")),
        };
        loop {
            write!(screen, "{what}{all}: ")?;
            screen.flush()?;
            let mut answer = String::new();
            let read = answers.read_line(&mut answer)?;
            let answer = answer.trim();
            if answer.is_empty() || read == 0 {
                break;
            }
            let is_number = answer.parse::<u64>().is_ok_and(|number| number > 0);
            let is_known = names.is_empty() || names.contains(&answer);
            if is_known && (key != "train.epochs" || is_number) {
                chosen.insert(key.to_owned(), toml_of(answer));
                break;
            }
            let advice = match crate::config::suggest::nearest(answer, &names) {
                Some(near) => format!("did you mean {near}?"),
                None if names.is_empty() => "write a number from 1, such as 10".to_owned(),
                None => "choose one of the names".to_owned(),
            };
            writeln!(screen, "{answer}: {advice}")?;
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(answers: &str) -> (Chosen, String) {
        let mut screen = Vec::new();
        let chosen = ask(&mut answers.as_bytes(), &mut screen).unwrap();
        (chosen, String::from_utf8(screen).unwrap())
    }

    #[test]
    fn answers_are_asked_again_until_they_are_possible() {
        let (chosen, screen) = asked("ImageFolder\nimage-folder\nmy photos\nvit\n\nten\n10\n");
        assert!(screen.contains("did you mean image-folder?"), "{screen}");
        assert!(screen.contains("write a number"), "{screen}");
        let given: Vec<_> = chosen
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            given,
            [
                ("data.dir", "\"my photos\""),
                ("data.name", "\"image-folder\""),
                ("model.name", "\"vit\""),
                ("train.epochs", "10"),
            ]
        );
    }

    #[test]
    fn an_end_of_the_answers_takes_the_defaults() {
        let (chosen, screen) = asked("");
        assert!(chosen.is_empty());
        assert!(!screen.contains("folder of the data"), "{screen}");
    }

    #[test]
    fn data_brings_its_task_and_model() {
        let with = |data: &str| {
            let mut chosen = Chosen::from([("data.name".to_owned(), toml_of(data))]);
            complete(&mut chosen);
            chosen
        };
        assert_eq!(with("text")["task.name"], "\"language\"");
        assert_eq!(with("text")["model.name"], "\"transformer\"");
        assert_eq!(with("shapes")["model.name"], "\"unet\"");
        assert_eq!(with("image-folder")["model.name"], "\"resnet\"");
        assert_eq!(with("mnist")["model.name"], "\"cnn\"");
    }

    #[test]
    fn values_become_toml() {
        for (text, toml) in [
            ("10", "10"),
            ("[0.9, 0.99]", "[0.9, 0.99]"),
            ("crop:4+flip", "\"crop:4+flip\""),
            ("\"vit\"", "\"vit\""),
        ] {
            assert_eq!(toml_of(text), toml, "{text}");
        }
        // No text can add keys or sections.
        for text in ["1\n[x]", "1 # x", "\"", "a\"\nb = 1"] {
            let table: toml::Table = format!("value = {}", toml_of(text)).parse().unwrap();
            assert_eq!(table["value"].as_str(), Some(text));
        }
    }
}

//! Writes the file of a new configuration: the chosen keys, and the others as comments.

use std::collections::BTreeMap;

use super::reference::{self, Group, Key};

/// Sections that a new configuration shows, with their usual names.
const SHOWN: [(&str, Option<&str>); 7] = [
    ("model", Some("cnn")),
    ("data", Some("digits")),
    ("optimizer", Some("adamw")),
    ("schedule", Some("constant")),
    ("train", None),
    ("checkpoint", None),
    ("early_stopping", None),
];
/// Width of comments, in characters.
const WIDTH: usize = 100;

/// The file called `file` with the `chosen` values, as TOML by `section.key`.
///
/// Every other key is a comment with its meaning and default. Chosen keys that do not exist are
/// written too, so that a check of the file names them.
pub fn template(file: &str, chosen: &BTreeMap<String, String>) -> String {
    let groups = reference::groups();
    let shown = |section: &str| SHOWN.iter().find(|(name, _)| *name == section);
    let is_chosen = |section: &str| chosen.keys().any(|key| section_of(key) == section);
    let mut sections: Vec<&str> = SHOWN.iter().map(|(name, _)| *name).collect();
    let all = groups.iter().filter(|group| group.variant.is_none());
    let (more, left): (Vec<&str>, Vec<&str>) = all
        .map(|group| group.section)
        .filter(|section| shown(section).is_none())
        .partition(|section| is_chosen(section));
    sections.extend(more);
    let unknown = chosen.keys().map(|key| section_of(key));
    for section in unknown {
        if !sections.contains(&section) {
            sections.push(section);
        }
    }
    let mut text = format!(
        "# Check this file: trainer check {file}\n# Train: trainer {file}\n# Keys with a `#` have \
         their defaults. `trainer docs SECTION.KEY` says more.\n"
    );
    for section in sections {
        let usual = shown(section).and_then(|(_, usual)| *usual);
        text += &format!("\n[{section}]\n{}", keys(&groups, section, usual, chosen));
    }
    let left = left.iter().map(|section| format!("[{section}]"));
    let left: Vec<String> = left.collect();
    text + &format!("\n# More sections: {}.\n", left.join(", "))
}

fn section_of(key: &str) -> &str {
    key.split('.').next().unwrap_or(key)
}

/// The keys of a section, the `name` first.
fn keys(
    groups: &[Group],
    section: &str,
    usual: Option<&str>,
    chosen: &BTreeMap<String, String>,
) -> String {
    let of_section = || groups.iter().filter(|group| group.section == section);
    let names: Vec<&str> = of_section()
        .filter_map(|group| group.variant.as_deref())
        .collect();
    let mut text = String::new();
    let usual = usual.map(|name| format!("{name:?}"));
    let mut name = None;
    if !names.is_empty() {
        let value = chosen.get(&format!("{section}.name")).or(usual.as_ref());
        text += &comment(&format!("One of: {}.", names.join(", ")));
        let value = value.cloned().unwrap_or_else(|| format!("{:?}", names[0]));
        text += &format!("name = {value}\n");
        name = Some(value.trim_matches('"').to_owned());
    }
    let mut written = vec!["name"];
    let is_meant = |group: &&Group| group.variant.is_none() || group.variant == name;
    // First the keys of the name, which say most about the section.
    let mut meant: Vec<&Group> = of_section().filter(is_meant).collect();
    meant.sort_by_key(|group| group.variant.is_none());
    for key in meant.into_iter().flat_map(|group| &group.keys) {
        text += &line(key, chosen);
        written.push(&key.name);
    }
    for (path, value) in chosen {
        let key = path.split_once('.').map_or("", |(_, key)| key);
        if section_of(path) == section && !written.contains(&key) {
            text += &format!("{key} = {value}\n");
        }
    }
    text
}

/// A key with the first sentence of its meaning.
fn line(key: &Key, chosen: &BTreeMap<String, String>) -> String {
    let path = format!("{}.{}", key.section, key.name);
    let about = comment(first_sentence(&key.description));
    let name = &key.name;
    let default = key.default.as_ref().map(reference::toml);
    match (chosen.get(&path), default) {
        (Some(value), _) => format!("{about}{name} = {value}\n"),
        (None, Some(value)) => format!("{about}# {name} = {value}\n"),
        (None, None) => format!("{about}# {name} = ({})\n", key.kind),
    }
}

/// The text up to its first full stop.
fn first_sentence(text: &str) -> &str {
    let end = text.match_indices(". ").find(|(at, _)| {
        let next = text[at + 2..].chars().next();
        next.is_some_and(|next| next.is_uppercase() || next == '`')
    });
    end.map_or(text, |(at, _)| &text[..=at])
}

/// Lines of a comment.
fn comment(text: &str) -> String {
    let mut lines = String::new();
    let mut line = "#".to_owned();
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += &format!("{line}\n");
            line = "#".to_owned();
        }
        line += &format!(" {word}");
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Loaded;

    fn of(chosen: &[(&str, &str)]) -> String {
        let chosen = chosen
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()));
        template("mine.toml", &chosen.collect())
    }

    #[test]
    fn a_new_file_is_valid_and_has_what_was_chosen() {
        for chosen in [
            &[][..],
            &[("model.name", "\"vit\""), ("train.epochs", "7")],
            &[("data.name", "\"image-folder\""), ("data.dir", "\"a b\"")],
            &[
                ("task.name", "\"language\""),
                ("model.name", "\"transformer\""),
                ("data.name", "\"text\""),
                ("data.path", "\"a.txt\""),
            ],
            &[("parallel.strategy", "\"zero-2\"")],
        ] {
            let text = of(chosen);
            let loaded = Loaded::parse("mine.toml", "mine", &text, &[]).unwrap();
            let toml: toml::Table = text.parse().unwrap();
            for (path, value) in chosen {
                let (section, key) = path.split_once('.').unwrap();
                assert_eq!(toml[section][key].to_string(), *value, "{text}");
            }
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
            assert_eq!(loaded.config.optimizer.kind.name(), "adamw");
        }
    }

    /// Otherwise the file would not do what its comments say.
    #[test]
    fn the_defaults_in_comments_are_those() {
        let text = of(&[("model.name", "\"vit\"")]);
        let (mut all, mut given) = (String::new(), 0);
        for line in text.lines() {
            let key = line.strip_prefix("# ").filter(|rest| {
                let (key, value) = rest.split_once(" = ").unwrap_or_default();
                !key.is_empty() && !key.contains(' ') && !value.starts_with('(')
            });
            given += usize::from(key.is_some());
            all += &format!("{}\n", key.unwrap_or(line));
        }
        assert!(given > 20, "{text}");
        let load = |text: &str| {
            Loaded::parse("mine.toml", "mine", text, &[])
                .unwrap()
                .config
        };
        assert_eq!(load(&all), load(&text));
    }

    #[test]
    fn a_key_that_does_not_exist_is_found_by_the_check() {
        let text = of(&[("train.epoch", "3"), ("trian.epochs", "3")]);
        let error = Loaded::parse("mine.toml", "mine", &text, &[])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`epoch`") && error.contains("`trian`"),
            "{error}"
        );
    }
}

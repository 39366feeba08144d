//! Explains configuration keys on a terminal, from the reference.

use super::reference::{self, Group, Key};
use super::suggest;

/// Width of the text, in characters.
const WIDTH: usize = 80;

/// The reference of a section, of `section.key`, or of the keys with that name. `None` if there is
/// no section or key of that name.
pub fn about(word: &str) -> Option<String> {
    let groups = reference::groups();
    let of_section: Vec<&Group> = groups
        .iter()
        .filter(|group| group.section == word)
        .collect();
    if !of_section.is_empty() {
        let parts: Vec<String> = of_section.into_iter().map(section).collect();
        return Some(parts.join("\n"));
    }
    let (of, name) = match word.split_once('.') {
        Some((of, name)) => (Some(of), name),
        None => (None, word),
    };
    let groups = groups
        .iter()
        .filter(|group| of.is_none_or(|of| of == group.section));
    let mut parts = Vec::new();
    for group in groups {
        if let Some(found) = group.keys.iter().find(|key| key.name == name) {
            parts.push(key(found));
        }
        if name == "name" && group.variant.is_some() {
            parts.push(title(group) + "\n" + &wrapped(&group.description));
        }
    }
    (!parts.is_empty()).then(|| parts.join("\n"))
}

/// Message that `word` is no key, with what it may mean.
pub fn not_found(word: &str) -> String {
    let groups = reference::groups();
    let keys = groups.iter().flat_map(|group| &group.keys);
    let paths: Vec<String> = keys
        .map(|key| format!("{}.{}", key.section, key.name))
        .collect();
    let names = paths.iter().flat_map(|path| {
        let (section, name) = path.split_once('.').unwrap_or_default();
        [path.as_str(), section, name]
    });
    let names: Vec<&str> = names.collect();
    let near = suggest::nearest(word, &names);
    let near = near
        .map(|near| format!("Did you mean {near}? "))
        .unwrap_or_default();
    format!("no section or key {word}. {near}`trainer docs` lists all")
}

/// A section, or the keys that one of its names adds.
fn section(group: &Group) -> String {
    let mut text = format!("{}\n{}", title(group), wrapped(&group.description));
    for one in &group.keys {
        text += &format!("\n{}", key(one));
    }
    text
}

fn title(group: &Group) -> String {
    match &group.variant {
        Some(name) => format!("[{}] name = \"{name}\"", group.section),
        None => format!("[{}]", group.section),
    }
}

/// A key: its place, default, type and unit, then its meaning and values.
fn key(key: &Key) -> String {
    let mut text = format!("{}.{}", key.section, key.name);
    if let Some(value) = &key.default {
        text += &format!(" = {}", reference::toml(value));
    }
    let kind = [Some(&key.kind), key.unit.as_ref()];
    let kind: Vec<&str> = kind.into_iter().flatten().map(String::as_str).collect();
    text += &format!("  ({})", kind.join(", "));
    if let Some(name) = &key.variant {
        text += &format!("  with {}.name = \"{name}\"", key.section);
    }
    text += &format!("\n{}", wrapped(&key.description));
    for (value, meaning) in &key.values {
        let meaning = match meaning.as_str() {
            "" => String::new(),
            meaning => format!(": {meaning}"),
        };
        text += &wrapped(&format!("- \"{value}\"{meaning}"));
    }
    text
}

/// Indented lines of `text`.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && 2 + line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += &format!("  {line}\n");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    match line.is_empty() {
        true => lines,
        false => lines + &format!("  {line}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_explained_wherever_it_is() {
        let epochs = about("train.epochs").unwrap();
        assert!(
            epochs.starts_with("train.epochs = 1  (integer, epochs)\n  Passes"),
            "{epochs}"
        );
        let betas = about("betas").unwrap();
        assert!(betas.contains("with optimizer.name = \"adam\""), "{betas}");
        assert!(betas.contains("with optimizer.name = \"lamb\""), "{betas}");
        let precision = about("train.precision").unwrap();
        assert!(precision.contains("- \"bf16\"\n"), "{precision}");
        let train = about("train").unwrap();
        assert!(train.starts_with("[train]\n") && train.contains("train.seed = 1"));
        let models = about("model.name").unwrap();
        assert!(models.contains("[model] name = \"vit\"\n  "), "{models}");
        let longest = train.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(WIDTH));
    }

    #[test]
    fn what_is_no_key_is_told() {
        assert_eq!(about("train.epoch"), None);
        assert_eq!(about(""), None);
        let told = not_found("train.epoch");
        assert!(told.contains("Did you mean train.epochs?"), "{told}");
    }
}

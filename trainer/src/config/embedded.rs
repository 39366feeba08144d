//! The shipped configurations, built into the binary, so that they need no files.

use super::suggest::suggest;

/// A built-in configuration.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// File name, including `.toml`.
    pub name: &'static str,
    /// Content of the file.
    pub text: &'static str,
}

/// Embeds the file of that name in `configs/`.
macro_rules! embedded {
    ($name:literal) => {
        Embedded {
            name: $name,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/configs/", $name)),
        }
    };
}

/// All built-in configurations, in alphabetical order.
pub const EMBEDDED: &[Embedded] = &[
    embedded!("csc-mnist-deepspeed.toml"),
    embedded!("csc-mnist.toml"),
    embedded!("digits.toml"),
    embedded!("fine-tune.toml"),
    embedded!("language.toml"),
    embedded!("mnist-adadelta.toml"),
    embedded!("mnist-cnn.toml"),
    embedded!("mnist-fast.toml"),
    embedded!("olivia.toml"),
    embedded!("shapes.toml"),
    embedded!("vit-naive.toml"),
    embedded!("vit.toml"),
    embedded!("wrn-16-4.toml"),
    embedded!("wrn-28-10.toml"),
    embedded!("wrn.toml"),
];

/// The default configuration.
pub const DEFAULT: &str = "digits.toml";

impl Embedded {
    /// Finds a configuration by name.
    ///
    /// `.toml` and the repository's folder `configs/` may be left out.
    pub fn find(name: &str) -> Option<Self> {
        let name = name.strip_prefix("./").unwrap_or(name);
        let name = name.strip_prefix("configs/").unwrap_or(name);
        let stem = name.strip_suffix(".toml").unwrap_or(name);
        EMBEDDED
            .iter()
            .find(|config| config.stem() == stem)
            .copied()
    }

    /// Message if `name` is no built-in configuration.
    pub fn not_found(name: &str) -> String {
        let names: Vec<&str> = EMBEDDED.iter().map(|config| config.name).collect();
        let help = suggest(name, &names, "shipped configurations");
        format!("no built-in configuration {name}; {help}")
    }

    /// Name without `.toml`.
    pub fn stem(&self) -> &'static str {
        self.name.strip_suffix(".toml").unwrap_or(self.name)
    }

    /// The purpose of the configuration: the first line of its comment.
    pub fn summary(&self) -> &'static str {
        let first = self.text.lines().next().unwrap_or_default();
        first.trim_start_matches('#').trim()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_found_by_every_form_of_its_name() {
        for name in [
            "digits",
            "digits.toml",
            "configs/digits.toml",
            "./configs/digits.toml",
        ] {
            assert_eq!(Embedded::find(name).unwrap().name, "digits.toml");
        }
        assert!(Embedded::find("other/digits.toml").is_none());
        assert!(Embedded::find("digits.json").is_none());
        assert!(Embedded::find(DEFAULT).is_some());
    }

    #[test]
    fn each_says_what_it_is_for() {
        for config in EMBEDDED {
            assert!(config.text.starts_with("# "), "{}", config.name);
            assert!(!config.summary().is_empty(), "{}", config.name);
        }
    }
}

//! The shipped configurations, inside the binary, so that nothing else has to be on a machine.

use super::section::suggest;

/// A configuration that comes with the program.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// File name, `.toml` included.
    pub name: &'static str,
    /// Content of the file.
    pub text: &'static str,
}

/// All of them, in alphabetical order.
pub const EMBEDDED: &[Embedded] = &[
    Embedded {
        name: "csc-mnist-deepspeed.toml",
        text: include_str!("../../../configs/csc-mnist-deepspeed.toml"),
    },
    Embedded {
        name: "csc-mnist.toml",
        text: include_str!("../../../configs/csc-mnist.toml"),
    },
    Embedded {
        name: "digits.toml",
        text: include_str!("../../../configs/digits.toml"),
    },
    Embedded {
        name: "mnist-adadelta.toml",
        text: include_str!("../../../configs/mnist-adadelta.toml"),
    },
    Embedded {
        name: "mnist-cnn.toml",
        text: include_str!("../../../configs/mnist-cnn.toml"),
    },
    Embedded {
        name: "mnist-fast.toml",
        text: include_str!("../../../configs/mnist-fast.toml"),
    },
    Embedded {
        name: "olivia.toml",
        text: include_str!("../../../configs/olivia.toml"),
    },
    Embedded {
        name: "vit-naive.toml",
        text: include_str!("../../../configs/vit-naive.toml"),
    },
    Embedded {
        name: "vit.toml",
        text: include_str!("../../../configs/vit.toml"),
    },
    Embedded {
        name: "wrn-16-4.toml",
        text: include_str!("../../../configs/wrn-16-4.toml"),
    },
    Embedded {
        name: "wrn-28-10.toml",
        text: include_str!("../../../configs/wrn-28-10.toml"),
    },
    Embedded {
        name: "wrn.toml",
        text: include_str!("../../../configs/wrn.toml"),
    },
];

/// What trains when no configuration is named.
pub const DEFAULT: &str = "digits.toml";

impl Embedded {
    /// The configuration called `name`, with or without `.toml`, with or without the folder
    /// `configs/` in which it lies in the repository.
    pub fn find(name: &str) -> Option<Self> {
        let name = name.strip_prefix("./").unwrap_or(name);
        let name = name.strip_prefix("configs/").unwrap_or(name);
        let stem = name.strip_suffix(".toml").unwrap_or(name);
        EMBEDDED
            .iter()
            .find(|config| config.stem() == stem)
            .copied()
    }

    /// What to say when there is no configuration called `name`.
    pub fn not_found(name: &str) -> String {
        let names: Vec<&str> = EMBEDDED.iter().map(|config| config.name).collect();
        let help = suggest(name, &names, "shipped configurations");
        format!("there is no configuration {name} inside this program; {help}")
    }

    /// Name without `.toml`.
    pub fn stem(&self) -> &'static str {
        self.name.strip_suffix(".toml").unwrap_or(self.name)
    }

    /// First line of the file's comment: what the configuration is for.
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

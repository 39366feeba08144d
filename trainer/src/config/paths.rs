//! Expands `~` and environment variables in paths that no shell has expanded.
//!
//! These are paths in a configuration, in `--set`, and after the `=` of an argument
//! (`--run-dir=~/run`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};

/// Parser of a path on the command line. It is not empty.
pub(crate) fn argument() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|text| match text.is_empty() {
        true => Err("the path is empty".to_owned()),
        false => expand(&text),
    })
}

/// Expands a leading `~`, and the variables `$NAME` and `${NAME}`. Other dollar signs stay.
///
/// # Errors
/// Fails if a variable is not set, the path begins with `~user`, or a `${` does not begin a
/// `${NAME}`.
pub(crate) fn expand(path: &OsStr) -> Result<PathBuf, String> {
    expand_by(path, |name| std::env::var_os(name))
}

fn expand_by(path: &OsStr, value: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
    let text = path.as_bytes();
    let variable = |name: &str, written: &str| {
        let value = value(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| {
            format!(
                "{written} in the path {} needs the environment variable {name}, which is not set",
                path.display()
            )
        })
    };
    let mut expanded = Vec::with_capacity(text.len());
    let mut rest = text;
    let home = text.split(|byte| *byte == b'/').next().unwrap_or_default();
    if home == b"~" {
        expanded.extend_from_slice(variable("HOME", "~")?.as_bytes());
        rest = &text[1..];
    } else if home.starts_with(b"~") {
        return Err(format!(
            "the path {path} begins with {}, but only ~ alone means a home folder. Write the full \
             path, or ./{path} for a folder of that name",
            String::from_utf8_lossy(home),
            path = path.display()
        ));
    }
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        let (before, from) = rest.split_at(at);
        expanded.extend_from_slice(before);
        let Some((name, written)) = named(from) else {
            if from.starts_with(b"${") {
                return Err(format!(
                    "the path {} contains a ${{ without a variable name. Write ${{NAME}} or $NAME",
                    path.display()
                ));
            }
            expanded.push(b'$');
            rest = &from[1..];
            continue;
        };
        let said = String::from_utf8_lossy(&from[..written]);
        expanded.extend_from_slice(variable(name, &said)?.as_bytes());
        rest = &from[written..];
    }
    expanded.extend_from_slice(rest);
    Ok(OsString::from_vec(expanded).into())
}

/// The variable named at the beginning of `text`, and the length of that reference in bytes.
fn named(text: &[u8]) -> Option<(&str, usize)> {
    let (inner, braces) = match text.get(1)? {
        b'{' => (&text[2..], 3),
        _ => (&text[1..], 1),
    };
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let len = inner.iter().take_while(|byte| is_name(byte)).count();
    let closed = braces == 1 || inner.get(len) == Some(&b'}');
    let begins = inner.first().is_some_and(|byte| !byte.is_ascii_digit());
    let name = std::str::from_utf8(&inner[..len]).ok()?;
    (len > 0 && closed && begins).then_some((name, len + braces))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(path: &str) -> Result<String, String> {
        let value = |name: &str| match name {
            "HOME" => Some("/home/a b".into()),
            "SCRATCH_1" => Some("/scratch".into()),
            "EMPTY" => Some("".into()),
            _ => None,
        };
        let path = expand_by(OsStr::new(path), value)?;
        Ok(path.to_str().unwrap().to_owned())
    }

    #[test]
    fn home_and_variables_are_expanded() {
        for (path, expected) in [
            ("~", "/home/a b"),
            ("~/x", "/home/a b/x"),
            ("$HOME/x", "/home/a b/x"),
            ("${HOME}x/~", "/home/a bx/~"),
            ("$SCRATCH_1/$HOME", "/scratch//home/a b"),
            ("x/${SCRATCH_1}", "x//scratch"),
        ] {
            assert_eq!(expanded(path).as_deref(), Ok(expected), "{path}");
        }
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        for path in [
            "",
            "x/y",
            "./~user/x",
            "x/~",
            "x/~user",
            "$",
            "a$",
            "$1",
            "$$",
            "$/x",
            "ä$é",
        ] {
            assert_eq!(expanded(path).as_deref(), Ok(path));
        }
    }

    #[test]
    fn what_would_be_taken_literally_by_mistake_is_refused() {
        for (path, said) in [
            ("~user/x", "or ./~user/x for a folder of that name"),
            ("~+", "begins with ~+, but only ~ alone"),
            ("${HOME", "the path ${HOME contains a ${ without a"),
            ("${HOME:-/x}", "without a variable name"),
            ("$HOME/${1}", "without a variable name"),
        ] {
            let refused = expanded(path).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
    }

    #[test]
    fn a_variable_that_is_not_set_is_named() {
        for path in ["$NOWHERE/x", "x/${NOWHERE}"] {
            let said = expanded(path).unwrap_err();
            assert!(
                said.contains("variable NOWHERE, which is not set"),
                "{said}"
            );
        }
        assert!(expanded("$EMPTY/x").unwrap_err().contains("EMPTY"));
    }
}

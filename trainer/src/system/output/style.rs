//! Colours and redrawing on the terminal, as far as the environment allows them.

use std::borrow::Cow;
use std::io::{self, IsTerminal};

use anstream::{AutoStream, ColorChoice};

/// Bold red and bold yellow.
const ERROR: &str = "\x1b[1;31m";
const WARNING: &str = "\x1b[1;33m";
const RESET: &str = "\x1b[0m";

/// Whether standard error gets colours.
///
/// A terminal does, unless `NO_COLOR`, `CLICOLOR=0` or `TERM=dumb` is set. `CLICOLOR_FORCE` gives
/// colours to files and pipes too.
pub(crate) fn has_colors() -> bool {
    AutoStream::choice(&io::stderr()) != ColorChoice::Never
}

/// Whether standard error is a terminal that can redraw its lines.
pub(crate) fn redraws() -> bool {
    io::stderr().is_terminal() && !is_dumb()
}

/// Whether the terminal can only append text.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Colours the label of an error or warning, if standard error gets colours.
pub(super) fn painted(text: &str) -> Cow<'_, str> {
    match has_colors() {
        true => paint(text),
        false => text.into(),
    }
}

fn paint(text: &str) -> Cow<'_, str> {
    let labels = [("error", ERROR), ("warning", WARNING)];
    let of_text = |(label, _): &(&str, &str)| {
        let rest = text.strip_prefix(label);
        rest.is_some_and(|rest| rest.starts_with(':') || rest.starts_with(" on rank "))
    };
    let found = labels.into_iter().find(of_text);
    let parts = found.and_then(|(_, color)| Some((color, text.split_once(':')?)));
    match parts {
        Some((color, (label, rest))) => format!("{color}{label}:{RESET}{rest}").into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_get_a_color_and_nothing_else_does() {
        for (text, expected) in [
            ("error: no: way", "\x1b[1;31merror:\x1b[0m no: way"),
            (
                "error on rank 3: no",
                "\x1b[1;31merror on rank 3:\x1b[0m no",
            ),
            ("warning: careful", "\x1b[1;33mwarning:\x1b[0m careful"),
            ("errors: 3", "errors: 3"),
            ("error", "error"),
            ("epoch 1/2: 3.0 s", "epoch 1/2: 3.0 s"),
        ] {
            assert_eq!(paint(text), expected);
        }
    }
}

//! Options that do not exist, but are the names of configuration keys.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::{Meaning, key_meant};

/// Advises to set a key, if the unknown option in `error` is one, here or in another framework.
pub fn advised(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let Some(word) = option.strip_prefix("--") else {
        return error;
    };
    let word = word.split('=').next().unwrap_or(word);
    let advice = match key_meant(word) {
        Some(Meaning::Key(path)) => format!("set the configuration key: --set {path}=VALUE"),
        Some(Meaning::Elsewhere(advice)) => advice.to_owned(),
        None => return error,
    };
    for kind in [
        ContextKind::SuggestedArg,
        ContextKind::SuggestedSubcommand,
        ContextKind::Suggested,
        // It shows the option that clap would have suggested.
        ContextKind::Usage,
    ] {
        error.remove(kind);
    }
    let advice = ContextValue::StyledStrs(vec![advice.into()]);
    error.insert(ContextKind::Suggested, advice);
    error
}

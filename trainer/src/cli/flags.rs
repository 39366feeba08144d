//! Options that do not exist, but are the names of configuration keys.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::{Meaning, key_meant};

/// Advises to set a key, if the unknown option in `error` is one, here or in another framework.
///
/// `command` is the command with that option, if any.
pub fn advised(mut error: clap::Error, command: Option<&str>) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let word = option.strip_prefix("--");
    let word = word.map(|word| word.split('=').next().unwrap_or(word));
    let advice = match (word, command) {
        (Some(word), Some("launch")) if of_other_launchers(word).is_some() => {
            of_other_launchers(word).map(str::to_owned)
        }
        (_, Some("launch")) => Some("arguments of the training go after the --".to_owned()),
        (Some(word), _) => match key_meant(word) {
            Some(Meaning::Key(path)) => {
                Some(format!("set the configuration key: --set {path}=VALUE"))
            }
            Some(Meaning::Elsewhere(advice)) => Some(advice.to_owned()),
            None => None,
        },
        (None, _) => None,
    };
    let Some(advice) = advice else {
        return error;
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

/// Says how `trainer launch` does what an option of torchrun or horovodrun does.
fn of_other_launchers(word: &str) -> Option<&'static str> {
    Some(match word.replace('_', "-").as_str() {
        "nproc-per-node" | "num-proc" => "use --nproc N",
        "rdzv-endpoint" | "master-addr" | "master-port" => "use --rendezvous HOST:PORT",
        "min-np" | "max-np" | "min-num-proc" | "max-num-proc" => "use --nnodes MIN:MAX",
        "rdzv-backend" | "rdzv-id" | "rdzv-conf" | "node-rank" => {
            "leave it out: nodes find each other at --rendezvous"
        }
        "log-dir" | "redirects" | "tee" => "leave it out: each rank has a log in the run folder",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_other_launchers_have_an_answer() {
        assert_eq!(of_other_launchers("nproc_per_node"), Some("use --nproc N"));
        assert_eq!(
            of_other_launchers("rdzv-endpoint"),
            Some("use --rendezvous HOST:PORT")
        );
        assert_eq!(of_other_launchers("nproc"), None);
    }
}

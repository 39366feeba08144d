//! What can go wrong in NCCL.

/// Why NCCL cannot be used, or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// The library is not there.
    #[error("NCCL was not found: {reason}")]
    NoLibrary {
        /// What was looked for.
        reason: String,
    },
    /// NCCL refused a call.
    #[error("NCCL's {call} failed with code {code}: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// NCCL's or the driver's number of the error.
        code: i32,
        /// What is known of it.
        reason: String,
    },
    /// NCCL reported an error while a collective ran.
    #[error("NCCL failed during a collective, with code {code}: {reason}")]
    Asynchronous {
        /// NCCL's number of the error.
        code: i32,
        /// What is known of it.
        reason: String,
    },
    /// A collective was not done in time, though all ranks had entered it.
    #[error(
        "NCCL was not done within {seconds} s, though all ranks had entered the collective: the \
         connection between two of them is stuck; NCCL_DEBUG=INFO tells which it uses"
    )]
    TimedOut {
        /// The time-out, in seconds.
        seconds: u64,
    },
    /// NCCL did not come back from a call in which it connects ranks.
    #[error(
        "NCCL did not connect the ranks within {seconds} s: one of them did not come, or cannot be reached over the \
         network that NCCL has chosen; NCCL_DEBUG=INFO tells which that is, NCCL_SOCKET_IFNAME chooses another"
    )]
    NotConnected {
        /// The time-out, in seconds.
        seconds: u64,
    },
    /// Another rank failed meanwhile.
    #[error("given up in NCCL: {reason}")]
    PeerFailed {
        /// Who, and why.
        reason: String,
    },
    /// The thread that carries collectives out is gone.
    #[error("the thread that speaks with NCCL ended")]
    NoProgress,
}

/// NCCL's version number in its usual form.
pub(crate) fn version_words(code: i32) -> String {
    // Since 2.9 with two digits each for minor version and patch, before with one for the minor.
    let (major, minor, patch) = match code >= 10_000 {
        true => (code / 10_000, code / 100 % 100, code % 100),
        false => (code / 1000, code / 100 % 10, code % 100),
    };
    format!("{major}.{minor}.{patch}")
}

#[cfg(test)]
mod tests {
    use super::version_words;

    #[test]
    fn versions_are_read_as_nccl_writes_them() {
        assert_eq!(version_words(22703), "2.27.3");
        assert_eq!(version_words(2804), "2.8.4");
    }
}

//! Errors of NCCL.

/// An error of NCCL, or the reason why it cannot be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// The library was not found.
    #[error("NCCL was not found: {reason}")]
    NoLibrary {
        /// The loader's error message.
        reason: String,
    },
    /// NCCL refused a call.
    #[error("NCCL: {call} failed with code {code}: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// Error code of NCCL or the driver.
        code: i32,
        /// The known details.
        reason: String,
    },
    /// NCCL reported an error while a collective ran.
    #[error("NCCL failed with code {code} during a collective: {reason}")]
    Asynchronous {
        /// Error code of NCCL.
        code: i32,
        /// The known details.
        reason: String,
    },
    /// A collective did not finish in time, though all ranks had entered it.
    #[error(
        "NCCL did not finish within {seconds} s, although all ranks entered the collective: a \
         connection between two of them is stuck. Set NCCL_DEBUG=INFO to see which network NCCL \
         uses"
    )]
    TimedOut {
        /// The timeout, in seconds.
        seconds: u64,
    },
    /// NCCL did not return from the call that connects ranks.
    #[error(
        "NCCL did not connect the ranks within {seconds} s: a rank is missing or unreachable over \
         the network that NCCL chose. Set NCCL_DEBUG=INFO to see it, NCCL_SOCKET_IFNAME to choose \
         another"
    )]
    NotConnected {
        /// The timeout, in seconds.
        seconds: u64,
    },
    /// Another rank failed in the meantime.
    #[error("NCCL collective aborted: {reason}")]
    PeerFailed {
        /// The rank and its reason.
        reason: String,
    },
    /// The thread that runs collectives is gone.
    #[error("the NCCL thread ended")]
    NoProgress,
}

crate::debug_is_display!(NcclError);

/// NCCL's version number in its usual form.
pub(crate) fn version_words(code: i32) -> String {
    // Minor version and patch have two digits each since 2.9; before that, the minor version had
    // one.
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

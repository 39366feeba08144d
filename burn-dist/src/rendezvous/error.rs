//! Errors between a rank and the store.

use super::protocol::{GatherFailure, MAX_PAYLOAD, MAX_TAG, Refusal};
use crate::open_files::TooFewOpenFiles;
use crate::wire::Fault;
use crate::wire::SecretError;
use crate::wire::auth::{AuthError, Ends, MAX_CONTEXT, VERSION};
use crate::world::Master;
use std::net::SocketAddr;
use std::time::Duration;

/// The reason why ranks did not meet, or cannot exchange data any more.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The world has several ranks but no address or secret.
    #[error("a world of {size} ranks needs a store")]
    NoStore {
        /// The world size.
        size: usize,
    },
    /// MPI could not tell the ranks where to meet.
    #[error("the ranks could not agree on a meeting point over MPI: {reason}")]
    Mpi {
        /// The error.
        reason: String,
    },
    /// The ranks have re-formed their world without this one.
    #[error(
        "the others went on without rank {rank}, because it came too late to re-form the world"
    )]
    LeftOut {
        /// This rank.
        rank: usize,
    },
    /// The store is gone, and with it the way to re-form the world.
    #[error(
        "cannot re-form the world: the store at {address} does not answer ({reason}). Under MPI, \
         Slurm and torchrun it ends with rank 0"
    )]
    CannotReform {
        /// Address of the store.
        address: SocketAddr,
        /// The last attempt.
        reason: String,
    },
    /// The store's host name has no address.
    #[error("cannot resolve {master}: {source}. Check MASTER_ADDR")]
    Resolve {
        /// The address that was looked up.
        master: Master,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another program, or a run that has not ended, uses the port.
    #[error(
        "port {port} is in use on this machine ({address}) by another run or program. Choose \
         another port for all ranks, for example MASTER_PORT={other}",
        port = address.port(), other = other_port(*address)
    )]
    PortInUse {
        /// Address for the store.
        address: SocketAddr,
    },
    /// Rank 0 runs on another host than MASTER_ADDR says.
    #[error(
        "rank 0 cannot host the store at {master}: {ip} is not an address of this machine. Set \
         MASTER_ADDR to the host of rank 0",
        ip = address.ip()
    )]
    NotLocal {
        /// Address for the store.
        master: Master,
        /// The address that it resolves to.
        address: SocketAddr,
    },
    /// Other nodes cannot reach a store at this address.
    #[error(
        "{host} is {ip} on this machine, which other nodes cannot reach. Set MASTER_ADDR to rank \
         0's address on the network between the nodes (with torchrun, --local-addr on that host or \
         --master-addr)",
        host = master.host,
        ip = address.ip()
    )]
    Loopback {
        /// Address for the store.
        master: Master,
        /// The address that it resolves to.
        address: SocketAddr,
    },
    /// The store cannot listen for another reason.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Address for the store.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The limit of open files is too low for a connection to every rank.
    #[error("cannot host the store: {0}")]
    OpenFiles(#[from] TooFewOpenFiles),
    /// No store answered in time.
    #[error(
        "no store at {master} after {waited:?}: {source}. Check that rank 0 runs there and that \
         this machine reaches that port. A run whose ranks are all connected accepts no others"
    )]
    NothingListens {
        /// Address of the store.
        master: Master,
        /// How long this rank tried.
        waited: Duration,
        /// Error of the last attempt.
        source: std::io::Error,
    },
    /// The launcher's store no longer answers.
    #[error(
        "the launcher's store at {address} no longer listens ({source}): the launcher is gone, or \
         all ranks of its run are connected. A process connects one group, which can be split"
    )]
    LauncherGone {
        /// Address of the store.
        address: SocketAddr,
        /// Error of the last attempt.
        source: std::io::Error,
    },
    /// The store cannot be reached from this machine.
    #[error("cannot connect to {address}: {source}. Check that the network interface is up")]
    Unreachable {
        /// Address of the store.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// A relay or NAT is between the rank and the store.
    #[error(
        "the connection to the store at {address} goes through a relay or a NAT and is refused: \
         this rank sees it as {ours}, the store as {theirs}. If another user listens at {address}, \
         choose another MASTER_PORT. With a NAT, set MASTER_ADDR to an address that rank 0's host \
         has itself"
    )]
    Relayed {
        /// Address at which this rank looked for the store.
        address: SocketAddr,
        /// The connection as this rank sees it.
        ours: Box<Ends>,
        /// The connection as the store sees it.
        theirs: Box<Ends>,
    },
    /// Another program listens there.
    #[error(
        "the program at {address} is not a burn-dist store: {reason}. Choose another MASTER_PORT"
    )]
    NotAStore {
        /// Address of the store.
        address: SocketAddr,
        /// Its answer.
        reason: String,
    },
    /// Rank and store have different versions.
    #[error(
        "the store at {address} speaks protocol version {theirs}, this rank version {VERSION}. \
         Start the same program on all nodes"
    )]
    VersionDiffers {
        /// Address of the store.
        address: SocketAddr,
        /// Version of the store.
        theirs: u16,
    },
    /// The store belongs to another run, or has another secret.
    #[error(
        "the store at {address} has another secret or belongs to another run. If it is of this \
         run, this node has another key file (~/.config/burn-dist/key) or BURN_DIST_SECRET than \
         rank 0: copy rank 0's. Two runs on a host need different MASTER_PORTs"
    )]
    WrongSecret {
        /// Address of the store.
        address: SocketAddr,
    },
    /// A rank runs another executable.
    #[error(
        "rank {rank} runs another executable than rank 0. Install the same build on all nodes, or \
         set the group's `same_program` to false to allow it"
    )]
    ProgramDiffers {
        /// The first rank that differs.
        rank: usize,
    },
    /// Ranks disagree about the world size.
    #[error(
        "the world size differs: {ours} on this rank, {theirs} at the store at {address}. Set the \
         same WORLD_SIZE for all ranks"
    )]
    WorldSizeDiffers {
        /// Address of the store.
        address: SocketAddr,
        /// This rank's world size.
        ours: usize,
        /// The world size of the store.
        theirs: usize,
    },
    /// The rank does not exist.
    #[error("rank {rank} does not exist: the store at {address} is for ranks 0 to {last}", last = size.saturating_sub(1))]
    RankOutOfRange {
        /// Address of the store.
        address: SocketAddr,
        /// This rank.
        rank: usize,
        /// The store's world size.
        size: usize,
    },
    /// Two processes claim the same rank.
    #[error(
        "rank {rank} is already connected to the store at {address}. Either two processes have \
         RANK={rank}, or this one already has a group, which can be split"
    )]
    RankTaken {
        /// Address of the store.
        address: SocketAddr,
        /// This rank.
        rank: usize,
    },
    /// The rank has left the run, and a run does not take ranks back.
    #[error(
        "rank {rank} has left the run of the store at {address}, and other ranks are still there \
         or failed. Start all ranks again after that run has ended. Within one process, drop the \
         first group on all ranks before they reconnect"
    )]
    RankGone {
        /// Address of the store.
        address: SocketAddr,
        /// This rank.
        rank: usize,
    },
    /// The store belongs to an earlier run.
    #[error(
        "the store at {address} belongs to a run of another size that is ending. Wait for it, or \
         choose another MASTER_PORT for all ranks"
    )]
    Ending {
        /// Address of the store.
        address: SocketAddr,
    },
    /// Ranks did not come in time.
    #[error("{}", missing(address, (&**tag, *waited), ranks, *refused))]
    Missing {
        /// Address of the store.
        address: SocketAddr,
        /// Purpose of the exchange.
        tag: Box<str>,
        /// How long the first of them waited.
        waited: Duration,
        /// The missing ranks, and whether each was connected at all.
        ranks: Vec<(usize, bool)>,
        /// Whether a process with another secret was refused.
        refused: bool,
    },
    /// Two ranks are at different points of the program.
    #[error(
        "ranks disagree on exchange {sequence}: rank {} is at `{}`, rank {} at `{}`. All ranks \
         must make the same calls in the same order",
        first.0, first.1, second.0, second.1
    )]
    TagsDiffer {
        /// Number of successful exchanges before.
        sequence: u64,
        /// A rank and its tag.
        first: (usize, String),
        /// Another rank and its tag.
        second: (usize, String),
    },
    /// A rank was done before the others.
    #[error("rank {rank} left the run while the others wait for it at `{tag}`")]
    Left {
        /// Purpose of the exchange.
        tag: String,
        /// The rank.
        rank: usize,
    },
    /// A rank failed, or the store is gone.
    #[error("{0}")]
    Fault(Fault),
    /// The store is connected but does not react.
    #[error("the store at {address} did not answer for {waited:?}. Its process may be suspended")]
    Silent {
        /// Address of the store.
        address: SocketAddr,
        /// How long this rank waited.
        waited: Duration,
    },
    /// The payload is too long for an exchange.
    #[error(
        "{bytes} bytes are too many to exchange through the store; the maximum is {MAX_PAYLOAD}"
    )]
    PayloadTooLong {
        /// Length of the payload.
        bytes: usize,
    },
    /// The tag is too long for a name.
    #[error("a tag of {bytes} bytes is too long; the maximum is {MAX_TAG}")]
    TagTooLong {
        /// Length of the tag.
        bytes: usize,
    },
    /// The secret is unusable.
    #[error("no secret: {0}")]
    Secret(#[from] SecretError),
    /// The system refused another operation.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

crate::debug_is_display!(RendezvousError);

impl RendezvousError {
    pub(crate) fn system(what: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    /// The error if the store cannot listen at `address`.
    pub(crate) fn listen(address: SocketAddr) -> impl Fn(std::io::Error) -> Self {
        move |source| match source.kind() {
            std::io::ErrorKind::AddrInUse => Self::PortInUse { address },
            _ => Self::Listen { address, source },
        }
    }

    /// The error for a failed handshake with the store at `address`.
    pub(crate) fn handshake(address: SocketAddr, error: AuthError) -> Self {
        match error {
            AuthError::Version { theirs, .. } => Self::VersionDiffers { address, theirs },
            AuthError::WrongSecret => Self::WrongSecret { address },
            AuthError::Relayed { ours, theirs } => Self::Relayed {
                address,
                ours,
                theirs,
            },
            other => Self::NotAStore {
                address,
                reason: other.to_string(),
            },
        }
    }

    /// The error for a refusal by the store at `address`.
    pub(crate) fn refused(address: SocketAddr, rank: usize, ours: usize, refusal: Refusal) -> Self {
        match refusal {
            Refusal::WorldSize { store } => Self::WorldSizeDiffers {
                address,
                ours,
                theirs: store,
            },
            Refusal::RankOutOfRange { store } => Self::RankOutOfRange {
                address,
                rank,
                size: store,
            },
            Refusal::RankTaken => Self::RankTaken { address, rank },
            Refusal::RankGone => Self::RankGone { address, rank },
            Refusal::Ending => Self::Ending { address },
            Refusal::LeftOut => Self::LeftOut { rank },
            Refusal::BadContext => Self::NotAStore {
                address,
                reason: format!("it does not accept {MAX_CONTEXT} bytes of context"),
            },
        }
    }

    /// The error for a failed exchange, as the store at `address` reported it.
    pub(crate) fn gather(address: SocketAddr, failure: GatherFailure) -> Self {
        match failure {
            GatherFailure::Missing {
                tag,
                waited,
                ranks,
                refused,
            } => Self::Missing {
                address,
                tag: tag.into(),
                waited,
                ranks,
                refused,
            },
            GatherFailure::TagsDiffer {
                sequence,
                first,
                second,
            } => Self::TagsDiffer {
                sequence,
                first,
                second,
            },
            GatherFailure::Left { tag, rank } => Self::Left { tag, rank },
        }
    }
}

fn other_port(address: SocketAddr) -> u16 {
    match address.port() {
        port @ 1024..=65534 => port + 1,
        _ => 29500,
    }
}

/// The likely reason if a process with another secret was refused.
const OTHER_SECRET: &str = "a process with another secret was refused; the nodes have probably \
                            different key files (~/.config/burn-dist/key) or BURN_DIST_SECRET";

fn missing(
    address: &SocketAddr,
    (tag, waited): (&str, Duration),
    ranks: &[(usize, bool)],
    refused: bool,
) -> String {
    let have = if ranks.len() == 1 { "has" } else { "have" };
    let all = list(ranks.iter().map(|(rank, _)| *rank));
    let absent: Vec<usize> = ranks
        .iter()
        .filter(|(_, here)| !here)
        .map(|r| r.0)
        .collect();
    let detail = if absent.is_empty() {
        "connected, but busy elsewhere".into()
    } else if refused {
        format!(
            "{} never connected: {OTHER_SECRET}",
            list(absent.into_iter())
        )
    } else if absent.len() == ranks.len() {
        // A host's name may be a loopback address on that host only.
        let reach = match address.ip().is_loopback() {
            true => "; other hosts cannot reach a loopback address",
            false => "",
        };
        format!(
            "never connected; check that they were started with the same MASTER_ADDR and \
             MASTER_PORT{reach}"
        )
    } else {
        format!("{} never connected", list(absent.into_iter()))
    };
    format!(
        "waited {} s at {address} for `{tag}`: {all} {have} not arrived ({detail})",
        (waited.as_secs_f64() * 10.0).round() / 10.0
    )
}

/// The message about ranks that have not come after a while.
pub(super) fn still_missing(
    address: SocketAddr,
    waited: Duration,
    ranks: &[(usize, bool)],
    refused: bool,
) -> String {
    let named = |connected: bool| {
        let named = ranks.iter().filter(|(_, is)| *is == connected);
        let named: Vec<usize> = named.map(|(rank, _)| *rank).collect();
        let have = if named.len() == 1 { "has" } else { "have" };
        (!named.is_empty()).then(|| format!("{} {have}", list(named.into_iter())))
    };
    let absent = named(false).map(|who| {
        let advice = match refused {
            true => OTHER_SECRET,
            false => "check that they were started with the same MASTER_ADDR and MASTER_PORT",
        };
        format!("{who} not connected to the store at {address}; {advice}.")
    });
    let late =
        named(true).map(|who| format!("{who} connected but not continued: slow or suspended."));
    let all: Vec<String> = absent.into_iter().chain(late).collect();
    format!("after {} s {}", waited.as_secs(), all.join(" "))
}

/// "rank 2" or "ranks 2, 3"; long lists are cut.
fn list(ranks: impl ExactSizeIterator<Item = usize>) -> String {
    const SHOWN: usize = 16;
    let count = ranks.len();
    let names: Vec<String> = ranks.take(SHOWN).map(|rank| rank.to_string()).collect();
    let more = match count.saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let plural = if count == 1 { "rank" } else { "ranks" };
    format!("{plural} {}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing_text(ranks: &[(usize, bool)]) -> String {
        let address = "127.0.0.1:29500".parse().unwrap();
        missing(&address, ("connect", Duration::from_secs(60)), ranks, false)
    }

    #[test]
    fn missing_ranks_are_named() {
        assert_eq!(
            missing_text(&[(2, false), (3, true)]),
            "waited 60 s at 127.0.0.1:29500 for `connect`: ranks 2, 3 have not arrived \
             (rank 2 never connected)"
        );
        assert!(missing_text(&[(1, true)]).contains("rank 1 has not arrived (connected, but"));
        let never = missing_text(&[(1, false)]);
        assert!(never.contains("rank 1 has not arrived (never connected"));
        assert!(never.ends_with("MASTER_PORT; other hosts cannot reach a loopback address)"));
        let elsewhere = "10.0.0.1:29500".parse().unwrap();
        let never = missing(
            &elsewhere,
            ("connect", Duration::from_secs(60)),
            &[(1, false)],
            false,
        );
        assert!(never.ends_with("MASTER_PORT)"), "{never}");
        let many: Vec<_> = (0..100).map(|rank| (rank, false)).collect();
        assert!(missing_text(&many).contains("14, 15 and 84 more have not"));
        let refused = missing(
            &elsewhere,
            ("connect", Duration::from_secs(60)),
            &[(1, false)],
            true,
        );
        let reason = "(rank 1 never connected: a process with another secret was refused";
        assert!(refused.contains(reason), "{refused}");
        assert!(!refused.contains("MASTER_ADDR"), "{refused}");
    }

    #[test]
    fn who_is_still_missing_is_one_line() {
        let address = "10.0.0.1:29500".parse().unwrap();
        let ranks = [(1, false), (2, true), (3, false)];
        let text = still_missing(address, Duration::from_secs(10), &ranks, false);
        let absent = "after 10 s ranks 1, 3 have not connected to the store at 10.0.0.1:29500";
        assert!(text.starts_with(absent), "{text}");
        assert!(
            text.contains("rank 2 has connected but not continued"),
            "{text}"
        );
        assert!(!text.contains('\n'), "{text}");
        let refused = still_missing(address, Duration::from_secs(10), &ranks, true);
        assert!(refused.contains("different key files"), "{refused}");
        let late = still_missing(address, Duration::from_secs(10), &[(2, true)], false);
        assert_eq!(
            late,
            "after 10 s rank 2 has connected but not continued: slow or suspended."
        );
    }

    #[test]
    fn port_in_use_suggests_another() {
        let address = "127.0.0.1:29500".parse().unwrap();
        let text = RendezvousError::PortInUse { address }.to_string();
        assert!(text.contains("port 29500 is in use") && text.contains("MASTER_PORT=29501"));
    }
}

//! Messages between agents, and their frames.
//!
//! A frame is a length, the message as postcard, and a tag of the connection's
//! [`seal`](crate::wire::seal). Lengths are limited before memory is allocated.

use std::io::Read;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::super::local::{Ended, RankExit};
use crate::wire::auth::StreamError;
use crate::wire::seal::{Opener, TAG};

/// Largest encoded message, in bytes.
const MAX_BYTES: usize = 1 << 18;
/// Bytes of a frame's length.
const LENGTH: usize = 4;
/// Longest text in a message, in bytes. Longer ones are cut.
const MAX_TEXT: usize = 2 << 10;
/// Most lines of a rank's last words.
const MAX_LINES: usize = 8;

/// A message between two agents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Message {
    /// First of the connecting side.
    Hello(Hello),
    /// The listening agent leads a group, and the other is in it or waits for a place.
    Welcome,
    /// Words for the user of the receiver.
    Tell(String),
    /// Whom to ask after the loss of the leader, for agents without ranks.
    Members(Box<Members>),
    /// The leader leaves the group, after its ranks.
    Left,
    /// The listening agent leads no group; another may, at this address. Without an address: not
    /// yet.
    Elsewhere(Option<SocketAddr>),
    /// The listening agent leads the group with precedence: the other leader must join it.
    Yield,
    /// The listening agent does not accept the other.
    Refused(String),
    /// The sender is alive.
    Beat,
    /// Start the ranks of a generation.
    Start(Box<Start>),
    /// End the ranks of a generation.
    Stop { generation: u32, how: How },
    /// A rank of the sender has ended.
    RankEnded(RankEnded),
    /// All ranks of the sender have ended.
    Stopped { generation: u32, report: Report },
    /// The run is over.
    Done { code: u8, reason: String },
}

/// An agent's introduction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// Random number of the agent.
    pub agent: u64,
    /// Name of its host.
    pub host: String,
    /// Number of ranks that it starts.
    pub ranks: u16,
    /// Port at which it listens.
    pub port: u16,
    /// The last generation that it knows, 0 if none.
    pub generation: u32,
    /// The last generation that it took part in. The larger one decides which of two groups stays.
    pub precedence: u32,
    /// Restarts after failures so far.
    pub restarts: u32,
    /// Ranks of the first generation, 0 if there was none.
    pub first_ranks: u32,
    /// Whether it leads a group.
    pub leads: bool,
    /// Options that all agents share.
    pub options: Vec<String>,
}

/// An agent of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Peer {
    pub agent: u64,
    pub host: String,
    pub ranks: u16,
    /// The address at which it listens. `None` for the first agent, whose address the others know.
    pub address: Option<SocketAddr>,
}

/// The agents of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Members {
    /// The last generation.
    pub generation: u32,
    /// Restarts after failures so far.
    pub restarts: u32,
    /// Ranks of the first generation.
    pub first_ranks: u32,
    /// The agents in the order of their ranks, then agents that wait.
    pub peers: Vec<Peer>,
}

/// A generation of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Start {
    /// Its number, from 1.
    pub generation: u32,
    /// Restarts after failures so far.
    pub restarts: u32,
    /// Ranks of the first generation.
    pub first_ranks: u32,
    /// Its agents in the order of their ranks.
    pub peers: Vec<Peer>,
    /// Number that its secret is derived from.
    pub salt: u64,
    /// Port of the store, on the host of the first agent.
    pub store: u16,
    /// Reason in words.
    pub reason: String,
}

/// How to end ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum How {
    /// A rank failed: the others cannot go on.
    Failure,
    /// A node is gone: the ranks may still save.
    Lost,
    /// The world grows: the ranks save and stop.
    Grow,
}

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Exit {
    Code(i32),
    Signal(i32),
}

/// The end of a rank, told at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankEnded {
    pub generation: u32,
    /// Its number in the world.
    pub rank: u32,
    pub exit: Exit,
    /// A signal to its agent had asked it to end.
    pub told: bool,
}

/// How the ranks of an agent ended, in the order of their local ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Report {
    pub ranks: Vec<RankReport>,
    /// The agent got a signal to stop, and leaves the group.
    pub leaves: bool,
}

/// The end of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankReport {
    pub exit: Exit,
    /// Whether it was asked to end before it did.
    pub hurried: bool,
    pub last_words: Vec<String>,
}

impl From<RankExit> for Exit {
    fn from(exit: RankExit) -> Self {
        match exit {
            RankExit::Code(code) => Self::Code(code),
            RankExit::Signal(signal) => Self::Signal(signal),
        }
    }
}

impl From<Exit> for RankExit {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Code(code) => Self::Code(code),
            Exit::Signal(signal) => Self::Signal(signal),
        }
    }
}

impl RankReport {
    /// The end of a rank, with as many last words as fit into a message. Only those of a failed
    /// rank that was not asked to end tell anything.
    pub(super) fn of(ended: Ended) -> Self {
        let tells = ended.exit.is_failure() && !ended.hurried;
        let skipped = ended.last_words.len().saturating_sub(MAX_LINES);
        let words = ended.last_words.iter().skip(skipped).filter(|_| tells);
        Self {
            exit: ended.exit.into(),
            hurried: ended.hurried,
            last_words: words.map(|line| cut(line)).collect(),
        }
    }

    /// The end as the launcher on one machine knows it.
    pub(super) fn ended(&self) -> Ended {
        Ended {
            exit: self.exit.into(),
            hurried: self.hurried,
            last_words: self.last_words.clone(),
        }
    }
}

/// The start of a text that fits into a message.
pub(super) fn cut(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

/// The reason why a message cannot be read.
#[derive(thiserror::Error)]
pub(super) enum FrameError {
    /// The stream ended or was silent.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// It is longer than any message.
    #[error("it sent a message of {0} bytes; the maximum is {MAX_BYTES}")]
    TooLong(usize),
    /// Its tag is wrong.
    #[error("it sent a message that is not authentic")]
    Forged,
    /// It is no message.
    #[error("it sent a malformed message")]
    Malformed,
}

crate::debug_is_display!(FrameError);

impl Message {
    /// The frame without its tag.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut frame = postcard::to_extend(self, vec![0; LENGTH]).unwrap_or_default();
        let length = frame.len().saturating_sub(LENGTH) as u32;
        if let Some(header) = frame.get_mut(..LENGTH) {
            header.copy_from_slice(&length.to_le_bytes());
        }
        frame
    }

    /// Reads a frame and checks its tag.
    pub(super) fn read(from: &mut impl Read, opener: &mut Opener) -> Result<Self, FrameError> {
        let mut header = [0; LENGTH];
        from.read_exact(&mut header).map_err(StreamError::from)?;
        let length = u32::from_le_bytes(header) as usize;
        if length > MAX_BYTES {
            return Err(FrameError::TooLong(length));
        }
        let mut rest = vec![0; length + TAG];
        from.read_exact(&mut rest).map_err(StreamError::from)?;
        let (body, tag) = rest.split_at(length);
        if !opener.check(&[&header, body], tag) {
            return Err(FrameError::Forged);
        }
        match postcard::take_from_bytes(body) {
            Ok((message, [])) => Ok(message),
            _ => Err(FrameError::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::auth::Keys;
    use proptest::prelude::*;

    fn keys() -> (Keys, Keys) {
        (Keys::new([1; 32], [2; 32]), Keys::new([2; 32], [1; 32]))
    }

    fn examples() -> Vec<Message> {
        let peer = Peer {
            agent: 7,
            host: "a".into(),
            ranks: 2,
            address: Some(([127, 0, 0, 1], 5).into()),
        };
        vec![
            Message::Hello(Hello {
                agent: u64::MAX,
                host: "node-1".into(),
                ranks: 1024,
                port: 65535,
                generation: 3,
                precedence: 3,
                restarts: 1,
                first_ranks: 8,
                leads: true,
                options: vec!["--config".into(), "a.toml".into()],
            }),
            Message::Tell("it waits".into()),
            Message::Left,
            Message::Members(Box::new(Members {
                generation: 4,
                restarts: 0,
                first_ranks: 2,
                peers: vec![peer.clone(); 1024],
            })),
            Message::Elsewhere(Some("[::1]:7".parse().unwrap())),
            Message::Start(Box::new(Start {
                generation: 1,
                restarts: 0,
                first_ranks: 4,
                peers: vec![peer; 1024],
                salt: 9,
                store: 7,
                reason: "x".repeat(MAX_TEXT),
            })),
            Message::Stopped {
                generation: 1,
                report: Report {
                    ranks: vec![
                        RankReport {
                            exit: Exit::Signal(9),
                            hurried: true,
                            last_words: Vec::new(),
                        };
                        1024
                    ],
                    leaves: false,
                },
            },
        ]
    }

    #[test]
    fn the_largest_messages_are_read_back() {
        let (mut one, mut other) = keys();
        for message in examples() {
            let sealed = one.send.seal(&message.encode());
            let read = Message::read(&mut &*sealed, &mut other.receive).unwrap();
            assert_eq!(read, message);
        }
    }

    #[test]
    fn what_is_too_long_or_not_authentic_is_refused() {
        let (mut one, mut other) = keys();
        let long = [0xff, 0xff, 0xff, 0xff];
        let read = Message::read(&mut &long[..], &mut other.receive);
        assert!(matches!(read, Err(FrameError::TooLong(_))));
        let mut sealed = one.send.seal(&Message::Beat.encode());
        sealed[LENGTH] ^= 1;
        let read = Message::read(&mut &*sealed, &mut other.receive);
        assert!(matches!(read, Err(FrameError::Forged)));
    }

    #[test]
    fn words_of_a_rank_are_cut() {
        let ended = |hurried| Ended {
            exit: RankExit::Code(1),
            hurried,
            last_words: vec!["ä".repeat(MAX_TEXT); 20],
        };
        let report = RankReport::of(ended(false));
        assert_eq!(report.last_words.len(), MAX_LINES);
        assert!(report.last_words.iter().all(|line| line.len() <= MAX_TEXT));
        assert!(RankReport::of(ended(true)).last_words.is_empty());
    }

    proptest! {
        /// Whatever an authenticated peer sends is a message or an error.
        #[test]
        fn any_bytes_are_a_message_or_an_error(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let (mut one, mut other) = keys();
            let length = (body.len() as u32).to_le_bytes();
            let sealed = one.send.seal(&[&length[..], &body].concat());
            if let Ok(message) = Message::read(&mut &*sealed, &mut other.receive) {
                prop_assert!(message.encode().len() <= MAX_BYTES + LENGTH);
            }
        }
    }
}

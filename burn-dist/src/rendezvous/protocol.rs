//! The messages between a rank and the store, and their form on the wire.
//!
//! A frame is `type: u8, zero: [u8; 3], length: u32` and then `length` bytes, all little-endian, and
//! on the wire the tag of the connection's [`seal`](super::seal). The length is checked against the
//! type's cap before memory is taken, the tag before anything else is looked at, and every count
//! inside against the bytes that are there.

use crate::wire::net::StreamError;
use crate::wire::seal::{Opener, TAG};
use crate::world::MAX_WORLD_SIZE;
use std::io::Read;
use std::time::Duration;

/// Most bytes that one rank can give to an all-gather.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Most bytes of a tag.
pub const MAX_TAG: usize = 256;
/// Most bytes of a reason; what is longer is cut.
pub const MAX_REASON: usize = 4096;

const HEADER: usize = 8;

/// What a frame can hold. The first block goes to the store, the second to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A rank's part of an all-gather, and how long it will wait for the others.
    Gather {
        sequence: u64,
        timeout: Duration,
        tag: String,
        payload: Vec<u8>,
    },
    /// Answer to [`Message::Query`].
    Report { query: u64, progress: u64 },
    /// Ask all ranks for their progress.
    Survey { survey: u64, timeout: Duration },
    /// This rank stops because of an error, for which another rank may be to blame.
    Abort {
        culprit: Option<usize>,
        reason: String,
    },
    /// This rank is done.
    Bye,

    /// The rank is in.
    Welcome,
    /// The rank is not taken in.
    Refused(Refusal),
    /// One rank's part of an all-gather that all have joined.
    Gathered {
        sequence: u64,
        rank: usize,
        payload: Vec<u8>,
    },
    /// No all-gather will ever complete again.
    GatherFailed(GatherFailure),
    /// A rank failed.
    PeerFailed { rank: usize, reason: String },
    /// A rank is done.
    PeerLeft { rank: usize },
    /// How far are you?
    Query { query: u64 },
    /// These ranks have not come for so long, connected or not; the run waits for them.
    Waiting {
        waited: Duration,
        ranks: Vec<(usize, bool)>,
    },
    /// What the ranks answered to a survey; `None` for those that did not.
    Surveyed {
        survey: u64,
        progress: Vec<Option<u64>>,
    },
}

/// Why the store does not take a rank in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The store is for a world of this size.
    WorldSize { store: usize },
    /// There is no such rank.
    RankOutOfRange { store: usize },
    /// Another process is this rank.
    RankTaken,
    /// This rank was there and is gone.
    RankGone,
    /// The store is for a world of another size, some ranks of which are gone.
    Ending,
    /// The rank stated nothing that could be understood.
    BadContext,
}

/// Why an all-gather failed for all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GatherFailure {
    /// Not all came in time. `true` marks those that are connected.
    Missing {
        tag: String,
        waited: Duration,
        ranks: Vec<(usize, bool)>,
    },
    /// Two ranks are at different places of the program.
    TagsDiffer {
        sequence: u64,
        first: (usize, String),
        second: (usize, String),
    },
    /// A rank was done before.
    Left { tag: String, rank: usize },
}

/// Why bytes are no message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("unknown message type {0}")]
    UnknownType(u8),
    #[error("a message of type {kind} with {length} bytes, at most {limit} are allowed")]
    TooLong {
        kind: u8,
        length: usize,
        limit: usize,
    },
    #[error("a malformed message of type {0}")]
    Malformed(u8),
    #[error(
        "a message that fails its authentication: messages were changed, dropped, repeated or \
         reordered on the way"
    )]
    Forged,
}

mod kind {
    pub const GATHER: u8 = 1;
    pub const REPORT: u8 = 2;
    pub const SURVEY: u8 = 3;
    pub const ABORT: u8 = 4;
    pub const BYE: u8 = 5;
    pub const WELCOME: u8 = 65;
    pub const REFUSED: u8 = 66;
    pub const GATHERED: u8 = 67;
    pub const GATHER_FAILED: u8 = 68;
    pub const PEER_FAILED: u8 = 69;
    pub const PEER_LEFT: u8 = 70;
    pub const QUERY: u8 = 71;
    pub const SURVEYED: u8 = 72;
    pub const WAITING: u8 = 73;
}

/// Most bytes after the header, by type.
fn limit(kind: u8) -> Option<usize> {
    Some(match kind {
        kind::GATHER | kind::GATHERED => MAX_PAYLOAD + MAX_TAG + 64,
        kind::SURVEYED => 64 + 9 * MAX_WORLD_SIZE,
        kind::GATHER_FAILED => 64 + 2 * MAX_TAG + 5 * MAX_WORLD_SIZE,
        kind::WAITING => 64 + 5 * MAX_WORLD_SIZE,
        kind::ABORT | kind::PEER_FAILED => MAX_REASON + 64,
        kind::REPORT | kind::SURVEY | kind::BYE => 64,
        kind::WELCOME | kind::REFUSED | kind::PEER_LEFT | kind::QUERY => 64,
        _ => return None,
    })
}

/// Reads one message that the other side has sealed. Blocks until it is there.
pub(crate) fn read(stream: &mut impl Read, opener: &mut Opener) -> Result<Message, FrameError> {
    let (header, body) = read_frame(stream)?;
    let mut tag = [0; TAG];
    stream.read_exact(&mut tag).map_err(StreamError::from)?;
    if !opener.check(&[&header, &body], &tag) {
        return Err(FrameError::Forged);
    }
    decode(header[0], &body).ok_or(FrameError::Malformed(header[0]))
}

/// Reads a frame that has no tag.
#[cfg(test)]
pub(crate) fn plain(stream: &mut impl Read) -> Result<Message, FrameError> {
    let (header, body) = read_frame(stream)?;
    decode(header[0], &body).ok_or(FrameError::Malformed(header[0]))
}

/// A frame of a length that is allowed, before its tag.
fn read_frame(stream: &mut impl Read) -> Result<([u8; HEADER], Vec<u8>), FrameError> {
    let mut header = [0; HEADER];
    stream.read_exact(&mut header).map_err(StreamError::from)?;
    let [kind, zero @ .., _, _, _, _] = header;
    let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
    let limit = limit(kind).ok_or(FrameError::UnknownType(kind))?;
    if zero != [0; 3] {
        return Err(FrameError::Malformed(kind));
    }
    if length > limit {
        return Err(FrameError::TooLong {
            kind,
            length,
            limit,
        });
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).map_err(StreamError::from)?;
    Ok((header, body))
}

fn decode(kind: u8, body: &[u8]) -> Option<Message> {
    let mut body = Body(body);
    let message = match kind {
        kind::GATHER => Message::Gather {
            sequence: body.u64()?,
            timeout: body.duration()?,
            tag: body.text(MAX_TAG)?,
            payload: body.rest(MAX_PAYLOAD)?,
        },
        kind::REPORT => Message::Report {
            query: body.u64()?,
            progress: body.u64()?,
        },
        kind::SURVEY => Message::Survey {
            survey: body.u64()?,
            timeout: body.duration()?,
        },
        kind::ABORT => Message::Abort {
            culprit: body.optional_rank()?,
            reason: body.text(MAX_REASON)?,
        },
        kind::BYE => Message::Bye,
        kind::WELCOME => Message::Welcome,
        kind::REFUSED => Message::Refused(body.refusal()?),
        kind::GATHERED => Message::Gathered {
            sequence: body.u64()?,
            rank: body.rank()?,
            payload: body.rest(MAX_PAYLOAD)?,
        },
        kind::GATHER_FAILED => Message::GatherFailed(body.gather_failure()?),
        kind::PEER_FAILED => Message::PeerFailed {
            rank: body.rank()?,
            reason: body.text(MAX_REASON)?,
        },
        kind::PEER_LEFT => Message::PeerLeft { rank: body.rank()? },
        kind::QUERY => Message::Query { query: body.u64()? },
        kind::WAITING => Message::Waiting {
            waited: body.duration()?,
            ranks: body.list(5, |body| Some((body.rank()?, body.flag()?)))?,
        },
        kind::SURVEYED => Message::Surveyed {
            survey: body.u64()?,
            progress: body.list(9, |body| {
                let (answered, progress) = (body.flag()?, body.u64()?);
                Some(answered.then_some(progress))
            })?,
        },
        _ => return None,
    };
    body.0.is_empty().then_some(message)
}

/// What is left of a message's bytes.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn duration(&mut self) -> Option<Duration> {
        self.u64().map(Duration::from_millis)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn rank(&mut self) -> Option<usize> {
        let rank = self.u32()? as usize;
        (rank < MAX_WORLD_SIZE).then_some(rank)
    }

    /// A rank, or none.
    fn optional_rank(&mut self) -> Option<Option<usize>> {
        self.size().map(|rank| rank.checked_sub(1))
    }

    fn size(&mut self) -> Option<usize> {
        let size = self.u32()? as usize;
        (size <= MAX_WORLD_SIZE).then_some(size)
    }

    fn text(&mut self, limit: usize) -> Option<String> {
        let length = self.u32()? as usize;
        if length > limit {
            return None;
        }
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn rest(&mut self, limit: usize) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.0);
        (rest.len() <= limit).then(|| rest.to_vec())
    }

    /// As many items as a count says, each of at least `least` bytes: so the count can't promise
    /// more than there is.
    fn list<T>(&mut self, least: usize, item: fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.size()?;
        if count.checked_mul(least)? > self.0.len() {
            return None;
        }
        (0..count).map(|_| item(self)).collect()
    }

    fn refusal(&mut self) -> Option<Refusal> {
        let (code, store) = (self.u8()?, self.size()?);
        Some(match code {
            1 => Refusal::WorldSize { store },
            2 => Refusal::RankOutOfRange { store },
            3 => Refusal::RankTaken,
            4 => Refusal::RankGone,
            5 => Refusal::BadContext,
            6 => Refusal::Ending,
            _ => return None,
        })
    }

    fn gather_failure(&mut self) -> Option<GatherFailure> {
        Some(match self.u8()? {
            1 => GatherFailure::Missing {
                tag: self.text(MAX_TAG)?,
                waited: self.duration()?,
                ranks: self.list(5, |body| Some((body.rank()?, body.flag()?)))?,
            },
            2 => GatherFailure::TagsDiffer {
                sequence: self.u64()?,
                first: (self.rank()?, self.text(MAX_TAG)?),
                second: (self.rank()?, self.text(MAX_TAG)?),
            },
            3 => GatherFailure::Left {
                tag: self.text(MAX_TAG)?,
                rank: self.rank()?,
            },
            _ => return None,
        })
    }
}

impl Message {
    /// The whole frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut frame = Frame::new();
        let kind = match self {
            Self::Gather {
                sequence,
                timeout,
                tag,
                payload,
            } => {
                frame.u64(*sequence).duration(*timeout).text(tag, MAX_TAG);
                frame.0.extend_from_slice(payload);
                kind::GATHER
            }
            Self::Report { query, progress } => {
                frame.u64(*query).u64(*progress);
                kind::REPORT
            }
            Self::Survey { survey, timeout } => {
                frame.u64(*survey).duration(*timeout);
                kind::SURVEY
            }
            Self::Abort { culprit, reason } => {
                frame.optional_rank(*culprit).text(reason, MAX_REASON);
                kind::ABORT
            }
            Self::Bye => kind::BYE,
            Self::Welcome => kind::WELCOME,
            Self::Refused(refusal) => {
                frame.refusal(*refusal);
                kind::REFUSED
            }
            Self::Gathered {
                sequence,
                rank,
                payload,
            } => {
                frame.u64(*sequence).rank(*rank);
                frame.0.extend_from_slice(payload);
                kind::GATHERED
            }
            Self::GatherFailed(failure) => {
                frame.gather_failure(failure);
                kind::GATHER_FAILED
            }
            Self::PeerFailed { rank, reason } => {
                frame.rank(*rank).text(reason, MAX_REASON);
                kind::PEER_FAILED
            }
            Self::PeerLeft { rank } => {
                frame.rank(*rank);
                kind::PEER_LEFT
            }
            Self::Query { query } => {
                frame.u64(*query);
                kind::QUERY
            }
            Self::Waiting { waited, ranks } => {
                frame.duration(*waited).rank(ranks.len());
                for (rank, connected) in ranks {
                    frame.rank(*rank).flag(*connected);
                }
                kind::WAITING
            }
            Self::Surveyed { survey, progress } => {
                frame.u64(*survey).rank(progress.len());
                for answer in progress {
                    frame.flag(answer.is_some()).u64(answer.unwrap_or(0));
                }
                kind::SURVEYED
            }
        };
        frame.finish(kind)
    }
}

/// A frame that is being written, header included.
struct Frame(Vec<u8>);

impl Frame {
    fn new() -> Self {
        Self(vec![0; HEADER])
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn duration(&mut self, value: Duration) -> &mut Self {
        self.u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    fn flag(&mut self, value: bool) -> &mut Self {
        self.0.push(u8::from(value));
        self
    }

    /// A rank, a world size or a number of ranks.
    fn rank(&mut self, value: usize) -> &mut Self {
        self.0.extend_from_slice(&(value as u32).to_le_bytes());
        self
    }

    fn optional_rank(&mut self, value: Option<usize>) -> &mut Self {
        self.rank(value.map_or(0, |rank| rank + 1))
    }

    fn text(&mut self, text: &str, limit: usize) -> &mut Self {
        let text = cut(text, limit);
        self.rank(text.len());
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    fn refusal(&mut self, refusal: Refusal) {
        let (code, store) = match refusal {
            Refusal::WorldSize { store } => (1, store),
            Refusal::RankOutOfRange { store } => (2, store),
            Refusal::RankTaken => (3, 0),
            Refusal::RankGone => (4, 0),
            Refusal::BadContext => (5, 0),
            Refusal::Ending => (6, 0),
        };
        self.0.push(code);
        self.rank(store);
    }

    fn gather_failure(&mut self, failure: &GatherFailure) {
        match failure {
            GatherFailure::Missing { tag, waited, ranks } => {
                self.0.push(1);
                self.text(tag, MAX_TAG).duration(*waited).rank(ranks.len());
                for (rank, connected) in ranks {
                    self.rank(*rank).flag(*connected);
                }
            }
            GatherFailure::TagsDiffer {
                sequence,
                first,
                second,
            } => {
                self.0.push(2);
                self.u64(*sequence);
                for (rank, tag) in [first, second] {
                    self.rank(*rank).text(tag, MAX_TAG);
                }
            }
            GatherFailure::Left { tag, rank } => {
                self.0.push(3);
                self.text(tag, MAX_TAG).rank(*rank);
            }
        }
    }

    fn finish(mut self, kind: u8) -> Vec<u8> {
        let length = (self.0.len() - HEADER) as u32;
        self.0[0] = kind;
        self.0[4..HEADER].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// At most `limit` bytes of `text`, without tearing a character apart.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use crate::wire::seal::Keys;

    fn session() -> Keys {
        Keys::new([3; 32], [3; 32])
    }

    fn ms() -> impl Strategy<Value = Duration> {
        any::<u64>().prop_map(Duration::from_millis)
    }

    fn rank() -> impl Strategy<Value = usize> {
        0..MAX_WORLD_SIZE
    }

    fn refusal() -> impl Strategy<Value = Refusal> {
        prop_oneof![
            rank().prop_map(|store| Refusal::WorldSize { store }),
            rank().prop_map(|store| Refusal::RankOutOfRange { store }),
            Just(Refusal::RankTaken),
            Just(Refusal::RankGone),
            Just(Refusal::BadContext),
            Just(Refusal::Ending),
        ]
    }

    fn failure() -> impl Strategy<Value = GatherFailure> {
        prop_oneof![
            (".{0,60}", ms(), vec((rank(), any::<bool>()), 0..9))
                .prop_map(|(tag, waited, ranks)| GatherFailure::Missing { tag, waited, ranks }),
            (any::<u64>(), (rank(), ".{0,60}"), (rank(), ".{0,60}")).prop_map(
                |(sequence, first, second)| GatherFailure::TagsDiffer {
                    sequence,
                    first,
                    second
                }
            ),
            (".{0,60}", rank()).prop_map(|(tag, rank)| GatherFailure::Left { tag, rank }),
        ]
    }

    fn message() -> impl Strategy<Value = Message> {
        let number = any::<u64>;
        prop_oneof![
            (number(), ms(), ".{0,60}", vec(any::<u8>(), 0..99)).prop_map(
                |(sequence, timeout, tag, payload)| Message::Gather {
                    sequence,
                    timeout,
                    tag,
                    payload
                }
            ),
            (number(), number()).prop_map(|(query, progress)| Message::Report { query, progress }),
            (number(), ms()).prop_map(|(survey, timeout)| Message::Survey { survey, timeout }),
            (proptest::option::of(rank()), ".{0,60}")
                .prop_map(|(culprit, reason)| Message::Abort { culprit, reason }),
            Just(Message::Bye),
            Just(Message::Welcome),
            refusal().prop_map(Message::Refused),
            (number(), rank(), vec(any::<u8>(), 0..99)).prop_map(|(sequence, rank, payload)| {
                Message::Gathered {
                    sequence,
                    rank,
                    payload,
                }
            }),
            failure().prop_map(Message::GatherFailed),
            (rank(), ".{0,60}").prop_map(|(rank, reason)| Message::PeerFailed { rank, reason }),
            rank().prop_map(|rank| Message::PeerLeft { rank }),
            number().prop_map(|query| Message::Query { query }),
            (ms(), vec((rank(), any::<bool>()), 0..9))
                .prop_map(|(waited, ranks)| Message::Waiting { waited, ranks }),
            (number(), vec(proptest::option::of(number()), 0..9))
                .prop_map(|(survey, progress)| Message::Surveyed { survey, progress }),
        ]
    }

    proptest! {
        #[test]
        fn every_message_reads_back(messages in vec(message(), 1..4)) {
            let (mut here, mut there) = (session(), session());
            let sealed = messages.iter().flat_map(|message| here.seal(&message.encode()));
            let bytes: Vec<u8> = sealed.collect();
            let mut stream = &bytes[..];
            for message in messages {
                prop_assert_eq!(read(&mut stream, &mut there.receive).unwrap(), message);
            }
            prop_assert!(stream.is_empty());
        }

        #[test]
        fn one_changed_bit_is_seen(message in message(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut bytes = session().seal(&message.encode());
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(read(&mut &bytes[..], &mut session().receive).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
            let _ = plain(&mut &bytes[..]);
        }

        #[test]
        fn arbitrary_bodies_never_panic(kind in any::<u8>(), body in vec(any::<u8>(), 0..200)) {
            let _ = decode(kind, &body);
        }

        #[test]
        fn changed_or_cut_messages_never_panic(
            message in message(), at in any::<prop::sample::Index>(), byte in any::<u8>()
        ) {
            let mut bytes = message.encode();
            let at = at.index(bytes.len());
            prop_assert!(plain(&mut &bytes[..at]).is_err());
            bytes[at] = byte;
            let _ = plain(&mut &bytes[..]);
        }

        #[test]
        fn cut_keeps_whole_characters(text in ".{0,20}", limit in 0usize..40) {
            let short = cut(&text, limit);
            prop_assert!(short.len() <= limit && text.starts_with(short));
        }
    }

    #[test]
    fn lengths_are_refused_before_memory_is_taken() {
        let mut frame = vec![kind::GATHER, 0, 0, 0];
        frame.extend_from_slice(&u32::MAX.to_le_bytes());
        let error = plain(&mut &frame[..]).unwrap_err();
        assert!(matches!(error, FrameError::TooLong { length, .. } if length == u32::MAX as usize));
        let unknown = [99, 0, 0, 0, 0, 0, 0, 0];
        assert!(matches!(
            plain(&mut &unknown[..]),
            Err(FrameError::UnknownType(99))
        ));
    }

    #[test]
    fn the_largest_messages_fit_their_limits() {
        let tag = "t".repeat(MAX_TAG);
        let messages = [
            Message::Gather {
                sequence: 1,
                timeout: Duration::MAX,
                tag: tag.clone(),
                payload: vec![1; MAX_PAYLOAD],
            },
            Message::Surveyed {
                survey: 1,
                progress: vec![Some(1); MAX_WORLD_SIZE],
            },
            Message::Waiting {
                waited: Duration::MAX,
                ranks: vec![(MAX_WORLD_SIZE - 1, true); MAX_WORLD_SIZE],
            },
            Message::GatherFailed(GatherFailure::Missing {
                tag,
                waited: Duration::ZERO,
                ranks: vec![(MAX_WORLD_SIZE - 1, true); MAX_WORLD_SIZE],
            }),
        ];
        for message in messages {
            plain(&mut &message.encode()[..]).unwrap();
        }
    }

    #[test]
    fn long_reasons_are_cut() {
        let reason = "ä".repeat(MAX_REASON);
        let culprit = Some(3);
        let frame = Message::Abort { culprit, reason }.encode();
        match plain(&mut &frame[..]).unwrap() {
            Message::Abort { culprit, reason } => {
                assert_eq!((culprit, reason.len()), (Some(3), MAX_REASON));
            }
            other => panic!("{other:?}"),
        }
    }
}

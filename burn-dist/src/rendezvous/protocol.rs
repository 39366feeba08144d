//! The messages between a rank and the store, and their encoding.
//!
//! A frame is `type: u8, zero: [u8; 3], length: u32` in little-endian, then `length` bytes of
//! postcard, whose first byte is the type again. On the wire the tag of the connection's
//! [`seal`](crate::wire::seal) follows. The length is checked against the type's cap before memory
//! is allocated, and the tag before anything else. Texts, payloads and lists inside have their own
//! caps, and lists grow with the bytes that arrive, not with the count that they state.

use crate::wire::net::StreamError;
use crate::wire::seal::{Opener, TAG};
use crate::world::MAX_WORLD_SIZE;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::time::Duration;

/// Largest payload of one rank in an all-gather, in bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Longest tag, in bytes.
pub const MAX_TAG: usize = 256;
/// Longest reason, in bytes; longer ones are cut.
pub const MAX_REASON: usize = 4096;

const HEADER: usize = 8;

/// Content of a frame. The first block goes to the store, the second to a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A rank's part of an all-gather, and how long it will wait for the others.
    Gather {
        sequence: u64,
        #[serde(with = "bounded::millis")]
        timeout: Duration,
        #[serde(with = "bounded::tag")]
        tag: String,
        #[serde(with = "bounded::payload")]
        payload: Vec<u8>,
    },
    /// Answer to [`Message::Query`].
    Report { query: u64, progress: u64 },
    /// Asks all ranks for their progress.
    Survey {
        survey: u64,
        #[serde(with = "bounded::millis")]
        timeout: Duration,
    },
    /// This rank stops because of an error. Another rank may be to blame.
    Abort {
        #[serde(deserialize_with = "bounded::optional_rank")]
        culprit: Option<usize>,
        #[serde(with = "bounded::reason")]
        reason: String,
    },
    /// This rank is done.
    Bye,

    /// The rank is accepted.
    Welcome,
    /// The rank is refused.
    Refused(Refusal),
    /// One rank's part of an all-gather that all have joined.
    Gathered {
        sequence: u64,
        #[serde(deserialize_with = "bounded::rank")]
        rank: usize,
        #[serde(with = "bounded::payload")]
        payload: Vec<u8>,
    },
    /// No all-gather will ever complete again.
    GatherFailed(GatherFailure),
    /// A rank failed.
    PeerFailed {
        #[serde(deserialize_with = "bounded::rank")]
        rank: usize,
        #[serde(with = "bounded::reason")]
        reason: String,
    },
    /// A rank is done.
    PeerLeft {
        #[serde(deserialize_with = "bounded::rank")]
        rank: usize,
    },
    /// Asks for a rank's progress.
    Query { query: u64 },
    /// The run waits for these ranks, and whether each is connected.
    Waiting {
        #[serde(with = "bounded::millis")]
        waited: Duration,
        #[serde(deserialize_with = "bounded::ranks")]
        ranks: Vec<(usize, bool)>,
        /// Whether a process with another secret was refused.
        refused: bool,
    },
    /// The answers to a survey; `None` for ranks without an answer.
    Surveyed {
        survey: u64,
        #[serde(deserialize_with = "bounded::list")]
        progress: Vec<Option<u64>>,
    },
    /// The place of a rank in the world that it asked to re-form.
    Reformed {
        #[serde(deserialize_with = "bounded::rank")]
        rank: usize,
        #[serde(deserialize_with = "bounded::size")]
        size: usize,
    },
}

/// The reason why the store refuses a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// The store has a different world size.
    WorldSize {
        #[serde(deserialize_with = "bounded::size")]
        store: usize,
    },
    /// The rank does not exist.
    RankOutOfRange {
        #[serde(deserialize_with = "bounded::size")]
        store: usize,
    },
    /// Another process has this rank.
    RankTaken,
    /// This rank has been connected and is gone.
    RankGone,
    /// The store has a different world size, and some of its ranks are gone.
    Ending,
    /// The rank's statement was malformed.
    BadContext,
    /// The other ranks have re-formed their world without this one.
    LeftOut,
}

/// The reason why an all-gather failed for all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GatherFailure {
    /// Ranks did not come in time. `true` marks connected ones.
    Missing {
        #[serde(with = "bounded::tag")]
        tag: String,
        #[serde(with = "bounded::millis")]
        waited: Duration,
        #[serde(deserialize_with = "bounded::ranks")]
        ranks: Vec<(usize, bool)>,
        /// Whether a process with another secret was refused.
        refused: bool,
    },
    /// Two ranks are at different points of the program.
    TagsDiffer {
        sequence: u64,
        #[serde(with = "bounded::rank_and_tag")]
        first: (usize, String),
        #[serde(with = "bounded::rank_and_tag")]
        second: (usize, String),
    },
    /// A rank was done before.
    Left {
        #[serde(with = "bounded::tag")]
        tag: String,
        #[serde(deserialize_with = "bounded::rank")]
        rank: usize,
    },
}

/// The reason why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("unknown message type {0}")]
    UnknownType(u8),
    #[error("a message of type {kind} with {length} bytes; at most {limit} are allowed")]
    TooLong {
        kind: u8,
        length: usize,
        limit: usize,
    },
    #[error("a malformed message of type {0}")]
    Malformed(u8),
    #[error(
        "a message that fails authentication: messages were changed, dropped, repeated or \
         reordered on the way"
    )]
    Forged,
}

/// Message types: the indices of [`Message`]'s variants, as postcard writes them.
mod kind {
    pub const GATHER: u8 = 0;
    pub const REPORT: u8 = 1;
    pub const SURVEY: u8 = 2;
    pub const ABORT: u8 = 3;
    pub const BYE: u8 = 4;
    pub const WELCOME: u8 = 5;
    pub const REFUSED: u8 = 6;
    pub const GATHERED: u8 = 7;
    pub const GATHER_FAILED: u8 = 8;
    pub const PEER_FAILED: u8 = 9;
    pub const PEER_LEFT: u8 = 10;
    pub const QUERY: u8 = 11;
    pub const WAITING: u8 = 12;
    pub const SURVEYED: u8 = 13;
    pub const REFORMED: u8 = 14;
}

/// Largest number of bytes after the header, by type. A number takes at most 10 bytes, a rank 3.
fn limit(kind: u8) -> Option<usize> {
    Some(match kind {
        kind::GATHER | kind::GATHERED => MAX_PAYLOAD + MAX_TAG + 64,
        kind::SURVEYED => 64 + 11 * MAX_WORLD_SIZE,
        kind::GATHER_FAILED => 64 + 2 * MAX_TAG + 4 * MAX_WORLD_SIZE,
        kind::WAITING => 64 + 4 * MAX_WORLD_SIZE,
        kind::ABORT | kind::PEER_FAILED => MAX_REASON + 64,
        kind::REPORT | kind::SURVEY | kind::BYE => 64,
        kind::REFORMED | kind::WELCOME | kind::REFUSED | kind::PEER_LEFT | kind::QUERY => 64,
        _ => return None,
    })
}

/// Reads one sealed message. Blocks until it is there.
pub(crate) fn read(stream: &mut impl Read, opener: &mut Opener) -> Result<Message, FrameError> {
    let (header, body) = read_frame(stream)?;
    let mut tag = [0; TAG];
    stream.read_exact(&mut tag).map_err(StreamError::from)?;
    if !opener.check(&[&header, &body], &tag) {
        return Err(FrameError::Forged);
    }
    decode(header[0], &body).ok_or(FrameError::Malformed(header[0]))
}

/// Reads a frame without a tag.
#[cfg(test)]
pub(crate) fn plain(stream: &mut impl Read) -> Result<Message, FrameError> {
    let (header, body) = read_frame(stream)?;
    decode(header[0], &body).ok_or(FrameError::Malformed(header[0]))
}

/// Reads a frame of an allowed length, without its tag.
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
    if body.first() != Some(&kind) {
        return None;
    }
    let (message, rest) = postcard::take_from_bytes(body).ok()?;
    rest.is_empty().then_some(message)
}

impl Message {
    /// Encodes the whole frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Writing to memory fails for none of the types above. A reader would refuse an empty body
        // as malformed.
        let mut frame = postcard::to_extend(self, vec![0; HEADER]).unwrap_or(vec![0; HEADER]);
        let length = (frame.len() - HEADER) as u32;
        frame[0] = frame.get(HEADER).copied().unwrap_or_default();
        frame[4..HEADER].copy_from_slice(&length.to_le_bytes());
        frame
    }
}

/// Serde helpers for values with a limit.
mod bounded {
    use super::{MAX_PAYLOAD, MAX_REASON, MAX_TAG, MAX_WORLD_SIZE, cut};
    use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
    use std::fmt;
    use std::marker::PhantomData;

    /// `value` if it `fits`.
    fn only_if<T, E: Error>(fits: bool, value: T, otherwise: &str) -> Result<T, E> {
        match fits {
            true => Ok(value),
            false => Err(E::custom(otherwise)),
        }
    }

    /// A world size, or a number of ranks.
    pub fn size<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
        let size = usize::deserialize(from)?;
        only_if(size <= MAX_WORLD_SIZE, size, "an invalid world size")
    }

    /// A rank inside another value.
    #[derive(serde::Deserialize)]
    struct Rank(#[serde(deserialize_with = "rank")] usize);

    pub fn rank<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
        let rank = usize::deserialize(from)?;
        only_if(rank < MAX_WORLD_SIZE, rank, "no rank")
    }

    pub fn optional_rank<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
        let rank = Option::<Rank>::deserialize(from)?;
        Ok(rank.map(|Rank(rank)| rank))
    }

    pub fn ranks<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(usize, bool)>, D::Error> {
        let ranks = list::<(Rank, bool), D>(from)?.into_iter();
        Ok(ranks.map(|(Rank(rank), flag)| (rank, flag)).collect())
    }

    /// At most one item for each rank. Memory grows as items arrive.
    pub fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<T>, D::Error> {
        struct Items<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_WORLD_SIZE} items")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = from.next_element()? {
                    if items.len() == MAX_WORLD_SIZE {
                        return Err(A::Error::invalid_length(items.len() + 1, &self));
                    }
                    items.push(item);
                }
                Ok(items)
            }
        }

        from.deserialize_seq(Items(PhantomData))
    }

    /// The text, if it is not too long.
    fn text<'de, D: Deserializer<'de>>(from: D, limit: usize) -> Result<String, D::Error> {
        let text = <&str>::deserialize(from)?;
        only_if(text.len() <= limit, text, "a text that is too long").map(str::to_owned)
    }

    macro_rules! texts {
        ($($name:ident: $limit:ident),+) => {$(
            pub mod $name {
                use super::*;
                use serde::Serializer;

                pub fn serialize<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
                    to.serialize_str(cut(text, $limit))
                }

                pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
                    text(from, $limit)
                }
            }
        )+};
    }
    texts!(tag: MAX_TAG, reason: MAX_REASON);

    pub mod rank_and_tag {
        use super::*;
        use serde::{Serialize, Serializer};

        #[derive(serde::Deserialize)]
        struct Both(
            #[serde(deserialize_with = "rank")] usize,
            #[serde(with = "tag")] String,
        );

        pub fn serialize<S: Serializer>(both: &(usize, String), to: S) -> Result<S::Ok, S::Error> {
            (both.0, cut(&both.1, MAX_TAG)).serialize(to)
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<(usize, String), D::Error> {
            Both::deserialize(from).map(|Both(rank, tag)| (rank, tag))
        }
    }

    pub mod payload {
        use super::*;
        use serde::Serializer;

        pub fn serialize<S: Serializer>(payload: &[u8], to: S) -> Result<S::Ok, S::Error> {
            to.serialize_bytes(payload)
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
            let payload = <&[u8]>::deserialize(from)?;
            let fits = payload.len() <= MAX_PAYLOAD;
            only_if(fits, payload, "a payload that is too long").map(<[u8]>::to_vec)
        }
    }

    /// Whole milliseconds.
    pub mod millis {
        use super::*;
        use serde::Serializer;
        use std::time::Duration;

        pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
            u64::deserialize(from).map(Duration::from_millis)
        }
    }
}

/// At most `limit` bytes of `text`, cut between characters.
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
            (
                ".{0,60}",
                ms(),
                vec((rank(), any::<bool>()), 0..9),
                any::<bool>()
            )
                .prop_map(|(tag, waited, ranks, refused)| GatherFailure::Missing {
                    tag,
                    waited,
                    ranks,
                    refused
                }),
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
            (rank(), rank()).prop_map(|(rank, size)| Message::Reformed { rank, size }),
            failure().prop_map(Message::GatherFailed),
            (rank(), ".{0,60}").prop_map(|(rank, reason)| Message::PeerFailed { rank, reason }),
            rank().prop_map(|rank| Message::PeerLeft { rank }),
            number().prop_map(|query| Message::Query { query }),
            (ms(), vec((rank(), any::<bool>()), 0..9), any::<bool>()).prop_map(
                |(waited, ranks, refused)| Message::Waiting {
                    waited,
                    ranks,
                    refused
                }
            ),
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

    /// The body of a message of this type: numbers as postcard writes them, then bytes.
    fn body(kind: u8, numbers: &[u64], rest: &[u8]) -> Vec<u8> {
        let numbers = numbers
            .iter()
            .flat_map(|n| postcard::to_allocvec(n).unwrap());
        std::iter::once(kind)
            .chain(numbers)
            .chain(rest.iter().copied())
            .collect()
    }

    #[test]
    fn lengths_inside_are_refused_that_are_over_their_cap_or_beyond_the_frame() {
        let read = |kind, numbers: &[u64], rest: &[u8]| decode(kind, &body(kind, numbers, rest));
        let letters = |count: usize| vec![b'a'; count];
        let (tag, reason) = (MAX_TAG as u64, MAX_REASON as u64);
        // Sequence, timeout, the tag with its length, and the payload with its length.
        let gathered =
            |length: u64, text: &[u8]| read(kind::GATHER, &[1, 1, length], &[text, &[0]].concat());
        assert!(gathered(tag, &letters(MAX_TAG)).is_some());
        assert!(gathered(tag + 1, &letters(MAX_TAG + 1)).is_none());
        assert!(gathered(u64::MAX, &letters(9)).is_none());
        assert!(read(kind::GATHERED, &[1, 1, 3], b"abc").is_some());
        for length in [4, MAX_PAYLOAD as u64 + 1, u64::MAX] {
            assert!(read(kind::GATHERED, &[1, 1, length], b"abc").is_none());
        }
        let too_much = vec![0; MAX_PAYLOAD + 1];
        assert!(read(kind::GATHERED, &[1, 1, MAX_PAYLOAD as u64 + 1], &too_much).is_none());
        let failed = |length, text: &[u8]| read(kind::PEER_FAILED, &[1, length], text);
        assert!(failed(reason, &letters(MAX_REASON)).is_some());
        assert!(failed(reason + 1, &letters(MAX_REASON + 1)).is_none());
        // A list with more items than ranks, and one that states more items than it has bytes.
        let all = MAX_WORLD_SIZE;
        assert!(read(kind::SURVEYED, &[1, all as u64], &vec![0; all]).is_some());
        assert!(read(kind::SURVEYED, &[1, all as u64 + 1], &vec![0; all + 1]).is_none());
        for count in [3, all as u64, u64::MAX] {
            assert!(read(kind::SURVEYED, &[1, count], &[0, 0]).is_none());
            assert!(read(kind::WAITING, &[1, count], &[0, 0, 0, 0]).is_none());
        }
        // Ranks that no world has.
        assert!(read(kind::PEER_LEFT, &[all as u64 - 1], &[]).is_some());
        assert!(read(kind::PEER_LEFT, &[all as u64], &[]).is_none());
        assert!(read(kind::WAITING, &[1, 1, all as u64], &[1]).is_none());
        assert!(read(kind::REFUSED, &[0, all as u64 + 1], &[]).is_none());
        assert!(read(kind::ABORT, &[1, all as u64, 0], &[]).is_none());
        // Bytes after the message, and different types in body and header.
        assert!(read(kind::BYE, &[], &[0]).is_none());
        assert!(decode(kind::BYE, &[kind::WELCOME]).is_none());
    }

    #[test]
    fn the_largest_messages_fit_their_limits() {
        let tag = "t".repeat(MAX_TAG);
        let messages = [
            Message::Gather {
                sequence: u64::MAX,
                timeout: Duration::MAX,
                tag: tag.clone(),
                payload: vec![1; MAX_PAYLOAD],
            },
            Message::Surveyed {
                survey: u64::MAX,
                progress: vec![Some(u64::MAX); MAX_WORLD_SIZE],
            },
            Message::Gathered {
                sequence: u64::MAX,
                rank: MAX_WORLD_SIZE - 1,
                payload: vec![1; MAX_PAYLOAD],
            },
            Message::Abort {
                culprit: Some(MAX_WORLD_SIZE - 1),
                reason: "r".repeat(MAX_REASON),
            },
            Message::PeerFailed {
                rank: MAX_WORLD_SIZE - 1,
                reason: "r".repeat(MAX_REASON),
            },
            Message::Report {
                query: u64::MAX,
                progress: u64::MAX,
            },
            Message::Survey {
                survey: u64::MAX,
                timeout: Duration::MAX,
            },
            Message::Refused(Refusal::WorldSize {
                store: MAX_WORLD_SIZE,
            }),
            Message::Waiting {
                waited: Duration::MAX,
                ranks: vec![(MAX_WORLD_SIZE - 1, true); MAX_WORLD_SIZE],
                refused: true,
            },
            Message::GatherFailed(GatherFailure::Missing {
                tag,
                waited: Duration::ZERO,
                ranks: vec![(MAX_WORLD_SIZE - 1, true); MAX_WORLD_SIZE],
                refused: true,
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

//! Tags that authenticate the frames of a connection after the handshake.
//!
//! Each direction has its own key from the handshake and counts its frames. A tag is a keyed BLAKE3
//! hash of that number and the frame. So a frame that was changed, left out, repeated, moved or
//! taken from another connection fails. Frames are not encrypted.

/// Bytes of a tag.
pub(crate) const TAG: usize = blake3::OUT_LEN;

/// The keys of one connection, as one side uses them.
#[derive(Debug)]
pub struct Keys {
    pub(crate) send: Sealer,
    pub(crate) receive: Opener,
}

/// Tags frames in the order in which they are sent.
pub(crate) struct Sealer(Tags);

/// Checks the tags of frames in the order in which they arrive.
pub(crate) struct Opener(Tags);

struct Tags {
    key: [u8; 32],
    count: u64,
}

impl Keys {
    pub(crate) fn new(send: [u8; 32], receive: [u8; 32]) -> Self {
        let tags = |key| Tags { key, count: 0 };
        Self {
            send: Sealer(tags(send)),
            receive: Opener(tags(receive)),
        }
    }

    /// The next frame to send, with its tag.
    pub fn seal(&mut self, frame: &[u8]) -> Vec<u8> {
        self.send.seal(frame)
    }
}

impl Sealer {
    /// The next frame, with its tag.
    pub(crate) fn seal(&mut self, frame: &[u8]) -> Vec<u8> {
        let tag = self.0.next(&[frame]);
        [frame, tag.as_bytes()].concat()
    }
}

impl Opener {
    /// Whether the next frame, given in parts, has this tag.
    pub(crate) fn check(&mut self, frame: &[&[u8]], tag: &[u8]) -> bool {
        // Comparing `blake3::Hash` takes the same time wherever the two differ.
        blake3::Hash::from_slice(tag).is_ok_and(|tag| self.0.next(frame) == tag)
    }
}

impl Tags {
    fn next(&mut self, frame: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        // A number of fixed size, and a frame that contains its own length.
        hasher.update(&self.count.to_le_bytes());
        for part in frame {
            hasher.update(part);
        }
        // 2^64 frames are out of reach. Two with the same number would break the guarantee.
        self.count = self.count.wrapping_add(1);
        hasher.finalize()
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer(hidden)")
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opener(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Sealer, Opener) {
        let [one, other] = [0, 1].map(|_| Keys::new([1; 32], [1; 32]));
        (one.send, other.receive)
    }

    fn passes(opener: &mut Opener, sealed: &[u8]) -> bool {
        let (frame, tag) = sealed.split_at(sealed.len() - TAG);
        opener.check(&[frame], tag)
    }

    #[test]
    fn frames_pass_in_order_alone() {
        let (mut sealer, mut opener) = pair();
        let frames: Vec<Vec<u8>> = (0..3u8).map(|at| sealer.seal(&[at; 9])).collect();
        assert!(frames.iter().all(|frame| passes(&mut opener, frame)));
        assert!(!passes(&mut pair().1, &frames[1]), "one is left out");
        let (_, mut opener) = pair();
        assert!(passes(&mut opener, &frames[0]));
        assert!(!passes(&mut opener, &frames[0]), "one is repeated");
    }

    #[test]
    fn every_bit_counts() {
        let sealed = pair().0.seal(b"a frame");
        for bit in 0..8 * sealed.len() {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!passes(&mut pair().1, &changed));
        }
        assert!(!pair().1.check(&[b"a frame"], &[]));
    }

    #[test]
    fn keys_are_not_shown() {
        let shown = format!("{:?}", Keys::new([77; 32], [78; 32]));
        assert!(shown.contains("hidden") && !shown.contains("77"), "{shown}");
    }
}

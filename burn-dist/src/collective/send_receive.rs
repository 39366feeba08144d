//! Announces the collective to a peer before its elements move.

use super::{Descriptor, Failure, Ring};
use crate::transport::Interest;

/// Tells the next rank which collective this one enters, and checks the previous rank's.
pub(super) fn announce(ring: &mut Ring<'_>, what: &Descriptor) -> Result<(), Failure> {
    let peers = (ring.at.next(), ring.at.previous());
    send_receive(ring, peers, what, (&[], &mut []))
}

/// Sends bytes to one rank and receives bytes from another at once, each after the collective's
/// descriptor.
pub(super) fn send_receive(
    ring: &mut Ring<'_>,
    (to, from): (usize, usize),
    what: &Descriptor,
    (payload, incoming): (&[u8], &mut [u8]),
) -> Result<(), Failure> {
    const WORD: usize = Descriptor::BYTES;
    // One buffer, so that they travel as one message.
    let outgoing = [&what.to_bytes()[..], payload].concat();
    let mut arriving = vec![0; WORD + incoming.len()];
    let (mut to_send, mut to_receive) = (outgoing.len(), arriving.len());
    let (mut sent, mut received) = (0, 0);
    while sent < to_send || received < to_receive || !ring.transport.is_drained()? {
        let before = sent + received;
        if sent < to_send {
            sent += ring.transport.try_send(to, &outgoing[sent..])?;
        }
        if received < to_receive {
            received += ring.transport.try_recv(from, &mut arriving[received..])?;
        }
        if received >= WORD && arriving[..WORD] != outgoing[..WORD] {
            // Nothing else is expected, but the other side must still be told.
            (to_send, to_receive) = (WORD, WORD);
        }
        if sent + received > before {
            ring.watch.moved();
            continue;
        }
        let interest = Interest {
            send_to: (sent < to_send).then_some(to),
            recv_from: (received < to_receive).then_some(from),
        };
        let rank = interest.recv_from.unwrap_or(to);
        let limit = ring
            .watch
            .slice(rank)
            .map_err(|interrupt| Failure::Waiting { rank, interrupt })?;
        ring.transport.wait(interest, limit)?;
    }
    let (word, arrived) = arriving.split_at(WORD);
    if *word != outgoing[..WORD] {
        return Err(Failure::Mismatch {
            rank: from,
            theirs: word.try_into().ok().and_then(Descriptor::from_bytes),
        });
    }
    incoming.copy_from_slice(arrived);
    Ok(())
}

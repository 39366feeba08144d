//! Announces the collective to a peer before its elements move.

use super::{Descriptor, Failure, Neighbours};
use crate::transport::{Interest, Transport, Watch};

/// Tells the next rank which collective this one enters, and checks the previous rank's.
pub(super) fn announce(
    transport: &mut dyn Transport,
    at: Neighbours,
    what: &Descriptor,
    watch: &Watch,
) -> Result<(), Failure> {
    let peers = (at.next(), at.previous());
    send_receive(transport, peers, what, (&[], &mut []), watch)
}

/// Sends bytes to one rank and receives bytes from another at once, each after the collective's
/// descriptor.
pub(super) fn send_receive(
    transport: &mut dyn Transport,
    (to, from): (usize, usize),
    what: &Descriptor,
    (payload, incoming): (&[u8], &mut [u8]),
    watch: &Watch,
) -> Result<(), Failure> {
    const WORD: usize = Descriptor::BYTES;
    // One buffer, so that they travel as one message.
    let outgoing = [&what.to_bytes()[..], payload].concat();
    let mut arriving = vec![0; WORD + incoming.len()];
    let (mut to_send, mut to_receive) = (outgoing.len(), arriving.len());
    let (mut sent, mut received) = (0, 0);
    while sent < to_send || received < to_receive || !transport.is_drained()? {
        let before = sent + received;
        if sent < to_send {
            sent += transport.try_send(to, &outgoing[sent..])?;
        }
        if received < to_receive {
            received += transport.try_recv(from, &mut arriving[received..])?;
        }
        if received >= WORD && arriving[..WORD] != outgoing[..WORD] {
            // Nothing else is expected, but the other side must still be told.
            (to_send, to_receive) = (WORD, WORD);
        }
        if sent + received > before {
            watch.moved();
            continue;
        }
        let interest = Interest {
            send_to: (sent < to_send).then_some(to),
            recv_from: (received < to_receive).then_some(from),
        };
        let rank = interest.recv_from.unwrap_or(to);
        let limit = watch
            .slice(rank)
            .map_err(|interrupt| Failure::Waiting { rank, interrupt })?;
        transport.wait(interest, limit)?;
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

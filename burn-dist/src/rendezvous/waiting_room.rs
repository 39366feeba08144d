//! Ranks that have lost others and wait to form a smaller world: a state machine without sockets.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::protocol::Message;
use super::roster::{Outbox, Roster, post};

/// The place of a connection: the number of its world, and its rank there. Empty while it waits.
pub(crate) type Place = Arc<OnceLock<(u32, usize)>>;

/// A rank that waits.
pub(crate) struct Waiter {
    pub outbox: Outbox,
    pub stream: Option<Arc<TcpStream>>,
    pub place: Place,
}

/// The ranks that wait, by their ranks in the world that they leave.
pub(crate) struct WaitingRoom {
    waiters: BTreeMap<usize, Waiter>,
    /// Until when it waits for the others.
    pub deadline: Instant,
}

impl WaitingRoom {
    pub(crate) fn new(deadline: Instant) -> Self {
        Self {
            waiters: BTreeMap::new(),
            deadline,
        }
    }

    /// Lets `rank` wait. A connection of the same rank that waited before is ended.
    pub(crate) fn enter(&mut self, rank: usize, waiter: Waiter) {
        self.waiters.insert(rank, waiter);
    }

    /// Removes the rank that waits for this place.
    pub(crate) fn leave(&mut self, place: &Place) {
        self.waiters
            .retain(|_, waiter| !Arc::ptr_eq(&waiter.place, place));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Ends the connections of all ranks that wait.
    pub(crate) fn dismiss(&self) {
        let streams = self
            .waiters
            .values()
            .filter_map(|waiter| waiter.stream.as_ref());
        for stream in streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Whether all ranks wait that are still connected to the world they leave, or time is up.
    pub(crate) fn is_ready(&self, leaves: &Roster, now: Instant) -> bool {
        let expected = leaves.present();
        self.deadline <= now
            || expected
                .into_iter()
                .all(|rank| self.waiters.contains_key(&rank))
    }

    /// The world number `number` of the ranks that wait, in the order of their ranks. Also returns
    /// their ranks in the world that they leave.
    pub(crate) fn form(self, number: u32) -> (Roster, Vec<usize>) {
        let size = self.waiters.len();
        let mut roster = Roster::new(size);
        let mut before = Vec::with_capacity(size);
        for (rank, (old, waiter)) in self.waiters.into_iter().enumerate() {
            let Waiter {
                outbox,
                stream,
                place,
            } = waiter;
            let _ = place.set((number, rank));
            post(&outbox, &Message::Reformed { rank, size });
            // Refused is only who comes twice.
            let _ = roster.join(rank, size, outbox, stream);
            before.push(old);
        }
        (roster, before)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;
    use crate::rendezvous::protocol;

    fn waiter() -> (Waiter, Receiver<Arc<[u8]>>, Place) {
        let (outbox, mail) = channel();
        let place = Place::default();
        let waiter = Waiter {
            outbox,
            stream: None,
            place: place.clone(),
        };
        (waiter, mail, place)
    }

    fn world(size: usize) -> Roster {
        let mut roster = Roster::new(size);
        for rank in 0..size {
            // The other end is dropped: nobody reads.
            roster.join(rank, size, channel().0, None).unwrap();
        }
        roster
    }

    #[test]
    fn those_that_are_left_form_a_world_in_their_order() {
        let now = Instant::now();
        let mut old = world(4);
        let mut room = WaitingRoom::new(now + Duration::from_secs(9));
        let (three, mail, place) = waiter();
        room.enter(3, three);
        assert!(!room.is_ready(&old, now));
        let (zero, ..) = waiter();
        room.enter(0, zero);
        old.lose(1, "killed");
        assert!(!room.is_ready(&old, now));
        // One that has ended properly is not waited for.
        old.leave(2);
        assert!(room.is_ready(&old, now));
        let (new, before) = room.form(7);
        assert_eq!((new.size(), before), (2, vec![0, 3]));
        assert!(new.is_complete());
        assert_eq!(place.get(), Some(&(7, 1)));
        let sent: Vec<Message> = mail
            .try_iter()
            .map(|frame| protocol::plain(&mut &frame[..]).unwrap())
            .collect();
        assert_eq!(
            sent,
            [Message::Reformed { rank: 1, size: 2 }, Message::Welcome]
        );
    }

    #[test]
    fn a_rank_that_does_not_come_is_left_out() {
        let now = Instant::now();
        let old = world(3);
        let mut room = WaitingRoom::new(now + Duration::from_secs(1));
        let (one, _mail, place) = waiter();
        let (two, ..) = waiter();
        room.enter(1, one);
        room.enter(2, two);
        assert!(!room.is_ready(&old, now));
        assert!(room.is_ready(&old, now + Duration::from_secs(1)));
        room.leave(&place);
        let (new, before) = room.form(1);
        assert_eq!((new.size(), before), (1, vec![2]));
    }
}

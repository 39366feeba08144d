//! Finds the agent that leads, or becomes it.
//!
//! An agent that starts listens at the rendezvous if it can, and leads. Otherwise it asks there.
//! After the loss of a leader, agents ask those before them in the last generation, in order; the
//! first that reaches none of them leads. An agent that answers and leads nothing is asked again,
//! so nobody leads while one before it lives.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::NodesError;
use super::driver::{Agent, Last, Role, printable};
use super::group::Group;
use super::lead::Lead;
use super::link::{DialError, Link, LinkId, dial};
use super::message::{Message, Peer};

/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(300);
/// Time for an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// After this time without a leader, the user gets a message.
const QUIET: Duration = Duration::from_secs(3);
/// Largest number of addresses that one round may learn.
const HOPS: usize = 16;

/// The search for a leader.
pub(super) struct Seek {
    since: Instant,
    /// Agents before this one, if it may lead without any of them.
    before: Option<Vec<SocketAddr>>,
    /// Agents behind this one in the last generation.
    behind: Vec<u64>,
    /// Reason of the next generation.
    reason: String,
    /// The address of a leader, by hearsay.
    hint: Option<SocketAddr>,
    /// Addresses to ask in this round.
    round: VecDeque<SocketAddr>,
    /// Addresses learned in this round.
    hops: usize,
    /// Whether an agent answered in this round.
    answered: bool,
    asking: Asking,
    failure: String,
    /// Whether the user knows that there is no leader yet.
    has_told: bool,
    /// Whether a round has begun.
    has_tried: bool,
}

enum Asking {
    /// Nobody until then.
    Pause(Instant),
    /// In a round, between two addresses.
    Next,
    /// The dialing with this number.
    Dialing(u64),
    /// The agent at the other end, until then.
    Waiting(Link, Instant),
}

impl Seek {
    /// The search of an agent that has no group.
    pub(super) fn anew(now: Instant) -> Self {
        Self {
            since: now,
            before: None,
            behind: Vec::new(),
            reason: "the run starts".to_owned(),
            hint: None,
            round: VecDeque::new(),
            hops: 0,
            answered: false,
            asking: Asking::Pause(now),
            failure: "no answer yet".to_owned(),
            has_told: false,
            has_tried: false,
        }
    }

    /// The search after the loss of a leader.
    pub(super) fn election(last: &Last, reason: String, now: Instant) -> Self {
        let others = last.peers.iter().take(last.index).skip(1);
        let others = others.filter_map(|peer| peer.address);
        let behind = last.peers.iter().skip(last.index + 1);
        Self {
            // Perhaps only the connection is gone.
            before: Some([last.leader].into_iter().chain(others).collect()),
            behind: behind.map(|peer| peer.agent).collect(),
            reason,
            ..Self::anew(now)
        }
    }

    /// Asks at `address` next.
    pub(super) fn hint(&mut self, address: SocketAddr) {
        self.hint = Some(address);
    }

    fn pause(&mut self, now: Instant) {
        self.asking = Asking::Pause(now + PAUSE);
    }
}

impl Agent<'_> {
    fn seek(&mut self) -> Option<&mut Seek> {
        match &mut self.role {
            Role::Seeking(seek) => Some(seek),
            Role::Following(_) | Role::Leading(_) => None,
        }
    }

    pub(super) fn seek_tick(&mut self, now: Instant) -> Result<(), NodesError> {
        // A new generation must not meet ranks of the last one.
        if self.node.is_some() {
            return Ok(());
        }
        let timeout = self.rules.join_timeout;
        let Some(seek) = self.seek() else {
            return Ok(());
        };
        match &seek.asking {
            Asking::Pause(until) if *until > now => return Ok(()),
            Asking::Dialing(_) => return Ok(()),
            Asking::Waiting(_, until) if *until > now => return Ok(()),
            Asking::Waiting(..) => {
                seek.failure = "it did not answer".to_owned();
                seek.asking = Asking::Next;
            }
            Asking::Pause(_) => {
                let waited = now.saturating_duration_since(seek.since);
                if seek.before.is_none()
                    && seek.has_tried
                    && waited >= QUIET
                    && !std::mem::replace(&mut seek.has_told, true)
                {
                    let failure = seek.failure.clone();
                    let (place, seconds) = (&self.rendezvous, timeout.as_secs());
                    self.say(&format!(
                        "no group at {place} yet ({failure}); this node looks for one for \
                         {seconds} s"
                    ));
                    return Ok(());
                }
                if waited >= timeout && seek.has_tried {
                    return Err(NodesError::NotFound {
                        reason: seek.failure.clone(),
                        address: self.rendezvous.to_string(),
                        seconds: timeout.as_secs(),
                    });
                }
                return self.begin_round(now);
            }
            Asking::Next => {}
        }
        self.ask_next(now)
    }

    fn begin_round(&mut self, now: Instant) -> Result<(), NodesError> {
        let Some(seek) = self.seek() else {
            return Ok(());
        };
        if !seek.has_tried {
            // Before, this agent's ranks were ending.
            seek.since = now;
        }
        (seek.hops, seek.answered, seek.has_tried) = (0, false, true);
        let hint = seek.hint.take();
        let addresses = match &seek.before {
            Some(before) => before.clone(),
            None => match self.rendezvous.resolve() {
                Ok(addresses) => {
                    self.addresses.clone_from(&addresses);
                    let listener = self.rendezvous.listen(&addresses);
                    if let Some(listener) = listener.filter(|_| hint.is_none()) {
                        self.open(listener)?;
                        // The door of the rendezvous is the one that others know.
                        self.doors.rotate_right(1);
                        return self.lead(now);
                    }
                    let is_own = |address: &SocketAddr| self.is_own(*address);
                    if hint.is_none() && addresses.iter().any(is_own) {
                        return self.lead(now);
                    }
                    addresses
                }
                Err(error) => {
                    if let Some(seek) = self.seek() {
                        seek.failure = format!("cannot resolve the name: {error}");
                        seek.pause(now);
                    }
                    Vec::new()
                }
            },
        };
        let Some(seek) = self.seek() else {
            return Ok(());
        };
        seek.round = hint.into_iter().chain(addresses).collect();
        seek.asking = Asking::Next;
        Ok(())
    }

    /// Whether this agent listens at `address`.
    pub(super) fn is_own(&self, address: SocketAddr) -> bool {
        let here = |own: SocketAddr| {
            own.port() == address.port() && (own.ip() == address.ip() || own.ip().is_unspecified())
        };
        self.doors.iter().any(|door| here(door.address))
    }

    fn ask_next(&mut self, now: Instant) -> Result<(), NodesError> {
        let Some(seek) = self.seek() else {
            return Ok(());
        };
        let Some(address) = seek.round.pop_front() else {
            if seek.before.is_some() && !seek.answered && seek.hint.is_none() {
                return self.lead(now);
            }
            seek.pause(now);
            return Ok(());
        };
        if self.is_own(address) {
            return Ok(());
        }
        let number = self.next_dialing();
        let dialed = dial(number, address, &self.secret, &self.sender);
        let Some(seek) = self.seek() else {
            return Ok(());
        };
        match dialed {
            Ok(()) => seek.asking = Asking::Dialing(number),
            Err(error) => {
                seek.failure = error.to_string();
                seek.pause(now);
            }
        }
        Ok(())
    }

    pub(super) fn seek_dialed(
        &mut self,
        number: u64,
        dialed: Result<Link, DialError>,
    ) -> Result<(), NodesError> {
        let is_wanted = |seek: &Seek| matches!(seek.asking, Asking::Dialing(own) if own == number);
        if !self.seek().is_some_and(|seek| is_wanted(seek)) {
            return Ok(());
        }
        let mut link = match dialed {
            Ok(link) => link,
            Err(DialError::Refused(reason)) => {
                // Agents of the last generation had this secret. Another program may have the port
                // of one by now.
                let Some(seek) = self.seek().filter(|seek| seek.before.is_some()) else {
                    return Err(NodesError::Refused(reason));
                };
                (seek.failure, seek.asking) = (reason, Asking::Next);
                return Ok(());
            }
            Err(DialError::Unreachable(reason)) => {
                if let Some(seek) = self.seek() {
                    (seek.failure, seek.asking) = (reason, Asking::Next);
                }
                return Ok(());
            }
        };
        self.listen_at(link.local.ip())?;
        let hello = self.hello(false);
        let sent = link.send(&hello);
        if let Some(seek) = self.seek() {
            seek.asking = match sent {
                Ok(()) => Asking::Waiting(link, Instant::now() + ANSWER),
                Err(_) => Asking::Next,
            };
        }
        Ok(())
    }

    pub(super) fn seek_received(&mut self, id: LinkId, message: Message) -> Result<(), NodesError> {
        let Some(seek) = self.seek() else {
            return Ok(());
        };
        let asking = std::mem::replace(&mut seek.asking, Asking::Next);
        let link = match asking {
            Asking::Waiting(link, _) if link.id == id => link,
            other => {
                seek.asking = other;
                return Ok(());
            }
        };
        seek.answered = true;
        match message {
            Message::Welcome => {
                let words = format!("joined the group led from {}", link.peer);
                self.role = Role::Following(link);
                self.say(&words);
            }
            Message::Elsewhere(Some(address)) if seek.hops < HOPS => {
                seek.hops += 1;
                seek.round.push_front(address);
            }
            Message::Refused(reason) => return Err(NodesError::Refused(printable(&reason))),
            _ => seek.failure = "the agent there leads no group yet".to_owned(),
        }
        Ok(())
    }

    pub(super) fn seek_closed(&mut self, id: LinkId, why: &str) {
        if let Some(seek) = self.seek()
            && matches!(&seek.asking, Asking::Waiting(link, _) if link.id == id)
        {
            seek.asking = Asking::Next;
            seek.failure = why.to_owned();
        }
    }

    /// Leads a group, of this agent alone at first.
    fn lead(&mut self, now: Instant) -> Result<(), NodesError> {
        let (behind, reason) = match self.seek() {
            Some(seek) => (std::mem::take(&mut seek.behind), seek.reason.clone()),
            None => return Ok(()),
        };
        let me = Peer {
            agent: self.me,
            host: self.host.clone(),
            ranks: self.launcher.nproc as u16,
            address: None,
        };
        let address = |agent: &u64| {
            let peers = self.last.iter().flat_map(|last| &last.peers);
            let peer = peers.into_iter().find(|peer| peer.agent == *agent)?;
            Some((*agent, peer.address?))
        };
        let survivors = behind.iter().filter_map(address).collect();
        let begin = (self.counts, behind);
        let group = Group::new(self.rules.clone(), me, begin, reason, now);
        if self.counts.generation > 0 {
            self.say("this node leads the group now");
        }
        self.role = Role::Leading(Box::new(Lead::of(group, survivors, now)));
        Ok(())
    }
}

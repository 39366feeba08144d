//! The store's knowledge of the ranks and its messages to them: a state machine without sockets.
//!
//! Every rank has an outbox that never blocks, so a rank that has stopped reading holds nobody up.

use super::protocol::{GatherFailure, Message, Refusal};
use crate::wire::Fault;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Frames on their way to one rank; shared, since most go to all.
pub(crate) type Outbox = Sender<Arc<[u8]>>;

/// Ranks that time out together ask together. Questions within this time share one survey.
const BURST: Duration = Duration::from_millis(200);

/// How long ranks wait for a rank that has never connected before the store reports it.
pub(crate) const SAYS_WHO_IS_MISSING: Duration = Duration::from_secs(10);

/// Longest wait that a rank can request. Keeps times far from overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(30 * 24 * 3600);

/// All ranks of the run.
#[derive(Default)]
pub(crate) struct Roster {
    members: Vec<Member>,
    gather: Option<Gather>,
    gathers_done: u64,
    gather_failure: Option<GatherFailure>,
    surveys: Vec<Survey>,
    queries: u64,
    first_fault: Option<Fault>,
    /// The rank that made an exchange fail, unless there was a fault before. The waiting ranks
    /// report it later.
    missed: Option<Fault>,
    /// The ranks' own reports of their failures.
    aborts: BTreeMap<usize, String>,
    /// The last message about a failure. Every outbox holds a reference until it has sent it.
    notice: Option<Arc<[u8]>>,
    /// Whether ranks may come again after all have left.
    again: bool,
    /// Whether a process with another secret was refused.
    refused: bool,
}

enum Member {
    Absent,
    Present(Peer),
    Left,
    Failed,
}

/// A connected rank.
pub(crate) struct Peer {
    pub(crate) outbox: Outbox,
    /// Used to end the connection from outside; tests have none.
    pub(crate) stream: Option<Arc<TcpStream>>,
    /// Set once the others know of its failure; it may still be connected to say goodbye.
    failed: bool,
}

struct Gather {
    tag: String,
    /// The first rank that came, for messages.
    first: usize,
    since: Instant,
    deadline: Instant,
    payloads: Vec<Option<Vec<u8>>>,
    /// Whether a rank already received the list of missing ones.
    told: bool,
}

impl Gather {
    /// The missing ranks, and whether each is connected.
    fn missing(&self, members: &[Member]) -> Vec<(usize, bool)> {
        let all = self.payloads.iter().zip(members).enumerate();
        all.filter(|(_, (payload, _))| payload.is_none())
            .map(|(rank, (_, member))| (rank, matches!(member, Member::Present(_))))
            .collect()
    }
}

struct Survey {
    query: u64,
    begin: Instant,
    askers: Vec<Asker>,
    waiting: Vec<usize>,
    answers: Vec<Option<u64>>,
}

struct Asker {
    rank: usize,
    /// Its own number of the survey.
    survey: u64,
    deadline: Instant,
}

/// A rank sent an invalid message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub &'static str);

impl Roster {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            members: std::iter::repeat_with(|| Member::Absent)
                .take(size)
                .collect(),
            ..Self::default()
        }
    }

    /// Lets ranks meet again when all have left.
    pub(crate) fn begin_again(&mut self) {
        self.again = true;
    }

    pub(crate) fn first_fault(&self) -> Option<Fault> {
        self.missed.clone().or_else(|| self.first_fault.clone())
    }

    pub(crate) fn abort_reason(&self, rank: usize) -> Option<String> {
        self.aborts.get(&rank).cloned()
    }

    /// Whether `rank` has aborted, and all others have been sent the reason.
    pub(crate) fn has_told(&self, rank: usize) -> bool {
        let sent = |notice: &Arc<[u8]>| Arc::strong_count(notice) == 1;
        self.aborts.contains_key(&rank) && self.notice.as_ref().is_none_or(sent)
    }

    /// Whether `rank` has never been connected.
    pub(crate) fn is_absent(&self, rank: usize) -> bool {
        matches!(self.members.get(rank), Some(Member::Absent))
    }

    /// Ranks that have never been connected.
    pub(crate) fn absent(&self) -> impl Iterator<Item = usize> {
        let members = self.members.iter().enumerate();
        members
            .filter(|(_, member)| matches!(member, Member::Absent))
            .map(|(rank, _)| rank)
    }

    /// Whether all ranks are connected.
    pub(crate) fn is_complete(&self) -> bool {
        let present = |member: &Member| matches!(member, Member::Present(_));
        self.members.iter().all(present)
    }

    /// The ranks that are connected.
    pub(crate) fn present(&self) -> Vec<usize> {
        let members = self.members.iter().enumerate();
        let present = members.filter(|(_, member)| matches!(member, Member::Present(_)));
        present.map(|(rank, _)| rank).collect()
    }

    /// Number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.members.iter().filter_map(|member| match member {
            Member::Present(peer) => Some(peer),
            _ => None,
        })
    }

    /// Takes `rank` in and tells it what happened before it came.
    pub(crate) fn join(
        &mut self,
        rank: usize,
        size: usize,
        outbox: Outbox,
        stream: Option<Arc<TcpStream>>,
    ) -> Result<(), Refusal> {
        let store = self.members.len();
        let left = |member: &Member| matches!(member, Member::Left);
        if self.again && self.members.iter().all(left) {
            *self = Self {
                again: true,
                ..Self::new(store)
            };
        }
        if size != store {
            let gone = |member: &Member| matches!(member, Member::Left | Member::Failed);
            return Err(match self.members.iter().any(gone) {
                true => Refusal::Ending,
                false => Refusal::WorldSize { store },
            });
        }
        match self.members.get(rank) {
            None => return Err(Refusal::RankOutOfRange { store }),
            Some(Member::Present(_)) => return Err(Refusal::RankTaken),
            Some(Member::Left | Member::Failed) => return Err(Refusal::RankGone),
            Some(Member::Absent) => {}
        }
        post(&outbox, &Message::Welcome);
        for (other, member) in self.members.iter().enumerate() {
            if let Member::Left = member {
                post(&outbox, &Message::PeerLeft { rank: other });
            }
        }
        if let Some(failure) = &self.gather_failure {
            post(&outbox, &Message::GatherFailed(failure.clone()));
        }
        if let Some(Fault {
            rank: Some(other),
            reason,
        }) = &self.first_fault
        {
            let (rank, reason) = (*other, reason.clone());
            post(&outbox, &Message::PeerFailed { rank, reason });
        }
        self.members[rank] = Member::Present(Peer {
            outbox,
            stream,
            failed: false,
        });
        Ok(())
    }

    /// Handles a message of a connected rank. [`Message::Bye`] is [`Roster::leave`].
    pub(crate) fn receive(
        &mut self,
        rank: usize,
        message: Message,
        now: Instant,
    ) -> Result<(), Violation> {
        match message {
            Message::Gather {
                sequence,
                timeout,
                tag,
                payload,
            } => self.gather(rank, sequence, timeout, tag, payload, now),
            Message::Survey { survey, timeout } => {
                self.survey(rank, survey, timeout, now);
                Ok(())
            }
            Message::Report { query, progress } => {
                self.report(rank, query, progress);
                Ok(())
            }
            Message::Abort { culprit, reason } => {
                let culprit = culprit.filter(|culprit| *culprit < self.members.len());
                // The end of its process may be seen before this is read.
                let is_first_word = !self.aborts.contains_key(&rank);
                if let (Some(culprit), Some(fault)) = (culprit, &mut self.first_fault)
                    && fault.rank == Some(rank)
                    && is_first_word
                {
                    *fault = Fault {
                        rank: Some(culprit),
                        reason: reason.clone(),
                    };
                }
                self.fail_because_of(rank, culprit.unwrap_or(rank), &reason);
                self.aborts.entry(rank).or_insert(reason);
                Ok(())
            }
            _ => Err(Violation("a message that only the store may send")),
        }
    }

    fn gather(
        &mut self,
        rank: usize,
        sequence: u64,
        timeout: Duration,
        tag: String,
        payload: Vec<u8>,
        now: Instant,
    ) -> Result<(), Violation> {
        if self.gather_failure.is_some() {
            return Ok(()); // It was told, or is about to read it.
        }
        if sequence != self.gathers_done {
            return Err(Violation("an out-of-order exchange"));
        }
        let size = self.members.len();
        let gather = self.gather.get_or_insert_with(|| Gather {
            tag: tag.clone(),
            first: rank,
            since: now,
            deadline: now + timeout.min(LONGEST_WAIT),
            payloads: vec![None; size],
            told: false,
        });
        if gather.tag != tag {
            let failure = GatherFailure::TagsDiffer {
                sequence,
                first: (gather.first, gather.tag.clone()),
                second: (rank, tag),
            };
            self.fail_gather(failure);
            return Ok(());
        }
        match gather.payloads.get_mut(rank) {
            Some(slot @ None) => *slot = Some(payload),
            _ => return Err(Violation("the same exchange twice")),
        }
        if let Some(left) = self.left_before_gather() {
            self.fail_gather(GatherFailure::Left { tag, rank: left });
        } else {
            self.complete_gather();
        }
        Ok(())
    }

    /// A rank that has left although the exchange waits for it.
    fn left_before_gather(&self) -> Option<usize> {
        let gather = self.gather.as_ref()?;
        let mut ranks = self.members.iter().zip(&gather.payloads);
        ranks.position(|(member, payload)| matches!(member, Member::Left) && payload.is_none())
    }

    fn complete_gather(&mut self) {
        let complete = |gather: &mut Gather| gather.payloads.iter().all(Option::is_some);
        let Some(gather) = self.gather.take_if(complete) else {
            return;
        };
        let sequence = self.gathers_done;
        self.gathers_done += 1;
        for (rank, payload) in gather.payloads.into_iter().flatten().enumerate() {
            self.broadcast(&Message::Gathered {
                sequence,
                rank,
                payload,
            });
        }
    }

    /// Notes that a process with another secret was refused. It may be a rank of the run.
    pub fn note_refusal(&mut self) {
        self.refused = true;
    }

    fn fail_gather(&mut self, failure: GatherFailure) {
        self.gather = None;
        if let GatherFailure::Missing {
            tag, waited, ranks, ..
        } = &failure
        {
            // Ranks that never came are the reason why others are busy elsewhere.
            let culprit = ranks.iter().min_by_key(|(_, is_here)| *is_here);
            if let (None, Some((rank, _))) = (&self.first_fault, culprit) {
                self.missed = Some(Fault {
                    rank: Some(*rank),
                    reason: format!("it did not reach `{tag}` within {} s", waited.as_secs()),
                });
            }
        }
        self.broadcast(&Message::GatherFailed(failure.clone()));
        self.gather_failure = Some(failure);
    }

    fn survey(&mut self, rank: usize, survey: u64, timeout: Duration, now: Instant) {
        // One at a time for each rank, so that they cannot pile up.
        for other in &mut self.surveys {
            other.askers.retain(|asker| asker.rank != rank);
        }
        let asker = Asker {
            rank,
            survey,
            deadline: now + timeout.min(LONGEST_WAIT),
        };
        let fresh = |other: &&mut Survey| now.saturating_duration_since(other.begin) < BURST;
        match self.surveys.iter_mut().find(fresh) {
            Some(running) => running.askers.push(asker),
            None => self.start_survey(asker, now),
        }
        self.finish_surveys(now);
    }

    fn start_survey(&mut self, asker: Asker, now: Instant) {
        self.queries += 1;
        let query = self.queries;
        let mut waiting = Vec::new();
        for (rank, member) in self.members.iter().enumerate() {
            if let Member::Present(peer) = member {
                waiting.push(rank);
                post(&peer.outbox, &Message::Query { query });
            }
        }
        self.surveys.push(Survey {
            query,
            begin: now,
            askers: vec![asker],
            waiting,
            answers: vec![None; self.members.len()],
        });
    }

    fn report(&mut self, rank: usize, query: u64, progress: u64) {
        for survey in &mut self.surveys {
            if survey.query != query {
                continue;
            }
            survey.waiting.retain(|waiting| *waiting != rank);
            if let Some(answer) = survey.answers.get_mut(rank) {
                *answer = Some(progress);
            }
        }
        self.finish_surveys(Instant::now());
    }

    fn finish_surveys(&mut self, now: Instant) {
        let members = &self.members;
        self.surveys.retain_mut(|survey| {
            let is_whole = survey.waiting.is_empty();
            survey.askers.retain(|asker| {
                let waits = !is_whole && now < asker.deadline;
                if !waits && let Some(Member::Present(peer)) = members.get(asker.rank) {
                    let message = Message::Surveyed {
                        survey: asker.survey,
                        progress: survey.answers.clone(),
                    };
                    post(&peer.outbox, &message);
                }
                waits
            });
            !survey.askers.is_empty()
        });
    }

    /// Handles a rank's goodbye.
    pub(crate) fn leave(&mut self, rank: usize) {
        let Some(member) = self.members.get_mut(rank) else {
            return;
        };
        let Member::Present(peer) = member else {
            return;
        };
        if peer.failed {
            *member = Member::Failed;
        } else {
            *member = Member::Left;
            self.broadcast(&Message::PeerLeft { rank });
        }
        self.gone(rank);
        if let (Some(rank), Some(gather)) = (self.left_before_gather(), &self.gather) {
            let tag = gather.tag.clone();
            self.fail_gather(GatherFailure::Left { tag, rank });
        }
    }

    /// Handles the end of a rank's connection without a goodbye.
    pub(crate) fn lose(&mut self, rank: usize, reason: &str) {
        self.fail(rank, reason);
        if let Some(member @ Member::Present(_)) = self.members.get_mut(rank) {
            *member = Member::Failed;
        }
        self.gone(rank);
    }

    /// Handles a failed rank: tells all others, once. It may never have been connected.
    pub(crate) fn fail(&mut self, rank: usize, reason: &str) {
        self.fail_because_of(rank, rank, reason);
    }

    /// Handles a rank's process that ended as a failure. It may have said goodbye before: a process
    /// that returns an error from `main` does, and the others must not wait for its data.
    pub(crate) fn end_of_process(&mut self, rank: usize, reason: &str) {
        if let Some(member @ Member::Left) = self.members.get_mut(rank) {
            *member = Member::Failed;
            self.tell_of_failure(rank, rank, reason);
        } else {
            self.fail(rank, reason);
        }
    }

    /// Handles a failed rank, for which `culprit` is to blame.
    fn fail_because_of(&mut self, rank: usize, culprit: usize, reason: &str) {
        match self.members.get_mut(rank) {
            Some(Member::Present(peer)) if !peer.failed => peer.failed = true,
            Some(member @ Member::Absent) => *member = Member::Failed,
            _ => return,
        }
        self.tell_of_failure(rank, culprit, reason);
    }

    fn tell_of_failure(&mut self, rank: usize, culprit: usize, reason: &str) {
        if self.first_fault.is_none() {
            self.first_fault = Some(Fault {
                rank: Some(culprit),
                reason: reason.into(),
            });
        }
        let frame = frame(&Message::PeerFailed {
            rank: culprit,
            reason: reason.into(),
        });
        for (other, member) in self.members.iter().enumerate() {
            if let Member::Present(peer) = member
                && other != rank
            {
                let _ = peer.outbox.send(Arc::clone(&frame));
            }
        }
        self.notice = Some(frame);
    }

    fn gone(&mut self, rank: usize) {
        for survey in &mut self.surveys {
            survey.waiting.retain(|waiting| *waiting != rank);
        }
        self.finish_surveys(Instant::now());
    }

    /// Ends waits that are over. Returns the time of the next call, if one is needed.
    pub(crate) fn tick(&mut self, now: Instant) -> Option<Instant> {
        self.finish_surveys(now);
        if let Some(gather) = &self.gather
            && gather.deadline <= now
        {
            let failure = GatherFailure::Missing {
                tag: gather.tag.clone(),
                waited: now.saturating_duration_since(gather.since),
                ranks: gather.missing(&self.members),
                refused: self.refused,
            };
            self.fail_gather(failure);
        }
        self.say_who_is_missing(now);
        let gather = self.gather.iter().map(|gather| match gather.told {
            true => gather.deadline,
            false => gather.deadline.min(gather.since + SAYS_WHO_IS_MISSING),
        });
        let askers = self.surveys.iter().flat_map(|survey| &survey.askers);
        let surveys = askers.map(|asker| asker.deadline);
        gather.chain(surveys).min()
    }

    /// Tells the first waiting rank, once, which ranks are missing.
    fn say_who_is_missing(&mut self, now: Instant) {
        let Some(gather) = &mut self.gather else {
            return;
        };
        let waited = now.saturating_duration_since(gather.since);
        if gather.told || waited < SAYS_WHO_IS_MISSING {
            return;
        }
        gather.told = true;
        let ranks = gather.missing(&self.members);
        let waiting = self.members.iter().zip(&gather.payloads);
        let mut waiting = waiting.filter_map(|(member, payload)| match (member, payload) {
            (Member::Present(peer), Some(_)) => Some(peer),
            _ => None,
        });
        if let Some(first) = waiting.next() {
            let message = Message::Waiting {
                waited,
                ranks,
                refused: self.refused,
            };
            post(&first.outbox, &message);
        }
    }

    fn broadcast(&self, message: &Message) {
        let frame = frame(message);
        for peer in self.peers() {
            let _ = peer.outbox.send(Arc::clone(&frame));
        }
    }
}

fn frame(message: &Message) -> Arc<[u8]> {
    message.encode().into()
}

/// An outbox whose connection has just ended drops its messages.
pub(crate) fn post(outbox: &Outbox, message: &Message) {
    let _ = outbox.send(frame(message));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    type Mail = Receiver<Arc<[u8]>>;

    /// A roster of `size` ranks, of which the first `joined` are connected.
    fn roster(size: usize, joined: usize) -> (Roster, Vec<Mail>) {
        let mut roster = Roster::new(size);
        let mail = (0..joined).map(|rank| join(&mut roster, rank).unwrap());
        let mail = mail.collect();
        (roster, mail)
    }

    fn join(roster: &mut Roster, rank: usize) -> Result<Mail, Refusal> {
        let (outbox, mail) = channel();
        let size = roster.members.len();
        roster.join(rank, size, outbox, None).map(|()| mail)
    }

    fn read(mail: &Mail) -> Vec<Message> {
        let frames = mail.try_iter();
        frames
            .map(|frame| super::super::protocol::plain(&mut &frame[..]).unwrap())
            .collect()
    }

    fn gather(sequence: u64, timeout: Duration) -> Message {
        Message::Gather {
            sequence,
            timeout,
            tag: "tag".into(),
            payload: vec![1],
        }
    }

    #[test]
    fn ranks_that_do_not_fit_are_refused() {
        let (mut roster, _mail) = roster(3, 1);
        let (outbox, _) = channel();
        let refused = roster.join(1, 4, outbox, None);
        assert_eq!(refused, Err(Refusal::WorldSize { store: 3 }));
        let refused = join(&mut roster, 3).unwrap_err();
        assert_eq!(refused, Refusal::RankOutOfRange { store: 3 });
        assert_eq!(join(&mut roster, 0).unwrap_err(), Refusal::RankTaken);
        roster.lose(0, "gone");
        assert_eq!(join(&mut roster, 0).unwrap_err(), Refusal::RankGone);
        let (outbox, _) = channel();
        let refused = roster.join(1, 4, outbox, None);
        assert_eq!(refused, Err(Refusal::Ending));
    }

    #[test]
    fn what_no_rank_sends_is_a_violation() {
        let (mut roster, _mail) = roster(2, 2);
        let now = Instant::now();
        let later = roster.receive(0, gather(1, Duration::ZERO), now);
        assert_eq!(later, Err(Violation("an out-of-order exchange")));
        roster.receive(0, gather(0, Duration::MAX), now).unwrap();
        let twice = roster.receive(0, gather(0, Duration::MAX), now);
        assert_eq!(twice, Err(Violation("the same exchange twice")));
        assert!(roster.receive(0, Message::Welcome, now).is_err());
    }

    #[test]
    fn who_is_missing_is_said_once() {
        let (mut roster, mail) = roster(4, 2);
        let now = Instant::now();
        let said = now + SAYS_WHO_IS_MISSING;
        roster
            .receive(1, gather(0, Duration::from_secs(60)), now)
            .unwrap();
        assert_eq!(roster.tick(now), Some(said));
        let end = Some(now + Duration::from_secs(60));
        assert_eq!(roster.tick(said), end);
        assert_eq!(roster.tick(said + SAYS_WHO_IS_MISSING), end);
        let waiting = Message::Waiting {
            waited: SAYS_WHO_IS_MISSING,
            ranks: vec![(0, true), (2, false), (3, false)],
            refused: false,
        };
        // To a waiting rank: the others may be stopped.
        assert_eq!(read(&mail[0]), [Message::Welcome]);
        assert_eq!(read(&mail[1]), [Message::Welcome, waiting]);
    }

    #[test]
    fn whom_a_launcher_names_is_who_never_came() {
        let (mut roster, _mail) = roster(3, 2);
        let now = Instant::now();
        let second = Duration::from_secs(1);
        roster.receive(0, gather(0, second), now).unwrap();
        roster.tick(now + second);
        let fault = roster.first_fault().unwrap();
        assert_eq!(fault.rank, Some(2));
        assert!(fault.reason.ends_with("within 1 s"), "{}", fault.reason);
        // The effect on the ranks that waited is no news.
        let reason = "waited for rank 2".into();
        let abort = Message::Abort {
            culprit: None,
            reason,
        };
        roster.receive(0, abort, now).unwrap();
        assert_eq!(roster.first_fault().unwrap().rank, Some(2));
    }

    #[test]
    fn time_ends_an_exchange_once() {
        let (mut roster, mail) = roster(2, 1);
        let now = Instant::now();
        assert_eq!(roster.tick(now), None);
        let second = Duration::from_secs(1);
        roster.receive(0, gather(0, second), now).unwrap();
        assert_eq!(roster.tick(now), Some(now + second));
        assert_eq!(roster.tick(now + second), None);
        let failure = Message::GatherFailed(GatherFailure::Missing {
            tag: "tag".into(),
            waited: second,
            ranks: vec![(1, false)],
            refused: false,
        });
        assert_eq!(read(&mail[0]), [Message::Welcome, failure.clone()]);
        // A late rank is told, and nothing is ever gathered again.
        let late = join(&mut roster, 1).unwrap();
        assert_eq!(read(&late), [Message::Welcome, failure]);
        roster.receive(1, gather(0, second), now).unwrap();
        assert_eq!(roster.tick(now), None);
    }

    #[test]
    fn longest_waits_do_not_overflow() {
        let (mut roster, _mail) = roster(3, 3);
        let now = Instant::now();
        roster.receive(0, gather(0, Duration::MAX), now).unwrap();
        let (survey, timeout) = (1, Duration::MAX);
        roster
            .receive(0, Message::Survey { survey, timeout }, now)
            .unwrap();
        assert!(roster.tick(now).is_some());
    }

    #[test]
    fn a_survey_ends_when_all_have_answered_or_are_gone() {
        let (mut roster, mail) = roster(3, 3);
        let now = Instant::now();
        let (survey, timeout) = (9, Duration::from_secs(60));
        roster
            .receive(0, Message::Survey { survey, timeout }, now)
            .unwrap();
        let query = 1;
        for rank in [0, 2] {
            let progress = rank as u64 + 40;
            roster
                .receive(rank, Message::Report { query, progress }, now)
                .unwrap();
        }
        assert_eq!(read(&mail[0]), [Message::Welcome, Message::Query { query }]);
        roster.lose(1, "gone");
        let surveyed = Message::Surveyed {
            survey,
            progress: vec![Some(40), None, Some(42)],
        };
        assert!(read(&mail[0]).contains(&surveyed));
        assert_eq!(roster.tick(now), None);
    }

    #[test]
    fn who_is_to_blame_is_told_instead_of_who_gave_up() {
        let (mut roster, mail) = roster(3, 3);
        roster.leave(1);
        let reason = || "rank 1 left".to_owned();
        let abort = |culprit| Message::Abort {
            culprit,
            reason: reason(),
        };
        roster.receive(2, abort(Some(1)), Instant::now()).unwrap();
        let failed = Message::PeerFailed {
            rank: 1,
            reason: reason(),
        };
        assert_eq!(read(&mail[0]).last(), Some(&failed));
        assert_eq!(roster.first_fault().unwrap().rank, Some(1));
        assert_eq!(roster.abort_reason(2), Some(reason()));
        // The rank does not exist.
        roster.receive(0, abort(Some(7)), Instant::now()).unwrap();
        assert_eq!(roster.abort_reason(0), Some(reason()));
    }

    /// Otherwise thousands of ranks that time out together would each ask thousands of ranks.
    #[test]
    fn who_asks_at_the_same_moment_shares_a_survey() {
        let (mut roster, mail) = roster(3, 3);
        let now = Instant::now();
        let timeout = Duration::from_secs(60);
        for (rank, survey) in [(0, 7), (1, 8)] {
            let ask = Message::Survey { survey, timeout };
            roster.receive(rank, ask, now).unwrap();
        }
        let later = Message::Survey { survey: 9, timeout };
        roster.receive(2, later, now + 2 * BURST).unwrap();
        let queries = |mail: &[Message]| {
            let of_query = |message: &Message| match message {
                Message::Query { query } => Some(*query),
                _ => None,
            };
            mail.iter().filter_map(of_query).collect::<Vec<_>>()
        };
        let asked: Vec<Vec<Message>> = mail.iter().map(&read).collect();
        assert!(
            asked.iter().all(|mail| queries(mail) == [1, 2]),
            "{asked:?}"
        );
        for query in [1, 2] {
            for rank in 0..3 {
                let progress = 10 * query + rank as u64;
                let report = Message::Report { query, progress };
                roster.receive(rank, report, now).unwrap();
            }
        }
        for (rank, survey, tens) in [(0, 7, 10), (1, 8, 10), (2, 9, 20)] {
            let progress = (0..3).map(|rank| Some(tens + rank)).collect();
            let surveyed = Message::Surveyed { survey, progress };
            assert_eq!(read(&mail[rank]), [surveyed]);
        }
    }

    #[test]
    fn whom_a_rank_blames_counts_even_if_its_end_is_seen_first() {
        let (mut roster, _mail) = roster(3, 3);
        let abort = |culprit: usize, reason: &str| Message::Abort {
            culprit: Some(culprit),
            reason: reason.into(),
        };
        roster.end_of_process(1, "it exited with code 1");
        let waited = "rank 1 waited 3 s for rank 2";
        roster.receive(1, abort(2, waited), Instant::now()).unwrap();
        roster
            .receive(0, abort(1, "later"), Instant::now())
            .unwrap();
        let fault = roster.first_fault().unwrap();
        assert_eq!((fault.rank, fault.reason.as_str()), (Some(2), waited));
    }

    #[test]
    fn a_failure_is_told_once_and_not_to_whoever_failed() {
        let (mut roster, mail) = roster(3, 2);
        let abort = Message::Abort {
            culprit: None,
            reason: "no memory".into(),
        };
        roster.receive(1, abort, Instant::now()).unwrap();
        roster.fail(1, "it exited with code 1");
        roster.lose(1, "its connection closed unexpectedly");
        let failed = Message::PeerFailed {
            rank: 1,
            reason: "no memory".into(),
        };
        assert_eq!(read(&mail[0]), [Message::Welcome, failed]);
        assert_eq!(read(&mail[1]), [Message::Welcome]);
        assert_eq!(roster.abort_reason(1).as_deref(), Some("no memory"));
        roster.fail(2, "it never came");
        assert_eq!(roster.first_fault().unwrap().rank, Some(1));
        assert!(!roster.is_absent(2));
    }
}

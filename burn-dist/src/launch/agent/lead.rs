//! The leader's side: carries out the decisions of the group, and finds other groups.
//!
//! Every second a leader looks at the rendezvous, unless it listens there itself, and for agents of
//! the last generation that have not come. If it meets another leader, the group with the higher
//! generation stays, and the other joins it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::driver::{Agent, Last, Role, secret_of};
use super::group::{Counts, Group, Order, Verdict};
use super::link::{DialError, Link, LinkId, Loss, dial};
use super::message::{Hello, How, Members, Message, Peer, RankEnded, Report, Start, cut};
use super::{NodesError, counted};
use crate::launch::local::{Ended, MAX_LOCAL_RANKS, RankExit, RankFailure, blame};
use crate::rendezvous::StoreServer;
use crate::wire::Secret;
use crate::wire::net::LOOPBACK;

/// Time between two looks for other groups.
const PROBE: Duration = Duration::from_secs(1);
/// Time for an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Most characters of an option that a refusal shows, and most that both sides share.
const SHOWN: usize = 80;
const SHOWN_BEFORE: usize = 20;
/// Largest number of looks at the same time.
const PROBES: usize = 16;

/// The state of a leader.
pub(super) struct Lead {
    pub group: Group,
    /// Connections to the other agents.
    links: BTreeMap<u64, Link>,
    /// The store of the generation, unless it has one rank.
    store: Option<StoreServer>,
    /// The agents of the generation, with the number of their ranks.
    ranks: Vec<(u64, usize)>,
    /// The rank whose failure was seen first.
    first_failed: Option<usize>,
    own_report: Option<Report>,
    /// Whether agents have joined, or ranks begun, since the last beat.
    has_news: bool,
    /// Addresses of agents of the last generation.
    survivors: BTreeMap<u64, SocketAddr>,
    probes: Probes,
}

/// Looks for other groups and for agents that have not come.
struct Probes {
    next: Instant,
    /// Dialings, by the agent that is expected there.
    dialing: BTreeMap<u64, Option<u64>>,
    waiting: BTreeMap<LinkId, (Link, Instant)>,
    /// A leader that another agent has named.
    named: Option<SocketAddr>,
}

impl Lead {
    pub(super) fn of(group: Group, survivors: BTreeMap<u64, SocketAddr>, now: Instant) -> Self {
        Self {
            group,
            links: BTreeMap::new(),
            store: None,
            ranks: Vec::new(),
            first_failed: None,
            own_report: None,
            has_news: false,
            survivors,
            probes: Probes {
                next: now,
                dialing: BTreeMap::new(),
                waiting: BTreeMap::new(),
                named: None,
            },
        }
    }

    /// Shows all agents that this one lives, and tells agents without ranks what has changed.
    pub(super) fn beat(&mut self) {
        self.send_all(&Message::Beat);
        if std::mem::take(&mut self.has_news) {
            self.tell_members();
        }
    }

    /// Sends to all. A failed send shows as the end of the connection.
    fn send_all(&mut self, message: &Message) {
        for link in self.links.values_mut() {
            let _ = link.send(message);
        }
    }

    /// Whom to ask after the loss of this leader. Nothing before the first generation.
    fn members(&self) -> Option<Message> {
        let counts = self.group.counts();
        (counts.generation > 0).then(|| {
            Message::Members(Box::new(Members {
                generation: counts.generation,
                restarts: counts.restarts,
                first_ranks: counts.first_ranks as u32,
                peers: self.group.peers(),
            }))
        })
    }

    /// Tells agents without ranks who is in the group.
    fn tell_members(&mut self) {
        let Some(members) = self.members() else {
            return;
        };
        for agent in self.group.waiting() {
            if let Some(link) = self.links.get_mut(&agent) {
                let _ = link.send(&members);
            }
        }
    }

    pub(super) fn report_own(&mut self, me: u64, report: Report) {
        debug_assert!(self.ranks.first().is_some_and(|(agent, _)| *agent == me));
        self.own_report = Some(report);
    }

    fn agent_of(&self, id: LinkId) -> Option<u64> {
        let found = self.links.iter().find(|(_, link)| link.id == id);
        found.map(|(agent, _)| *agent)
    }

    /// Number in the world of the first rank of an agent, and the number of its ranks.
    fn ranks_of(&self, agent: u64) -> Option<(usize, usize)> {
        let at = self.ranks.iter().position(|(other, _)| *other == agent)?;
        let before = self.ranks.iter().take(at).map(|(_, ranks)| ranks);
        Some((before.sum(), self.ranks.get(at)?.1))
    }

    /// The failure of the generation, once all ranks have ended.
    fn verdict(&self) -> Option<Verdict> {
        let mut ends: BTreeMap<usize, (u64, Ended)> = BTreeMap::new();
        for (agent, report) in self.group.reports() {
            let first = self.ranks_of(agent).map_or(0, |(first, _)| first);
            for (at, rank) in report.ranks.iter().enumerate() {
                ends.insert(first + at, (agent, rank.ended()));
            }
        }
        let ended = |rank: usize| ends.get(&rank).map(|(_, ended)| ended.clone());
        let by_itself = |(_, end): &(u64, Ended)| end.exit.is_failure() && !end.hurried;
        let unseen = || ends.iter().find(|(_, end)| by_itself(end));
        let seen = self.first_failed.or_else(|| Some(*unseen()?.0))?;
        let failure = match &self.store {
            Some(store) => blame(store, seen, ended),
            None => ended(seen).map(|end| RankFailure::of(seen, end)),
        }?;
        // A node that leaves takes its ranks with it.
        let leaves = |agent: u64| {
            let mut reports = self.group.reports();
            reports.any(|(other, report)| other == agent && report.leaves)
        };
        let agent = ends.get(&failure.rank()).map(|(agent, _)| *agent);
        if agent.is_some_and(leaves) {
            return None;
        }
        let said = match (failure.exit(), failure.reason()) {
            (RankExit::Signal(_), _) => None,
            (RankExit::Code(_), Some(reason)) => Some(reason.to_owned()),
            (RankExit::Code(_), None) => Some(failure.last_words().join("\n")),
        };
        Some(Verdict {
            agent,
            words: cut(&failure.to_string()),
            code: failure.exit_code(),
            said: said.filter(|said| !said.is_empty()),
        })
    }
}

/// The first difference between the options of an agent and those of its leader, in words.
fn difference(theirs: &[String], own: &[String]) -> Option<String> {
    let most = theirs.len().max(own.len());
    let at = (0..most).find(|at| theirs.get(*at) != own.get(*at))?;
    let is_flag = |option: &String| option.starts_with('-');
    // The flag of a value, and the value of a flag.
    let phrase = |options: &[String]| {
        let here = options.get(at)?;
        let before = at.checked_sub(1).and_then(|before| options.get(before));
        let after = options.get(at + 1).filter(|_| is_flag(here));
        let before = before.filter(|before| is_flag(before) && !is_flag(here));
        let words = [before, Some(here), after.filter(|after| !is_flag(after))];
        let words: Vec<&str> = words.into_iter().flatten().map(String::as_str).collect();
        let words = words.join(" ");
        Some(words.chars().filter(|c| !c.is_control()).collect())
    };
    let [theirs, own]: [Option<String>; 2] = [theirs, own].map(phrase);
    let none = || "nothing more".to_owned();
    let (theirs, own) = (theirs.unwrap_or_else(none), own.unwrap_or_else(none));
    // Long ones may differ at the end.
    let same = theirs.chars().zip(own.chars());
    let same = same.take_while(|(one, other)| one == other).count();
    let shown = |phrase: &str| {
        let skipped = same.saturating_sub(SHOWN_BEFORE);
        let rest: String = phrase.chars().skip(skipped).take(SHOWN).collect();
        match skipped {
            0 => format!("`{rest}`"),
            _ => format!("`…{rest}`"),
        }
    };
    Some(format!(
        "all nodes need the same options: this node has {} where the leader has {}",
        shown(&theirs),
        shown(&own)
    ))
}

impl Agent<'_> {
    pub(super) fn leading(&mut self) -> Option<&mut Lead> {
        match &mut self.role {
            Role::Leading(lead) => Some(lead),
            Role::Seeking(_) | Role::Following(_) => None,
        }
    }

    /// An agent has introduced itself to this leader.
    pub(super) fn lead_introduced(&mut self, mut link: Link, hello: Hello, from: SocketAddr) {
        let own = (self.precedence, Reverse(self.me));
        let options = self.launcher.shared_options();
        let Some(lead) = self.leading() else { return };
        if hello.leads {
            if (hello.precedence, Reverse(hello.agent)) > own {
                let _ = link.send(&Message::Elsewhere(None));
                self.dissolve(from);
            } else {
                let _ = link.send(&Message::Yield);
            }
            return;
        }
        if let Some(reason) = difference(&hello.options, &options) {
            let _ = link.send(&Message::Refused(reason));
            return;
        }
        let ranks = usize::from(hello.ranks);
        if ranks == 0 || ranks > MAX_LOCAL_RANKS {
            let reason = format!("the leader accepts from 1 to {MAX_LOCAL_RANKS} ranks per node");
            let _ = link.send(&Message::Refused(reason));
            return;
        }
        let peer = Peer {
            agent: hello.agent,
            host: plain(&hello.host),
            ranks: hello.ranks,
            address: Some(from),
        };
        let words = format!("node {} joined, {}", peer.host, counted(ranks, "rank"));
        match lead.group.join(peer, Instant::now()) {
            true => {
                lead.group.adopt(Counts {
                    generation: hello.generation,
                    restarts: hello.restarts,
                    first_ranks: hello.first_ranks as usize,
                });
                let counts = lead.group.counts();
                let _ = link.send(&Message::Welcome);
                if let Some(outlook) = lead.group.outlook() {
                    // At once: this leader may be lost before the next beat.
                    if let Some(members) = lead.members() {
                        let _ = link.send(&members);
                    }
                    let _ = link.send(&Message::Tell(outlook));
                }
                lead.links.insert(hello.agent, link);
                lead.has_news = true;
                self.counts = counts;
                self.precedence = self.precedence.max(hello.precedence);
                self.say(&words);
            }
            // It is still in the group, or the group is full: it asks again.
            false => drop(link.send(&Message::Elsewhere(None))),
        }
    }

    pub(super) fn lead_received(&mut self, id: LinkId, message: Message) -> Result<(), NodesError> {
        let Some(lead) = self.leading() else {
            return Ok(());
        };
        if let Some((link, _)) = lead.probes.waiting.remove(&id) {
            self.probe_answered(link.peer, &message);
            return Ok(());
        }
        let Some(agent) = lead.agent_of(id) else {
            return Ok(());
        };
        let generation = lead.group.counts().generation;
        match message {
            Message::RankEnded(ended) if ended.generation == generation => {
                self.lead_rank_ended(agent, &ended);
                Ok(())
            }
            Message::Stopped {
                generation: of,
                report,
            } if of == generation => {
                let wanted = lead.ranks_of(agent).map(|(_, ranks)| ranks);
                if wanted == Some(report.ranks.len()) {
                    lead.group.report(agent, report, Instant::now());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A rank of `agent` has ended.
    pub(super) fn lead_rank_ended(&mut self, agent: u64, ended: &RankEnded) {
        let Some(lead) = self.leading() else { return };
        let rank = ended.rank as usize;
        let is_own = |(first, ranks): (usize, usize)| (first..first + ranks).contains(&rank);
        if !lead.group.is_active(agent) || !lead.ranks_of(agent).is_some_and(is_own) {
            return;
        }
        let exit = RankExit::from(ended.exit);
        if !exit.is_failure() {
            if let Some(store) = &lead.store {
                store.report_absence(rank, &format!("it {exit} before it joined the others"));
            }
            return;
        }
        if let Some(store) = &lead.store {
            store.report_failure(rank, &format!("it {exit}"));
        }
        if ended.told {
            return;
        }
        lead.first_failed.get_or_insert(rank);
        let words = format!("rank {rank} {exit}");
        let orders = lead.group.fail(agent, words, Instant::now());
        self.obey_without_start(orders);
    }

    pub(super) fn lead_closed(&mut self, id: LinkId, loss: &Loss) -> Result<(), NodesError> {
        let Some(lead) = self.leading() else {
            return Ok(());
        };
        lead.probes.waiting.remove(&id);
        let Some(agent) = lead.agent_of(id) else {
            return Ok(());
        };
        lead.links.remove(&agent);
        let orders = lead.group.lose(agent, &loss.words, Instant::now());
        // If only the agent died, its ranks save with the others. If its node did, they wait for
        // its ranks.
        if !orders.is_empty()
            && loss.silent
            && let Some(((first, ranks), store)) = lead.ranks_of(agent).zip(lead.store.as_ref())
        {
            for rank in first..first + ranks {
                store.report_failure(rank, "its node is gone");
            }
        }
        self.obey(orders)
    }

    pub(super) fn lead_tick(&mut self, now: Instant) -> Result<(), NodesError> {
        let me = self.me;
        let is_idle = self.node.is_none();
        let Some(lead) = self.leading() else {
            return Ok(());
        };
        if let Some(report) = lead.own_report.take() {
            lead.group.report(me, report, now);
        }
        let mut orders = Vec::new();
        if lead.group.has_stopped() && is_idle {
            let verdict = lead.verdict();
            orders.extend(lead.group.conclude(verdict, now));
            (lead.store, lead.first_failed) = (None, None);
        }
        self.obey(orders)?;
        let Some(lead) = self.leading() else {
            return Ok(());
        };
        let orders = lead.group.tick(now);
        self.obey(orders)?;
        let Some(lead) = self.leading() else {
            return Ok(());
        };
        // Agents that the group has given up find their connection closed.
        let Lead { links, group, .. } = lead;
        links.retain(|agent, _| group.has(*agent));
        self.probe(now)
    }

    /// Carries out orders that start no ranks.
    fn obey_without_start(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Say(words) => {
                    self.say(&words);
                }
                Order::Stop(how) => self.stop_all(how),
                Order::Start { .. } => {}
                Order::Refuse { agents, reason } => {
                    let Some(lead) = self.leading() else { return };
                    let refusal = Message::Refused(cut(&reason));
                    for agent in agents {
                        if let Some(mut link) = lead.links.remove(&agent) {
                            let _ = link.send(&refusal);
                        }
                    }
                }
                Order::Leave => {
                    if let Some(lead) = self.leading() {
                        lead.send_all(&Message::Left);
                    }
                    let (code, reason) = self.farewell.take().unwrap_or_default();
                    self.end(code, reason);
                }
                Order::End { code, reason } => {
                    if let Some(lead) = self.leading() {
                        let reason = reason.clone();
                        lead.send_all(&Message::Done { code, reason });
                    }
                    self.end(code, reason);
                }
            }
        }
    }

    fn obey(&mut self, orders: Vec<Order>) -> Result<(), NodesError> {
        for order in orders {
            match order {
                Order::Start {
                    generation,
                    peers,
                    reason,
                } => self.start_all(generation, peers, reason)?,
                other => self.obey_without_start(vec![other]),
            }
        }
        Ok(())
    }

    fn stop_all(&mut self, how: How) {
        if let Some(node) = &mut self.node {
            node.stop(how);
        }
        let Some(lead) = self.leading() else { return };
        let generation = lead.group.counts().generation;
        for (agent, link) in &mut lead.links {
            if lead.group.is_active(*agent) {
                let _ = link.send(&Message::Stop { generation, how });
            }
        }
    }

    /// Starts the ranks of a generation on its nodes.
    fn start_all(
        &mut self,
        generation: u32,
        peers: Vec<Peer>,
        reason: String,
    ) -> Result<(), NodesError> {
        let salt = getrandom::u64().unwrap_or(self.me);
        let text = secret_of(&self.secret, generation, salt);
        let size: usize = peers.iter().map(|peer| usize::from(peer.ranks)).sum();
        let ip = self
            .doors
            .first()
            .map_or(LOOPBACK[0], |door| door.address.ip());
        let store = match size {
            1 => None,
            _ => {
                let secret = Secret::from_text(&text)?;
                let store = StoreServer::bind((ip, 0).into(), size, secret)?;
                Some(store.for_runs_in_turn())
            }
        };
        let port = store.as_ref().map_or(1, |store| store.address().port());
        let Some(lead) = self.leading() else {
            return Ok(());
        };
        let counts = lead.group.counts();
        let start = Start {
            generation,
            restarts: counts.restarts,
            first_ranks: counts.first_ranks as u32,
            peers,
            salt,
            store: port,
            reason: cut(&reason),
        };
        lead.store = store;
        let ranks = start.peers.iter();
        lead.ranks = ranks
            .map(|peer| (peer.agent, usize::from(peer.ranks)))
            .collect();
        let message = Message::Start(Box::new(start.clone()));
        for peer in &start.peers {
            if let Some(link) = lead.links.get_mut(&peer.agent) {
                let _ = link.send(&message);
            }
        }
        let ip = match ip.is_unspecified() {
            true => LOOPBACK[0],
            false => ip,
        };
        let store = SocketAddr::new(ip, port);
        lead.has_news = true;
        self.start_node(&start, 0, store)?;
        // A group of agents that had waited yields to the one that they have lost, until it saves.
        if self.precedence > 0 || generation == 1 {
            self.precedence = generation;
        }
        self.last = Some(Last {
            peers: start.peers,
            index: 0,
            leader: store,
        });
        Ok(())
    }

    /// Gives the group up for another one, led from `address`.
    fn dissolve(&mut self, address: SocketAddr) {
        self.say(&format!("another group is ahead; joining it at {address}"));
        if let Some(lead) = self.leading() {
            lead.send_all(&Message::Elsewhere(Some(address)));
            self.former_store = lead.store.take();
        }
        if self.node.is_none() {
            self.former_store = None;
        }
        self.seek_at(address);
    }

    /// Looks for other groups, and for agents of the last generation.
    fn probe(&mut self, now: Instant) -> Result<(), NodesError> {
        let Some(lead) = self.leading() else {
            return Ok(());
        };
        let probes = &mut lead.probes;
        probes.waiting.retain(|_, (_, until)| *until > now);
        if probes.next > now || probes.dialing.len() + probes.waiting.len() >= PROBES {
            return Ok(());
        }
        probes.next = now + PROBE;
        let mut places: Vec<(SocketAddr, Option<u64>)> = Vec::new();
        places.extend(probes.named.take().map(|named| (named, None)));
        for agent in lead.group.expected() {
            let address = lead.survivors.get(agent);
            places.extend(address.map(|address| (*address, Some(*agent))));
        }
        // Resolving the name again could hold this agent up.
        let mut addresses = self.addresses.clone();
        addresses.retain(|_| !self.rendezvous.is_standalone());
        if !addresses.iter().any(|address| self.is_own(*address)) {
            match self.rendezvous.listen(&addresses) {
                // New agents look there.
                Some(listener) => self.open(listener)?,
                None => places.extend(addresses.into_iter().map(|address| (address, None))),
            }
        }
        for (address, agent) in places.into_iter().take(PROBES) {
            if self.is_own(address) {
                continue;
            }
            let number = self.next_dialing();
            if dial(number, address, &self.secret, &self.sender).is_ok()
                && let Some(lead) = self.leading()
            {
                lead.probes.dialing.insert(number, agent);
            }
        }
        Ok(())
    }

    pub(super) fn probe_dialed(&mut self, number: u64, dialed: Result<Link, DialError>) {
        let hello = self.hello(true);
        let Some(lead) = self.leading() else { return };
        let Some(expected) = lead.probes.dialing.remove(&number) else {
            return;
        };
        match (dialed, expected) {
            (Ok(mut link), _) => {
                if link.send(&hello).is_ok() {
                    let until = Instant::now() + ANSWER;
                    lead.probes.waiting.insert(link.id, (link, until));
                }
            }
            // Nobody listens there any more.
            (Err(_), Some(agent)) => lead.group.do_not_expect(agent),
            (Err(_), None) => {}
        }
    }

    fn probe_answered(&mut self, from: SocketAddr, message: &Message) {
        match message {
            Message::Yield => self.dissolve(from),
            Message::Elsewhere(Some(address)) if !self.is_own(*address) => {
                if let Some(lead) = self.leading() {
                    lead.probes.named = Some(*address);
                }
            }
            _ => {}
        }
    }
}

/// A host's name without characters that change a terminal.
fn plain(host: &str) -> String {
    let name: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
    match name.is_empty() {
        true => "without a name".to_owned(),
        false => name,
    }
}

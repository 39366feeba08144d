//! Decisions of the leading agent: who is in the group, when ranks start, stop and start again.
//!
//! A state machine without clock, threads or connections. The agent tells it events and carries
//! out its orders.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::counted;
use super::message::{How, Peer, Report};
use crate::launch::local::{RankExit, STOPPED_EARLY};

/// Time after which the failure of a rank is not the fault of a node that is new.
const TRIAL: Duration = Duration::from_secs(60);
/// Agents beyond the largest world that may wait for a place.
const MAX_WAITING: usize = 64;
/// Exit code of a run that failed.
const FAILED: u8 = 1;
/// Exit code of wrong arguments, which a restart does not cure.
const USAGE: u8 = 2;
/// Time for agents to report the end of their ranks, beyond the time that the ranks have.
const REPORTING: Duration = Duration::from_secs(10);
/// Time between the ends of ranks that stop by themselves.
const TOGETHER: Duration = Duration::from_secs(60);

/// Whether a number of ranks can train: the ranks of the first generation (0: this is the first),
/// and the number.
pub(super) type Usable = Arc<dyn Fn(usize, usize) -> Result<(), String> + Send + Sync>;

/// The options of a group.
#[derive(Clone)]
pub(super) struct Rules {
    /// Fewest agents of a generation.
    pub min: usize,
    /// Most agents of a generation.
    pub max: usize,
    /// How long the first generation waits for more agents after the last one came.
    pub join_wait: Duration,
    /// How long an agent that comes later waits until the ranks restart with it.
    pub join_after: Duration,
    /// How long too few agents wait for more.
    pub join_timeout: Duration,
    /// Most restarts after failures.
    pub max_restarts: u32,
    pub usable: Usable,
}

/// An agent of the group.
#[derive(Clone, Debug)]
struct Member {
    peer: Peer,
    since: Instant,
    /// Whether its ranks are of the current generation.
    active: bool,
    report: Option<Report>,
    /// Whether its connection ended after it reported.
    gone: bool,
    /// Whether its ranks have trained: a checkpoint was complete, they ended without a failure, or
    /// ran for a [`TRIAL`].
    proven: bool,
}

impl Member {
    fn new(peer: Peer, now: Instant) -> Self {
        Self {
            peer,
            since: now,
            active: false,
            report: None,
            gone: false,
            proven: false,
        }
    }

    /// Whether it leaves the group after this generation.
    fn leaves(&self) -> bool {
        self.gone || self.report.as_ref().is_some_and(|report| report.leaves)
    }
}

/// Why the ranks of a generation end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The leader told them to.
    Order(How),
    /// They finished, or stopped by themselves.
    Own,
}

/// The state of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for agents, since the first and since the last change.
    Gathering {
        begin: Instant,
        quiet: Instant,
        reason: String,
    },
    /// Ranks run.
    Running,
    /// Ranks are asked to end; agents that do not report until `by` are gone.
    Stopping {
        cause: Cause,
        reason: String,
        by: Instant,
    },
    /// The run has ended.
    Over,
}

/// An order to the agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Start the ranks of these agents.
    Start {
        generation: u32,
        peers: Vec<Peer>,
        reason: String,
    },
    /// End all ranks of the generation.
    Stop(How),
    /// End with this exit code.
    End { code: u8, reason: String },
    /// Tell these agents that the group goes on without them.
    Refuse { agents: Vec<u64>, reason: String },
    /// Only the leader ends. The others go on without it.
    Leave,
    /// Tell the user.
    Say(String),
}

/// The failure of a rank, once all have ended.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    /// The agent of the rank.
    pub agent: Option<u64>,
    /// The rank and its end, in words.
    pub words: String,
    /// Exit code for the launcher.
    pub code: u8,
    /// The error of the rank, if it ended by itself: the same again makes a restart useless.
    pub said: Option<String>,
}

/// Counts that outlive a leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// The last generation, 0 if none was started.
    pub generation: u32,
    /// Restarts after failures so far.
    pub restarts: u32,
    /// Ranks of the first generation.
    pub first_ranks: usize,
}

/// A group of agents, as its leader sees it.
pub(super) struct Group {
    rules: Rules,
    counts: Counts,
    /// In the order of ranks. The first is the leader.
    members: Vec<Member>,
    /// Agents of the last generation that may still come.
    expected: Vec<u64>,
    phase: Phase,
    /// The latest generation that an agent knows of.
    latest: u32,
    /// Whether this leader has started no ranks and follows no other.
    fresh: bool,
    said_before: Option<String>,
    told_waiting: Option<(usize, usize)>,
    /// Whether the ranks have just completed a checkpoint.
    has_saved: bool,
    /// When the last generation began.
    began: Instant,
}

impl Group {
    /// A group of its leader alone. `expected` are agents of the last generation that may join.
    pub(super) fn new(
        rules: Rules,
        leader: Peer,
        (counts, expected): (Counts, Vec<u64>),
        reason: String,
        now: Instant,
    ) -> Self {
        Self {
            rules,
            counts,
            members: vec![Member::new(leader, now)],
            expected,
            phase: Phase::Gathering {
                begin: now,
                quiet: now,
                reason,
            },
            latest: counts.generation,
            fresh: counts.generation == 0,
            said_before: None,
            told_waiting: None,
            has_saved: false,
            began: now,
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether ranks run or end.
    pub(super) fn has_ranks(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Stopping { .. })
    }

    /// Agents of the last generation that may still come.
    pub(super) fn expected(&self) -> &[u64] {
        &self.expected
    }

    /// Takes in an agent. Returns whether there is room.
    pub(super) fn join(&mut self, peer: Peer, now: Instant) -> bool {
        self.expected.retain(|agent| *agent != peer.agent);
        let most = self.rules.max + MAX_WAITING;
        if self.members.len() >= most || self.position(peer.agent).is_some() {
            return false;
        }
        self.members.push(Member::new(peer, now));
        if let Phase::Gathering { quiet, .. } = &mut self.phase {
            *quiet = now;
        }
        true
    }

    /// Tells the agent that joined last why it has no ranks yet. Nothing if it is about to.
    pub(super) fn outlook(&self) -> Option<String> {
        let active = self.members.iter().filter(|member| member.active).count();
        let count = self.members.len().min(self.rules.max);
        if active == 0 {
            return None;
        }
        let after = self.rules.join_after.as_secs();
        Some(if active >= count {
            format!(
                "this node waits for a place: --nnodes allows {} to train",
                counted(active, "node")
            )
        } else if let (Err(why), false) = (
            self.use_of(count),
            (active + 1..=count).any(|count| self.is_usable(count)),
        ) {
            format!("this node waits for a place: {why}")
        } else {
            format!("this node takes part after the next checkpoint, or after {after} s")
        })
    }

    /// Learns what an agent knows of earlier generations: a leader that was started again knows
    /// none.
    pub(super) fn adopt(&mut self, counts: Counts) {
        self.latest = self.latest.max(counts.generation);
        if self.counts.generation == 0 {
            self.counts = counts;
        }
    }

    /// An agent of the last generation will not come.
    pub(super) fn do_not_expect(&mut self, agent: u64) {
        self.expected.retain(|other| *other != agent);
    }

    /// Removes an agent whose connection has ended.
    pub(super) fn lose(&mut self, agent: u64, why: &str, now: Instant) -> Vec<Order> {
        let Some(at) = self.position(agent) else {
            return Vec::new();
        };
        let has_ranks = self.has_ranks();
        let Some(member) = self.members.get_mut(at) else {
            return Vec::new();
        };
        // An agent that has reported and closes its connection leaves in order.
        if member.active && has_ranks && member.report.is_some() {
            member.gone = true;
            return Vec::new();
        }
        let lost = self.members.remove(at);
        if self.phase == Phase::Over {
            return Vec::new();
        }
        let reason = format!("node {} is gone ({why})", lost.peer.host);
        let mut orders = vec![Order::Say(reason.clone())];
        if !lost.active || !has_ranks {
            return orders;
        }
        match &mut self.phase {
            // The failure of a rank explains less than the loss of its node.
            Phase::Stopping {
                cause: cause @ Cause::Order(_),
                reason: why,
                ..
            } => (*cause, *why) = (Cause::Order(How::Lost), reason),
            Phase::Running | Phase::Stopping { .. } => {
                orders.push(self.stop(How::Lost, reason, now));
            }
            Phase::Gathering { .. } | Phase::Over => {}
        }
        orders
    }

    /// A rank of `agent` has failed.
    pub(super) fn fail(&mut self, agent: u64, words: String, now: Instant) -> Vec<Order> {
        if self.phase != Phase::Running || !self.is_active(agent) {
            return Vec::new();
        }
        vec![self.stop(How::Failure, words, now)]
    }

    /// All ranks of `agent` have ended.
    pub(super) fn report(&mut self, agent: u64, report: Report, now: Instant) {
        let Some(at) = self.position(agent) else {
            return;
        };
        if let Some(member) = self.members.get_mut(at).filter(|member| member.active) {
            member.report = Some(report);
        }
        // Ranks that pause or finish do so together. One that does not is stuck.
        if self.phase == Phase::Running {
            self.phase = Phase::Stopping {
                cause: Cause::Own,
                reason: "the ranks stopped".to_owned(),
                by: now + TOGETHER,
            };
        }
    }

    /// Whether all ranks of the generation have ended.
    pub(super) fn has_stopped(&self) -> bool {
        let stopped = |member: &Member| !member.active || member.report.is_some();
        self.has_ranks() && self.members.iter().all(stopped)
    }

    /// The reports of the generation by agent, in the order of ranks.
    pub(super) fn reports(&self) -> impl Iterator<Item = (u64, &Report)> {
        let active = self.members.iter().filter(|member| member.active);
        active.filter_map(|member| Some((member.peer.agent, member.report.as_ref()?)))
    }

    /// Decides how it goes on after all ranks have ended. `verdict` is the failure, if a rank
    /// failed; it does not count if a node was lost.
    pub(super) fn conclude(&mut self, verdict: Option<Verdict>, now: Instant) -> Vec<Order> {
        let Phase::Stopping { cause, reason, .. } = &self.phase else {
            return Vec::new();
        };
        let (cause, reason) = (*cause, reason.clone());
        let exits: Vec<RankExit> = self
            .reports()
            .flat_map(|(_, report)| report.ranks.iter().map(|rank| rank.exit.into()))
            .collect();
        let left = self.members.iter().filter(|member| member.leaves());
        let left: Vec<String> = left.map(host).collect();
        let leader_leaves = self.members.first().is_some_and(Member::leaves);
        self.members.retain(|member| !member.leaves());
        let counts = !leader_leaves && cause != Cause::Order(How::Lost);
        let verdict = verdict.filter(|_| counts);
        // With wrong settings or data, ranks do not train, however long that takes.
        let is_usage = verdict
            .as_ref()
            .is_some_and(|verdict| verdict.code == USAGE);
        let ran_long = !is_usage && now.saturating_duration_since(self.began) >= TRIAL;
        for member in &mut self.members {
            member.proven |= member.active && (ran_long || verdict.is_none());
        }
        let newcomers = match &verdict {
            Some(verdict) => self.useless_newcomers(verdict),
            None => Vec::new(),
        };
        for member in &mut self.members {
            (member.active, member.report) = (false, None);
        }
        let is_done = !exits.is_empty() && exits.iter().all(|exit| *exit == RankExit::Code(0));
        if is_done {
            return self.end(0, "all ranks finished".to_owned());
        }
        if let Some(verdict) = verdict {
            return match newcomers.is_empty() {
                true => self.after_failure(verdict, now),
                false => self.leave_out(&newcomers, &verdict.words, now),
            };
        }
        let reason = match &*left {
            [] => reason,
            [host] => format!("node {host} left"),
            hosts => format!("nodes {} left", hosts.join(", ")),
        };
        if leader_leaves {
            self.phase = Phase::Over;
            return vec![Order::Leave];
        }
        let has_paused = exits.contains(&RankExit::Code(STOPPED_EARLY));
        if has_paused && cause == Cause::Own && left.is_empty() {
            let words = "the ranks stopped early, with a checkpoint".to_owned();
            return self.end(STOPPED_EARLY as u8, words);
        }
        self.gather(reason, now);
        Vec::new()
    }

    /// Agents whose first generation has failed because of them, if others can go on without them.
    fn useless_newcomers(&self, verdict: &Verdict) -> Vec<u64> {
        let (old, new): (Vec<&Member>, Vec<&Member>) = self
            .members
            .iter()
            .filter(|member| member.active)
            .partition(|member| member.proven);
        let rest = self.members.iter();
        let rest = rest.filter(|member| member.proven || !member.active);
        let mut ranks = 0;
        let sums = rest.map(|member| {
            ranks += usize::from(member.peer.ranks);
            ranks
        });
        let mut sums = sums.take(self.rules.max).skip(self.rules.min - 1);
        let can_train = |ranks| (self.rules.usable)(self.counts.first_ranks, ranks).is_ok();
        if old.is_empty() || !sums.any(can_train) {
            return Vec::new();
        }
        let agents = new.iter().map(|member| member.peer.agent);
        // A rank that was killed may do better next time.
        let culprit = verdict.agent.filter(|_| verdict.said.is_some());
        let of_culprit: Vec<u64> = agents
            .clone()
            .filter(|agent| culprit == Some(*agent))
            .collect();
        // A rank of an older node may fail because of a new one. One restart tells.
        let is_hopeless = verdict.code == USAGE
            || (verdict.said.is_some() && verdict.said == self.said_before)
            || self.counts.restarts >= self.rules.max_restarts;
        match of_culprit.is_empty() && is_hopeless {
            true => agents.collect(),
            false => of_culprit,
        }
    }

    /// Goes on without agents that have just joined. It is no restart.
    fn leave_out(&mut self, agents: &[u64], words: &str, now: Instant) -> Vec<Order> {
        let is_out = |member: &Member| agents.contains(&member.peer.agent);
        let out = self.members.iter().filter(|member| is_out(member));
        let hosts: Vec<String> = out.map(host).collect();
        self.members.retain(|member| !is_out(member));
        self.said_before = None;
        let hosts = match &*hosts {
            [host] => format!("the new node {host}"),
            hosts => format!("the new nodes {}", hosts.join(", ")),
        };
        self.gather(format!("the group goes on without {hosts}"), now);
        vec![
            Order::Say(format!("{words}; going on without {hosts}")),
            Order::Refuse {
                agents: agents.to_vec(),
                reason: format!("the group goes on without this node: {words}"),
            },
        ]
    }

    fn after_failure(&mut self, verdict: Verdict, now: Instant) -> Vec<Order> {
        let Verdict {
            words, code, said, ..
        } = verdict;
        let again = said.is_some() && said == self.said_before;
        self.said_before = said;
        let most = self.rules.max_restarts;
        if code == USAGE || most == 0 {
            return self.end(code, words);
        }
        if self.counts.restarts >= most {
            let reason = format!("{words}; all restarts are used, {most} of --max-restarts {most}");
            return self.end(code, reason);
        }
        if again {
            let reason = format!("{words}; the same error again, so the ranks are not restarted");
            return self.end(code, reason);
        }
        self.counts.restarts += 1;
        let restart = self.counts.restarts;
        self.gather(shortened(&words), now);
        vec![Order::Say(format!(
            "{words}; restarting all ranks, restart {restart} of {most}"
        ))]
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Order> {
        match &self.phase {
            Phase::Gathering {
                begin,
                quiet,
                reason,
            } => {
                let (begin, quiet, reason) = (*begin, *quiet, reason.clone());
                self.decide(begin, quiet, &reason, now)
            }
            Phase::Running => self.grow(now),
            Phase::Stopping {
                cause: Cause::Own,
                by,
                ..
            } if *by <= now => {
                let reason = "some ranks stopped, others did not".to_owned();
                vec![self.stop(How::Lost, reason, now)]
            }
            Phase::Stopping { by, .. } if *by <= now => {
                let silent = |member: &&Member| member.active && member.report.is_none();
                let late = self.members.iter().skip(1).filter(silent);
                let late: Vec<u64> = late.map(|member| member.peer.agent).collect();
                let lose = |agent| self.lose(agent, "it did not report the end of its ranks", now);
                late.into_iter().flat_map(lose).collect()
            }
            Phase::Stopping { .. } | Phase::Over => Vec::new(),
        }
    }

    /// Starts a generation if enough agents are there and no more are awaited.
    fn decide(&mut self, begin: Instant, quiet: Instant, reason: &str, now: Instant) -> Vec<Order> {
        let Rules { min, max, .. } = self.rules;
        let count = self.members.len().min(max);
        let elapsed = |since| now.saturating_duration_since(since);
        let awaits_more = match self.fresh {
            true => elapsed(quiet) < self.rules.join_wait,
            false => !self.expected.is_empty() && elapsed(begin) < self.rules.join_wait,
        };
        if count >= min && (count == max || !awaits_more) {
            return self.start(count, reason, now);
        }
        if count < min && !awaits_more && elapsed(quiet.max(begin)) >= self.rules.join_timeout {
            let waited = self.rules.join_timeout.as_secs();
            let words = format!("only {count} of at least {min} nodes came within {waited} s");
            return self.end(FAILED, words);
        }
        if self.told_waiting != Some((self.members.len(), min)) {
            self.told_waiting = Some((self.members.len(), min));
            let nodes = match (min, max) {
                (min, max) if min == max => format!("{min}"),
                (min, max) => format!("at least {min}, at most {max}"),
            };
            let words = format!("waiting for nodes: {count} of {nodes}");
            return vec![Order::Say(words)];
        }
        Vec::new()
    }

    /// Starts the ranks of as many of the first `count` agents as can train together.
    fn start(&mut self, count: usize, reason: &str, now: Instant) -> Vec<Order> {
        (self.has_saved, self.began) = (false, now);
        let mut counts = (self.rules.min..=count).rev();
        let Some(taken) = counts.find(|count| self.is_usable(*count)) else {
            let why = self.use_of(count).err().unwrap_or_default();
            let words = match self.rules.min < count {
                true => format!("{why}. The ranks of fewer nodes cannot train either"),
                false => why,
            };
            return self.end(USAGE, words);
        };
        let not_all = self.use_of(count).err();
        if self.counts.first_ranks == 0 {
            self.counts.first_ranks = self.ranks_of(taken);
        }
        // The peer that sent the number has the secret, but may be wrong.
        self.latest = self.latest.max(self.counts.generation).saturating_add(1);
        (self.counts.generation, self.fresh) = (self.latest, false);
        for (at, member) in self.members.iter_mut().enumerate() {
            (member.active, member.report) = (at < taken, None);
        }
        let peers = self.members.iter().take(taken);
        let peers: Vec<Peer> = peers.map(|member| member.peer.clone()).collect();
        self.phase = Phase::Running;
        self.told_waiting = None;
        self.expected.clear();
        let mut orders = Vec::new();
        if let Some(why) = not_all {
            orders.push(Order::Say(format!("using {taken} of {count} nodes: {why}")));
        }
        orders.push(Order::Start {
            generation: self.counts.generation,
            peers,
            reason: reason.to_owned(),
        });
        orders
    }

    /// The ranks have completed a checkpoint. Agents that wait need not wait longer.
    pub(super) fn saved(&mut self) {
        self.has_saved = true;
        self.said_before = None;
        for member in &mut self.members {
            member.proven |= member.active;
        }
    }

    /// Stops the ranks to take in agents that have waited long enough, or until a checkpoint.
    fn grow(&mut self, now: Instant) -> Vec<Order> {
        let has_saved = std::mem::take(&mut self.has_saved);
        let active = self.members.iter().filter(|member| member.active).count();
        let count = self.members.len().min(self.rules.max);
        let is_due = |member: &&Member| {
            let waited = now.saturating_duration_since(member.since);
            !member.active && (has_saved || waited >= self.rules.join_after)
        };
        let due: Vec<String> = self.members.iter().filter(is_due).map(host).collect();
        // Members are in the order in which they came, so those of this generation are the first.
        let mut larger = active + 1..=count;
        if due.is_empty() || !larger.any(|count| self.is_usable(count)) {
            return Vec::new();
        }
        let reason = match &*due {
            [host] => format!("node {host} joined"),
            hosts => format!("nodes {} joined", hosts.join(", ")),
        };
        let mut orders = vec![Order::Say(
            "the ranks save and start again with more nodes".to_owned(),
        )];
        orders.push(self.stop(How::Grow, reason, now));
        orders
    }

    /// Ranks of the first `count` agents.
    fn ranks_of(&self, count: usize) -> usize {
        let members = self.members.iter().take(count);
        members.map(|member| usize::from(member.peer.ranks)).sum()
    }

    fn is_usable(&self, count: usize) -> bool {
        self.use_of(count).is_ok()
    }

    /// Whether the first `count` agents can train together.
    fn use_of(&self, count: usize) -> Result<(), String> {
        (self.rules.usable)(self.counts.first_ranks, self.ranks_of(count))
    }

    /// The agents in the order of their ranks, then agents that wait.
    pub(super) fn peers(&self) -> Vec<Peer> {
        let peers = self.members.iter().map(|member| member.peer.clone());
        peers.collect()
    }

    /// Agents that wait for ranks.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u64> {
        let waiting = self.members.iter().filter(|member| !member.active);
        waiting.map(|member| member.peer.agent)
    }

    fn stop(&mut self, how: How, reason: String, now: Instant) -> Order {
        self.phase = Phase::Stopping {
            cause: Cause::Order(how),
            reason,
            by: now + time_to_end(how) + REPORTING,
        };
        Order::Stop(how)
    }

    fn gather(&mut self, reason: String, now: Instant) {
        self.phase = Phase::Gathering {
            begin: now,
            quiet: now,
            reason,
        };
    }

    fn end(&mut self, code: u8, reason: String) -> Vec<Order> {
        self.phase = Phase::Over;
        vec![Order::End { code, reason }]
    }

    /// Whether an agent is in the group.
    pub(super) fn has(&self, agent: u64) -> bool {
        self.position(agent).is_some()
    }

    /// Whether the ranks of an agent are of the current generation.
    pub(super) fn is_active(&self, agent: u64) -> bool {
        let is_it = |member: &Member| member.peer.agent == agent && member.active;
        self.has_ranks() && self.members.iter().any(is_it)
    }

    fn position(&self, agent: u64) -> Option<usize> {
        let is_it = |member: &Member| member.peer.agent == agent;
        self.members.iter().position(is_it)
    }
}

fn host(member: &Member) -> String {
    member.peer.host.clone()
}

/// The first sentence of a long text.
fn shortened(words: &str) -> String {
    const LONG: usize = 160;
    let first = words.split(['\n', ';']).next().unwrap_or(words);
    let first = first.split(". ").next().unwrap_or(first);
    match first.char_indices().nth(LONG) {
        Some((end, _)) => format!("{}…", first.get(..end).unwrap_or(first)),
        None => first.to_owned(),
    }
}

/// Time for ranks to end after SIGTERM.
pub(super) fn time_to_end(how: How) -> Duration {
    Duration::from_secs(match how {
        How::Failure => 3,
        How::Lost => 30,
        // As long as a checkpoint may take.
        How::Grow => 600,
    })
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;

//! The agent of a node: connections, ranks, signals, and its part in the group.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::board::Board;
use super::group::{Counts, Rules};
use super::lead::Lead;
use super::link::{Door, Event, Link, LinkId, QUEUE};
use super::message::{Hello, How, Members, Message, Peer, RankEnded, Start, cut};
use super::node::Node;
use super::seek::Seek;
use super::{NodeLauncher, NodesError, NodesOutcome, Rendezvous, counted};
use crate::launch::local::{Inbox, Received, STOPPED_EARLY};
use crate::node_memory::NodeMemory;
use crate::rendezvous::StoreServer;
use crate::wire::Secret;

/// Pause between looks at connections and ranks.
const TICK: Duration = Duration::from_millis(50);
/// Time between two signs of life.
const BEAT: Duration = Duration::from_secs(1);
/// Time for a caller to introduce itself.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// Largest number of callers that have not introduced themselves.
const CALLERS: usize = 64;
/// Longest name of a host, in bytes.
const MAX_HOST: usize = 64;

/// The part of an agent in the group.
pub(super) enum Role {
    /// Looks for the leader.
    Seeking(Box<Seek>),
    /// In a group that another agent leads.
    Following(Link),
    /// Leads the group.
    Leading(Box<Lead>),
}

/// The last generation that this agent was in.
pub(super) struct Last {
    pub peers: Vec<Peer>,
    /// Place of this agent among them.
    pub index: usize,
    /// Address of the first of them, as this agent reached it.
    pub leader: SocketAddr,
}

pub(super) struct Agent<'a> {
    pub launcher: &'a NodeLauncher,
    pub rules: Rules,
    pub rendezvous: Rendezvous,
    pub secret: Secret,
    say: &'a mut dyn FnMut(&str),
    /// Random number of this agent.
    pub me: u64,
    pub host: String,
    inbox: Inbox,
    /// Keeps copies of the ranks' state while they start again.
    memory: Option<NodeMemory>,
    /// The ranks tell of their checkpoints there.
    board: Board,
    events: Receiver<Event>,
    pub sender: SyncSender<Event>,
    dialings: u64,
    pub doors: Vec<Door>,
    /// Peers that have not introduced themselves, by the time that they have.
    callers: BTreeMap<LinkId, (Link, Instant)>,
    pub node: Option<Node>,
    pub role: Role,
    pub counts: Counts,
    /// See [`Hello::precedence`].
    pub precedence: u32,
    /// Addresses of the rendezvous, as last resolved.
    pub addresses: Vec<SocketAddr>,
    pub last: Option<Last>,
    /// The store of a group that this agent led, until its ranks have ended.
    pub former_store: Option<StoreServer>,
    beat: Instant,
    /// Exit code and reason of this node, once it leaves the group that it leads.
    pub farewell: Option<(u8, String)>,
    pub outcome: Option<NodesOutcome>,
}

impl<'a> Agent<'a> {
    pub(super) fn new(
        launcher: &'a NodeLauncher,
        rendezvous: Rendezvous,
        secret: Secret,
        inbox: Inbox,
        say: &'a mut dyn FnMut(&str),
    ) -> Result<Self, NodesError> {
        let (sender, events) = sync_channel(QUEUE);
        let random = getrandom::u64().map_err(|error| NodesError::System {
            what: "the system returned no random numbers".to_owned(),
            source: std::io::Error::other(error.to_string()),
        })?;
        let name = rustix::system::uname();
        let mut host = cut(&name.nodename().to_string_lossy());
        while host.len() > MAX_HOST {
            host.pop();
        }
        let memory = launcher
            .keeps_memory
            .then(|| NodeMemory::new(launcher.nproc))
            .transpose()
            .map_err(NodesError::system("cannot keep memory for the ranks"))?;
        let failed = NodesError::system("cannot keep memory for the ranks");
        let board = Board::new(random).map_err(failed)?;
        let now = Instant::now();
        Ok(Self {
            memory,
            board,
            launcher,
            rules: launcher.rules(),
            rendezvous,
            secret,
            say,
            me: random,
            host,
            inbox,
            events,
            sender,
            dialings: 0,
            doors: Vec::new(),
            callers: BTreeMap::new(),
            node: None,
            role: Role::Seeking(Box::new(Seek::anew(now))),
            counts: Counts::default(),
            precedence: 0,
            addresses: Vec::new(),
            last: None,
            former_store: None,
            beat: now,
            farewell: None,
            outcome: None,
        })
    }

    pub(super) fn run(mut self) -> Result<NodesOutcome, NodesError> {
        loop {
            let received = self.inbox.receive(TICK);
            self.heed(&received);
            // A bounded number, so that a flood of messages does not delay the ranks' signals.
            for _ in 0..QUEUE {
                match self.events.try_recv() {
                    Ok(event) => self.on(event)?,
                    Err(_) => break,
                }
            }
            self.step_node();
            self.tick()?;
            if let Some(outcome) = self.outcome.take() {
                return Ok(outcome);
            }
        }
    }

    pub(super) fn say(&mut self, words: &str) {
        // Some come from other agents.
        (self.say)(&printable(words));
    }

    pub(super) fn end(&mut self, code: u8, reason: impl Into<String>) {
        let reason = printable(&reason.into());
        self.outcome.get_or_insert(NodesOutcome { code, reason });
    }

    /// Acts on a signal to this process.
    fn heed(&mut self, received: &Received) {
        if !received.asks_to_stop() {
            return;
        }
        if let Some(node) = &mut self.node {
            return node.heed(received);
        }
        let (code, name) = match received {
            Received::Interrupt { .. } => (130, "SIGINT"),
            Received::Terminate => (143, "SIGTERM"),
            Received::Nothing | Received::Other(_) => (STOPPED_EARLY as u8, "a signal"),
        };
        self.end(code, format!("stopped by {name} while no ranks ran"));
    }

    /// A number for a dialing.
    pub(super) fn next_dialing(&mut self) -> u64 {
        self.dialings += 1;
        self.dialings
    }

    pub(super) fn hello(&self, leads: bool) -> Message {
        let door = self.doors.first();
        Message::Hello(Hello {
            agent: self.me,
            host: self.host.clone(),
            ranks: self.launcher.nproc as u16,
            port: door.map_or(0, |door| door.address.port()),
            generation: self.counts.generation,
            precedence: self.precedence,
            restarts: self.counts.restarts,
            first_ranks: self.counts.first_ranks as u32,
            leads,
            options: self.launcher.shared_options(),
        })
    }

    /// Listens at `ip` if this agent does not listen yet: the others must reach it when the leader
    /// is gone.
    pub(super) fn listen_at(&mut self, ip: IpAddr) -> Result<(), NodesError> {
        if self.doors.is_empty() {
            let failed = NodesError::system("cannot listen for other agents");
            let listener = TcpListener::bind((ip, 0)).map_err(failed)?;
            self.open(listener)?;
        }
        Ok(())
    }

    pub(super) fn open(&mut self, listener: TcpListener) -> Result<(), NodesError> {
        let door = Door::open(listener, &self.secret, &self.sender);
        let failed = NodesError::system("cannot listen for other agents");
        self.doors.push(door.map_err(failed)?);
        Ok(())
    }

    fn on(&mut self, event: Event) -> Result<(), NodesError> {
        match event {
            Event::Called(link) => {
                while self.callers.len() >= CALLERS {
                    self.callers.pop_first();
                }
                let until = Instant::now() + INTRODUCTION;
                self.callers.insert(link.id, (link, until));
                Ok(())
            }
            Event::Dialed(number, dialed) => match &self.role {
                Role::Seeking(_) => self.seek_dialed(number, dialed),
                Role::Leading(_) => {
                    self.probe_dialed(number, dialed);
                    Ok(())
                }
                Role::Following(_) => Ok(()),
            },
            Event::Received(id, message) => {
                if let Some((link, _)) = self.callers.remove(&id) {
                    if let Message::Hello(hello) = message {
                        self.introduced(link, hello);
                    }
                    return Ok(());
                }
                match &self.role {
                    Role::Seeking(_) => self.seek_received(id, message),
                    Role::Following(link) if link.id == id => self.follow(message),
                    Role::Following(_) => Ok(()),
                    Role::Leading(_) => self.lead_received(id, message),
                }
            }
            Event::Closed(id, loss) => {
                self.callers.remove(&id);
                match &self.role {
                    // The leader has told the end and closes its connections.
                    _ if self.outcome.is_some() => {}
                    Role::Seeking(_) => self.seek_closed(id, &loss.words),
                    Role::Following(link) if link.id == id => {
                        self.say_loss(&loss.words);
                        self.lose_leader("is gone");
                    }
                    Role::Following(_) => {}
                    Role::Leading(_) => self.lead_closed(id, &loss)?,
                }
                Ok(())
            }
        }
    }

    /// A peer has introduced itself.
    fn introduced(&mut self, mut link: Link, hello: Hello) {
        if hello.agent == self.me || hello.port == 0 {
            let _ = link.send(&Message::Elsewhere(None));
            return;
        }
        let from = SocketAddr::new(link.peer.ip(), hello.port);
        match &mut self.role {
            Role::Leading(_) => self.lead_introduced(link, hello, from),
            Role::Following(leader) => {
                let answer = Message::Elsewhere(Some(leader.peer));
                let _ = link.send(&answer);
            }
            Role::Seeking(seek) => {
                if hello.leads {
                    seek.hint(from);
                }
                let _ = link.send(&Message::Elsewhere(None));
            }
        }
    }

    /// A message of the leader.
    fn follow(&mut self, message: Message) -> Result<(), NodesError> {
        match message {
            Message::Start(start) => self.follow_start(&start),
            Message::Stop { generation, how } => {
                if let Some(node) = &mut self.node
                    && node.generation == generation
                {
                    node.stop(how);
                }
                Ok(())
            }
            Message::Done { code, reason } => {
                self.end(code, reason);
                Ok(())
            }
            Message::Elsewhere(Some(address)) => {
                self.say(&format!("the group joins another one, led from {address}"));
                self.seek_at(address);
                Ok(())
            }
            Message::Tell(words) => {
                self.say(&words);
                Ok(())
            }
            Message::Members(members) => {
                self.note_members(*members);
                Ok(())
            }
            Message::Refused(reason) => Err(NodesError::Refused(printable(&reason))),
            Message::Left => {
                self.lose_leader("left");
                Ok(())
            }
            // Other messages are not for this side.
            _ => Ok(()),
        }
    }

    fn follow_start(&mut self, start: &Start) -> Result<(), NodesError> {
        let Role::Following(link) = &self.role else {
            return Ok(());
        };
        let leader = link.peer;
        let is_me = |peer: &Peer| peer.agent == self.me;
        let found = start.peers.iter().position(is_me);
        // A leader that starts ranks before the last ones have ended is wrong about this agent.
        let (Some(index), None) = (found, &self.node) else {
            return Ok(());
        };
        self.start_node(start, index, SocketAddr::new(leader.ip(), start.store))?;
        self.precedence = start.generation;
        self.last = Some(Last {
            peers: start.peers.clone(),
            index,
            leader,
        });
        Ok(())
    }

    /// Starts this node's ranks of a generation.
    pub(super) fn start_node(
        &mut self,
        start: &Start,
        index: usize,
        store: SocketAddr,
    ) -> Result<(), NodesError> {
        self.counts = Counts {
            generation: start.generation,
            restarts: start.restarts,
            first_ranks: start.first_ranks as usize,
        };
        let ranks: usize = start.peers.iter().map(|peer| usize::from(peer.ranks)).sum();
        let nodes = counted(start.peers.len(), "node");
        let ranks = counted(ranks, "rank");
        let reason = match start.generation {
            1 => String::new(),
            _ => format!(", because {}", start.reason),
        };
        let generation = start.generation;
        self.say(&format!(
            "generation {generation}: {ranks} on {nodes}{reason}"
        ));
        let secret = secret_of(&self.secret, start.generation, start.salt);
        let shared = [
            self.memory.as_ref().map(NodeMemory::variable),
            Some(self.board.variable()),
        ];
        let shared = shared.into_iter().flatten();
        let node = Node::start(self.launcher, start, (index, store), &secret, shared)?;
        self.node = Some(node);
        Ok(())
    }

    /// Without ranks, this agent knows its group from the leader.
    fn note_members(&mut self, members: Members) {
        let Role::Following(link) = &self.role else {
            return;
        };
        let is_me = |peer: &Peer| peer.agent == self.me;
        let (Some(index), None) = (members.peers.iter().position(is_me), &self.node) else {
            return;
        };
        self.last = Some(Last {
            index,
            leader: link.peer,
            peers: members.peers,
        });
        self.counts = Counts {
            generation: members.generation,
            restarts: members.restarts,
            first_ranks: members.first_ranks as usize,
        };
    }

    /// Tells the user how the connection to the leader has ended.
    fn say_loss(&mut self, why: &str) {
        let host = self.leading_host();
        let ending = match self.node {
            Some(_) => ": this node ends its ranks and looks for the group",
            None => "",
        };
        self.say(&format!("the leading node {host} is gone ({why}){ending}"));
    }

    fn leading_host(&self) -> String {
        let first = self.last.as_ref().and_then(|last| last.peers.first());
        let host = first.map(|peer| peer.host.clone());
        host.unwrap_or_else(|| self.rendezvous.to_string())
    }

    /// The group has lost its leader, which `fate` tells in words.
    pub(super) fn lose_leader(&mut self, fate: &str) {
        if let Some(node) = &mut self.node {
            node.stop(How::Lost);
        }
        let host = self.leading_host();
        let now = Instant::now();
        self.role = Role::Seeking(Box::new(match &self.last {
            Some(last) => Seek::election(last, format!("node {host} {fate}"), now),
            None => Seek::anew(now),
        }));
    }

    /// Looks for the leader at `address` first.
    pub(super) fn seek_at(&mut self, address: SocketAddr) {
        if let Some(node) = &mut self.node {
            node.stop(How::Lost);
        }
        let mut seek = Seek::anew(Instant::now());
        seek.hint(address);
        self.role = Role::Seeking(Box::new(seek));
    }

    /// Looks at this node's ranks, and tells the leader.
    fn step_node(&mut self) {
        let Some(node) = &mut self.node else {
            return;
        };
        let generation = node.generation;
        let ended = node.step();
        if self.board.is_news()
            && let Role::Leading(lead) = &mut self.role
        {
            lead.group.saved();
            // Also of agents that had waited before they led.
            self.precedence = self.counts.generation;
        }
        let told = node.told();
        for (rank, exit) in ended {
            let ended = RankEnded {
                generation,
                rank: rank as u32,
                exit: exit.into(),
                told,
            };
            match &mut self.role {
                // A failed send shows as the end of the connection.
                Role::Following(link) => drop(link.send(&Message::RankEnded(ended))),
                Role::Leading(_) => self.lead_rank_ended(self.me, &ended),
                Role::Seeking(_) => {}
            }
        }
        let Some(node) = self.node.take_if(|node| node.is_over()) else {
            return;
        };
        let report = node.report();
        let leaves = report.leaves;
        match &mut self.role {
            Role::Following(link) => {
                drop(link.send(&Message::Stopped { generation, report }));
            }
            Role::Leading(lead) => lead.report_own(self.me, report),
            Role::Seeking(_) => self.former_store = None,
        }
        match self.role {
            // The leader ends once the others have stopped too.
            Role::Leading(_) => {
                let farewell = || (node.exit_code(), node.farewell().to_owned());
                self.farewell = leaves.then(farewell);
            }
            _ if leaves => self.end(node.exit_code(), node.farewell()),
            _ => {}
        }
    }

    fn tick(&mut self) -> Result<(), NodesError> {
        let now = Instant::now();
        self.callers.retain(|_, (_, until)| *until > now);
        let beats = self.beat <= now;
        if beats {
            self.beat = now + BEAT;
        }
        match &mut self.role {
            Role::Seeking(_) => self.seek_tick(now),
            Role::Following(link) => {
                if beats {
                    let _ = link.send(&Message::Beat);
                }
                Ok(())
            }
            Role::Leading(lead) => {
                if beats {
                    lead.beat();
                }
                self.lead_tick(now)
            }
        }
    }
}

/// The start of a text, without characters that change a terminal.
pub(super) fn printable(text: &str) -> String {
    let is_plain = |c: &char| *c == '\n' || !c.is_control();
    cut(&text.chars().filter(is_plain).collect::<String>())
}

/// The text of the secret that the ranks of a generation share.
pub(super) fn secret_of(secret: &Secret, generation: u32, salt: u64) -> String {
    let purpose = format!("ranks of generation {generation}, {salt:016x}");
    let derived = secret.derive(purpose.as_bytes());
    derived
        .key()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

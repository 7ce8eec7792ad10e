//! The world of a run: servers, disks, network, clients and time. Everything that happens is an event in one queue.

use super::coordinator::Store;
use super::settings::Settings;
use crate::cluster::Report;
use crate::cluster::disk::Disk;
use crate::cluster::settings::Micros;
use crate::cluster::spread::Spread;
use crate::cluster::threads::{Answer, MessageNumber, Owner, ThreadNumber, Threads, key_of};
use crate::cluster::workload::Known;
use crate::cluster::world::plant_of_environment;
use crate::history::{CallNumber, History, Moment};
use bytes::Bytes;
use hekate_brick::storage::Random;
use hekate_client::Volume;
use hekate_proto::*;
use hekate_server::Node;
use hekate_transport::link::{Boot, Link, Packet};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// A scheduled event.
#[derive(Debug)]
pub enum Event {
    Start { server: u32 },
    Kill { server: u32 },
    Resume { thread: ThreadNumber, number: Option<u64>, notified: bool },
    Packet { from: u32, to: u32, packet: Packet },
    LinkTick { server: u32, boot: u64 },
    Next { client: u32 },
    Request { client: u32, server: u32, message: MessageNumber, requests: Vec<Request> },
    AskMap { client: u32, server: u32, message: MessageNumber },
    Open { server: u32, message: MessageNumber },
    Answer { message: MessageNumber, answer: Answer },
    Lost { message: MessageNumber },
    Later(Later),
    Fault,
    NetworkHeals { pair: (u32, u32) },
}

/// Something that the world does later.
pub struct Later(pub Box<dyn FnOnce(&mut World)>);

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Later")
    }
}

/// What a link brings to its server.
#[derive(Debug)]
pub enum LinkEvent {
    Up(Boot),
    Message(Bytes),
    Down,
}

/// One end of a link.
pub struct LinkEnd {
    pub link: Link,
    pub inbox: VecDeque<LinkEvent>,
}

/// A server; its process may or may not run.
pub struct Server {
    pub brick: BrickId,
    pub disk: Disk,
    /// Number of its processes so far.
    pub boot: u64,
    pub runs: bool,
    /// Set once it serves.
    pub node: Option<Arc<Node>>,
    pub links: BTreeMap<ServerId, LinkEnd>,
    /// Sessions that have a connection to it.
    pub connected: BTreeSet<SessionId>,
}

/// A client and its current call.
pub struct Person {
    /// Set once it has opened the volume.
    pub volume: Option<Arc<Volume>>,
    pub call: Option<CallNumber>,
    pub op: Option<Op>,
    pub calls_left: u32,
    pub script: VecDeque<Op>,
    /// It reads everything that it is shown.
    pub examines: bool,
}

/// A client's message that waits for its answer.
#[derive(Debug)]
pub struct Message {
    pub client: u32,
    pub server: u32,
}

/// The world of a run.
pub struct World {
    pub settings: Settings,
    pub random: Random,
    pub now: Micros,
    queue: BTreeMap<(Micros, u64), Event>,
    order: u64,
    pub threads: Threads,
    pub servers: Vec<Server>,
    pub store: Arc<Mutex<Store>>,
    pub people: Vec<Person>,
    pub messages: BTreeMap<MessageNumber, Message>,
    /// Directories whose names several partitions share.
    pub spread: Spread,
    pub known: Known,
    pub history: History,
    moment: Moment,
    digest: Xxh3,
    pub report: Report,
    pub faults_on: bool,
    pub cut: BTreeSet<(u32, u32)>,
    /// Paused servers, and until when.
    pub paused: BTreeMap<u32, Micros>,
    /// Servers that get late answers from the coordinator, and until when.
    pub slow: BTreeMap<u32, Micros>,
    /// Servers that cannot reach the coordinator, and until when.
    pub apart: BTreeMap<u32, Micros>,
    pub wrong: Vec<String>,
    pub trace: bool,
}

/// Prints a line if the run is traced.
macro_rules! trace {
    ($world:expr, $($arg:tt)*) => {
        if $world.trace {
            println!("{:>9} {}", $world.now, format_args!($($arg)*));
        }
    };
}
pub(super) use trace;

impl World {
    /// A world without servers and clients.
    pub fn new(settings: Settings, trace: bool) -> Self {
        plant_of_environment();
        Self {
            random: Random::new(settings.seed),
            now: 0,
            queue: BTreeMap::new(),
            order: 0,
            threads: Threads::new(1),
            servers: Vec::new(),
            store: Arc::default(),
            people: Vec::new(),
            messages: BTreeMap::new(),
            spread: Spread::default(),
            known: Known::new(&settings.workload),
            history: History::default(),
            moment: 0,
            digest: Xxh3::new(),
            report: Report::default(),
            faults_on: false,
            cut: BTreeSet::new(),
            paused: BTreeMap::new(),
            slow: BTreeMap::new(),
            apart: BTreeMap::new(),
            wrong: Vec::new(),
            trace,
            settings,
        }
    }

    /// Schedules an event.
    pub fn after(&mut self, delay: Micros, event: Event) {
        self.order += 1;
        self.queue.insert((self.now + delay, self.order), event);
    }

    /// A random delay of at most `max`.
    pub fn delay(&mut self, max: Micros) -> Micros {
        1 + self.random.below(max)
    }

    /// True with a probability of `times` in 1,000.
    pub fn per_mille(&mut self, times: u64) -> bool {
        self.random.below(1000) < times
    }

    /// A unique moment for the history.
    pub fn moment(&mut self) -> Moment {
        self.moment += 1;
        self.moment
    }

    /// Adds bytes to the digest, which must be equal in every run of the seed.
    pub fn note(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    pub fn digest(&self) -> u64 {
        self.digest.digest()
    }

    /// Carries out the next event. False: there is none, or a rule is violated.
    pub fn step(&mut self) -> bool {
        let Some(((now, order), event)) = self.queue.pop_first() else { return false };
        self.now = now;
        let head = [now, order, self.random.clone().number()].map(u64::to_le_bytes).concat();
        self.note(&head);
        self.happen(event);
        self.wrong.is_empty()
    }

    /// The server whose process must run for an event.
    fn server_of(&self, event: &Event) -> Option<u32> {
        match event {
            Event::Packet { to: server, .. }
            | Event::LinkTick { server, .. }
            | Event::Request { server, .. }
            | Event::AskMap { server, .. }
            | Event::Open { server, .. } => Some(*server),
            Event::Resume { thread, .. } => match self.threads.owner_of(*thread) {
                Some(Owner::Server(server)) => Some(server),
                _ => None,
            },
            _ => None,
        }
    }

    fn happen(&mut self, event: Event) {
        let until = self.server_of(&event).and_then(|server| self.paused.get(&server)).copied();
        if let Some(until) = until.filter(|until| *until > self.now) {
            return self.after(until - self.now, event);
        }
        match event {
            Event::Start { server } => self.start(server),
            Event::Kill { server } => self.kill(server),
            Event::Resume { thread, number, notified } => self.resume(thread, number, notified),
            Event::Packet { from, to, packet } => self.packet(from, to, packet),
            Event::LinkTick { server, boot } => self.tick_links(server, boot),
            Event::Next { client } => self.next_call(client),
            Event::Request { client, server, message, requests } => self.request(client, server, message, requests),
            Event::AskMap { client, server, message } => self.ask_map(client, server, message),
            Event::Open { server, message } => self.open_session(server, message),
            Event::Answer { message, answer } => self.answer(message, answer),
            Event::Lost { message } => self.lost(message),
            Event::Later(Later(act)) => act(self),
            Event::Fault => self.fault(),
            Event::NetworkHeals { pair } => _ = self.cut.remove(&pair),
        }
    }

    /// Resumes threads that wait for a key.
    pub fn wake(&mut self, key: u64) {
        for (thread, number) in self.threads.waiting_for(key) {
            self.threads.set_notified(thread);
            self.after(1, Event::Resume { thread, number: Some(number), notified: true });
        }
    }

    /// Hands an answer to the thread that waits for it.
    pub fn deliver_answer(&mut self, message: MessageNumber, answer: Answer) {
        self.threads.put_answer(message, answer);
        self.wake(key_of(message));
    }
}

//! The world of a run: servers, disks, network, clients and time. Everything that happens is an event in one queue.

use crate::history::disks::{DiskCallNumber, DiskHistory};
use crate::history::{CallNumber, History, Moment};
use crate::simulator::Report;
use crate::simulator::clients::locks::Listener;
use crate::simulator::clients::mappings::Mapped;
use crate::simulator::clients::objects::KnownObjects;
use crate::simulator::clients::spread::Spread;
use crate::simulator::clients::workload::Known;
use crate::simulator::faults::clock::Clock;
use crate::simulator::faults::disk::Disk;
use crate::simulator::faults::disks::Replacing;
use crate::simulator::servers::coordinator::Store;
use crate::simulator::settings::Settings;
use crate::simulator::settings::workload::Micros;
use crate::simulator::threads::{Answer, MessageNumber, Owner, ThreadNumber, Threads, key_of};
use bytes::Bytes;
use hekate_brick::storage::Random;
use hekate_client::Volume;
use hekate_cluster::RingInfo;
use hekate_proto::*;
use hekate_server::Node;
use hekate_transport::link::{Boot, Link, Packet};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// A scheduled event.
#[derive(Debug)]
pub enum Event {
    Start {
        server: u32,
    },
    Kill {
        server: u32,
    },
    Resume {
        thread: ThreadNumber,
        number: Option<u64>,
        notified: bool,
    },
    Packet {
        from: u32,
        to: u32,
        packet: Packet,
    },
    LinkTick {
        server: u32,
        boot: u64,
    },
    /// A link brings something to the thread that handles it.
    Link {
        server: u32,
        boot: u64,
        peer: ServerId,
        event: LinkEvent,
    },
    Next {
        client: u32,
    },
    Request {
        client: u32,
        server: u32,
        message: MessageNumber,
        requests: Vec<Request>,
    },
    AskMap {
        client: u32,
        server: u32,
        message: MessageNumber,
    },
    Open {
        server: u32,
        message: MessageNumber,
    },
    Listen {
        client: u32,
        server: u32,
        message: MessageNumber,
    },
    Control {
        server: u32,
        message: MessageNumber,
        request: String,
    },
    Answer {
        message: MessageNumber,
        answer: Answer,
    },
    Lost {
        message: MessageNumber,
    },
    Later(Later),
    Fault,
    NetworkHeals {
        from: u32,
        to: u32,
    },
    DiskHeals {
        brick: BrickId,
    },
    Scrub {
        brick: BrickId,
    },
    Watch,
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

/// The disk of a brick.
pub struct Slot {
    pub brick: BrickId,
    pub disk: Disk,
}

/// A server; its process may or may not run.
pub struct Server {
    pub machine: u32,
    /// Its disks, by the directories of their bricks.
    pub disks: BTreeMap<String, Slot>,
    /// Number of its processes so far.
    pub boot: u64,
    pub runs: bool,
    /// Set once it serves.
    pub node: Option<Arc<Node>>,
    pub links: BTreeMap<ServerId, LinkEnd>,
    /// Sessions that have a connection to it.
    pub connected: BTreeSet<SessionId>,
    /// When it last sent a leg of an op over partitions.
    pub leg_sent: Option<Micros>,
    /// It is to be started again, because a brick has stopped.
    pub is_to_restart: bool,
}

impl Server {
    /// True if a disk has ended its process.
    pub fn is_dead(&self) -> bool {
        self.disks.values().any(|slot| slot.disk.is_dead())
    }

    pub fn has(&self, brick: BrickId) -> bool {
        self.disks.values().any(|slot| slot.brick == brick)
    }
}

/// A client and its current calls.
pub struct Person {
    /// Set once it has opened the volume.
    pub volume: Option<Arc<Volume>>,
    pub calls: BTreeMap<CallNumber, Op>,
    pub calls_left: u32,
    pub script: VecDeque<Op>,
    /// It uses the vDisk, or the mapped file.
    pub is_at_work: bool,
    /// It reads everything that it is shown.
    pub examines: bool,
}

/// A message that waits for its answer.
#[derive(Debug)]
pub struct Message {
    pub from: Owner,
    pub server: u32,
    /// One copy of a write to all members.
    pub is_fast: bool,
    /// Its connection is lost, which the client notices later: no answer arrives.
    pub is_cut: bool,
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
    pub objects: KnownObjects,
    pub history: History,
    pub disks: DiskHistory,
    pub mapped: Mapped,
    /// Calls about the vDisk that found damage though no brick was damaged.
    pub disk_damage: Vec<(DiskCallNumber, String)>,
    moment: Moment,
    digest: Xxh3,
    pub report: Report,
    pub faults_on: bool,
    /// Machines of which the second receives no packets of the first.
    pub cut: BTreeSet<(u32, u32)>,
    /// Clients and servers that do not reach each other, and until when.
    pub out_of_reach: BTreeMap<(u32, u32), Micros>,
    /// Clients that stay at a server which is split off, and until when. They only read.
    pub staying: BTreeMap<u32, Micros>,
    /// Paused clients, and until when.
    pub paused_clients: BTreeMap<u32, Micros>,
    /// Paused servers, and until when.
    pub paused: BTreeMap<u32, Micros>,
    /// Servers that get late answers from the coordinator, and until when.
    pub slow: BTreeMap<u32, Micros>,
    /// Servers that cannot reach the coordinator, and until when.
    pub apart: BTreeMap<u32, Micros>,
    /// Servers that cannot list the sessions that the coordinator has. Only scripts make them so.
    pub without_sessions: BTreeSet<u32>,
    /// The server that clients ask for the map, whichever they choose. Only scripts name one.
    pub maps_from: Option<ServerId>,
    /// For each partition the bricks that have all acknowledged changes, on disk or in memory.
    pub complete: Vec<BTreeSet<BrickId>>,
    /// Bricks of views, in incarnations that have lost their memory.
    pub forgot: Vec<map::Member>,
    /// Partitions of which a power cut may have taken changes, and that were not seen to serve since.
    pub lost: BTreeSet<u32>,
    /// The views of the last look.
    pub views_seen: Vec<map::View>,
    pub bricks_made: u128,
    /// Servers of which a disk is lost.
    pub replacing: BTreeMap<u32, Replacing>,
    /// A brick that may be damaged, until a scrub finds nothing.
    pub rotten: Option<BrickId>,
    /// Scrubs of bricks that their servers have taken the orders for, and how many of them were before the damage.
    pub scrubs_asked: u32,
    pub scrubs_before: u32,
    /// When the last damaged brick was healthy again.
    pub mended_at: Micros,
    /// Connections on which sessions are notified of locks.
    pub listeners: BTreeMap<MessageNumber, Listener>,
    /// The ring, and the count of changes of rings that it was read after.
    pub(super) ring_read: RefCell<Option<(u64, Arc<RingInfo>)>>,
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

/// Plants the bug that `HEKATE_PLANT` names, for a single run or a scenario.
fn plant_of_environment() {
    #[cfg(feature = "planted")]
    if let Some(bug) = hekate_proto::planted::of_environment("HEKATE_PLANT") {
        hekate_proto::planted::plant(Some(bug));
    }
}

impl World {
    /// A world without servers and clients.
    pub fn new(settings: Settings, trace: bool) -> Self {
        plant_of_environment();
        let mut threads = Threads::new();
        let clocks = &mut Random::new(settings.seed ^ 0xc10c_0000);
        let clock = |server| (server, Clock::new(server, settings.workload.drift, clocks));
        threads.clocks = (0..=settings.servers).map(clock).collect();
        Self {
            random: Random::new(settings.seed),
            now: 0,
            queue: BTreeMap::new(),
            order: 0,
            threads,
            servers: Vec::new(),
            store: Arc::default(),
            people: Vec::new(),
            messages: BTreeMap::new(),
            spread: Spread::default(),
            known: Known::new(&settings.workload),
            objects: KnownObjects::default(),
            history: History::default(),
            disks: DiskHistory::default(),
            mapped: Mapped::default(),
            disk_damage: Vec::new(),
            moment: 0,
            digest: Xxh3::new(),
            report: Report::default(),
            faults_on: false,
            cut: BTreeSet::new(),
            out_of_reach: BTreeMap::new(),
            staying: BTreeMap::new(),
            paused_clients: BTreeMap::new(),
            paused: BTreeMap::new(),
            slow: BTreeMap::new(),
            apart: BTreeMap::new(),
            without_sessions: BTreeSet::new(),
            maps_from: None,
            complete: Vec::new(),
            forgot: Vec::new(),
            lost: BTreeSet::new(),
            views_seen: Vec::new(),
            bricks_made: 0,
            replacing: BTreeMap::new(),
            rotten: None,
            scrubs_asked: 0,
            scrubs_before: 0,
            mended_at: 0,
            listeners: BTreeMap::new(),
            ring_read: RefCell::default(),
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

    /// Does something later.
    pub fn later(&mut self, delay: Micros, act: impl FnOnce(&mut World) + 'static) {
        self.after(delay, Event::Later(Later(Box::new(act))));
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
        let Some(event) = self.next_event() else { return false };
        self.happen(event);
        self.wrong.is_empty()
    }

    /// Takes the next event, which is not carried out yet.
    pub fn next_event(&mut self) -> Option<Event> {
        let ((now, order), event) = self.queue.pop_first()?;
        self.now = now;
        let head = [now, order, self.random.clone().number()].map(u64::to_le_bytes).concat();
        self.note(&head);
        Some(event)
    }

    /// The server whose process must run for an event.
    fn server_of(&self, event: &Event) -> Option<u32> {
        match event {
            Event::Packet { to: server, .. }
            | Event::LinkTick { server, .. }
            | Event::Link { server, .. }
            | Event::Request { server, .. }
            | Event::AskMap { server, .. }
            | Event::Listen { server, .. }
            | Event::Control { server, .. }
            | Event::Open { server, .. } => Some(*server),
            Event::Resume { thread, .. } => match self.threads.owner_of(*thread) {
                Some(Owner::Server(server)) => Some(server),
                _ => None,
            },
            _ => None,
        }
    }

    /// The client whose process must run for an event.
    fn client_of(&self, event: &Event) -> Option<u32> {
        match event {
            Event::Next { client } => Some(*client),
            Event::Resume { thread, .. } => match self.threads.owner_of(*thread) {
                Some(Owner::Client(client)) => Some(client),
                _ => None,
            },
            _ => None,
        }
    }

    pub fn happen(&mut self, event: Event) {
        let until = self.server_of(&event).and_then(|server| self.paused.get(&server)).copied();
        let until =
            until.or_else(|| self.client_of(&event).and_then(|client| self.paused_clients.get(&client)).copied());
        if let Some(until) = until.filter(|until| *until > self.now) {
            return self.after(until - self.now, event);
        }
        match event {
            Event::Start { server } => self.start(server),
            Event::Kill { server } => self.kill(server),
            Event::Resume { thread, number, notified } => self.resume(thread, number, notified),
            Event::Packet { from, to, packet } => self.packet(from, to, packet),
            Event::LinkTick { server, boot } => self.tick_links(server, boot),
            Event::Link { server, boot, peer, event } => self.link_event(server, boot, peer, event),
            Event::Next { client } => self.next_call(client),
            Event::Request { client, server, message, requests } => self.request(client, server, message, requests),
            Event::AskMap { client, server, message } => self.ask_map(client, server, message),
            Event::Open { server, message } => self.open_session(server, message),
            Event::Listen { client, server, message } => self.listen(client, server, message),
            Event::Control { server, message, request } => self.control(server, message, request),
            Event::Answer { message, answer } => self.answer(message, answer),
            Event::Lost { message } => self.lost(message),
            Event::Later(Later(act)) => act(self),
            Event::Fault => self.fault(),
            Event::NetworkHeals { from, to } => _ = self.cut.remove(&(from, to)),
            Event::DiskHeals { brick } => self.disk(brick).into_iter().for_each(|disk| disk.empty()),
            Event::Scrub { brick } => self.scrub(brick),
            Event::Watch => self.watch(),
        }
    }

    /// Resumes threads that wait for a key.
    pub fn wake(&mut self, key: u64) {
        for (thread, number) in self.threads.waiting_for(key) {
            self.threads.set_notified(thread);
            self.after(1, Event::Resume { thread, number: Some(number), notified: true });
        }
    }

    /// The clock of the coordinator.
    pub fn coordinator_clock(&self) -> Clock {
        self.threads.clocks[&self.settings.servers]
    }

    /// The server that has the disk of a brick.
    pub fn server_with(&self, brick: BrickId) -> Option<u32> {
        self.servers.iter().position(|server| server.has(brick)).map(|server| server as u32)
    }

    pub fn disk(&mut self, brick: BrickId) -> Option<&mut Disk> {
        let all = self.servers.iter_mut().flat_map(|server| server.disks.values_mut());
        all.into_iter().find(|slot| slot.brick == brick).map(|slot| &mut slot.disk)
    }

    /// All bricks, in order.
    pub fn bricks(&self) -> Vec<BrickId> {
        let slots = self.servers.iter().flat_map(|server| server.disks.values());
        slots.map(|slot| slot.brick).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Hands an answer to the thread that waits for it.
    pub fn deliver_answer(&mut self, message: MessageNumber, answer: Answer) {
        self.threads.put_answer(message, answer);
        self.wake(key_of(message));
    }
}

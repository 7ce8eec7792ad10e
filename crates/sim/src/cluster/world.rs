//! The world of a run: servers, disks, network, coordinator, clients and time in one thread. Everything that happens is
//! an event in one queue; all random decisions come from one generator.

use super::clock::Clock;
use super::coordinator::{Coordinator, brick_id};
use super::disk::Disk;
use super::host::Process;
use super::messages::Message;
use super::report::Report;
use super::settings::{Micros, Settings};
use super::spread::Spread;
use super::threads::{Answer, MessageNumber, ThreadNumber, Threads};
use super::workload::Known;
use crate::history::{CallNumber, History, Moment};
use hekate_brick::Identity;
use hekate_brick::storage::Random;
use hekate_client::Volume;
use hekate_proto::*;
use hekate_replica::{Address, Envelope, SyncJob};
use hekate_transport::link::{Boot, Generation, Packet};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// A scheduled event. Its receiver may be gone by then: a boot names a process.
#[derive(Debug)]
pub enum Event {
    Start { server: u32 },
    Tick { server: u32, boot: Boot },
    Packet { to: u32, from: u32, packet: Packet },
    Deliver { server: u32, boot: Boot, from: Option<(ServerId, Generation)>, envelope: Box<Envelope> },
    Sync { server: u32, boot: Boot, job: SyncJob },
    Synced { server: u32, boot: Boot, job: SyncJob, outcome: Result<()> },
    SyncAll { server: u32, boot: Boot, brick: BrickId, batch: MessageNumber, reply: Reply },
    Replied { server: u32, boot: Boot, batch: MessageNumber, reply: Result<Reply> },
    Checkpoint { server: u32, boot: Boot, brick: BrickId },
    Collect { volume: VolumeId, inode: InodeId },
    LearnViews { server: u32 },
    Keep { server: u32, boot: Boot },
    Next { client: u32 },
    Resume { thread: ThreadNumber, number: Option<u64>, notified: bool },
    Request { server: u32, client: u32, message: MessageNumber, requests: Vec<Request> },
    AskMap { server: u32, message: MessageNumber },
    Answer { client: u32, message: MessageNumber, answer: Answer },
    Lost { message: MessageNumber },
    Fault,
    NetworkHeals { pair: (u32, u32) },
    OneWayHeals { from: u32, to: u32 },
    DiskHeals { brick: BrickId },
    Scrub { brick: BrickId },
}

impl Event {
    /// The server whose process must run for it.
    fn process(&self) -> Option<u32> {
        match self {
            Event::Tick { server, .. }
            | Event::Packet { to: server, .. }
            | Event::Deliver { server, .. }
            | Event::Sync { server, .. }
            | Event::Synced { server, .. }
            | Event::SyncAll { server, .. }
            | Event::Checkpoint { server, .. }
            | Event::LearnViews { server }
            | Event::Keep { server, .. }
            | Event::Replied { server, .. }
            | Event::AskMap { server, .. }
            | Event::Request { server, .. } => Some(*server),
            _ => None,
        }
    }
}

/// A server; its process may or may not run.
pub struct Server {
    pub machine: u32,
    pub bricks: Vec<BrickId>,
    pub process: Option<Process>,
    /// A process is about to start.
    pub starting: bool,
}

/// A client and its current call.
pub struct Person {
    /// None once its process has ended.
    pub volume: Option<Arc<Volume>>,
    pub call: Option<CallNumber>,
    pub op: Option<Op>,
    pub calls_left: u32,
    /// Calls that it makes before random ones.
    pub script: VecDeque<Op>,
    /// It reads everything that it is shown.
    pub examines: bool,
}

/// The world of a run.
pub struct World {
    pub settings: Settings,
    pub random: Random,
    pub now: Micros,
    queue: BTreeMap<(Micros, u64), Event>,
    order: u64,
    pub disks: BTreeMap<BrickId, Disk>,
    pub servers: Vec<Server>,
    pub coordinator: Coordinator,
    /// For each partition the bricks that have all acknowledged changes, on disk or in memory.
    pub complete: Vec<BTreeSet<BrickId>>,
    pub people: Vec<Person>,
    /// Threads of the clients.
    pub threads: Threads,
    /// Messages that wait for their replies.
    pub messages: BTreeMap<MessageNumber, Message>,
    /// Directories whose names several partitions share.
    pub spread: Spread,
    pub known: Known,
    pub history: History,
    moment: Moment,
    digest: Xxh3,
    pub report: Report,
    pub faults_on: bool,
    /// Pairs of machines that are cut off from each other.
    pub cut: BTreeSet<(u32, u32)>,
    /// Pairs of machines of which the second does not receive packets of the first.
    pub cut_to: BTreeSet<(u32, u32)>,
    /// Paused servers, and until when.
    pub paused: BTreeMap<u32, Micros>,
    /// Servers that cannot reach the coordinator, and until when.
    pub apart: BTreeMap<u32, Micros>,
    /// The clock of each server, and of the coordinator.
    pub clocks: Vec<Clock>,
    /// Servers of which a disk may be found empty when they start.
    pub wiped: BTreeMap<u32, BrickId>,
    /// A brick that may be damaged, until a scrub finds nothing.
    pub rotten: Option<BrickId>,
    /// When the last damaged brick was healthy again.
    pub mended_at: Micros,
    /// Violations so far.
    pub wrong: Vec<String>,
    pub trace: bool,
    pub boots: u64,
    /// Time of the last scheduled delivery for each pair of replicas: messages arrive in order.
    pub delivered: BTreeMap<(Address, Address), Micros>,
}

/// Difference between the id of a brick and that of its replacement.
pub const REPLACED: u128 = 1000;

/// The server of a brick; a replacement has the number of the brick before it.
pub fn server_number(settings: &Settings, brick: BrickId) -> Option<u32> {
    let number = (brick.0.checked_sub(1)? % REPLACED) as u32;
    Some(number / settings.bricks_per_server)
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
pub(crate) fn plant_of_environment() {
    #[cfg(feature = "planted")]
    if let Some(bug) = hekate_proto::planted::of_environment("HEKATE_PLANT") {
        hekate_proto::planted::plant(Some(bug));
    }
}

impl World {
    /// A world with new disks; no server runs yet.
    ///
    /// # Errors
    ///
    /// A brick cannot be created.
    pub fn new(settings: Settings, trace: bool) -> Result<Self> {
        plant_of_environment();
        let mut random = Random::new(settings.seed);
        let coordinator = Coordinator::new(&settings, &mut random);
        let mut disks = BTreeMap::new();
        let mut servers = Vec::new();
        for server in 0..settings.servers {
            let numbers = server * settings.bricks_per_server..(server + 1) * settings.bricks_per_server;
            let bricks: Vec<BrickId> = numbers.map(brick_id).collect();
            for brick in &bricks {
                disks.insert(*brick, Disk::new(Identity::new(*brick, "c", settings.brick))?);
            }
            servers.push(Server { machine: server % settings.machines, bricks, process: None, starting: false });
        }
        let complete = coordinator.ring.views.iter().map(|_| BTreeSet::new()).collect();
        let known = Known::new(&settings);
        let clocks = &mut Random::new(settings.seed ^ 0xc10c_0000);
        let clocks = (0..=settings.servers).map(|server| Clock::new(server, settings.drift, clocks)).collect();
        Ok(Self {
            random,
            now: 0,
            queue: BTreeMap::new(),
            order: 0,
            disks,
            servers,
            coordinator,
            complete,
            people: Vec::new(),
            threads: Threads::new(settings.client_rate),
            messages: BTreeMap::new(),
            spread: Spread::default(),
            known,
            history: History::default(),
            moment: 0,
            digest: Xxh3::new(),
            report: Report::default(),
            faults_on: false,
            cut: BTreeSet::new(),
            cut_to: BTreeSet::new(),
            paused: BTreeMap::new(),
            apart: BTreeMap::new(),
            clocks,
            wiped: BTreeMap::new(),
            rotten: None,
            mended_at: 0,
            wrong: Vec::new(),
            trace,
            boots: 0,
            delivered: BTreeMap::new(),
            settings,
        })
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

    pub fn happen(&mut self, event: Event) {
        if let Some(until) =
            event.process().and_then(|server| self.paused.get(&server)).filter(|until| **until > self.now)
        {
            return self.after(*until - self.now, event);
        }
        match event {
            Event::Start { server } => self.start(server),
            Event::LearnViews { server } => {
                let views = self.coordinator.ring.views.clone();
                self.act_in(server, None, |process, now| process.learn_views(&views, now));
            }
            Event::Next { client } => self.next_call(client),
            Event::Resume { thread, number, notified } => self.resume(thread, number, notified),
            Event::Request { server, client, message, requests } => self.request(server, client, message, requests),
            Event::AskMap { server, message } => self.ask_map(server, message),
            Event::Answer { client, message, answer } => self.answer(client, message, answer),
            Event::Lost { message } => self.lost(message),
            Event::Fault => self.fault(),
            Event::NetworkHeals { pair } => drop(self.cut.remove(&pair)),
            Event::OneWayHeals { from, to } => drop(self.cut_to.remove(&(from, to))),
            Event::DiskHeals { brick } => self.disks.get(&brick).into_iter().for_each(|disk| disk.empty()),
            Event::Scrub { brick } => self.scrub(brick),
            Event::Collect { volume, inode } => self.collect(volume, inode),
            Event::Packet { to, from, packet } => {
                self.act_in(to, None, |process, now| process.packet(ServerId(from + 1), packet, now));
            }
            other => self.happen_in_process(other),
        }
    }

    fn happen_in_process(&mut self, event: Event) {
        match event {
            Event::Tick { server, boot } => self.tick(server, boot),
            Event::Keep { server, boot } => self.keep(server, boot),
            Event::Deliver { server, boot, from, envelope } => {
                self.act_in(server, Some(boot), |process, now| process.deliver(from, *envelope, now));
            }
            Event::Sync { server, boot, job } => self.sync(server, boot, job),
            Event::Synced { server, boot, job, outcome } => {
                let event = hekate_replica::Event::Synced { ticket: job.ticket, outcome };
                self.act_in(server, Some(boot), |process, now| process.event(job.replica, event, now));
            }
            Event::SyncAll { server, boot, brick, batch, reply } => self.sync_all(server, boot, brick, batch, reply),
            Event::Replied { server, boot, batch, reply } => {
                self.act_in(server, Some(boot), |process, now| process.replied(batch, reply, now));
            }
            Event::Checkpoint { server, boot, brick } => self.checkpoint(server, boot, brick),
            _ => {}
        }
    }
}

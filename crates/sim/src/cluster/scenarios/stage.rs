//! The commands of a scenario's script. Servers have one brick and one machine each; server, brick and machine have the
//! same number. Every delay is 1 µs, except those of ticks, checkpoints and retries of clients.

use crate::cluster::coordinator::{RING, brick_id};
use crate::cluster::run::{become_whole, begin, examine};
use crate::cluster::settings::{FaultSettings, Micros, NetworkSettings, Settings};
use crate::cluster::world::{Event, World};
use crate::history::CallNumber;
use hekate_brick::BrickSettings;
use hekate_brick::storage::Survivors;
use hekate_cluster::{Domain, RingInfo};
use hekate_proto::map::{Member, View};
use hekate_proto::*;
use hekate_replica::{Envelope, Message};
use std::collections::BTreeSet;

/// Longest simulated time that a script waits, in µs.
const WAIT_MAX: Micros = 20_000_000;
const TICK: Micros = 10_000;
/// Reasons shown when a script waits in vain.
const LEFT_SHOWN: usize = 8;

/// The fate of an event that a rule matches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Held,
    Lost,
}

struct Rule {
    fate: Fate,
    matches: Box<dyn Fn(&Event) -> bool>,
}

/// A call that a client has made.
#[derive(Debug, Clone, Copy)]
pub struct Asked(CallNumber);

/// A cluster that a script controls.
pub struct Stage {
    pub world: World,
    rules: Vec<Rule>,
    held: Vec<Event>,
    /// Servers that stay down until the script starts them.
    down: BTreeSet<u32>,
}

impl Stage {
    /// A cluster that serves an empty volume. `partitions`: the bricks of each, the first leads it; the root is in the
    /// first partition.
    pub fn new(partitions: &[&[u32]]) -> Self {
        let servers = partitions.iter().copied().flatten().max().map_or(0, |last| last + 1);
        let trace = std::env::var_os("HEKATE_TRACE").is_some();
        let mut world = World::new(settings(servers, partitions.len() as u32), trace).unwrap();
        let member = |brick: &u32| Member { brick: brick_id(*brick), incarnation: Incarnation(1) };
        let view = |bricks: &&[u32]| {
            let members: Vec<Member> = bricks.iter().map(member).collect();
            View::new(Epoch(1), members[0].brick, members)
        };
        let views = partitions.iter().map(view).collect();
        world.coordinator.ring = RingInfo::new(RING, "p", 1, Domain::Disk, views);
        begin(&mut world).unwrap();
        Self { world, rules: Vec::new(), held: Vec::new(), down: BTreeSet::new() }
    }

    /// Adds a client.
    pub fn client(&mut self) -> u32 {
        self.world.join(0, false)
    }

    /// A client makes a call, and the script continues.
    pub fn ask(&mut self, client: u32, op: Op) -> Asked {
        self.world.people[client as usize].script.push_back(op);
        self.world.next_call(client);
        Asked(self.world.people[client as usize].call.expect("a client asks one thing at a time"))
    }

    /// A client makes calls one after the other.
    pub fn ask_all(&mut self, client: u32, ops: impl Iterator<Item = Op>) {
        self.world.people[client as usize].script.extend(ops);
        self.world.next_call(client);
    }

    /// A client dies.
    pub fn dies(&mut self, client: u32) {
        self.world.people[client as usize].script.clear();
        self.world.end_client(client);
    }

    /// A client's connections are lost: it sends its requests again.
    pub fn cut_connection(&mut self, client: u32) {
        self.world.messages_of(client).into_iter().for_each(|message| self.world.cut(message));
    }

    /// The answer of a call, once it arrives.
    ///
    /// # Errors
    ///
    /// The error that the call was answered with.
    pub fn answer(&mut self, asked: Asked) -> Result<Reply> {
        self.until("an answer", |stage| stage.is_answered(asked));
        let call = self.world.history.call(asked.0);
        call.answer.as_ref().map(|answer| answer.outcome.clone()).unwrap()
    }

    pub fn is_answered(&self, asked: Asked) -> bool {
        self.world.history.call(asked.0).answer.is_some()
    }

    /// A client makes a call, which must succeed.
    pub fn does(&mut self, client: u32, op: Op) -> Reply {
        let asked = self.ask(client, op);
        self.answer(asked).unwrap()
    }

    /// A client makes a call that must be on stable storage when it is answered.
    pub fn ask_durably(&mut self, client: u32, op: Op) -> Asked {
        self.world.settings.durable_share = 100;
        let asked = self.ask(client, op);
        self.world.settings.durable_share = 0;
        asked
    }

    pub fn does_durably(&mut self, client: u32, op: Op) -> Reply {
        let asked = self.ask_durably(client, op);
        self.answer(asked).unwrap()
    }

    /// Holds back matching messages between replicas, and later ones of the same pair: messages arrive in order.
    pub fn hold(&mut self, matches: impl Fn(&Envelope) -> bool + 'static) {
        self.rule(Fate::Held, move |event| envelope_of(event).is_some_and(&matches));
    }

    /// Holds back matching messages, and waits for the first of them.
    pub fn catch(&mut self, what: &str, matches: impl Fn(&Envelope) -> bool + 'static) {
        self.hold(matches);
        self.until_one_is_held(what);
    }

    /// Drops matching messages between replicas, as a link does that begins anew.
    pub fn lose(&mut self, matches: impl Fn(&Envelope) -> bool + 'static) {
        self.rule(Fate::Lost, move |event| envelope_of(event).is_some_and(&matches));
    }

    /// Holds back a client's matching request; waits until there is one.
    pub fn catch_request(&mut self, client: u32, matches: impl Fn(&Op) -> bool + 'static) {
        let is_request = move |event: &Event| match event {
            Event::Request { client: from, requests, .. } => {
                *from == client && requests.iter().any(|request| matches(&request.op))
            }
            _ => false,
        };
        self.rule(Fate::Held, is_request);
        self.until_one_is_held("a request");
    }

    /// Waits until the newest rule holds an event.
    fn until_one_is_held(&mut self, what: &str) {
        let before = self.held.len();
        self.until(what, |stage| {
            let newest = stage.rules.last();
            stage.held[before..].iter().any(|event| newest.is_some_and(|rule| (rule.matches)(event)))
        });
    }

    /// Drops answers to a client; it asks again when it notices that its connection is lost.
    pub fn lose_answers(&mut self, client: u32) {
        self.rule(Fate::Lost, move |event| matches!(event, Event::Answer { client: to, .. } if *to == client));
    }

    /// Delays syncs: no data reaches the stable storage of these bricks.
    pub fn hold_syncs(&mut self, bricks: &'static [u32]) {
        self.rule(Fate::Held, |event| match event {
            Event::Sync { server, .. } | Event::SyncAll { server, .. } => bricks.contains(server),
            _ => false,
        });
    }

    fn rule(&mut self, fate: Fate, matches: impl Fn(&Event) -> bool + 'static) {
        self.rules.push(Rule { fate, matches: Box::new(matches) });
    }

    /// Ends all rules, and delivers the events that were held back.
    pub fn release(&mut self) {
        self.rules.clear();
        for event in std::mem::take(&mut self.held) {
            self.world.happen(event);
        }
    }

    /// Bricks put their data on stable storage.
    pub fn sync(&mut self, bricks: &[u32]) {
        for server in bricks {
            let sync = self.world.act_in(*server, None, |process, _| {
                process.bricks.values().try_for_each(|brick| brick.sync(brick.end()))
            });
            sync.unwrap().unwrap();
        }
    }

    /// A brick's next sync fails.
    pub fn fail_sync(&mut self, brick: u32) {
        self.fail_sync_after(brick, 0);
    }

    /// A sync fails after this many successful ones.
    pub fn fail_sync_after(&mut self, brick: u32, syncs: u64) {
        self.world.disk(brick_id(brick)).fail_sync(syncs);
    }

    /// True if a brick has stopped itself; its process ends with the next tick.
    pub fn has_stopped(&self, brick: u32) -> bool {
        let process = self.world.servers[brick as usize].process.as_ref();
        process.is_some_and(|process| process.bricks.values().any(|brick| brick.status().unwrap().poisoned.is_some()))
    }

    /// Processes end and start at once: no written data is lost.
    pub fn restart(&mut self, servers: &[u32]) {
        servers.iter().for_each(|server| self.world.kill(*server));
        self.down.extend(servers);
        self.come_back(servers);
    }

    /// Copies a disk, so that the copy can be put in its place later.
    pub fn copy_disk(&mut self, brick: u32) {
        self.world.disk(brick_id(brick)).copy(0);
    }

    /// Its process ends, and starts with the copy.
    pub fn put_copy_back(&mut self, brick: u32) {
        self.world.kill(brick);
        self.world.disk(brick_id(brick)).put_back_older();
        self.down.insert(brick);
        self.come_back(&[brick]);
    }

    /// Installs another view of a partition: the first of the members leads it.
    pub fn form(&mut self, partition: u32, members: &[u32], learners: &[u32]) {
        let lives = &self.world.coordinator.lives;
        let all = |bricks: &[u32]| -> Vec<Member> {
            let ids = bricks.iter().map(|brick| brick_id(*brick));
            ids.map(|brick| Member { brick, incarnation: lives[&brick] }).collect()
        };
        let (members, learners) = (all(members), all(learners));
        let before = &mut self.world.coordinator.ring.views[partition as usize];
        let (epoch, whole) = (Epoch(before.epoch.0 + 1), before.members.len() == members.len());
        *before = View { learners, whole, ..View::new(epoch, members[0].brick, members) };
        let servers = self.world.servers.len() as u32;
        (0..servers).for_each(|server| self.world.after(1, Event::LearnViews { server }));
    }

    /// Machines lose their power at the same moment, and with it the data that is not on stable storage.
    pub fn cut_power(&mut self, machines: &[u32]) {
        for machine in machines {
            self.world.kill(*machine);
            self.world.disk(brick_id(*machine)).cut_power(Survivors::Nothing);
        }
        self.world.lose_memory(&machines.iter().map(|machine| brick_id(*machine)).collect());
        self.down.extend(machines);
    }

    /// Starts servers.
    pub fn come_back(&mut self, servers: &[u32]) {
        for server in servers {
            self.down.remove(server);
            self.world.servers[*server as usize].starting = true;
            self.world.after(0, Event::Start { server: *server });
        }
    }

    /// Advances time until a condition holds.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let end = self.world.now + WAIT_MAX;
        while !is_so(self) {
            self.next();
            assert!(self.world.now < end, "{what} does not come: {:#?}", self.what_is_left());
        }
    }

    /// The first reasons why the cluster is not whole.
    fn what_is_left(&self) -> Vec<String> {
        let left = self.world.what_is_left();
        left.iter().take(LEFT_SHOWN).map(|one| one.chars().take(1000).collect()).collect()
    }

    /// Waits until a partition serves.
    pub fn until_serving(&mut self, partition: u32) {
        self.until("a partition that serves", |stage| {
            let led = stage.world.leader_of(PartitionNumber(partition));
            let process =
                led.and_then(|(server, at)| Some((stage.world.servers[server as usize].process.as_ref()?, at)));
            process.and_then(|(process, at)| process.partitions.get(&at)).is_some_and(|replica| replica.serves())
        });
    }

    /// Marks of legs in a partition, as its leader has them.
    pub fn marks(&self, partition: u32) -> usize {
        let (server, at) = self.world.leader_of(PartitionNumber(partition)).unwrap();
        let brick = &self.world.servers[server as usize].process.as_ref().unwrap().bricks[&at.brick];
        let (from, to) = Key::work_range(RING, at.partition, self.world.settings.partitions);
        let found = brick.scan(&from, &to, 1000).unwrap();
        found.iter().filter(|(key, _)| key.kind() == Some(Kind::LegDone)).count()
    }

    /// Advances time.
    pub fn pass(&mut self, time: Micros) {
        let end = self.world.now + time;
        while self.world.now < end {
            self.next();
        }
    }

    fn next(&mut self) {
        let event = self.world.next_event().expect("ticks go on");
        match self.fate_of(&event) {
            None => self.world.happen(event),
            Some(Fate::Held) => self.held.push(event),
            Some(Fate::Lost) => {}
        }
        assert!(self.world.wrong.is_empty(), "{:#?}", self.world.wrong);
    }

    fn fate_of(&self, event: &Event) -> Option<Fate> {
        if matches!(event, Event::Start { server } if self.down.contains(server)) {
            return Some(Fate::Lost);
        }
        let pair = |event: &Event| envelope_of(event).map(|envelope| (envelope.from, envelope.to));
        let is_behind = |held: &Event| pair(held).is_some() && pair(held) == pair(event);
        if self.held.iter().any(is_behind) {
            return Some(Fate::Held);
        }
        self.rules.iter().find(|rule| (rule.matches)(event)).map(|rule| rule.fate)
    }

    /// Ends all rules, starts all servers, waits until the cluster is whole, and runs the checkers.
    pub fn whole_and_judged(mut self) {
        self.release();
        let down: Vec<u32> = self.down.iter().copied().collect();
        self.come_back(&down);
        become_whole(&mut self.world).and_then(|()| examine(&mut self.world)).unwrap();
        let wrong = self.world.judge();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// The leg that a message asks for.
pub fn leg_of(sent: &Envelope) -> Option<&Leg> {
    match &sent.message {
        Message::Leg { leg, .. } => Some(leg),
        _ => None,
    }
}

fn envelope_of(event: &Event) -> Option<&Envelope> {
    match event {
        Event::Deliver { envelope, .. } => Some(envelope),
        _ => None,
    }
}

fn settings(servers: u32, partitions: u32) -> Settings {
    let (kill, power_cut, power_cut_all, network_cut, link_reset) = Default::default();
    let (full_disk, failed_sync, client_death, connection_cut) = Default::default();
    Settings {
        seed: 1,
        machines: servers,
        servers,
        bricks_per_server: 1,
        copies: 1,
        partitions,
        spread_max: 1,
        brick: BrickSettings {
            journal_segments: 8,
            segment_bytes: 256 << 10,
            index_cache_bytes: 256 << 10,
            reserve_bytes: 128 << 10,
        },
        clients: 0,
        calls_per_client: 0,
        names: 0,
        directories: 0,
        data_share: 0,
        durable_share: 0,
        overwrites: 0,
        reads: 0,
        blocks: 5,
        think_max: 1,
        client_rate: 10,
        durable_overwrites: 0,
        visitors: false,
        rivals: false,
        ambush: false,
        late_max: 1,
        notice_max: 30_000,
        network: NetworkSettings { delay_max: 1, lost: 0, doubled: 0, slow: 0 },
        inside_max: 1,
        sync_max: 1,
        checkpoint_max: TICK,
        tick: TICK,
        faults: FaultSettings {
            kill,
            power_cut,
            power_cut_all,
            network_cut,
            link_reset,
            full_disk,
            failed_sync,
            client_death,
            connection_cut,
            ..FaultSettings::default()
        },
        drift: 0,
        lease: 0,
    }
}

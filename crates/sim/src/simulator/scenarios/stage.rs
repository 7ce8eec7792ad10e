//! The commands of a scenario's script. Servers have one brick and one machine each; server, brick and machine have the
//! same number. Messages take 1 µs. All other times are those of the product: leases last 3 s, a silent member is left
//! out after 1.5 s, a client asks again within 250 ms.

use crate::history::CallNumber;
use crate::simulator::faults::disk::Disk;
use crate::simulator::judge::RING;
use crate::simulator::run::{become_whole, examine, make_cluster, start};
use crate::simulator::servers::coordinator::AtHand;
use crate::simulator::settings::workload::Workload;
use crate::simulator::settings::{Kind, Settings};
use crate::simulator::threads::Owner;
use crate::simulator::world::{Event, LinkEvent, World};
use hekate_brick::BrickSettings;
use hekate_brick::storage::Survivors;
use hekate_cluster::{BrickInfo, Coordinator, Registry, RingInfo};
use hekate_proto::map::{Member, View};
use hekate_proto::*;
use hekate_replica::{Address, Envelope, Message, Partition};
use hekate_server::Node;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Longest simulated time that a script waits, in µs.
const WAIT_MAX: Micros = 60_000_000;
/// Reasons shown when a script waits in vain.
const LEFT_SHOWN: usize = 8;
/// A time that no script reaches, in µs.
const NEVER: Micros = Micros::MAX / 2;

type Micros = u64;

/// The fate of an event that a rule matches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Held,
    Lost,
}

struct Rule {
    fate: Fate,
    matches: Matches,
}

type Matches = Box<dyn Fn(&Event, &World) -> bool>;

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
        let copies = partitions.iter().map(|bricks| bricks.len()).max().unwrap_or_default() as u32;
        let trace = std::env::var_os("HEKATE_TRACE").is_some();
        let mut world = World::new(settings(servers, copies, partitions.len() as u32), trace);
        make_cluster(&mut world).unwrap();
        place(&world, partitions);
        start(&mut world).unwrap();
        Self { world, rules: Vec::new(), held: Vec::new(), down: BTreeSet::new() }
    }

    /// Adds a client, which has opened the volume.
    pub fn client(&mut self) -> u32 {
        let client = self.world.join(0, false);
        self.until_open(client);
        client
    }

    fn until_open(&mut self, client: u32) {
        self.until("a client's volume", |stage| stage.world.people[client as usize].volume.is_some());
    }

    /// A client makes a call, and the script continues.
    pub fn ask(&mut self, client: u32, op: Op) -> Asked {
        self.ask_all(client, std::iter::once(op));
        // A call that the client answers by its pledges has ended already.
        let call = self.world.people[client as usize].calls.keys().next().copied();
        Asked(call.or_else(|| self.world.history.last()).expect("a client asks one thing at a time"))
    }

    /// A client makes calls one after the other.
    pub fn ask_all(&mut self, client: u32, ops: impl Iterator<Item = Op>) {
        self.world.people[client as usize].script.extend(ops);
        self.world.next_call(client);
    }

    /// A client dies, and another one takes its number.
    pub fn dies(&mut self, client: u32) {
        self.world.people[client as usize].script.clear();
        self.world.end_client(client);
        self.world.begin_client(client);
    }

    /// A client's connections are lost: it sends its requests again.
    pub fn cut_connection(&mut self, client: u32) {
        let own = self.world.messages.iter().filter(|(_, message)| message.from == Owner::Client(client));
        for message in own.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.world.lost(message);
        }
        let session = self.world.people[client as usize].volume.as_ref().unwrap().session();
        self.world.disconnect(session);
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
        self.world.settings.workload.durable_share = 100;
        let asked = self.ask(client, op);
        self.world.settings.workload.durable_share = 0;
        asked
    }

    pub fn does_durably(&mut self, client: u32, op: Op) -> Reply {
        let asked = self.ask_durably(client, op);
        self.answer(asked).unwrap()
    }

    /// Holds back matching messages between replicas of two servers, and later ones of the same pair of replicas:
    /// messages arrive in order.
    pub fn hold(&mut self, matches: impl Fn(&Envelope) -> bool + 'static) {
        self.rule(Fate::Held, move |event, _| envelope_of(event).is_some_and(|envelope| matches(&envelope)));
    }

    /// Holds back matching messages, and waits for the first of them.
    pub fn catch(&mut self, what: &str, matches: impl Fn(&Envelope) -> bool + 'static) {
        self.hold(matches);
        self.until_one_is_held(what);
    }

    /// Drops matching messages between replicas of two servers, as a link does that begins anew.
    pub fn lose(&mut self, matches: impl Fn(&Envelope) -> bool + 'static) {
        self.rule(Fate::Lost, move |event, _| envelope_of(event).is_some_and(|envelope| matches(&envelope)));
    }

    /// Holds back a client's matching request; waits until there is one.
    pub fn catch_request(&mut self, client: u32, matches: impl Fn(&Op) -> bool + 'static) {
        let is_request = move |event: &Event, _: &World| match event {
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
            stage.held[before..].iter().any(|event| newest.is_some_and(|rule| (rule.matches)(event, &stage.world)))
        });
    }

    /// Drops answers to a client; it asks again when it notices that its connection is lost.
    pub fn lose_answers(&mut self, client: u32) {
        self.rule(Fate::Lost, move |event, world| {
            let Event::Answer { message, .. } = event else { return false };
            world.messages.get(message).is_some_and(|message| message.from == Owner::Client(client))
        });
    }

    /// Delays syncs: no data reaches the stable storage of these bricks.
    pub fn hold_syncs(&mut self, bricks: &[u32]) {
        bricks.iter().for_each(|brick| self.disk(*brick).hold_syncs(true));
    }

    fn rule(&mut self, fate: Fate, matches: impl Fn(&Event, &World) -> bool + 'static) {
        self.rules.push(Rule { fate, matches: Box::new(matches) });
    }

    /// Ends all rules, and delivers the events that were held back.
    pub fn release(&mut self) {
        self.rules.clear();
        let slots = self.world.servers.iter().flat_map(|server| server.disks.values());
        slots.for_each(|slot| slot.disk.hold_syncs(false));
        for event in std::mem::take(&mut self.held) {
            self.world.happen(event);
        }
    }

    /// Bricks put their data on stable storage.
    pub fn sync(&mut self, bricks: &[u32]) {
        for server in bricks {
            let brick = self.node(*server).open_brick(brick_id(*server)).unwrap();
            let thread = self.world.threads.add(Owner::Server(*server), move || brick.sync(brick.end()).unwrap());
            self.world.resume(thread, None, true);
            self.until("the end of a sync", |stage| stage.world.threads.owner_of(thread).is_none());
        }
    }

    fn disk(&mut self, brick: u32) -> &mut Disk {
        self.world.disk(brick_id(brick)).unwrap()
    }

    fn node(&self, server: u32) -> &Arc<Node> {
        self.world.servers[server as usize].node.as_ref().expect("the server serves")
    }

    /// A brick's next sync fails.
    pub fn fail_sync(&mut self, brick: u32) {
        self.fail_sync_after(brick, 0);
    }

    /// A sync fails after this many successful ones.
    pub fn fail_sync_after(&mut self, brick: u32, syncs: u64) {
        self.disk(brick).fail_sync(syncs);
    }

    /// Copies a disk, so that the copy can be put in its place later.
    pub fn copy_disk(&mut self, brick: u32) {
        self.disk(brick).copy(Survivors::Seeded(0));
    }

    /// Copies a disk as its machine reads it: with everything that is not on stable storage yet.
    pub fn copy_cached_disk(&mut self, brick: u32) {
        self.disk(brick).copy(Survivors::Everything);
    }

    /// Its process ends, and starts with the copy.
    pub fn put_copy_back(&mut self, brick: u32) {
        self.kill(&[brick]);
        self.disk(brick).put_back_older();
        self.come_back(&[brick]);
    }

    /// A server's disk is lost. Waits until the server serves without it, and an operator replaces its brick.
    pub fn lose_disk(&mut self, server: u32) {
        self.world.lose_disk(brick_id(server));
        self.until("a server without its disk", |stage| {
            let own = &stage.world.servers[server as usize];
            own.node.is_some() && !own.has(brick_id(server))
        });
    }

    /// Makes the disk of a new brick, where an order to replace a server's first brick does.
    pub fn make_brick(&mut self, server: u32) -> BrickInfo {
        let directory = format!("/disk-{server}-0-{}", self.world.servers[server as usize].boot);
        let info = self.world.make_brick(server, directory, "p".into()).unwrap();
        BrickInfo { incarnation: Incarnation(0), unopened: true, ..info }
    }

    /// The coordinator executes the order to replace a server's first brick.
    pub fn record_new_brick(&self, server: u32, new: &BrickInfo) {
        let registry = Registry::new(Arc::new(AtHand(self.world.store.clone())));
        let old = registry.bricks().unwrap().into_iter().find(|info| info.brick == brick_id(server)).unwrap();
        assert!(registry.replace_brick(&old, new).unwrap() > 0);
    }

    /// True if a server has opened a brick.
    pub fn has_opened(&self, server: u32, brick: BrickId) -> bool {
        self.world.servers[server as usize].node.as_ref().is_some_and(|node| node.open_brick(brick).is_some())
    }

    /// True if a brick has stopped itself.
    pub fn has_stopped(&self, brick: u32) -> bool {
        self.node(brick).open_brick(brick_id(brick)).unwrap().stopped().is_some()
    }

    /// Processes end and start at once: no written data is lost.
    pub fn restart(&mut self, servers: &[u32]) {
        self.kill(servers);
        self.come_back(servers);
    }

    /// Processes end, and stay down until the script starts them.
    pub fn kill(&mut self, servers: &[u32]) {
        servers.iter().for_each(|server| self.world.kill(*server));
        self.down.extend(servers);
    }

    /// A process ends at this call of its disk, and stays down until the script starts it.
    pub fn kill_at_call(&mut self, server: u32, call: u64) {
        self.disk(server).die_after(call);
        self.down.insert(server);
    }

    /// Starts a server, and waits until it serves or has failed to start.
    pub fn try_to_start(&mut self, server: u32) {
        let before = self.failed_starts();
        self.come_back(&[server]);
        self.until("a server that serves, or does not start", |stage| {
            stage.world.servers[server as usize].node.is_some() || stage.failed_starts() > before
        });
    }

    fn failed_starts(&self) -> u64 {
        self.world.report.of("starts that failed")
    }

    pub fn runs(&self, server: u32) -> bool {
        self.world.servers[server as usize].runs
    }

    /// A server does not reach the coordinator, and so is left out of the views once its lease has ended.
    pub fn cut_off(&mut self, server: u32) {
        self.world.apart.insert(server, NEVER);
    }

    /// All servers reach the coordinator.
    pub fn join_again(&mut self) {
        self.world.apart.clear();
    }

    /// Clients ask this server for the map: one that cannot reach the coordinator answers after seconds.
    pub fn maps_from(&mut self, server: u32) {
        self.world.maps_from = Some(ServerId(server + 1));
    }

    /// A server cannot list the sessions that others have opened, until [`Stage::show_sessions`].
    pub fn hide_sessions(&mut self, server: u32) {
        self.world.without_sessions.insert(server);
    }

    pub fn show_sessions(&mut self) {
        self.world.without_sessions.clear();
    }

    /// Machines lose their power at the same moment, and with it the data that is not on stable storage.
    pub fn cut_power(&mut self, machines: &[u32]) {
        self.kill(machines);
        machines.iter().for_each(|machine| self.disk(*machine).cut_power(Survivors::Nothing));
        self.world.lose_memory(&machines.iter().map(|machine| brick_id(*machine)).collect());
    }

    /// Starts servers.
    pub fn come_back(&mut self, servers: &[u32]) {
        for server in servers {
            self.down.remove(server);
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

    /// The last view of a partition that was formed, and that has begun.
    fn views(&self, partition: u32) -> (View, View) {
        let (ring, number) = (self.world.ring().unwrap(), PartitionNumber(partition));
        (ring.view(number).unwrap().clone(), ring.opened(number).unwrap().clone())
    }

    /// Waits until a view of these members is formed, which need not have begun.
    pub fn until_formed(&mut self, partition: u32, members: &[u32]) {
        let wanted: Vec<BrickId> = members.iter().map(|server| brick_id(*server)).collect();
        self.until("a view", |stage| {
            stage.views(partition).0.members.iter().map(|member| member.brick).eq(wanted.iter().copied())
        });
    }

    /// Waits until a server leads a partition in a view that has begun, and serves it.
    pub fn until_led_by(&mut self, partition: u32, server: u32) {
        self.until("a partition that serves", |stage| {
            let (formed, _) = stage.views(partition);
            formed.opened && formed.leader == brick_id(server) && stage.serves(partition, server)
        });
    }

    /// Waits until a partition serves.
    pub fn until_serving(&mut self, partition: u32) {
        self.until("a partition that serves", |stage| {
            let leader = stage.views(partition).1.leader;
            stage.serves(partition, leader.0 as u32 - 1)
        });
    }

    /// True if a server's replica leads the partition and serves.
    fn serves(&self, partition: u32, server: u32) -> bool {
        let mut serves = false;
        let own = Address { partition: PartitionNumber(partition), brick: brick_id(server) };
        let look = |at: &Address, replica: &Partition| serves |= *at == own && replica.serves();
        self.world.servers[server as usize].node.as_ref().is_some_and(|node| node.inspect(RING, look)) && serves
    }

    /// Waits until all members of a partition's placement are members of its view.
    pub fn until_all_are_members(&mut self, partition: u32) {
        self.until("a view of all", |stage| {
            let (formed, _) = stage.views(partition);
            formed.opened && formed.whole
        });
    }

    /// Marks of legs in a partition, as its leader has them.
    pub fn marks(&self, partition: u32) -> usize {
        let (leader, number) = (self.views(partition).1.leader, PartitionNumber(partition));
        let brick = self.node(leader.0 as u32 - 1).open_brick(leader).unwrap();
        let count = self.world.ring().unwrap().views.len() as u32;
        let (from, to) = Key::work_range(RING, number, count);
        let found = brick.scan(&from, &to, 1000).unwrap();
        found.iter().filter(|(key, _)| key.kind() == Some(hekate_proto::Kind::LegDone)).count()
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
        self.drop_older(&event);
        match self.fate_of(&event) {
            None => self.world.happen(event),
            Some(Fate::Held) => self.held.push(event),
            Some(Fate::Lost) => {}
        }
        assert!(self.world.wrong.is_empty(), "{:#?}", self.world.wrong);
    }

    /// Drops the messages of a link's earlier generation: none of them arrives after the next one has begun.
    fn drop_older(&mut self, event: &Event) {
        let Event::Link { server, peer, event: LinkEvent::Up(_) | LinkEvent::Down, .. } = event else { return };
        let is_older =
            |held: &Event| matches!(held, Event::Link { server: of, peer: from, .. } if (of, from) == (server, peer));
        self.held.retain(|held| !is_older(held));
    }

    fn fate_of(&self, event: &Event) -> Option<Fate> {
        if matches!(event, Event::Start { server } if self.down.contains(server)) {
            return Some(Fate::Lost);
        }
        let pair = |event: &Event| envelope_of(event).map(|envelope| (envelope.from, envelope.to));
        let own = pair(event);
        if own.is_some() && self.held.iter().any(|held| pair(held) == own) {
            return Some(Fate::Held);
        }
        self.rules.iter().find(|rule| (rule.matches)(event, &self.world)).map(|rule| rule.fate)
    }

    /// Ends all rules, starts all servers, waits until the cluster is whole, and runs the checkers.
    pub fn whole_and_judged(mut self) {
        self.release();
        self.join_again();
        self.show_sessions();
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

fn brick_id(server: u32) -> BrickId {
    BrickId(u128::from(server) + 1)
}

fn envelope_of(event: &Event) -> Option<Envelope> {
    match event {
        Event::Link { event: LinkEvent::Message(bytes), .. } => Envelope::from_bytes(bytes.clone()).ok(),
        _ => None,
    }
}

/// Puts these partitions into the place of those of the cluster's ring.
fn place(world: &World, partitions: &[&[u32]]) {
    let coordinator = AtHand(world.store.clone());
    let member = |server: &u32| Member { brick: brick_id(*server), incarnation: Incarnation(1) };
    let view = |servers: &&[u32]| {
        let members: Vec<Member> = servers.iter().map(member).collect();
        View::new(Epoch(1), members[0].brick, members)
    };
    let before = world.ring().unwrap();
    let ring = RingInfo::new(RING, &before.pool, before.copies, before.domain, partitions.iter().map(view).collect());
    let keys: Vec<String> = coordinator.list("/rings/").unwrap().pairs.into_iter().map(|(key, _)| key).collect();
    let views = ring.view_records().map(|view| serde_json::to_string(&view).unwrap());
    let records = std::iter::once(serde_json::to_string(&ring.record()).unwrap()).chain(views);
    let records: Vec<Option<String>> = records.map(Some).chain(std::iter::repeat(None)).take(keys.len()).collect();
    let writes: Vec<_> = keys.iter().map(String::as_str).zip(records.iter().map(Option::as_deref)).collect();
    coordinator.transact(&[], &writes).unwrap();
    assert_eq!(*world.ring().unwrap(), ring);
}

fn settings(servers: u32, copies: u32, partitions: u32) -> Settings {
    let brick = BrickSettings {
        journal_segments: 8,
        segment_bytes: 256 << 10,
        index_cache_bytes: 256 << 10,
        reserve_bytes: 128 << 10,
    };
    let workload = Workload {
        machines: servers,
        servers,
        bricks_per_server: 1,
        copies,
        partitions,
        spread_max: 1,
        brick,
        durable_share: 0,
        visitors: false,
        rivals: false,
        ambush: false,
        drift: 0,
        ..Workload::of(0)
    };
    Settings { servers, copies, workload, calls_at_once: 1, think_max: 1, delay_max: 1, ..Settings::of(Kind::Wide, 0) }
}

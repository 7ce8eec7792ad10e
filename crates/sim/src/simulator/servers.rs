//! Server processes: they start, serve, talk to each other and die.

pub mod coordinator;
pub mod surroundings;

use crate::simulator::clients::briefly;
use crate::simulator::servers::coordinator::{Fate, Reached};
use crate::simulator::servers::surroundings::{Around, key_of_link};
use crate::simulator::threads::{self, Action, Answer, MessageNumber, Owner, Suspended, ThreadNumber};
use crate::simulator::world::{Event, LinkEnd, LinkEvent, Message, World, trace};
use bytes::Bytes;
use hekate_cluster::Registry;
use hekate_proto::map::VolumeMap;
use hekate_proto::*;
use hekate_replica::Envelope;
use hekate_server::{ClusterAccess, Node};
use hekate_transport::link::{Boot, Link, LinkSettings, Output, Packet};
use hekate_transport::{Peer, Service, Welcome};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The name of the volume.
pub const VOLUME_NAME: &str = "v";
/// Longest time that a server is down, in µs.
const DOWN_MAX: u64 = 3_000_000;
/// Time until a server runs again whose supervisor restarts it at once, in µs.
const AT_ONCE: u64 = 1_000;
/// Longest time until a client notices that a server has died, in µs.
const NOTICE_MAX: u64 = 300_000;
/// Longest time until a thread runs that was started or notified, in µs.
const WAKE_MAX: u64 = 50;
/// Longest time until a thread tries a lock again that it found held, in µs.
const CONTENDED_MAX: u64 = 1_000;
const LINK_TICK: u64 = 20_000;
/// Factor by which a slow packet takes longer.
const SLOW: u64 = 20;

impl World {
    /// Starts a server's process.
    pub fn start(&mut self, server: u32) {
        if self.servers[server as usize].runs {
            return;
        }
        let without = self.left_out(server);
        let own = &mut self.servers[server as usize];
        (own.runs, own.boot, own.is_to_restart) = (true, own.boot + 1, false);
        trace!(self, "server {server} starts, without {without:?}");
        let store = self.store.clone();
        let body = move || {
            let coordinator = Arc::new(Reached { server, store, ended: AtomicBool::new(false) });
            let registry = Registry::of(coordinator, ServerId(server + 1));
            let started = ClusterAccess::of(registry)
                .and_then(|access| Node::start_in(Arc::new(Around { server }), access, &without, &|_| ()));
            threads::in_world(move |world: &mut World| world.started(server, started));
        };
        let thread = self.threads.add(Owner::Server(server), body);
        self.after(1, Event::Resume { thread, number: None, notified: true });
    }

    fn started(&mut self, server: u32, started: Result<Arc<Node>>) {
        let error = match started {
            Ok(node) => {
                trace!(self, "server {server} serves");
                self.servers[server as usize].node = Some(node);
                return self.replace_lost(server);
            }
            Err(error) => error,
        };
        trace!(self, "server {server} does not start: {error}");
        self.report.count("starts that failed");
        if !matches!(error, Error::Unavailable { .. }) && !self.is_disk_at_fault(server, &error) {
            self.wrong.push(format!("server {server} does not start: {error}"));
        }
        // Not here: this thread is one of those that end.
        self.after(1, Event::Kill { server });
    }

    /// Kills a process; another one starts a little later.
    pub fn kill(&mut self, server: u32) {
        if self.servers[server as usize].runs {
            self.end_server(server);
            let is_at_once = self.settings.workload.restarts_at_once && self.random.once_in(2);
            let delay = if is_at_once { AT_ONCE } else { self.delay(DOWN_MAX) };
            self.after(delay, Event::Start { server });
        }
    }

    /// Ends a process, and the connections to it.
    pub fn end_server(&mut self, server: u32) {
        self.end_process(server);
        let lost = self.messages.iter().filter(|(_, message)| message.server == server);
        for message in lost.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.lose_soon(message);
        }
    }

    /// Ends a process as SIGKILL does.
    pub fn end_process(&mut self, server: u32) {
        let own = &mut self.servers[server as usize];
        (own.runs, own.leg_sent) = (false, None);
        own.links.clear();
        own.connected.clear();
        // First, so that what its threads do while they are unwound reaches no disk.
        own.disks.values_mut().for_each(|slot| slot.disk.kill());
        let node = own.node.take();
        self.threads.end(Owner::Server(server), node, self.now, &mut self.random);
        self.messages.retain(|_, message| message.from != Owner::Server(server));
        self.paused.remove(&server);
        self.close_listeners_of(server);
    }

    /// Stops a server as an operator does: it gives up its lease and writes its journals home.
    pub fn stop(&mut self, server: u32) {
        let Some(node) = self.servers[server as usize].node.clone() else { return };
        let boot = self.servers[server as usize].boot;
        let thread = self.threads.add(Owner::Server(server), move || {
            let _ = node.shut_down();
            drop(node);
            threads::in_world(move |world: &mut World| {
                if world.servers[server as usize].boot == boot {
                    world.after(1, Event::Kill { server });
                }
            });
        });
        self.after(1, Event::Resume { thread, number: None, notified: true });
    }

    /// Resumes a thread, and carries out what it asks for.
    pub fn resume(&mut self, thread: ThreadNumber, number: Option<u64>, notified: bool) {
        let (mut number, mut notified) = (number, notified);
        loop {
            let Some(ran) = self.threads.resume(thread, number, notified, (self.now, &mut self.random)) else { return };
            if let Owner::Server(server) = ran.owner
                && self.servers[server as usize].runs
                && self.servers[server as usize].is_dead()
            {
                trace!(self, "server {server} is killed by a call of its disk");
                // What the thread was about to hand over goes after the threads, whose locks it may need.
                let _handed_over = ran.suspended;
                return self.kill(server);
            }
            self.act(ran.owner, ran.actions);
            (number, notified) = (Some(ran.number), true);
            match ran.suspended {
                Suspended::Calling(call) => call(self),
                Suspended::Waiting { limit: Some(limit), .. } => {
                    return self.after(limit.max(1), Event::Resume { thread, number, notified: false });
                }
                Suspended::Waiting { limit: None, .. } | Suspended::Ended => return,
                Suspended::Contended => {
                    let delay = self.delay(CONTENDED_MAX);
                    return self.after(delay, Event::Resume { thread, number, notified });
                }
            }
        }
    }

    /// Carries out what a thread has asked for.
    pub fn act(&mut self, owner: Owner, actions: Vec<Action>) {
        let client = if let Owner::Client(client) = owner { client } else { 0 };
        for action in actions {
            match action {
                Action::Spawn(body) => {
                    let (thread, delay) = (self.threads.add(owner, body), self.delay(WAKE_MAX));
                    self.after(delay, Event::Resume { thread, number: None, notified: true });
                }
                Action::Notify { key, all } => self.notify(key, all),
                Action::Send { message, server, requests } => {
                    let is_fast = requests.iter().any(|request| matches!(request.target, Target::Replica { .. }));
                    self.report.add("branch: a write to all members at once", u64::from(is_fast));
                    let event = |server| Event::Request { client, server, message, requests };
                    self.send(owner, (message, server), is_fast, event);
                }
                Action::AskMap { message, server } => {
                    let server = self.maps_from.unwrap_or(server);
                    self.send(owner, (message, server), false, |server| Event::AskMap { client, server, message });
                }
                Action::Open { message, server } => {
                    self.send(owner, (message, server), false, |server| Event::Open { server, message });
                }
                Action::Listen { message, server } => {
                    self.send(owner, (message, server), false, |server| Event::Listen { client, server, message });
                }
                Action::Tell { listener, notification } => self.tell(listener, notification),
                Action::Count(branch) => self.report.count(format!("branch: {branch}")),
                Action::Forget { message } => {
                    self.messages.remove(&message);
                    self.close_listener(message);
                }
            }
        }
    }

    /// Sends a message of a client to a server. One in five copies of a write to all members may arrive after the
    /// others were given up.
    fn send(
        &mut self,
        from: Owner,
        (message, server): (MessageNumber, ServerId),
        is_fast: bool,
        event: impl FnOnce(u32) -> Event,
    ) {
        let server = server.0 - 1;
        self.messages.insert(message, Message { from, server, is_fast, is_cut: false });
        if !self.reaches(from, server) {
            return self.lose_soon(message);
        }
        let is_late = is_fast && self.faults_on && self.random.once_in(5);
        let is_late = is_late || matches!(from, Owner::Client(_)) && self.is_message_slow();
        let delay = self.delay(if is_late { self.settings.late_max } else { self.settings.delay_max });
        self.after(delay, event(server));
    }

    /// True if messages of a client or a server arrive at that server now.
    pub fn reaches(&self, from: Owner, server: u32) -> bool {
        match from {
            Owner::Client(client) => self.out_of_reach.get(&(client, server)).is_none_or(|until| *until <= self.now),
            Owner::Server(other) => !self.is_cut(other, server) && !self.is_cut(server, other),
        }
    }

    /// Sends a request of a server to the control interface of another one.
    pub fn send_control(&mut self, from: u32, server: u32, message: MessageNumber, request: String) {
        let to = (message, ServerId(server + 1));
        self.send(Owner::Server(from), to, false, |server| Event::Control { server, message, request });
    }

    /// Delivers a request to a server's control interface.
    pub fn control(&mut self, server: u32, message: MessageNumber, request: String) {
        self.serve(server, message, move |node| Answer::Control(node.control(&Peer::Local { uid: 0 }, &request)));
    }

    fn notify(&mut self, key: u64, all: bool) {
        let waiting = self.threads.waiting_for(key);
        for (thread, number) in waiting.into_iter().take(if all { usize::MAX } else { 1 }) {
            self.threads.set_notified(thread);
            let delay = self.delay(WAKE_MAX);
            self.after(delay, Event::Resume { thread, number: Some(number), notified: true });
        }
    }

    /// Runs a part of a server on a thread of its own. False if the server does not serve.
    pub fn serve(&mut self, server: u32, message: MessageNumber, body: impl FnOnce(&Node) -> Answer + 'static) {
        let Some(node) = self.servers[server as usize].node.clone() else { return self.lose_soon(message) };
        let thread = self.threads.add(Owner::Server(server), move || {
            let answer = body(&node);
            threads::in_world(move |world: &mut World| world.send_answer(message, answer));
        });
        self.resume(thread, None, true);
    }

    /// Delivers a batch to a server, on the session's connection or on a new one.
    pub fn request(&mut self, client: u32, server: u32, message: MessageNumber, requests: Vec<Request>) {
        let Some(session) = requests.first().map(|request| request.session) else { return };
        trace!(self, "client {client} asks server {server}: {}", briefly(&requests));
        let is_new = !self.servers[server as usize].connected.contains(&session);
        self.serve(server, message, move |node| {
            if is_new {
                if let Err(error) = node.open(&Peer::Local { uid: 0 }, VOLUME_NAME, Some(session)) {
                    return Answer::Refused(error);
                }
                let connect = move |world: &mut World| world.connect(client, server, session);
                if threads::in_world(connect) == Some(false) {
                    node.disconnected(session);
                }
            }
            Answer::Replies(node.call(session, requests))
        });
    }

    /// Notes a connection of a session. False: it has one, or its client has died since it sent the batch.
    fn connect(&mut self, client: u32, server: u32, session: SessionId) -> bool {
        let volume = self.people[client as usize].volume.as_ref();
        volume.is_some_and(|volume| volume.session() == session)
            && self.servers[server as usize].connected.insert(session)
    }

    /// Delivers a request for the volume's map.
    pub fn ask_map(&mut self, client: u32, server: u32, message: MessageNumber) {
        let Some(volume) = &self.people[client as usize].volume else { return };
        let session = volume.session();
        self.serve(server, message, move |node| {
            opened(node, Some(session), |welcome| Answer::Map(Box::new(welcome.map)))
        });
    }

    /// Opens a session.
    pub fn open_session(&mut self, server: u32, message: MessageNumber) {
        self.serve(server, message, move |node| opened(node, None, |welcome| Answer::Opened(Box::new(welcome))));
    }

    pub fn send_answer(&mut self, message: MessageNumber, answer: Answer) {
        let Some(of) = self.messages.get(&message) else { return };
        if !self.reaches(of.from, of.server) {
            return self.lose_soon(message);
        }
        let is_late = matches!(of.from, Owner::Client(_)) && self.is_message_slow();
        let delay = self.delay(if is_late { self.settings.late_max } else { self.settings.delay_max });
        self.after(delay, Event::Answer { message, answer });
    }

    /// True if the next message between a client and a server takes up to `late_max`.
    pub fn is_message_slow(&mut self) -> bool {
        let is_slow = self.settings.slow_messages > 0 && self.faults_on && self.per_mille(self.settings.slow_messages);
        self.report.add("fault: a slow message of a client", u64::from(is_slow));
        is_slow
    }

    pub fn lose_soon(&mut self, message: MessageNumber) {
        let delay = self.delay(NOTICE_MAX);
        self.after(delay, Event::Lost { message });
    }

    /// A message is lost with its connection: it may or may not have been handled.
    pub fn lost(&mut self, message: MessageNumber) {
        let Some(of) = self.messages.remove(&message) else { return };
        self.deliver_answer(message, Answer::Lost);
        if let Owner::Client(client) = of.from
            && self.settings.workload.rivals
        {
            self.rival_comes(client);
        }
    }

    /// What becomes of a server's call of the coordinator.
    pub fn fate_at_coordinator(&mut self, server: u32) -> Fate {
        if self.slow.get(&server).is_some_and(|until| *until > self.now) {
            self.report.count("fault: the coordinator answers slowly");
            return Fate::Slow;
        }
        let is_apart = self.apart.get(&server).is_some_and(|until| *until > self.now);
        let is_spoilt = self.faults_on && self.per_mille(self.settings.lost_answers);
        if !is_apart && !is_spoilt {
            return Fate::Answered;
        }
        let (fate, what) = match self.random.below(if is_apart { 2 } else { 4 }) {
            0 => (Fate::Unreachable, "fault: the coordinator is not reached"),
            1 => (Fate::Lost, "fault: a call of the coordinator is lost"),
            2 => (Fate::AnswerLost, "fault: an answer of the coordinator is lost"),
            _ => (Fate::Late, "fault: the coordinator executes a call late"),
        };
        self.report.count(what);
        fate
    }

    /// Begins the links of a process. Returns the other servers.
    pub fn begin_links(&mut self, own: ServerId, boot: Boot) -> Vec<ServerId> {
        let settings = LinkSettings {
            resend_after: Some(Duration::from_micros(self.settings.delay_max * 3 + 20_000)),
            ..LinkSettings::default()
        };
        let server = own.0 - 1;
        let peers: Vec<ServerId> = (1..=self.settings.servers).map(ServerId).filter(|peer| *peer != own).collect();
        for peer in &peers {
            let link = Link::new((own, boot), *peer, settings.clone());
            self.servers[server as usize].links.insert(*peer, LinkEnd { link, inbox: VecDeque::new() });
            self.with_link(server, *peer, |link, now, out| link.connected(now, out));
        }
        let boot = self.servers[server as usize].boot;
        self.after(LINK_TICK, Event::LinkTick { server, boot });
        peers
    }

    pub fn end_links(&mut self, server: u32) {
        self.servers[server as usize].links.clear();
    }

    /// Both ends of a link notice that it is lost, and begin it anew.
    pub fn lose_link(&mut self, one: u32, other: u32) {
        for (server, peer) in [(one, other), (other, one)] {
            self.with_link(server, ServerId(peer + 1), |link, now, out| {
                link.disconnected();
                link.connected(now, out);
            });
        }
    }

    /// The next event of a link for the thread that handles them.
    pub fn next_of_link(&mut self, server: u32, peer: ServerId) -> Option<LinkEvent> {
        self.servers[server as usize].links.get_mut(&peer)?.inbox.pop_front()
    }

    pub fn send_over_link(&mut self, server: u32, to: ServerId, message: Bytes) -> bool {
        if self.settings.workload.ambush && is_leg(&message) {
            self.servers[server as usize].leg_sent = Some(self.now);
        }
        self.with_link(server, to, |link, now, out| link.send(message, now, out)).unwrap_or_default()
    }

    fn with_link<T>(
        &mut self,
        server: u32,
        peer: ServerId,
        act: impl FnOnce(&mut Link, Duration, &mut Vec<Output>) -> T,
    ) -> Option<T> {
        let mut out = Vec::new();
        let end = self.servers[server as usize].links.get_mut(&peer)?;
        let outcome = act(&mut end.link, Duration::from_micros(self.now), &mut out);
        for output in out {
            match output {
                Output::Transmit(packet) => self.transmit(server, peer.0 - 1, packet),
                Output::Event(event) => {
                    let event = match event {
                        hekate_transport::link::Event::Up { boot, .. } => LinkEvent::Up(boot),
                        hekate_transport::link::Event::Down(_) => LinkEvent::Down,
                        hekate_transport::link::Event::Message(bytes) => LinkEvent::Message(bytes),
                    };
                    let boot = self.servers[server as usize].boot;
                    self.after(0, Event::Link { server, boot, peer, event });
                }
            }
        }
        Some(outcome)
    }

    /// Hands what a link brings to the thread that handles it.
    pub fn link_event(&mut self, server: u32, boot: u64, peer: ServerId, event: LinkEvent) {
        let own = &mut self.servers[server as usize];
        let Some(end) = own.links.get_mut(&peer).filter(|_| own.boot == boot) else { return };
        end.inbox.push_back(event);
        self.wake(key_of_link(server, peer));
    }

    fn transmit(&mut self, from: u32, to: u32, packet: Packet) {
        self.report.count("packets");
        if self.is_cut(from, to) {
            return;
        }
        if self.faults_on && self.per_mille(self.settings.lost) {
            return self.report.count("fault: a packet lost");
        }
        if self.faults_on && self.per_mille(self.settings.doubled) {
            self.report.count("fault: a packet doubled");
            self.send_packet(from, to, packet.clone());
        }
        self.send_packet(from, to, packet);
    }

    fn send_packet(&mut self, from: u32, to: u32, packet: Packet) {
        let mut delay = self.delay(self.settings.delay_max);
        if self.faults_on && self.per_mille(self.settings.slow) {
            self.report.count("fault: a slow packet");
            delay *= SLOW;
        }
        self.after(delay, Event::Packet { from, to, packet });
    }

    /// True if packets of one server to another are lost.
    fn is_cut(&self, from: u32, to: u32) -> bool {
        let machine = |server: u32| self.servers[server as usize].machine;
        self.cut.contains(&(machine(from), machine(to)))
    }

    pub fn packet(&mut self, from: u32, to: u32, packet: Packet) {
        self.with_link(to, ServerId(from + 1), |link, now, out| link.receive(packet, now, out));
    }

    pub fn tick_links(&mut self, server: u32, boot: u64) {
        if self.servers[server as usize].boot != boot || !self.servers[server as usize].runs {
            return;
        }
        for peer in (1..=self.settings.servers).map(ServerId) {
            self.with_link(server, peer, |link, now, out| link.tick(now, out));
        }
        self.after(LINK_TICK, Event::LinkTick { server, boot });
    }
}

fn is_leg(message: &Bytes) -> bool {
    matches!(Envelope::from_bytes(message.clone()), Ok(Envelope { message: hekate_replica::Message::Leg { .. }, .. }))
}

/// Opens a connection for a session, or a new session, and closes it again.
fn opened(node: &Node, session: Option<SessionId>, answer: impl FnOnce(Welcome) -> Answer) -> Answer {
    let (_, session, map) = match node.open(&Peer::Local { uid: 0 }, VOLUME_NAME, session) {
        Ok(opened) => opened,
        Err(error) => return Answer::Refused(error),
    };
    node.disconnected(session);
    match serde_json::from_str::<VolumeMap>(&map) {
        Ok(map) => answer(Welcome { session, map }),
        Err(error) => Answer::Refused(Error::bug(error.to_string())),
    }
}

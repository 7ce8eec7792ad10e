//! Clients: each is a `hekate_client::Volume`, and each of its calls runs on a thread of its own.

mod disks;
pub mod locks;
pub mod mappings;
pub mod objects;
pub mod servers;
pub mod spread;
pub mod workload;

use crate::history::CallNumber;
use crate::simulator::clients::locks::{call_lock, lock_op};
use crate::simulator::clients::servers::{SimulatedServers, answer};
use crate::simulator::clients::spread::NOT_JUDGED;
use crate::simulator::clients::workload::{look_op, looks_into, next_op, write_at};
use crate::simulator::threads::{self, Action, Answer, MessageNumber, Owner};
use crate::simulator::world::{Event, Person, World, trace};
use hekate_client::{ContentUse, Context, OpenOptions, Volume};
use hekate_proto::*;
use hekate_transport::Welcome;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Factor by which visitors wait longer between calls than other clients.
const VISIT: u64 = 5;
/// Limit of an attempt to open the volume, and the pause before the next one.
const OPEN_LIMIT: Duration = Duration::from_secs(2);
const OPEN_PAUSE: Duration = Duration::from_millis(200);
/// Longest time until an answer arrives that was found while a brick was damaged, in µs.
const ANSWER_MAX: u64 = 3_000_000;

impl World {
    /// Adds a client.
    pub fn join(&mut self, calls_left: u32, examines: bool) -> u32 {
        let number = self.people.len() as u32;
        let (volume, calls, script) = Default::default();
        self.people.push(Person { volume, calls, calls_left, script, is_at_work: false, examines });
        self.begin_client(number);
        number
    }

    /// The client opens the volume, with a new session, and begins to call.
    pub fn begin_client(&mut self, client: u32) {
        let count = self.settings.servers;
        let body = move || {
            let Some((first, welcome)) = open_session(count) else { return };
            let servers = SimulatedServers { first, count, closed: AtomicBool::new(false) };
            let opened = Volume::over(
                Arc::new(servers),
                welcome,
                &OpenOptions { contents: ContentUse::Memory, ..OpenOptions::default() },
            );
            threads::in_world(move |world: &mut World| match opened {
                Ok(volume) => {
                    let volume = Arc::new(volume);
                    world.people[client as usize].volume = Some(volume.clone());
                    world.begin_disks(client, volume.clone());
                    world.begin_mapping(client, volume);
                    (0..world.calls_at_once(client)).for_each(|_| world.thinks(client));
                }
                Err(error) => world.wrong.push(format!("client {client} cannot open the volume: {error}")),
            });
        };
        let thread = self.threads.add(Owner::Client(client), body);
        self.after(1, Event::Resume { thread, number: None, notified: true });
    }

    fn calls_at_once(&self, client: u32) -> usize {
        if self.people[client as usize].examines { 1 } else { self.settings.calls_at_once }
    }

    pub fn thinks(&mut self, client: u32) {
        let is_visitor = self.settings.workload.visitors && client > 0 && !self.people[client as usize].examines;
        let delay = self.delay(self.settings.think_max * if is_visitor { VISIT } else { 1 });
        // A rival asks without delay.
        let is_rival = self.settings.workload.rivals && !self.people[client as usize].script.is_empty();
        self.after(if is_rival { 1 } else { delay }, Event::Next { client });
    }

    /// Begins the client's next call.
    pub fn next_call(&mut self, number: u32) {
        let calls_max = self.calls_at_once(number);
        let person = &self.people[number as usize];
        let Some(volume) = person.volume.clone().filter(|_| person.calls.len() < calls_max) else { return };
        let Some((op, durable)) = self.choose_op(number) else { return };
        let durable = durable && !op.is_read();
        let at = self.moment();
        let call = self.history.invoke(number, volume.session(), op.clone(), durable, at);
        self.people[number as usize].calls.insert(call, op.clone());
        trace!(self, "client {number} asks {}", self.history.describe(call));
        let limit = self.lock_limit();
        let thread = self.threads.add(Owner::Client(number), move || {
            let outcome = match op {
                Op::Lock { op } => call_lock(&volume, op, limit),
                op => volume.call(&Context { durable, ..Context::default() }, op),
            };
            drop(volume);
            threads::in_world(move |world: &mut World| world.finished(number, call, outcome));
        });
        self.resume(thread, None, true);
        if !self.people[number as usize].calls.contains_key(&call) {
            self.report.count("calls that a client answers from memory");
            self.answered_from_memory();
        }
    }

    /// The client's next call, and whether it must be on stable storage.
    fn choose_op(&mut self, number: u32) -> Option<(Op, bool)> {
        let settings = &self.settings;
        let person = &mut self.people[number as usize];
        if let Some(op) = person.script.pop_front() {
            let durable = !person.examines && self.random.below(100) < settings.workload.durable_share;
            return Some((op, durable));
        }
        if settings.disks.is_some() {
            return None;
        }
        person.calls_left = person.calls_left.checked_sub(1)?;
        if let Some(read) = self.read_of_staying(number) {
            return Some((read, false));
        }
        if self.random.below(100) < self.settings.locks
            && let Some(inode) = self.known.first_file()
        {
            return Some((Op::Lock { op: lock_op(inode, &mut self.random) }, false));
        }
        if self.random.below(100) < self.settings.objects {
            let durable = self.random.below(100) < self.settings.workload.durable_share;
            return Some((Op::Name { op: self.objects.next_op(&mut self.random) }, durable));
        }
        Some(next_op(&self.settings.workload, &mut self.known, number, &mut self.random))
    }

    /// A client that stays at a server which is split off reads only: a write would wait for the other servers.
    fn read_of_staying(&mut self, client: u32) -> Option<Op> {
        self.staying.get(&client).filter(|until| **until > self.now)?;
        let (inode, looks) = (self.known.first_file()?, self.settings.workload.looks);
        self.report.count("reads at a server that is split off");
        if looks > 0 {
            return Some(look_op(&self.settings.workload, &self.known, &mut self.random));
        }
        let offset = self.random.below(self.settings.workload.blocks) * 4096;
        Some(Op::Data { op: DataOp::Read { inode, offset, length: 4096, touch: false } })
    }

    /// A call has ended.
    pub fn finished(&mut self, number: u32, call: CallNumber, outcome: Result<Reply>) {
        let at = self.moment();
        let person = &mut self.people[number as usize];
        let Some(op) = person.calls.remove(&call) else { return };
        match &outcome {
            Ok(reply) => {
                if !self.objects.learn(&op, reply) {
                    self.known.learn(reply);
                }
                self.report.count(format!("acknowledged: {}", op.label()));
                if person.examines {
                    person.script.extend(looks_into(&op, reply));
                }
            }
            Err(error) => {
                self.report.count(format!("refused: {}", op.label()));
                self.report.add("branch: an fsync reports a loss", u64::from(matches!(error, Error::Lost { .. })));
                self.check_error(number, &op, error);
            }
        }
        if !self.people[number as usize].examines && self.spread.lists_parts(&op) {
            self.report.count(NOT_JUDGED);
        } else {
            let outcome = outcome.map(|reply| self.spread.without_parts(reply));
            self.history.answer(call, at, outcome);
            self.count_lock(call);
        }
        trace!(self, "client {number} done {}", self.history.describe(call));
        self.thinks(number);
    }

    /// Complains of answers that are never right.
    fn check_error(&mut self, client: u32, op: &Op, error: &Error) {
        let is_wrong = match error {
            Error::Bug { .. } | Error::Protocol { .. } | Error::SessionEnded => true,
            Error::Damaged { .. } => {
                self.report.count("branch: a damaged block is asked for");
                !self.may_be_damaged()
            }
            _ => false,
        };
        if is_wrong {
            self.wrong.push(format!("client {client} is answered {error} for {op:?}"));
        }
    }

    /// True if something is damaged, or was when an answer was sent that arrives now.
    fn may_be_damaged(&self) -> bool {
        self.rotten.is_some() || self.mended_at > 0 && self.now < self.mended_at + ANSWER_MAX
    }

    /// An answer arrives.
    pub fn answer(&mut self, message: MessageNumber, answer: Answer) {
        if self.messages.get(&message).is_none_or(|of| of.is_cut) {
            return;
        }
        let Some(of) = self.messages.remove(&message) else { return };
        if let (Owner::Client(client), Answer::Replies(replies)) = (of.from, &answer) {
            trace!(self, "client {client} gets {}", briefly(&answer));
            for reply in replies {
                self.people[client as usize].calls.values().for_each(|op| self.spread.note(Some(op), reply));
                self.note(&bytes_of(reply));
            }
        }
        self.deliver_answer(message, answer);
    }

    /// An idle client reads and overwrites the bytes of a write whose outcome the writer does not know yet, and reads
    /// them again afterwards.
    pub fn rival_comes(&mut self, client: u32) {
        let write = self.people[client as usize].calls.values().find_map(|op| match op {
            Op::Data { op: DataOp::Write { inode, offset, data, .. } } => Some((*inode, *offset, data.len() as u32)),
            _ => None,
        });
        let Some((inode, offset, length)) = write else { return };
        let count = self.people.len() as u32;
        let is_free = |one: &u32| *one != client && self.people[*one as usize].calls.is_empty();
        let Some(rival) = (0..count).map(|step| (client + 1 + step) % count).find(is_free) else { return };
        trace!(self, "client {rival} comes while client {client} does not know what became of its write");
        self.report.count("branch: a rival comes");
        let read = || Op::Data { op: DataOp::Read { inode, offset, length, touch: false } };
        let write = Op::Data { op: write_at(inode, offset, u64::from(length), &mut self.random) };
        self.people[rival as usize].script.extend([read(), write, read()]);
        self.people[client as usize].script.push_back(read());
        self.after(1, Event::Next { client: rival });
    }

    /// A random client; in an ambush one whose write is in flight to all members, if there is one.
    fn one_client(&mut self) -> u32 {
        let client = self.random.below(self.people.len() as u64) as u32;
        let fast = self.messages.values().find_map(|message| match message.from {
            Owner::Client(client) if message.is_fast => Some(client),
            _ => None,
        });
        fast.filter(|_| self.settings.workload.ambush).unwrap_or(client)
    }

    /// A client dies; another one takes its place.
    pub fn client_dies(&mut self) {
        let number = self.one_client();
        trace!(self, "client {number} dies");
        self.report.count("fault: client death");
        self.end_client(number);
        self.begin_client(number);
    }

    /// Ends the client's process: the servers see its connections end.
    pub fn end_client(&mut self, number: u32) {
        let at = self.moment();
        let person = &mut self.people[number as usize];
        person.calls.clear();
        person.is_at_work = false;
        let volume = person.volume.take();
        self.disks.client_died(number, at);
        self.mapped.client_died(number);
        self.paused_clients.remove(&number);
        let session = volume.as_ref().map(|volume| volume.session());
        self.threads.end(Owner::Client(number), volume, self.now, &mut self.random);
        self.messages.retain(|_, message| message.from != Owner::Client(number));
        self.close_listeners_of_client(number);
        match session {
            Some(session) => {
                self.history.client_died(session, at);
                self.disconnect(session);
            }
            None => self.lose_session(),
        }
    }

    /// A server may have opened a session of which its client knows nothing.
    pub fn lose_session(&mut self) {
        let at = self.moment();
        self.history.client_died(SYSTEM_SESSION, at);
    }

    pub fn disconnect(&mut self, session: SessionId) {
        (0..self.settings.servers).for_each(|server| self.disconnect_from(server, session));
    }

    /// The server sees that the session's connection has ended.
    fn disconnect_from(&mut self, server: u32, session: SessionId) {
        let own = &mut self.servers[server as usize];
        let Some(node) = own.node.clone().filter(|_| own.connected.remove(&session)) else { return };
        let body = move || hekate_transport::Service::disconnected(&*node, session);
        let thread = self.threads.add(Owner::Server(server), body);
        self.after(1, Event::Resume { thread, number: None, notified: true });
    }

    /// Cuts a client's connection to a server, which the client notices a while later: until then no answers arrive.
    pub fn cut_connection(&mut self) {
        let client = self.one_client();
        let from = Owner::Client(client);
        let oldest = self.messages.iter().find(|(_, message)| message.from == from && !message.is_cut);
        let Some(server) = oldest.map(|(_, message)| message.server) else { return self.cut_listener() };
        self.report.count("fault: connection cut");
        let delay = self.delay(self.settings.notice_max);
        let mut cut = Vec::new();
        for (number, message) in &mut self.messages {
            if message.from == from && message.server == server {
                message.is_cut = true;
                cut.push(*number);
            }
        }
        trace!(self, "the connection of client {client} to server {server} is cut, {} messages", cut.len());
        cut.into_iter().for_each(|message| self.after(delay, Event::Lost { message }));
        let volume = self.people[client as usize].volume.as_ref();
        if let Some(session) = volume.map(|volume| volume.session()) {
            self.disconnect_from(server, session);
        }
    }

    /// All connections of a client end, and servers notice it.
    pub fn lose_connections_of(&mut self, client: u32) {
        let lost = self.messages.iter().filter(|(_, message)| message.from == Owner::Client(client));
        lost.map(|(number, _)| *number).collect::<Vec<_>>().into_iter().for_each(|message| self.lose_soon(message));
        self.close_listeners_of_client(client);
        if let Some(session) = self.people[client as usize].volume.as_ref().map(|volume| volume.session()) {
            self.disconnect(session);
        }
    }

    /// True if all clients have made all their calls.
    pub fn is_quiet(&self) -> bool {
        let is_done =
            |one: &Person| one.volume.is_some() && one.calls.is_empty() && one.calls_left == 0 && !one.is_at_work;
        self.people.iter().all(|one| is_done(one) && one.script.is_empty())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        (0..self.people.len() as u32).for_each(|client| self.end_client(client));
        (0..self.servers.len() as u32).for_each(|server| self.kill(server));
    }
}

/// Opens a session at one of the servers. `None`: the client's process has ended.
fn open_session(count: u32) -> Option<(ServerId, Welcome)> {
    while !threads::is_dying() {
        let (message, server) = (threads::new_message(), ServerId(threads::below(u64::from(count)) as u32 + 1));
        threads::ask(Action::Open { message, server });
        if let Some(Answer::Opened(welcome)) = answer(message, Some(OPEN_LIMIT), &|| false) {
            return Some((server, *welcome));
        }
        threads::in_world(|world: &mut World| world.lose_session());
        hekate_threads::sleep(OPEN_PAUSE);
    }
    None
}

/// The first characters of a value's debug text.
pub fn briefly(what: &impl std::fmt::Debug) -> String {
    format!("{what:?}").chars().take(240).collect()
}

/// The bytes of a reply in the digest.
fn bytes_of(reply: &Result<Reply>) -> Vec<u8> {
    match reply {
        Ok(reply) => reply.to_bytes().to_vec(),
        Err(error) => error.to_bytes().to_vec(),
    }
}

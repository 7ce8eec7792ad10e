//! Clients in the world: their calls, their threads, and their faults.
//!
//! A client is `hekate_client::Volume` with all its layers. Each call runs on a thread of its own.

use super::client_servers::SimulatedServers;
use super::servers::server_of;
use super::spread::NOT_JUDGED;
use super::threads::{self, Action, MessageNumber, Owner};
use super::workload::{looks_into, next_op, write_at};
use super::world::{Event, Person, World, trace};
use hekate_client::{Context, OpenOptions, Volume};
use hekate_proto::*;
use hekate_transport::Welcome;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Factor by which visitors wait longer between calls than other clients.
const VISIT: u64 = 20;

impl World {
    /// Adds a client.
    pub fn join(&mut self, calls_left: u32, examines: bool) -> u32 {
        let number = self.people.len() as u32;
        let (volume, call, op, script) = (None, None, None, Default::default());
        self.people.push(Person { volume, call, op, calls_left, script, examines });
        self.open_volume(number);
        self.thinks(number);
        number
    }

    /// The client opens the volume, with a new session.
    fn open_volume(&mut self, client: u32) {
        let session = self.coordinator.begin_session();
        let first = self.random.below(u64::from(self.settings.servers)) as u32;
        let map = self.map(first, &self.coordinator.ring.views);
        let (servers, closed) = (self.settings.servers, AtomicBool::new(false));
        let servers = SimulatedServers { first: ServerId(first + 1), count: servers, closed };
        let options = OpenOptions::default();
        let open = || Volume::over(Arc::new(servers), Welcome { session, map }, &options);
        let (opened, actions) = self.threads.with(self.now, &mut self.random, open);
        match opened {
            Ok(volume) => self.people[client as usize].volume = Some(Arc::new(volume)),
            Err(error) => self.wrong.push(format!("client {client} cannot open the volume: {error}")),
        }
        self.act(Owner::Client(client), actions);
    }

    fn thinks(&mut self, number: u32) {
        let is_visitor = self.settings.visitors && number > 0 && !self.people[number as usize].examines;
        let delay = self.delay(self.settings.think_max * if is_visitor { VISIT } else { 1 });
        // A rival asks without delay.
        let is_rival = self.settings.rivals && !self.people[number as usize].script.is_empty();
        self.after(if is_rival { 1 } else { delay }, Event::Next { client: number });
    }

    /// Begins the client's next call.
    pub fn next_call(&mut self, number: u32) {
        let person = &mut self.people[number as usize];
        let Some(volume) = person.volume.clone().filter(|_| person.call.is_none()) else { return };
        let (op, durable) = match person.script.pop_front() {
            Some(op) => {
                let durable = !op.is_read() && self.random.below(100) < self.settings.durable_share;
                (op, durable)
            }
            None if person.calls_left == 0 => return,
            None => {
                person.calls_left -= 1;
                next_op(&self.settings, &self.known, number, &mut self.random)
            }
        };
        let durable = durable && !op.is_read();
        let at = self.moment();
        let person = &mut self.people[number as usize];
        let call = self.history.invoke(number, volume.session(), op.clone(), durable, at);
        (person.call, person.op) = (Some(call), Some(op.clone()));
        trace!(self, "client {number} asks {}", self.history.describe(call));
        let thread = self.threads.add(Owner::Client(number), move || {
            let outcome = volume.call(&Context { durable, ..Context::default() }, op);
            drop(volume);
            threads::ask(Action::Finished(outcome));
        });
        self.resume(thread, None, true);
    }

    /// An idle client reads a file as soon as another view has begun.
    pub fn an_idle_client_looks(&mut self) {
        let free = self.people.iter().position(|one| one.call.is_none() && one.script.is_empty());
        let (Some(client), Some(inode)) = (free, self.known.first_file()) else { return };
        self.people[client].script.push_back(Op::Inode { op: InodeOp::GetAttr { inode } });
        self.after(1, Event::Next { client: client as u32 });
    }

    /// An idle client reads and overwrites the bytes of a write whose outcome the writer does not know yet, and reads
    /// them again afterwards.
    pub fn rival_comes(&mut self, client: u32) {
        let Some(Op::Data { op: DataOp::Write { inode, offset, data, .. } }) = self.people[client as usize].op.clone()
        else {
            return;
        };
        let count = self.people.len() as u32;
        let is_free = |one: &u32| *one != client && self.people[*one as usize].call.is_none();
        let Some(rival) = (0..count).map(|step| (client + 1 + step) % count).find(is_free) else { return };
        trace!(self, "client {rival} comes while client {client} does not know what became of its write");
        self.report.count("branch: a rival comes");
        let length = data.len() as u32;
        let read = || Op::Data { op: DataOp::Read { inode, offset, length, touch: false } };
        let write = Op::Data { op: write_at(inode, offset, u64::from(length), &mut self.random) };
        self.people[rival as usize].script.extend([read(), write, read()]);
        self.people[client as usize].script.push_back(read());
        self.after(1, Event::Next { client: rival });
    }

    /// True if a write of the client is on its way to all members.
    fn is_fast(&self, client: u32) -> bool {
        self.messages.values().any(|message| message.client == client && message.is_fast)
    }

    /// A random client; in an ambush one whose write is in flight to all members, if there is one.
    fn one_client(&mut self) -> u32 {
        let client = self.random.below(self.people.len() as u64) as u32;
        let waylaid = (0..self.people.len() as u32).find(|one| self.settings.ambush && self.is_fast(*one));
        waylaid.unwrap_or(client)
    }

    /// True if it is time for an ambush: a write is in flight to all members, or a leg to another server.
    pub fn is_busy(&self) -> bool {
        self.messages.values().any(|message| message.is_fast) || self.waylaid().is_some()
    }

    pub fn cut_connection(&mut self) {
        let client = self.one_client();
        self.report.count("fault: connection cut");
        // The connection of its oldest message.
        if let Some(message) = self.messages_of(client).first() {
            self.cut(*message);
        }
    }

    /// The client's messages that wait for their replies, in order.
    pub fn messages_of(&self, client: u32) -> Vec<MessageNumber> {
        let own = self.messages.iter().filter(|(_, message)| message.client == client);
        own.map(|(number, _)| *number).collect()
    }

    /// A client dies during its call; another one takes its place.
    pub fn client_dies(&mut self) {
        let number = self.one_client();
        trace!(self, "client {number} dies");
        self.report.count("fault: client death");
        self.end_client(number);
        self.open_volume(number);
        self.thinks(number);
    }

    /// Ends the client's process.
    pub fn end_client(&mut self, number: u32) {
        let person = &mut self.people[number as usize];
        (person.call, person.op) = (None, None);
        let volume = person.volume.take();
        self.threads.end(Owner::Client(number), volume, self.now, &mut self.random);
        self.messages.retain(|_, message| message.client != number);
    }

    /// A call has ended.
    pub fn finished(&mut self, number: u32, outcome: Result<Reply>) {
        let at = self.moment();
        let person = &mut self.people[number as usize];
        let (Some(call), Some(op)) = (person.call.take(), person.op.take()) else { return };
        if let Ok(reply) = &outcome {
            self.known.learn(reply);
            self.report.count(format!("acknowledged: {}", op.label()));
            if person.examines {
                person.script.extend(looks_into(&op, reply));
            }
        } else {
            self.report.count(format!("refused: {}", op.label()));
            let is_loss = matches!(outcome, Err(Error::Lost { .. }));
            self.report.add("branch: an fsync reports a loss", u64::from(is_loss));
        }
        if !person.examines && self.spread.lists_parts(&op) {
            self.report.count(NOT_JUDGED);
        } else {
            let outcome = outcome.map(|reply| self.spread.without_parts(reply));
            self.history.answer(call, at, outcome);
        }
        trace!(self, "client {number} done {}", self.history.describe(call));
        self.thinks(number);
    }

    /// True if all clients have made all their calls.
    pub fn is_quiet(&self) -> bool {
        self.people.iter().all(|one| one.call.is_none() && one.calls_left == 0 && one.script.is_empty())
    }

    /// The server and address of a partition's leader, if its server runs.
    pub fn leader_of(&self, partition: PartitionNumber) -> Option<(u32, hekate_replica::Address)> {
        let brick = self.coordinator.ring.views[partition.0 as usize].leader;
        Some((server_of(&self.servers, brick)?, hekate_replica::Address { partition, brick }))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        (0..self.people.len() as u32).for_each(|client| self.end_client(client));
    }
}

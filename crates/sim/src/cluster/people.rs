//! Clients in the world: their calls, their connections, and the faults of both.

use super::client::{Client, Step};
use super::host::Waiter;
use super::servers::server_of;
use super::workload::{next_op, write_at};
use super::world::{Event, Person, World, trace};
use hekate_proto::*;

/// Longest wait of a client before it retries, in µs.
const RETRY_MAX: u64 = 30_000;

/// Factor by which visitors wait longer between calls than other clients.
const VISIT: u64 = 20;

/// Longest delay of an answer, in µs: its server may be paused before it sends it.
const ANSWER_MAX: u64 = 300_000;

impl World {
    /// Adds a client.
    pub fn join(&mut self, calls_left: u32, examines: bool) -> u32 {
        let mut client = Client::new(self.coordinator.begin_session(), self.coordinator.ring.views.clone());
        client.loose = self.settings.loose;
        let script = Default::default();
        let (call, op, number, connection, at, wrote_request, tries) = (None, None, 0, 0, Default::default(), None, 0);
        self.people.push(Person {
            client,
            call,
            op,
            number,
            connection,
            at,
            wrote_request,
            tries,
            calls_left,
            script,
            examines,
        });
        let number = self.people.len() as u32 - 1;
        self.thinks(number);
        number
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
        if person.call.is_some() {
            return;
        }
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
        let call = self.history.invoke(number, person.client.session, op.clone(), durable, at);
        (person.call, person.op) = (Some(call), Some(op.clone()));
        let step = person.client.begin(op, durable);
        trace!(self, "client {number} asks {}", self.history.describe(call));
        self.take_step(number, step);
    }

    fn take_step(&mut self, number: u32, step: Step) {
        match step {
            Step::Send(brick, request) => {
                self.people[number as usize].at.clear();
                self.send(number, brick, request);
            }
            Step::SendAll(requests, brick, wrote) => {
                self.report.count("branch: a write to all members at once");
                self.people[number as usize].at.clear();
                requests.into_iter().for_each(|(brick, request)| self.send(number, brick, Box::new(request)));
                self.send_wrote(number, brick, wrote);
            }
            Step::WroteAgain(brick, wrote) => self.send_wrote(number, brick, wrote),
            Step::Finished(outcome) => self.finished(number, outcome),
        }
    }

    fn send_wrote(&mut self, client: u32, brick: BrickId, wrote: Box<Request>) {
        self.send(client, brick, wrote);
        let person = &mut self.people[client as usize];
        person.wrote_request = Some(person.number);
    }

    fn send(&mut self, client: u32, brick: BrickId, request: Box<Request>) {
        let found = self.servers.iter().position(|server| server.bricks.contains(&brick));
        let server = found.unwrap_or_default() as u32;
        let person = &mut self.people[client as usize];
        person.number += 1;
        person.at.insert(person.number, server);
        let waiter = Waiter { client, connection: person.connection, number: person.number };
        trace!(self, "client {client} sends to server {server} {:?} {}", request.op_id, briefly(&request.op));
        // One copy of a write to all members may arrive after the others were given up.
        let is_late = matches!(request.target, Target::Replica { .. }) && self.random.once_in(5);
        let delay = self.delay(if is_late { self.settings.late_max } else { self.settings.network.delay_max });
        self.after(delay, Event::Request { server, waiter, request });
    }

    /// Delivers a request to a server.
    pub fn request(&mut self, server: u32, waiter: Waiter, request: Request) {
        if self.servers[server as usize].process.is_none() {
            let delay = self.delay(RETRY_MAX);
            return self.after(delay, Event::Lost { waiter });
        }
        self.report.count("requests");
        self.act_in(server, None, |process, now| process.request(waiter, request, now));
    }

    /// An idle client reads a file as soon as another view has begun.
    pub fn an_idle_client_looks(&mut self) {
        let free = self.people.iter().position(|one| one.call.is_none() && one.script.is_empty());
        let (Some(client), Some(inode)) = (free, self.known.first_file()) else { return };
        let person = &mut self.people[client];
        person.client.views = self.coordinator.ring.views.clone();
        person.script.push_back(Op::Inode { op: InodeOp::GetAttr { inode } });
        self.after(1, Event::Next { client: client as u32 });
    }

    fn is_waiting(&self, waiter: &Waiter) -> bool {
        let person = &self.people[waiter.client as usize];
        person.call.is_some() && person.connection == waiter.connection && person.at.contains_key(&waiter.number)
    }

    /// Delivers a reply to a client.
    pub fn answer(&mut self, waiter: Waiter, reply: Result<Reply>) {
        if !self.is_waiting(&waiter) {
            return;
        }
        trace!(self, "client {} gets {}", waiter.client, briefly(&reply));
        self.note(&reply.to_bytes_for_digest());
        self.check_reply(&waiter, &reply);
        let may_be_damaged = self.may_be_damaged();
        let person = &mut self.people[waiter.client as usize];
        let client = waiter.client;
        let is_fast = person.client.is_fast();
        if is_fast {
            person.at.remove(&waiter.number);
            if person.wrote_request != Some(waiter.number) {
                if let Some(step) = person.client.fast_answered(reply) {
                    self.take_step(client, step);
                }
                return;
            }
        }
        match &reply {
            // The server repairs the block, as a scrub does.
            Err(Error::Damaged { .. }) if may_be_damaged => {
                self.report.count("branch: a damaged block is asked for");
                self.again_later(client);
            }
            Err(Error::StaleView { .. }) => {
                self.report.count("branch: a request in another view");
                self.again_later(client);
            }
            Err(Error::Unavailable { .. } | Error::Poisoned { .. } | Error::Io { .. }) if person.tries < 6 => {
                person.tries += 1;
                self.again_later(client);
            }
            _ if is_fast => {
                if let Some(step) = person.client.wrote_answered(reply) {
                    self.take_step(client, step);
                }
            }
            _ => {
                let step = person.client.answered(reply);
                self.take_step(client, step);
            }
        }
    }

    /// True if something is damaged, or was when an answer was sent that arrives now.
    fn may_be_damaged(&self) -> bool {
        self.rotten.is_some() || self.mended_at > 0 && self.now < self.mended_at + ANSWER_MAX
    }

    /// Complains of answers that are never right.
    fn check_reply(&mut self, waiter: &Waiter, reply: &Result<Reply>) {
        if self.may_be_damaged() && matches!(reply, Err(Error::Damaged { .. })) {
            return;
        }
        if let Err(error @ (Error::Bug { .. } | Error::Damaged { .. } | Error::Protocol { .. })) = reply {
            let op = &self.people[waiter.client as usize].op;
            self.wrong.push(format!("client {} is answered {error} for {op:?}", waiter.client));
        }
    }

    fn again_later(&mut self, client: u32) {
        self.again_within(client, RETRY_MAX);
    }

    fn again_within(&mut self, client: u32, max: u64) {
        let number = self.people[client as usize].number;
        let delay = self.delay(max);
        self.after(delay, Event::Again { client, number });
    }

    /// Sends the request again, in the views of a server that it asked.
    pub fn again(&mut self, client: u32, number: u64) {
        let person = &self.people[client as usize];
        if person.call.is_none() || person.number != number {
            return;
        }
        let server = self.random.below(u64::from(self.settings.servers)) as usize;
        let views = self.servers[server].process.as_ref().map(|process| process.views.clone());
        let person = &mut self.people[client as usize];
        if let Some(views) = views {
            person.client.views = views;
        }
        self.report.count("branch: a request sent again");
        let step = self.people[client as usize].client.again();
        self.take_step(client, step);
    }

    /// Loses a connection: its requests may or may not have been executed.
    pub fn connection_lost(&mut self, waiter: Waiter) {
        if self.is_waiting(&waiter) {
            let person = &mut self.people[waiter.client as usize];
            person.connection += 1;
            person.client.lose_flight();
            self.again_within(waiter.client, self.settings.notice_max);
            if self.settings.rivals {
                self.rival_comes(waiter.client);
            }
        }
    }

    /// An idle client reads and overwrites the bytes of a write whose outcome the writer does not know yet, and reads
    /// them again afterwards.
    fn rival_comes(&mut self, client: u32) {
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

    /// Loses the connections of a server that died.
    pub fn lose_connections(&mut self, server: u32) {
        for client in 0..self.people.len() as u32 {
            let person = &self.people[client as usize];
            let (connection, is_asking) = (person.connection, person.call.is_some());
            let asked = person.at.iter().filter(|(_, at)| is_asking && **at == server);
            // Any of them may have been answered before the server died.
            let lost: Vec<u64> = asked.map(|(number, _)| *number).collect();
            for number in lost {
                let delay = self.delay(RETRY_MAX);
                self.after(delay, Event::Lost { waiter: Waiter { client, connection, number } });
            }
        }
    }

    /// A random client; in an ambush one whose write is in flight to all members, if there is one.
    fn one_client(&mut self) -> u32 {
        let client = self.random.below(self.people.len() as u64) as u32;
        let is_fast = |one: &Person| one.call.is_some() && one.client.is_fast();
        let waylaid = self.people.iter().position(is_fast).filter(|_| self.settings.ambush);
        waylaid.map_or(client, |one| one as u32)
    }

    /// True if it is time for an ambush: a write is in flight to all members, or a leg to another server.
    pub fn is_busy(&self) -> bool {
        self.people.iter().any(|one| one.call.is_some() && one.client.is_fast()) || self.waylaid().is_some()
    }

    pub fn cut_connection(&mut self) {
        let client = self.one_client();
        let person = &self.people[client as usize];
        self.report.count("fault: connection cut");
        let number = person.at.keys().next().copied().unwrap_or(person.number);
        let waiter = Waiter { client, connection: person.connection, number };
        self.connection_lost(waiter);
    }

    /// A client dies during its call; another one takes its place.
    pub fn client_dies(&mut self) {
        let number = self.one_client();
        trace!(self, "client {number} dies");
        self.report.count("fault: client death");
        let session = self.coordinator.begin_session();
        let person = &mut self.people[number as usize];
        person.client = Client::new(session, self.coordinator.ring.views.clone());
        person.client.loose = self.settings.loose;
        (person.call, person.op) = (None, None);
        person.connection += 1;
        self.thinks(number);
    }

    fn finished(&mut self, number: u32, outcome: Result<Reply>) {
        let at = self.moment();
        let person = &mut self.people[number as usize];
        let (Some(call), Some(op)) = (person.call.take(), person.op.take()) else { return };
        person.tries = 0;
        if let Ok(reply) = &outcome {
            self.known.learn(reply);
            self.report.count(format!("acknowledged: {}", op.label()));
            if person.examines {
                examine(person, &op, reply);
            }
        } else {
            self.report.count(format!("refused: {}", op.label()));
            let is_loss = matches!(outcome, Err(Error::Lost { .. }));
            self.report.add("branch: an fsync reports a loss", u64::from(is_loss));
        }
        if !person.examines && person.client.lists_parts(&op) {
            self.report.count("lists that are not judged: of several partitions, while others change them");
        } else {
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

/// The first characters of a value's debug text.
fn briefly(what: &impl std::fmt::Debug) -> String {
    format!("{what:?}").chars().take(240).collect()
}

/// Queues a look into every directory, and a read of every file, that an answer shows.
fn examine(person: &mut Person, op: &Op, reply: &Reply) {
    let (Op::Name { op: NameOp::List { .. } }, Reply::List { entries, .. }) = (op, reply) else { return };
    for entry in entries {
        let inode = entry.inode;
        person.script.push_back(Op::Inode { op: InodeOp::GetAttr { inode } });
        match entry.kind {
            NodeKind::Directory => {
                let list = NameOp::List { dir: inode, after: None, limit: 100, attributes: false, touch: false };
                person.script.push_back(Op::Name { op: list });
            }
            NodeKind::File => {
                let parts = [(0, 200_000), (SHARD_BYTES - 8_000, 16_000)];
                let read = |(offset, length)| Op::Data { op: DataOp::Read { inode, offset, length, touch: false } };
                person.script.extend(parts.map(read));
            }
            _ => {}
        }
    }
}

/// The bytes of an answer in the digest.
trait ForDigest {
    fn to_bytes_for_digest(&self) -> Vec<u8>;
}

impl ForDigest for Result<Reply> {
    fn to_bytes_for_digest(&self) -> Vec<u8> {
        match self {
            Ok(reply) => reply.to_bytes().to_vec(),
            Err(error) => error.to_bytes().to_vec(),
        }
    }
}

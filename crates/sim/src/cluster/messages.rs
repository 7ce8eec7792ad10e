//! Messages between clients and servers, and what threads ask of the world.

use super::coordinator::{RING, VOLUME};
use super::threads::{Action, Answer, MessageNumber, Owner, Suspended, ThreadNumber, key_of};
use super::world::{Event, World, server_number, trace};
use hekate_proto::map::{BrickPlace, Mode, ServerAddress, View, VolumeMap};
use hekate_proto::*;
use std::collections::BTreeSet;

/// Longest time until a client notices that a server has died, in µs.
const NOTICE_MAX: u64 = 30_000;
/// Longest delay of an answer, in µs: its server may be paused before it sends it.
const ANSWER_MAX: u64 = 300_000;
/// Longest time until a thread runs after another one has notified it, in µs.
const WAKE_MAX: u64 = 20;
/// Longest time until a thread tries a lock again that it found held, in µs.
const CONTENDED_MAX: u64 = 200;

/// A client's message that waits for its reply.
#[derive(Debug)]
pub struct Message {
    pub client: u32,
    pub server: u32,
    /// One copy of a write to all members.
    pub is_fast: bool,
    /// Its connection is lost, which the client notices later: no reply arrives.
    pub is_cut: bool,
}

impl World {
    /// Resumes a thread, and carries out what it asks for.
    pub fn resume(&mut self, thread: ThreadNumber, number: Option<u64>, notified: bool) {
        let Some(ran) = self.threads.resume(thread, number, notified, (self.now, &mut self.random)) else { return };
        self.act(ran.owner, ran.actions);
        let number = Some(ran.number);
        match ran.suspended {
            Suspended::Waiting { limit: Some(limit), .. } => {
                self.after(limit.max(1), Event::Resume { thread, number, notified: false })
            }
            Suspended::Waiting { limit: None, .. } | Suspended::Ended | Suspended::Calling(_) => {}
            Suspended::Contended => {
                let delay = self.delay(CONTENDED_MAX);
                self.after(delay, Event::Resume { thread, number, notified: true });
            }
        }
    }

    /// Carries out what a thread has asked for.
    pub fn act(&mut self, owner: Owner, actions: Vec<Action>) {
        let Owner::Client(client) = owner else { return };
        for action in actions {
            match action {
                Action::Spawn(body) => {
                    let (thread, delay) = (self.threads.add(owner, body), self.delay(WAKE_MAX));
                    self.after(delay, Event::Resume { thread, number: None, notified: true });
                }
                Action::Notify { key, all } => self.notify(key, all),
                Action::Send { message, server, requests } => self.send(client, message, server.0 - 1, requests),
                Action::AskMap { message, server } => {
                    let (server, delay) = (server.0 - 1, self.delay(self.settings.network.delay_max));
                    self.messages.insert(message, Message { client, server, is_fast: false, is_cut: false });
                    self.after(delay, Event::AskMap { server, message });
                }
                // Clients of this world are given their sessions, and take no locks.
                Action::Open { .. } | Action::Listen { .. } | Action::Tell { .. } | Action::Count(_) => {}
                Action::Forget { message } => drop(self.messages.remove(&message)),
                Action::Finished(outcome) => self.finished(client, outcome),
            }
        }
    }

    fn notify(&mut self, key: u64, all: bool) {
        let waiting = self.threads.waiting_for(key);
        for (thread, number) in waiting.into_iter().take(if all { usize::MAX } else { 1 }) {
            self.threads.set_notified(thread);
            let delay = self.delay(WAKE_MAX);
            self.after(delay, Event::Resume { thread, number: Some(number), notified: true });
        }
    }

    fn send(&mut self, client: u32, message: MessageNumber, server: u32, requests: Vec<Request>) {
        let is_fast = requests.iter().any(|request| matches!(request.target, Target::Replica { .. }));
        for request in &requests {
            trace!(self, "client {client} sends to server {server} {:?} {}", request.op_id, briefly(&request.op));
        }
        self.messages.insert(message, Message { client, server, is_fast, is_cut: false });
        // One copy of a write to all members may arrive after the others were given up.
        let is_late = is_fast && self.random.once_in(5);
        if is_fast {
            self.report.count("branch: a write to all members at once");
        }
        let delay = self.delay(if is_late { self.settings.late_max } else { self.settings.network.delay_max });
        self.after(delay, Event::Request { server, client, message, requests });
    }

    /// Delivers a batch to a server.
    pub fn request(&mut self, server: u32, client: u32, message: MessageNumber, requests: Vec<Request>) {
        if self.servers[server as usize].process.is_none() {
            return self.lose_soon(message);
        }
        trace!(self, "server {server} gets {} of client {client}", requests.len());
        self.report.add("requests", requests.len() as u64);
        self.act_in(server, None, |process, now| process.batch(message, requests, now));
    }

    /// Delivers a request for the volume's map.
    pub fn ask_map(&mut self, server: u32, message: MessageNumber) {
        let Some(process) = &self.servers[server as usize].process else { return self.lose_soon(message) };
        let map = Box::new(self.map(server, &process.views));
        self.send_answer(message, Answer::Map(map));
    }

    /// Sends an answer to a client.
    pub fn send_answer(&mut self, message: MessageNumber, answer: Answer) {
        let delay = self.delay(self.settings.network.delay_max);
        if let Some(Message { client, .. }) = self.messages.get(&message) {
            self.after(delay, Event::Answer { client: *client, message, answer });
        }
    }

    /// The volume's map, as this server knows the views.
    pub fn map(&self, server: u32, views: &[View]) -> VolumeMap {
        let of_views = views.iter().flat_map(|view| view.members.iter().chain(&view.learners)).map(|one| one.brick);
        let known = self.servers.iter().flat_map(|server| server.bricks.iter().copied());
        let bricks: BTreeSet<BrickId> = of_views.chain(known).collect();
        let place = |brick: BrickId| {
            let server = server_number(&self.settings, brick)?;
            Some(BrickPlace { brick, server: ServerId(server + 1) })
        };
        let servers = (1..=self.settings.servers).map(ServerId);
        VolumeMap {
            volume: VOLUME,
            name: "v".into(),
            ring: RING,
            copies: self.settings.copies,
            mode: Mode::Hsr,
            views: views.to_vec(),
            server: ServerId(server + 1),
            servers: servers.map(|server| ServerAddress { server, endpoints: Vec::new() }).collect(),
            bricks: bricks.into_iter().filter_map(place).collect(),
        }
    }

    /// Delivers an answer to the thread that waits for it.
    pub fn answer(&mut self, client: u32, message: MessageNumber, mut answer: Answer) {
        let arrives = |known: &Message| !known.is_cut || matches!(answer, Answer::Lost);
        if !self.messages.get(&message).is_some_and(arrives) {
            return;
        }
        self.messages.remove(&message);
        if let Answer::Replies(replies) = &mut answer {
            for reply in replies {
                trace!(self, "client {client} gets {}", briefly(reply));
                self.note(&bytes_of(reply));
                self.check_reply(client, reply);
                self.spread.note(self.people[client as usize].op.as_ref(), reply);
                self.as_repaired(reply);
            }
        }
        self.threads.put_answer(message, answer);
        for (thread, number) in self.threads.waiting_for(key_of(message)) {
            self.resume(thread, Some(number), true);
        }
    }

    /// A server repairs what it cannot read, and goes on without a brick that has stopped.
    fn as_repaired(&mut self, reply: &mut Result<Reply>) {
        let may_be_damaged = self.may_be_damaged();
        match reply {
            Err(Error::Damaged { what }) if may_be_damaged => {
                self.report.count("branch: a damaged block is asked for");
                *reply = Err(Error::Unavailable { what: what.clone() });
            }
            Err(Error::Poisoned { what } | Error::Io { what }) => {
                *reply = Err(Error::Unavailable { what: what.clone() });
            }
            Err(Error::StaleView { .. }) => self.report.count("branch: a request in another view"),
            _ => {}
        }
    }

    /// True if something is damaged, or was when an answer was sent that arrives now.
    fn may_be_damaged(&self) -> bool {
        self.rotten.is_some() || self.mended_at > 0 && self.now < self.mended_at + ANSWER_MAX
    }

    /// Complains of answers that are never right.
    fn check_reply(&mut self, client: u32, reply: &Result<Reply>) {
        if self.may_be_damaged() && matches!(reply, Err(Error::Damaged { .. })) {
            return;
        }
        if let Err(error @ (Error::Bug { .. } | Error::Damaged { .. } | Error::Protocol { .. })) = reply {
            let op = &self.people[client as usize].op;
            self.wrong.push(format!("client {client} is answered {error} for {op:?}"));
        }
    }

    /// A message is lost with its connection: it may or may not have been handled.
    pub fn lost(&mut self, message: MessageNumber) {
        let Some(Message { client, .. }) = self.messages.get(&message) else { return };
        let client = *client;
        self.answer(client, message, Answer::Lost);
        if self.settings.rivals {
            self.rival_comes(client);
        }
    }

    /// Cuts the connection of a message.
    pub fn cut(&mut self, message: MessageNumber) {
        if let Some(known) = self.messages.get_mut(&message) {
            known.is_cut = true;
            let delay = self.delay(self.settings.notice_max);
            self.after(delay, Event::Lost { message });
        }
    }

    fn lose_soon(&mut self, message: MessageNumber) {
        let delay = self.delay(NOTICE_MAX);
        self.after(delay, Event::Lost { message });
    }

    /// Loses the connections of a server that died. Any of the messages may have been answered before.
    pub fn lose_connections(&mut self, server: u32) {
        let at = self.messages.iter().filter(|(_, message)| message.server == server);
        let lost: Vec<MessageNumber> = at.map(|(number, _)| *number).collect();
        lost.into_iter().for_each(|message| self.lose_soon(message));
    }
}

/// The first characters of a value's debug text.
pub fn briefly(what: &impl std::fmt::Debug) -> String {
    format!("{what:?}").chars().take(240).collect()
}

/// The bytes of a reply in the digest.
pub fn bytes_of(reply: &Result<Reply>) -> Vec<u8> {
    match reply {
        Ok(reply) => reply.to_bytes().to_vec(),
        Err(error) => error.to_bytes().to_vec(),
    }
}
